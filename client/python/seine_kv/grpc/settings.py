"""Settings as Python has them, words and dicts, and as the messages of proto/seine/v1 have them, both ways.

What comes back reads as what was put in: enums are words without their type's name ("float16", "per_q_head"), tensors
numpy arrays, and what is absent is None, which in turn may be put in and means: left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from seine.v1 import common_pb2
from seine_kv.arrays import ALIASES
from seine_kv.grpc.arrays import array_of, tensor_of


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


def _older_name(field: Any) -> Optional[str]:
    """The name that a field had before, which it states as its json_name; None: it has had no other."""
    first, *others = field.name.split("_")
    usual = first + "".join(word.capitalize() for word in others)
    return None if field.json_name == usual else field.json_name


def _find(message: Any, name: str) -> Any:
    """The field of this name, or of this older name; None: there is none."""
    field = message.DESCRIPTOR.fields_by_name.get(name)
    return field or next((one for one in message.DESCRIPTOR.fields if _older_name(one) == name), None)


def fill(message: Any, settings: Optional[Mapping[str, Any]], what: str) -> None:
    """Sets fields of `message` from a dict; a name that the message does not have is an error, not ignored, as are two
    fields of which there can be one. What is None is left out."""
    if settings is None:
        return
    if not isinstance(settings, Mapping):
        raise TypeError(f"{what}: must be a dict of settings, not the {type(settings).__name__} {settings!r}")
    taken: dict[str, str] = {}  # oneof -> the field that it is
    given: dict[str, str] = {}  # field -> the name that it was given by
    for name, value in settings.items():
        field = _find(message, name)
        if field is None:
            known = ", ".join(message.DESCRIPTOR.fields_by_name)
            raise ValueError(f"{what}: unknown setting {name}; there are {known}")
        if value is None:
            continue
        if given.setdefault(field.name, name) != name:
            raise ValueError(f"{what}: {given[field.name]} and {name} are one setting".lstrip(": "))
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
    elif hasattr(getattr(message, field.name), "add"):  # repeated messages
        for i, one in enumerate(value):
            _fill_part(getattr(message, field.name).add(), one, f"{what}[{i}]")
    else:
        part = getattr(message, field.name)
        part.SetInParent()
        _fill_part(part, value, what)


def _fill_part(part: Any, value: Any, what: str) -> None:
    if isinstance(part, common_pb2.Tensor):
        part.CopyFrom(tensor_of(value, what))
    else:
        fill(part, value, what)


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
