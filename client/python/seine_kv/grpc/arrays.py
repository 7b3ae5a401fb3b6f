"""Between numpy's arrays and the wire's tensors: raw bytes, little-endian and row-major."""

from __future__ import annotations

from typing import Any

import numpy as np

from seine.v1 import common_pb2
from seine_kv.arrays import as_array, check_dtype

_NUMBERS = {
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


def tensor_of(array: Any, name: str) -> common_pb2.Tensor:
    array = as_array(array)
    check_dtype(array, name)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return common_pb2.Tensor(dtype=_NUMBERS[array.dtype.name], shape=array.shape, raw=little.tobytes())


def array_of(tensor: common_pb2.Tensor) -> np.ndarray:
    return np.frombuffer(tensor.raw, _NUMPY[tensor.dtype]).reshape(tuple(tensor.shape))
