"""Between messages.py and the messages of proto/seine/v1: arrays as raw bytes, settings by name, statuses as errors."""

import grpc
import numpy as np

from seine.v1 import common_pb2, eviction_pb2, retrieval_service_pb2, status_pb2
from seine_kv.messages import Answer, Append, Attended, SeineError, Sequence, SequenceInfo

DTYPES = {
    "float32": common_pb2.D_TYPE_FLOAT32,
    "float16": common_pb2.D_TYPE_FLOAT16,
    "bfloat16": common_pb2.D_TYPE_BFLOAT16,
    "int32": common_pb2.D_TYPE_INT32,
}
# numpy has no bfloat16 of its own: those arrays come back as their bits, for .view(ml_dtypes.bfloat16).
_NUMPY = {
    common_pb2.D_TYPE_FLOAT32: np.dtype("<f4"),
    common_pb2.D_TYPE_FLOAT16: np.dtype("<f2"),
    common_pb2.D_TYPE_BFLOAT16: np.dtype("<u2"),
    common_pb2.D_TYPE_INT32: np.dtype("<i4"),
}
_PIECE_BYTES = 4 << 20  # of an append: what one message carries
PATHS = {1: "index", 2: "dense", 3: "exact"}


def handle_of(sequence):
    return common_pb2.SequenceHandle(index=sequence.index, id=sequence.id, generation=sequence.generation)


def sequence_of(handle):
    return Sequence(handle.index, handle.id, handle.generation)


def sequence_info_of(info):
    return SequenceInfo(sequence_of(info.handle), list(info.layer_tokens), info.code_bytes, info.store_bytes)


def _check_dtype(array, name):
    if array.dtype.name not in DTYPES:
        raise ValueError(f"{name}: dtype must be float32, float16 or bfloat16, not {array.dtype.name}")


def tensor_of(array, name):
    array = np.asarray(array)
    _check_dtype(array, name)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return common_pb2.Tensor(dtype=DTYPES[array.dtype.name], shape=array.shape, raw=little.tobytes())


def array_of(tensor):
    return np.frombuffer(tensor.raw, _NUMPY[tensor.dtype]).reshape(tuple(tensor.shape))


def append_item(append):
    item = retrieval_service_pb2.AppendItem(
        handle=handle_of(append.sequence),
        layer=append.layer,
        position=append.position,
        keys=tensor_of(append.keys, "keys"),
    )
    if append.values is not None:
        item.values.CopyFrom(tensor_of(append.values, "values"))
    if append.queries is not None:
        item.queries.CopyFrom(tensor_of(append.queries, "queries"))
    return item


def check_tokens(append):
    if append.keys.ndim != 3 or (append.values is not None and append.values.shape != append.keys.shape):
        raise ValueError("keys and values: must be [tokens, num_kv_heads, head_dim], of one shape")
    _check_dtype(append.keys, "keys")
    if append.values is not None:
        _check_dtype(append.values, "values")
    if append.queries is not None:
        if append.queries.ndim != 3 or not 1 <= len(append.queries) <= len(append.keys):
            raise ValueError("queries: must be [1 to tokens, num_q_heads, head_dim]")
        _check_dtype(append.queries, "queries")


def pieces(append):
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


def retrieve_item(item):
    return retrieval_service_pb2.RetrieveItem(
        handle=handle_of(item.sequence), layer=item.layer, queries=tensor_of(item.queries, "queries")
    )


def selector_of(
    top_k=None,
    mass_p=None,
    scope=None,
    gqa_reduce=None,
    beta=None,
    refine=None,
    with_scores=False,
    exact=False,
    recall_target=None,
):
    if top_k is not None and mass_p is not None:
        raise ValueError("top_k and mass_p exclude each other")
    selector = retrieval_service_pb2.Selector(
        beta=beta,
        recall_target=recall_target,
        refine=refine,
        scope=enum_value(common_pb2.Scope, scope, "scope") if scope else 0,
        gqa_reduce=enum_value(common_pb2.GqaReduce, gqa_reduce, "gqa_reduce") if gqa_reduce else 0,
        with_scores=with_scores,
        exact=exact,
    )
    if top_k is not None:
        selector.top_k = top_k
    if mass_p is not None:
        p, floor, cap = mass_p
        selector.mass_p.CopyFrom(retrieval_service_pb2.MassP(p=p, floor=floor, cap=cap))
    return selector


