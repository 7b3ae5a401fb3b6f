"""Between messages.py and the messages of proto/seine/v1: sequences, items, answers, statuses as errors."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterator
from typing import Any, Optional

import grpc
import numpy as np

from seine.v1 import common_pb2, retrieval_service_pb2, status_pb2
from seine_kv.address import VARIABLE, socket_path
from seine_kv.arrays import array_of, check_dtype, tensor_of
from seine_kv.messages import Answer, Append, Attended, Attention, Item, SeineError, Sequence, SequenceInfo
from seine_kv.settings import number_of, word_of

_PIECE_BYTES = 4 << 20  # of an append: what one message carries


def handle_of(sequence: Sequence) -> common_pb2.SequenceHandle:
    if not isinstance(sequence, Sequence):
        hint = "; its .handle is one" if isinstance(sequence, SequenceInfo) else ""
        wanted = "must be a Sequence, as create_sequence returns it, or Sequence(index, id)"
        shown = repr(sequence) if isinstance(sequence, str) else f"a {type(sequence).__name__}"
        raise TypeError(f"sequence: {wanted}, not {shown}{hint}")
    return common_pb2.SequenceHandle(index=sequence.index, id=sequence.id, generation=sequence.generation)


def name_of(value: str, field: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{field}: must be its name, a str, not a {type(value).__name__}")
    return value


def sequence_of(handle: Any) -> Sequence:
    return Sequence(handle.index, handle.id, handle.generation)


def sequence_info_of(info: Any) -> SequenceInfo:
    return SequenceInfo(sequence_of(info.handle), list(info.layer_tokens), info.code_bytes, info.store_bytes)


def integer(value: Any, field: str) -> int:
    """TypeError for what is none; numpy's are."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{field}: must be an int, not {value!r}") from None


def append_item(append: Append) -> Any:
    item = retrieval_service_pb2.AppendItem(
        handle=handle_of(append.sequence),
        layer=integer(append.layer, "layer"),
        position=integer(append.position, "position"),
        keys=tensor_of(append.keys, "keys"),
    )
    if append.values is not None:
        item.values.CopyFrom(tensor_of(append.values, "values"))
    if append.queries is not None:
        item.queries.CopyFrom(tensor_of(append.queries, "queries"))
    return item


def check_tokens(append: Append) -> None:
    """What can be told of an append before any of it leaves; the server checks the rest."""
    handle_of(append.sequence), integer(append.layer, "layer"), integer(append.position, "position")
    shape = list(append.keys.shape)
    if len(shape) != 3:
        raise ValueError(f"keys: must be [tokens, num_kv_heads, head_dim], not {shape}")
    if append.values is not None and append.values.shape != append.keys.shape:
        raise ValueError(f"values: must have the shape of keys, {shape}, not {list(append.values.shape)}")
    check_dtype(append.keys, "keys")
    if append.values is not None:
        check_dtype(append.values, "values")
    if append.queries is not None:
        if append.queries.ndim != 3 or not 1 <= len(append.queries) <= len(append.keys):
            raise ValueError("queries: must be [1 to tokens, num_q_heads, head_dim]")
        check_dtype(append.queries, "queries")


