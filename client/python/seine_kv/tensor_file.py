"""Writes and reads safetensors files with numpy alone.

Layout (https://huggingface.co/docs/safetensors): u64 little-endian header length, a JSON header, then the tensors' bytes
back to back. The safetensors package writes metadata in hash order; this writer keeps the caller's order, so that the same
tensors always make the same bytes, and it renames into place, so that a reader never meets half a file. The metadata opens
with a checksum, as profile/io/checksum.h has it: CRC-32 of every byte of the file but the eight digits that state it.
"""

import json
import math
import os
import re
import secrets
import struct
import zlib

import numpy as np

_NAME_OF_DTYPE = {
    **{"bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "float16": "F16", "uint32": "U32"},
    **{"int32": "I32", "float32": "F32", "uint64": "U64", "int64": "I64", "float64": "F64"},
}
_DTYPE_OF_NAME = {name: np.dtype(dtype).newbyteorder("<") for dtype, name in _NAME_OF_DTYPE.items()}
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_MAX_NESTING = 64  # as of every JSON that Seine reads (profile/io/json.h)
_CHECKSUM_TO_COME = {"seine_checksum": "crc32:00000000"}  # in a header until the digits are known


def write_tensors(path, tensors, metadata):
    """Writes `tensors` (name -> array) and `metadata` (str -> str) to `path`, whole or not at all."""
    header, begin = {"__metadata__": {**_CHECKSUM_TO_COME, **metadata, **_CHECKSUM_TO_COME}}, 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": _NAME_OF_DTYPE[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [begin, begin + array.nbytes],
        }
        begin += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start on 8 bytes, for readers that map the file
    head = _with_checksum(struct.pack("<Q", len(text)) + text, tensors.values())

    path = _place_of(path)
    partial = f"{path}.{secrets.token_hex(8)}.partial"  # what a killed process has left is in nobody's way
    try:
        with open(partial, "wb") as out:
            out.write(head)
            for array in tensors.values():
                out.write(_bytes(array))
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, path)
    except BaseException:
        if os.path.exists(partial):
            os.unlink(partial)
        raise


def _place_of(path):
    """The file that `path` means, a link followed. ValueError where that is no regular file."""
    place = os.path.realpath(path)
    if os.path.exists(place) and not os.path.isfile(place):
        raise ValueError(f"{path}: it is no regular file")
    return place


def _bytes(array):
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()


def _with_checksum(head, arrays):
    """`head`, all that stands before `arrays` in the file, with the checksum's digits in place."""
    before, opening, rest = head.partition(b'"seine_checksum":"crc32:')
    rest = rest[8:]
    crc = zlib.crc32(rest, zlib.crc32(before + opening))
    for array in arrays:
        crc = zlib.crc32(_bytes(array), crc)
    return before + opening + b"%08x" % crc + rest


def read_tensors(path):
    """Returns (tensors, metadata) of a safetensors file; tensors are read-only views of a memory map, and float32 copies
    where they are BF16. Those of a dtype that numpy has no name for are left out. OSError where the file cannot be read;
    ValueError, opening with the path, where it is no safetensors file, is cut short or contradicts itself."""
    tensors, metadata, _ = _read(path, lambda start: np.memmap(path, np.uint8, mode="r", offset=start))
    return tensors, metadata


