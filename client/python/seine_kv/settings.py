"""Settings as Python has them, words and dicts, and as the messages of proto/seine/v1 have them, both ways.

What comes back reads as what was put in: enums are words without their type's name ("float16", "per_q_head"), tensors
numpy arrays, and what is absent is None, which in turn may be put in and means: left out.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any, Optional

import numpy as np

from seine.v1 import common_pb2, index_service_pb2
from seine_kv.arrays import ALIASES, array_of, dtype_number, tensor_of


def _prefix(enum: Any) -> str:
    return enum.values_by_number[0].name[: -len("UNSPECIFIED")]


def words(enum: Any) -> list[str]:
    """The words of an enum's descriptor: "per_q_head" is SCOPE_PER_Q_HEAD."""
    return [value.name[len(_prefix(enum)) :].lower() for value in enum.values if value.number != 0]


def number_of(enum: Any, word: Any, field: str) -> int:
    """The number of a word, or of another name that it has. ValueError with the words that there are."""
    known = words(enum)
    found = ALIASES.get(word, word) if isinstance(word, str) else None
    if found not in known:
        raise ValueError(f"{field}: must be one of {', '.join(known)}, not {word!r}")
    return enum.values_by_name[_prefix(enum) + found.upper()].number


def word_of(enum: Any, number: int) -> Optional[str]:
    """None for a value that is not stated."""
    if number == 0:
        return None
    value = enum.values_by_number.get(number)  # a newer server may have more
    return value.name[len(_prefix(enum)) :].lower() if value is not None else f"unknown {number}"


def fill(message: Any, settings: Optional[Mapping[str, Any]], what: str) -> None:
    """Sets fields of `message` from a dict; a name that the message does not have is an error, not ignored, as are two
    fields of which there can be one. What is None is left out."""
    if settings is None:
        return
    if not isinstance(settings, Mapping):
        raise TypeError(f"{what}: must be a dict of settings, not the {type(settings).__name__} {settings!r}")
    taken: dict[str, str] = {}  # oneof -> the field that it is
    for name, value in settings.items():
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            known = ", ".join(message.DESCRIPTOR.fields_by_name)
            raise ValueError(f"{what}: unknown setting {name}; there are {known}")
        if value is None:
            continue
        oneof, path = field.containing_oneof, f"{what}.{name}".lstrip(".")
        if oneof is not None and taken.setdefault(oneof.name, name) != name:
            raise ValueError(f"{what}: {taken[oneof.name]} and {name} exclude each other")
        try:
            _set(message, field, value, path)
        except (TypeError, ValueError) as error:
            if str(error).startswith(path):
                raise
            raise TypeError(f"{path}: {value!r} does not fit: {error}") from None


def _set(message: Any, field: Any, value: Any, what: str) -> None:
    if field.enum_type is not None:
        setattr(message, field.name, number_of(field.enum_type, value, what))
    elif field.message_type is None:
        if hasattr(getattr(message, field.name), "extend"):  # a repeated field
            getattr(message, field.name).extend(value)
        else:
            setattr(message, field.name, value)
    elif field.message_type.name == "Tensor":
        getattr(message, field.name).CopyFrom(tensor_of(positions_of(value, what), what))
    else:
        part = getattr(message, field.name)
        part.SetInParent()
        _SHORT.get(field.message_type.name, fill)(part, value, what)


def positions_of(values: Any, what: str) -> np.ndarray:
    """Positions as the wire wants them: int32, ascending, each once."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError(f"{what}: must be positions, one array of integers, not {array.dtype} {list(array.shape)}")
    if array.size and not 0 <= array.min() <= array.max() < 2**31:
        raise ValueError(f"{what}: positions must lie in [0, 2^31), not {array.min()} to {array.max()}")
    return np.unique(array).astype(np.int32)


def fill_scorer(message: Any, scorer: Any, what: str = "scorer") -> None:
    """scorer: a name, or a dict of name and its options."""
    fill(message, {"name": scorer} if isinstance(scorer, str) else scorer, what)


def fill_budget(message: Any, budget: Any, what: str = "budget") -> None:
    """budget: tokens a head, or a dict."""
    if not isinstance(budget, Mapping):
        try:
            budget = {"tokens": operator.index(budget)}
        except TypeError:
            wanted = 'must be tokens a head (an int), or a dict such as {"ratio": 0.75}, the share that goes'
            raise TypeError(f"{what}: {wanted}, not {budget!r}") from None
    fill(message, budget, what)


_SHORT = {"ScorerSettings": fill_scorer, "Budget": fill_budget}


def fill_eviction(message: Any, scorer: Any, budget: Any, keep: Any) -> None:
    """Scorer, budget and keep of a call."""
    fill_scorer(message.scorer, scorer)
    if budget is not None:
        fill_budget(message.budget, budget)
    fill(message.keep, keep, "keep")


def fill_given(
    message: Any, queries: Any = None, filters: Any = None, scores: Any = (), softmax_scale: Optional[float] = None
) -> None:
    """What scorers may need besides the keys."""
    if queries is not None:
        message.queries.CopyFrom(tensor_of(np.asarray(queries), "queries"))
    if filters is not None:
        message.filters.CopyFrom(tensor_of(np.asarray(filters, np.float32), "filters"))
    if softmax_scale is not None:
        message.softmax_scale = softmax_scale
    for head in scores:
        message.scores.append(tensor_of(np.asarray(head, np.float32), "scores"))


def index_spec(name: str, geometry: Mapping[str, Any], dtype: Any, rope: Any, **settings: Any) -> Any:
    """An IndexSpec out of Client.create_index's arguments; `settings`: those that are the message's own fields."""
    if not isinstance(name, str):
        raise TypeError(f"name: must be a str, not the {type(name).__name__} {name!r}")
    spec = index_service_pb2.IndexSpec(name=name)
    for field, value in geometry.items():
        try:
            setattr(spec.geometry, field, operator.index(value))
        except (TypeError, ValueError):
            raise TypeError(f"{field}: must be an int, not {value!r}") from None
    spec.geometry.dtype = dtype_number(dtype, "dtype")
    fill(spec.geometry.rope, rope, "rope")
    fill(spec, settings, "")
    return spec


def differences(asked: Mapping[str, Any], have: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """What of a specification, as a dict, another one has otherwise; of what is asked for, and of parts that change what
    an index does by being there."""
    for name, want in asked.items():
        at, is_now = f"{path}{name}", have.get(name)
        if isinstance(want, Mapping) and isinstance(is_now, Mapping):
            yield from differences(want, is_now, f"{at}.")
        elif want in (None, "", 0, []):
            if name in ("eviction", "subspace") and is_now is not None:
                yield f"{at} is stated, and now is not"
        elif is_now != want and not (name == "config_json" and have.get("inv_freq")):  # a server may state the table
            yield f"{at} is {is_now if not isinstance(is_now, Mapping) else 'stated'}, not {want}"


def to_dict(message: Any) -> dict[str, Any]:
    """A message as nested dicts of Python values."""
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _value(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if hasattr(value, "extend"):  # a repeated field
        return [_plain(field, part) for part in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _plain(field, value)


def _plain(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        return word_of(field.enum_type, value)
    if field.message_type is None:
        return value
    return array_of(value) if isinstance(value, common_pb2.Tensor) else to_dict(value)
