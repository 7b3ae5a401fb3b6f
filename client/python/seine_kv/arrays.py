"""Between numpy's arrays and the wire's tensors: raw bytes, little-endian and row-major."""

from __future__ import annotations

from typing import Any

import numpy as np

from seine.v1 import common_pb2

DTYPES = {
    "float32": common_pb2.D_TYPE_FLOAT32,
    "float16": common_pb2.D_TYPE_FLOAT16,
    "bfloat16": common_pb2.D_TYPE_BFLOAT16,
    "int32": common_pb2.D_TYPE_INT32,
}
FLOATS = ("float32", "float16", "bfloat16")  # of keys, values and queries
# Other names of settings' words, those of the command line among them.
ALIASES = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "q_head": "per_q_head",
    "kv_head": "per_kv_head",
}
# numpy has no bfloat16 of its own: those arrays come back as their bits, for .view(ml_dtypes.bfloat16).
_NUMPY = {
    common_pb2.D_TYPE_FLOAT32: np.dtype("<f4"),
    common_pb2.D_TYPE_FLOAT16: np.dtype("<f2"),
    common_pb2.D_TYPE_BFLOAT16: np.dtype("<u2"),
    common_pb2.D_TYPE_INT32: np.dtype("<i4"),
}


def dtype_number(dtype: Any, field: str) -> int:
    """The wire's number of a float dtype: a word, or numpy's, ml_dtypes' or torch's."""
    word = dtype if isinstance(dtype, str) else str(dtype)
    word = ALIASES.get(word, word.rpartition(".")[2])  # "torch.float16"
    if word not in FLOATS:
        try:
            word = np.dtype(dtype).name  # np.float16, of which str is "<class 'numpy.float16'>"
        except TypeError:
            pass  # refused below
    if word not in FLOATS:
        raise ValueError(f"{field}: must be one of {', '.join(FLOATS)}, not {dtype!r}")
    return DTYPES[word]


def check_dtype(array: np.ndarray, name: str) -> None:
    if array.dtype.name not in DTYPES:
        raise ValueError(f"{name}: dtype must be {', '.join(FLOATS[:-1])} or {FLOATS[-1]}, not {array.dtype.name}")


def tensor_of(array: Any, name: str) -> common_pb2.Tensor:
    array = np.asarray(array)
    check_dtype(array, name)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return common_pb2.Tensor(dtype=DTYPES[array.dtype.name], shape=array.shape, raw=little.tobytes())


def array_of(tensor: common_pb2.Tensor) -> np.ndarray:
    return np.frombuffer(tensor.raw, _NUMPY[tensor.dtype]).reshape(tuple(tensor.shape))
