"""Writes and reads safetensors files with numpy alone.

Layout (https://huggingface.co/docs/safetensors): u64 little-endian header length, a JSON header, then the tensors' bytes
back to back. The safetensors package writes metadata in hash order; this writer keeps the caller's order, so that the same
tensors always make the same bytes, and it renames into place, so that a reader never meets half a file. The metadata opens
with a checksum, as profile/io/checksum.h has it: CRC-32 of every byte of the file but the eight digits that state it.
"""

import json
import os
import secrets
import struct
import zlib

import numpy as np

_NAME_OF_DTYPE = {"float16": "F16", "float32": "F32", "float64": "F64", "int32": "I32", "int64": "I64", "uint8": "U8"}
_DTYPE_OF_NAME = {name: np.dtype(dtype).newbyteorder("<") for dtype, name in _NAME_OF_DTYPE.items()}
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
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
    """Returns (tensors, metadata) of a safetensors file; tensors are read-only views of a memory map."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
        if length > min(size - 8, _MAX_HEADER_BYTES):
            raise ValueError(f"{path}: not a safetensors file, or cut short")
        header = json.loads(file.read(length))
    start, tensors = 8 + length, {}
    data = np.memmap(path, np.uint8, mode="r", offset=start) if size > start else np.empty(0, np.uint8)
    metadata = header.pop("__metadata__", {})
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        dtype = _DTYPE_OF_NAME.get(entry["dtype"])
        if dtype is None:
            raise ValueError(f"{path}: tensor {name} has type {entry['dtype']}, which this reader does not know")
        if not 0 <= first <= last <= data.size:
            raise ValueError(f"{path}: tensor {name} lies outside the file, which may be cut short")
        tensors[name] = data[first:last].view(dtype).reshape(entry["shape"])
    return tensors, metadata


def read_filters(path, negated=True):
    """Q-Filters as they are published: the directions of a safetensors file.

    Returns float32 [num_layers, num_kv_heads, head_dim] in the scorer's own sign: high <k, filter> is kept. Published
    files are negated: score = -<f, k>. With negated=False a file is taken as it is.

    For create_index's eviction["filters"], and one layer of it for evict. OSError where the file cannot be read,
    ValueError where it holds no "q_filters" of that shape or one that is not finite.
    """
    tensors, _ = read_tensors(path)
    filters = tensors.get("q_filters")
    if filters is None or filters.ndim != 3:
        what = "no q_filters" if filters is None else f"q_filters of {list(filters.shape)}"
        raise ValueError(f"{path}: holds {what}, not [num_layers, num_kv_heads, head_dim]")
    filters = np.asarray(filters, np.float32)
    if not np.isfinite(filters).all():
        raise ValueError(f"{path}: q_filters hold NaN or infinity")
    return -filters if negated else filters
