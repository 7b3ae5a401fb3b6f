"""A GGUF's header: what the model is made of, without its weights."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_LONGEST = 1 << 20  # entries of arrays that are kept; vocabularies are passed over
_ALIBI = ("bloom", "refact", "jina-bert-v2")  # whose bias no key states


class GgufError(ValueError):
    """A file that is no GGUF, or one that cannot be read."""


def _read(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise GgufError("it ends in the middle of its header")
    return data


def _number(file: BinaryIO, form: str) -> Any:
    return struct.unpack(form, _read(file, struct.calcsize(form)))[0]


def _string(file: BinaryIO) -> str:
    size = _number(file, "<Q")
    if size > _LONGEST:
        raise GgufError("a string of its header is longer than any is")
    return _read(file, size).decode("utf-8", "replace")


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind in _SCALARS:
        return _number(file, _SCALARS[kind])
    if kind != _ARRAY:
        raise GgufError(f"its header has values of kind {kind}, which is unknown")
    of, count = _number(file, "<I"), _number(file, "<Q")
    if of == _STRING:
        for _ in range(count):
            file.seek(_number(file, "<Q"), os.SEEK_CUR)
        return None
    if of not in _SCALARS:
        raise GgufError(f"its header has an array of kind {of}, which is unknown")
    size = struct.calcsize(_SCALARS[of])
    if count > _LONGEST:
        file.seek(count * size, os.SEEK_CUR)
        return None
    return [entry for (entry,) in struct.iter_unpack(_SCALARS[of], _read(file, count * size))]


def read_header(path: str | Path) -> dict[str, Any]:
    """The file's keys and values. GgufError: it is none of GGUF's versions 2 and 3. OSError: it cannot be read."""
    with open(path, "rb") as file:
        if file.read(4) != b"GGUF":
            raise GgufError("it is no GGUF")
        version = _number(file, "<I")
        if version not in (2, 3):
            raise GgufError(f"it is GGUF of version {version}; 2 and 3 are read")
        _, count = _number(file, "<Q"), _number(file, "<Q")
        header = {}
        for _ in range(count):
            key = _string(file)
            header[key] = _value(file, _number(file, "<I"))
        return header


@dataclass(frozen=True)
class Heads:
    """Layers of one shape."""

    layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    value_head_dim: int


@dataclass(frozen=True)
class Model:
    architecture: str
    name: str
    context: int  # tokens that it was trained for; 0: not stated
    layers: int
    attending: list[Heads]  # the layers that have keys and values
    whole_reason: str  # why none of its attention is answered, whatever its shape is; empty: nothing of that kind


def describe(path: str | Path) -> Model:
    """The model of a GGUF, as far as its header states it. GgufError: it holds no language model."""
    header = read_header(path)
    architecture = header.get("general.architecture")
    get = lambda key, default=None: header.get(f"{architecture}.{key}", default)  # noqa: E731
    layers = get("block_count")
    if not architecture or not layers or get("embedding_length") is None:
        raise GgufError("it states no language model (a part of one names none: the first part does)")
    per_layer = lambda value: list(value) if isinstance(value, list) else [value] * layers  # noqa: E731
    q_heads = per_layer(get("attention.head_count", 0))
    kv_heads = per_layer(get("attention.head_count_kv", get("attention.head_count", 0)))
    interval = get("full_attention_interval", 1)  # the layers between are recurrent
    slides = get("attention.sliding_window_pattern")
    shapes: dict[tuple[int, int, int, int], int] = {}
    for layer, (of_q, of_kv) in enumerate(zip(q_heads, kv_heads)):
        if not of_q or not of_kv or (layer + 1) % interval != 0:
            continue
        swa = "_swa" if isinstance(slides, list) and slides[layer] else ""
        size = get("embedding_length") // of_q
        head_dim = get(f"attention.key_length{swa}", get("attention.key_length", size))
        value_dim = get(f"attention.value_length{swa}", get("attention.value_length", size))
        shape = (of_q, of_kv, head_dim, value_dim)
        shapes[shape] = shapes.get(shape, 0) + 1
    reason = ""
    if get("attention.max_alibi_bias", 0) or architecture in _ALIBI:
        reason = "ALiBi"
    elif get("attention.causal", True) is False:
        reason = "it keeps no keys and values"
    elif not shapes:
        reason = "none of its layers attends"
    return Model(
        architecture,
        header.get("general.name") or Path(path).name,
        get("context_length", 0),
        layers,
        [Heads(count, *shape) for shape, count in shapes.items()],
        reason,
    )
