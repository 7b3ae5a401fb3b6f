"""Between messages.py and the messages of proto/seine/v1: sequences, items, answers, statuses as errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Optional

import grpc
import numpy as np

from seine.v1 import common_pb2, eviction_pb2, retrieval_service_pb2, status_pb2
from seine_kv.address import unavailable
from seine_kv.grpc.arrays import array_of, tensor_of
from seine_kv.grpc.settings import fill, number_of, word_of
from seine_kv.messages import Answer, Append, Attended, Attention, Item, Retained, SeineError, error_of as seine_error
from seine_kv.settings import handle_of, integer

_PIECE_BYTES = 4 << 20  # of an append: what one message carries


def append_item(append: Append) -> Any:
    item = retrieval_service_pb2.AppendItem(
        handle=common_pb2.SequenceHandle(**handle_of(append.sequence)),
        layer=integer(append.layer, "layer"),
        position=integer(append.position, "position"),
        keys=tensor_of(append.keys, "keys"),
    )
    if append.values is not None:
        item.values.CopyFrom(tensor_of(append.values, "values"))
    if append.queries is not None:
        item.queries.CopyFrom(tensor_of(append.queries, "queries"))
    if append.report is not None:
        item.report = number_of(_REPORT.DESCRIPTOR, append.report, "report")
    return item


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
        keys, retained = append.keys[part], append.retained
        yield append_item(Append(append.sequence, append.layer, position, keys, values, queries, retained))


def retrieve_item(item: Item) -> Any:
    if item.output is not None or item.log_sum_exp is not None:
        raise ValueError("output: in a device's memory, which a server does not write")
    return retrieval_service_pb2.RetrieveItem(
        handle=common_pb2.SequenceHandle(**handle_of(item.sequence)),
        layer=integer(item.layer, "layer"),
        queries=tensor_of(item.queries, "queries"),
        dense_from=None if item.dense_from is None else integer(item.dense_from, "dense_from"),
        positions=None if item.positions is None else tensor_of(item.positions, "positions"),
    )


_REPORT = eviction_pb2.RetainedReport
_REPORTS = {number: word_of(_REPORT.DESCRIPTOR, number) for number in _REPORT.values() if number}
_PATH = retrieval_service_pb2.SearchMode
_PATHS = {number: word_of(_PATH.DESCRIPTOR, number) for number in _PATH.values()}


def selector_of(given: Mapping[str, Any]) -> Any:
    """The Selector of what seine_kv.settings.selector_of returns."""
    given, selector = dict(given), retrieval_service_pb2.Selector()
    if "mass_p" in given:
        given["mass_p"] = dict(zip(("p", "floor", "cap"), given["mass_p"]))
    fill(selector, given, "selector")
    return selector


def attention_of(attention: Attention) -> Any:
    return retrieval_service_pb2.Attention(
        tail=attention.tail,
        scale=attention.scale,
        with_positions=attention.with_positions,
        prompt_mass=attention.prompt_mass,
        softcap=attention.softcap,
    )


def retained_of(retained: Any) -> Optional[Retained]:
    """None of a message that nobody has filled."""
    report = _REPORTS.get(retained.report)
    if report is None:
        return None
    return Retained(
        report=report,
        evictions_before=retained.evictions_before,
        evictions=retained.evictions,
        num_tokens=retained.num_tokens,
        counts=array_of(retained.counts) if retained.HasField("counts") else None,
        dropped=[array_of(positions) for positions in retained.dropped],
        kept=[array_of(positions) for positions in retained.kept],
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
        codes_stale=answer.codes_stale,
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
        codes_stale=answer.codes_stale,
    )


# Errors -------------------------------------------------------------------------------------------------------------


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
        text = unavailable(address, text)
    elif not details.details and code == "DEADLINE_EXCEEDED":
        text = f"no answer from {address} in time"
    return _seine_error(code, " ".join(text.split()), details)


def _seine_error(code: str, message: str, details: Any) -> SeineError:
    # google.rpc's details, read with our wire-identical messages (proto/seine/v1/status.proto).
    field, reason, retry_delay = "", "", 0.0
    for any_detail in details.details:
        if any_detail.type_url.endswith("google.rpc.BadRequest"):
            violations = status_pb2.BadRequest.FromString(any_detail.value).field_violations
            field = violations[0].field if violations else ""
        elif any_detail.type_url.endswith("google.rpc.ErrorInfo"):
            reason = status_pb2.ErrorInfo.FromString(any_detail.value).reason
        elif any_detail.type_url.endswith("google.rpc.RetryInfo"):
            delay = status_pb2.RetryInfo.FromString(any_detail.value).retry_delay
            retry_delay = delay.seconds + delay.nanos / 1e9
    return seine_error(code, message, field, reason, retry_delay)


_CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}