def attention_of(attention):
    return retrieval_service_pb2.Attention(
        tail=attention.tail, scale=attention.scale, with_positions=attention.with_positions
    )


def attended_of(answer):
    failed = error_of(answer.status)
    return Attended(
        path=PATHS.get(answer.path, "unknown"),
        num_tokens=answer.num_tokens,
        output=None if failed else array_of(answer.output),
        log_sum_exp=None if failed else array_of(answer.log_sum_exp),
        attended_tokens=answer.attended_tokens,
        tail=answer.tail,
        selected=answer_of(answer.selected) if answer.HasField("selected") else None,
        error=failed,
    )


def answer_of(answer):
    has_sets = len(answer.positions.shape) == 2
    return Answer(
        path=PATHS.get(answer.path, "unknown"),
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
    )


def enum_value(enum, name, field):
    """The value of a name such as "window": CENTRE_WINDOW without the enum's prefix."""
    for full_name, value in enum.items():
        if value != 0 and full_name.lower().endswith("_" + str(name)):
            return value
    raise ValueError(f"{field}: unknown value {name}")


def fill(message, settings, what, **enums):
    """Sets fields of `message` from a dict; a key that the message does not have is an error, not ignored."""
    for name, value in (settings or {}).items():
        if name not in message.DESCRIPTOR.fields_by_name:
            raise ValueError(f"{what}: unknown setting {name}")
        if hasattr(getattr(message, name), "extend"):  # a repeated field
            getattr(message, name).extend(value)
        else:
            setattr(message, name, enum_value(enums[name], value, f"{what}.{name}") if name in enums else value)


def fill_scorer(message, scorer):
    enums = {"anchor": eviction_pb2.Anchor, "similarity": eviction_pb2.Similarity, "metric": eviction_pb2.Metric}
    fill(message, {"name": scorer} if isinstance(scorer, str) else scorer, "scorer", **enums)


def fill_eviction(message, scorer, budget, keep):
    """Scorer, budget and keep of a request or of an index's settings."""
    fill_scorer(message.scorer, scorer)
    if budget is not None:
        settings = budget if isinstance(budget, dict) else {"tokens": int(budget)}
        fill(message.budget, settings, "budget", heads=eviction_pb2.HeadBudget)
    if keep is not None:
        fill(message.keep, keep, "keep")


def fill_given(message, queries=None, filters=None, scores=()):
    if queries is not None:
        message.queries.CopyFrom(tensor_of(np.asarray(queries), "queries"))
    if filters is not None:
        message.filters.CopyFrom(tensor_of(np.asarray(filters, np.float32), "filters"))
    for head in scores:
        message.scores.append(tensor_of(np.asarray(head, np.float32), "scores"))


def to_dict(message):
    """A message as nested dicts of Python values; enums by number's name in lower case."""
    out = {}
    for descriptor in message.DESCRIPTOR.fields:
        value = getattr(message, descriptor.name)
        if hasattr(value, "extend"):  # a repeated field
            value = [to_dict(v) if descriptor.message_type is not None else v for v in value]
        elif descriptor.message_type is not None:
            value = to_dict(value)
        elif descriptor.enum_type is not None:
            value = descriptor.enum_type.values_by_number[value].name.lower()
        out[descriptor.name] = value
    return out


# Errors -----------------------------------------------------------------------------------------------------------------


def error_of(status):
    """A wire Status as SeineError, None if it is OK."""
    if status.code == 0:
        return None
    return _seine_error(_CODE_NAMES.get(status.code, "UNKNOWN"), status.message, status)


def error_of_call(error):
    details = status_pb2.Status()
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            details.ParseFromString(value)
    return _seine_error(error.code().name, error.details() or error.code().name, details)


def _seine_error(code, message, details):
    # google.rpc's details, read with our wire-identical messages (proto/seine/v1/status.proto).
    field = reason = ""
    for any_detail in details.details:
        if any_detail.type_url.endswith("google.rpc.BadRequest"):
            violations = status_pb2.BadRequest.FromString(any_detail.value).field_violations
            field = violations[0].field if violations else ""
        elif any_detail.type_url.endswith("google.rpc.ErrorInfo"):
            reason = status_pb2.ErrorInfo.FromString(any_detail.value).reason
    return SeineError(code, message, field, reason)


_CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}