def _read(path, bytes_from=None):
    """(tensors, metadata, dtypes of the tensors left out), with the promises of the C++ reader (profile/io/tensor_file.h).
    bytes_from: maps the file from an offset on; None: it is read, which a file that is cut short meanwhile survives."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
        if length > min(size - 8, _MAX_HEADER_BYTES):
            raise ValueError(f"{path}: not a safetensors file, or cut short")
        header = _header_of(path, file.read(length))
        start, tensors, unknown, places = 8 + length, {}, {}, []
        mapped = bytes_from is not None and size > start
        data = bytes_from(start) if mapped else np.frombuffer(file.read(), np.uint8)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError(f"{path}: __metadata__ must be an object of strings")
    for name, entry in header.items():
        first, last, shape, dtype = _checked(f"{path}: tensor {_shown(name)}", entry, data.size)
        places.append((first, last, name))
        if dtype == "BF16":
            tensors[name] = _shaped(path, name, _float32_of(data[first:last].view("<u2")), shape)
        elif dtype in _DTYPE_OF_NAME:
            tensors[name] = _shaped(path, name, data[first:last].view(_DTYPE_OF_NAME[dtype]), shape)
        else:
            unknown[name] = dtype
    expected = 0
    for first, last, name in sorted(places):  # back to back, and all of the file
        if first != expected:
            raise ValueError(f"{path}: tensor {_shown(name)} overlaps another, or bytes before it are unused")
        expected = last
    if expected != data.size:
        raise ValueError(f"{path}: {data.size - expected} bytes after the last tensor")
    return tensors, metadata, unknown


def _header_of(path, text):
    """The JSON object that opens the file: every name once, nested no deeper than C++ takes it."""

    def once(pairs):
        names = dict(pairs)
        if len(names) != len(pairs):
            raise ValueError("a name stands twice")
        return names

    try:
        if not text.startswith(b"{"):
            raise ValueError("is no JSON object")
        if _depth_of(text) > _MAX_NESTING:
            raise ValueError(f"is nested more than {_MAX_NESTING} levels deep")
        header = json.loads(text.decode("utf-8"), object_pairs_hook=once, parse_constant=_no_number)
        "".join(header).encode("utf-8")  # a lone surrogate is no text
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a safetensors file: its header {_shown(str(error))}") from None
    return header


def _no_number(word):
    raise ValueError(f"has {word}, which is no JSON")


def _shaped(path, name, array, shape):
    try:
        return array.reshape(shape)
    except ValueError as error:  # more dimensions, or larger ones, than numpy has
        raise ValueError(f"{path}: tensor {_shown(name)}: shape {_shown(str(shape))}: {error}") from None


def _depth_of(text):
    """How deep lists and objects are nested in JSON, whatever stands in its strings."""
    depth = deepest = 0
    for bracket in re.findall(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', text, re.DOTALL):
        depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(bracket, 0)
        deepest = max(deepest, depth)
    return deepest


def _shown(text):
    """A text of a file in an error, on one line and not without end."""
    return repr(text[:100])[1:-1]


def _is_size(value):
    return type(value) is int and 0 <= value < 2**63


def _checked(what, entry, data_size):
    """(first byte, end, shape, dtype) of a tensor's entry. ValueError: it contradicts itself or the file."""
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise ValueError(f"{what}: header needs dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise ValueError(f"{what}: dtype must be text")
    if not isinstance(shape, list) or not all(map(_is_size, shape)):
        raise ValueError(f"{what}: shape must be a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise ValueError(f"{what}: data_offsets must be two sizes")
    first, last = offsets
    size = 2 if dtype == "BF16" else _DTYPE_OF_NAME[dtype].itemsize if dtype in _DTYPE_OF_NAME else None
    if first > last or (size is not None and last - first != math.prod(shape) * size):
        raise ValueError(f"{what}: data_offsets {offsets} contradict shape {_shown(str(shape))} of {_shown(dtype)}")
    if last > data_size:
        raise ValueError(f"{what}: lies outside the file, which may be cut short")
    return first, last, shape, dtype


def _float32_of(bf16):
    """The upper halves of float32: no value is lost."""
    return (bf16.astype("<u4") << 16).view("<f4")


def read_filters(path, negated=True):
    """Q-Filters as they are published: the directions of a safetensors file.

    Returns float32 [num_layers, num_kv_heads, head_dim] in the scorer's own sign: high <k, filter> is kept. Published
    files are negated: score = -<f, k>. With negated=False a file is taken as it is.

    For create_index's eviction["filters"], and one layer of it for evict. OSError where the file cannot be read,
    ValueError where it holds no "q_filters" of that shape or one that is not finite.
    """
    tensors, _, unknown = _read(path)
    filters = tensors.get("q_filters")
    if "q_filters" in unknown:
        raise ValueError(f"{path}: q_filters are of dtype {_shown(unknown['q_filters'])}, which this reader does not know")
    if filters is None or filters.ndim != 3:
        what = "no q_filters" if filters is None else f"q_filters of {list(filters.shape)}"
        raise ValueError(f"{path}: holds {what}, not [num_layers, num_kv_heads, head_dim]")
    filters = np.asarray(filters, np.float32)
    if not np.isfinite(filters).all():
        raise ValueError(f"{path}: q_filters hold NaN or infinity")
    return -filters if negated else filters
