"""Writes safetensors files with numpy alone, and reads them by the C++ reader (profile/io/tensor_file.h).

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

_NAME_OF_DTYPE = {
    **{"bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "float16": "F16", "uint32": "U32"},
    **{"int32": "I32", "float32": "F32", "uint64": "U64", "int64": "I64", "float64": "F64"},
}
_DTYPE_OF_NAME = {name: np.dtype(dtype).newbyteorder("<") for dtype, name in _NAME_OF_DTYPE.items()}
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
    """Returns (tensors, metadata) of a safetensors or .npy file; tensors are read-only views of a memory map, and float32
    copies where they are BF16. Those of a dtype that numpy has no name for are left out. OSError where the file cannot be
    read; ValueError, opening with the path, where it is no such file, is cut short or contradicts itself. ImportError
    without the native module, whose reader this is."""
    file = _native().TensorFile(path, mapped=True)
    return {name: _array_of(path, name, *file.get(name)) for name in file.names}, file.metadata


def _native():
    from seine_kv.stream import native  # its ImportError says how to get it

    return native


def _array_of(path, name, dtype, shape, data):
    array = _float32_of(data.view("<u2")) if dtype == "BF16" else data.view(_DTYPE_OF_NAME[dtype])
    try:
        return array.reshape(shape)
    except ValueError as error:  # more dimensions, or larger ones, than numpy has
        raise ValueError(f"{os.fsdecode(path)}: tensor {name[:100]!r}: {error}") from None


def _float32_of(bf16):
    """The upper halves of float32: no value is lost."""
    return (bf16.astype("<u4") << 16).view("<f4")


def read_filters(path, negated=True):
    """Q-Filters as they are published: the directions of a safetensors file.

    Returns float32 [num_layers, num_kv_heads, head_dim] in the scorer's own sign: high <k, filter> is kept. Published
    files are negated: score = -<f, k>. With negated=False a file is taken as it is.

    For create_index's eviction["filters"], and one layer of it for evict. OSError where the file cannot be read,
    ValueError where it holds no "q_filters" of that shape or one that is not finite. ImportError without the native module;
    a server reads its own as eviction["filters_file"].
    """
    file = _native().TensorFile(path)
    try:
        filters = _array_of(path, "q_filters", *file.get("q_filters"))
    except KeyError:
        raise ValueError(f"{os.fsdecode(path)}: holds no q_filters, but {', '.join(file.names)[:200]}") from None
    if filters.ndim != 3:
        shape = list(filters.shape)
        raise ValueError(f"{os.fsdecode(path)}: holds q_filters of {shape}, not [num_layers, num_kv_heads, head_dim]")
    filters = np.asarray(filters, np.float32)
    if not np.isfinite(filters).all():
        raise ValueError(f"{path}: q_filters hold NaN or infinity")
    return -filters if negated else filters