def pieces(append: Append) -> Iterator[Any]:
    """AppendItems of at most _PIECE_BYTES (but at least one token) that make up `append`."""
    tokens = len(append.keys)
    token_bytes = append.keys.nbytes // max(1, tokens) * (1 if append.values is None else 2)
    asked = 0 if append.queries is None else len(append.queries)
    token_bytes += append.queries.nbytes // asked if asked else 0
    step = max(1, _PIECE_BYTES // max(1, token_bytes))
    for first in range(0, max(1, tokens), step):
        part = slice(first, first + step)
        values = None if append.values is None else append.values[part]
        # Those of the piece's tokens: the first are of token tokens - asked.
        begin, end = max(0, first - tokens + asked), min(first + step, tokens) - tokens + asked
        queries = append.queries[begin:end] if asked and end > 0 else None
        position = append.position + first
        yield append_item(Append(append.sequence, append.layer, position, append.keys[part], values, queries))


def retrieve_item(item: Item) -> Any:
    return retrieval_service_pb2.RetrieveItem(
        handle=handle_of(item.sequence), layer=integer(item.layer, "layer"), queries=tensor_of(item.queries, "queries")
    )


SELECTOR = ("top_k", "mass_p", "scope", "gqa_reduce", "beta", "recall_target", "refine", "with_scores", "exact")
_SELECTOR_ENUMS = {"scope": common_pb2.Scope.DESCRIPTOR, "gqa_reduce": common_pb2.GqaReduce.DESCRIPTOR}
_PATHS = {number: word_of(retrieval_service_pb2.Path.DESCRIPTOR, number) for number in retrieval_service_pb2.Path.values()}


def selector_of(**selector: Any) -> Any:
    """The Selector of a call's keyword arguments; what is None is left out."""
    for name in selector:
        if name not in SELECTOR:
            raise TypeError(f"unknown argument {name}; a selector has {', '.join(SELECTOR)}")
    given = {name: value for name, value in selector.items() if value is not None}
    if "top_k" in given and "mass_p" in given:
        raise ValueError("top_k and mass_p exclude each other")
    for name, enum in _SELECTOR_ENUMS.items():
        if name in given:
            given[name] = number_of(enum, given[name], name)
    if "mass_p" in given:
        try:
            p, floor, cap = given["mass_p"]
        except (TypeError, ValueError):
            raise TypeError(f"mass_p: must be (p, floor, cap), as (0.9, 1, 1000), not {given['mass_p']!r}") from None
        given["mass_p"] = retrieval_service_pb2.MassP(p=p, floor=floor, cap=cap)
    return retrieval_service_pb2.Selector(**given)


def attention_of(attention: Attention) -> Any:
    return retrieval_service_pb2.Attention(
        tail=attention.tail, scale=attention.scale, with_positions=attention.with_positions
    )


def path_of(answer: Any) -> str:
    return _PATHS.get(answer.path) or "unknown"


def attended_of(answer: Any) -> Attended:
    failed = error_of(answer.status)
    return Attended(
        path=path_of(answer),
        num_tokens=answer.num_tokens,
        output=None if failed else array_of(answer.output),
        log_sum_exp=None if failed else array_of(answer.log_sum_exp),
        attended_tokens=answer.attended_tokens,
        tail=answer.tail,
        selected=answer_of(answer.selected) if answer.HasField("selected") else None,
        error=failed,
        codes_outgrown=answer.codes_outgrown,
    )


def answer_of(answer: Any) -> Answer:
    has_sets = len(answer.positions.shape) == 2
    return Answer(
        path=path_of(answer),
        num_tokens=answer.num_tokens,
        zone_begin=answer.zone_begin,
        zone_end=answer.zone_end,
        all_returned=answer.all_returned,
        positions=array_of(answer.positions) if has_sets else np.empty((0, 0), np.int32),
        counts=array_of(answer.counts) if has_sets else np.empty(0, np.int32),
        scores=array_of(answer.scores) if len(answer.scores.shape) == 2 else None,
        masses=array_of(answer.masses) if answer.HasField("masses") else None,
        capped=answer.capped,
        dense_positions=[array_of(positions) for positions in answer.dense_positions],
        error=error_of(answer.status),
        codes_outgrown=answer.codes_outgrown,
    )


# Errors -----------------------------------------------------------------------------------------------------------------


def error_of(status: Any) -> Optional[SeineError]:
    """A wire Status as SeineError, None if it is OK."""
    if status.code == 0:
        return None
    return _seine_error(_CODE_NAMES.get(status.code, "UNKNOWN"), status.message, status)


def error_of_call(error: Any, address: str) -> SeineError:
    """What a call of gRPC's raised; what gRPC itself says of a server that is not there, in a line of ours."""
    details = status_pb2.Status()
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            details.ParseFromString(value)
    code, text = error.code().name, error.details() or error.code().name
    if not details.details and code == "UNAVAILABLE":
        path = socket_path(address)
        if path is not None and not os.path.exists(path):
            text = no_server(address, "there is no such socket")
        elif "connection refused" in text.lower():
            text = no_server(address, "the connection was refused")
        elif "failed to connect" in text.lower() or "resol" in text.lower():
            text = no_server(address, text.rpartition("error: ")[2])
        else:
            text = f"lost the server at {address}: {text}"
    elif not details.details and code == "DEADLINE_EXCEEDED":
        text = f"no answer from {address} in time"
    return _seine_error(code, " ".join(text.split()), details)


def no_server(address: str, why: str) -> str:
    return f"no server at {address} ({why}); start one with seined, or say where it is: Client(address) or {VARIABLE}"


def _seine_error(code: str, message: str, details: Any) -> SeineError:
    # google.rpc's details, read with our wire-identical messages (proto/seine/v1/status.proto).
    field = reason = ""
    for any_detail in details.details:
        if any_detail.type_url.endswith("google.rpc.BadRequest"):
            violations = status_pb2.BadRequest.FromString(any_detail.value).field_violations
            field = violations[0].field if violations else ""
        elif any_detail.type_url.endswith("google.rpc.ErrorInfo"):
            reason = status_pb2.ErrorInfo.FromString(any_detail.value).reason
    message = re.sub(r"\bD_TYPE_([A-Z0-9]+)\b", lambda dtype: dtype[1].lower(), message)  # in the words that callers use
    return SeineError(code, message, field, reason)


_CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}
