"""Tensors in the memory of an emulated device (open_backend.cc): with DLPack, as torch's on CUDA have it, and out of the
host's reach."""

import ctypes
from contextlib import nullcontext

import torch

from seine_kv import _native

_LIBRARY = ctypes.CDLL(_native.__file__)
_LIBRARY.seine_emulated_put.restype = ctypes.c_void_p
_LIBRARY.seine_emulated_put.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
_LIBRARY.seine_emulated_get.restype = ctypes.c_bool
_LIBRARY.seine_emulated_get.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_LIBRARY.seine_emulated_drop.argtypes = [ctypes.c_int, ctypes.c_void_p]
_NEW_CAPSULE = ctypes.pythonapi.PyCapsule_New
_NEW_CAPSULE.restype, _NEW_CAPSULE.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
_NAME = ctypes.create_string_buffer(b"dltensor")  # a capsule keeps the address alone
_CODES = {torch.float32: (2, 32), torch.float16: (2, 16), torch.bfloat16: (4, 16), torch.int32: (0, 32), torch.int64: (0, 64)}


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Memory:
    def __init__(self, ordinal, tensor):
        self.ordinal, self.size = ordinal, max(1, tensor.numel()) * tensor.element_size()
        self.address = _LIBRARY.seine_emulated_put(ordinal, tensor.data_ptr(), self.size)
        assert self.address

    def __del__(self):
        _LIBRARY.seine_emulated_drop(self.ordinal, self.address)


class Tensor:
    """A copy of a contiguous tensor of torch's, on the device of an ordinal. It must live as long as a call that reads it."""

    streams = []  # that DLPack's consumers have named, of all tensors

    def __init__(self, ordinal, tensor):
        assert tensor.is_contiguous()
        self._memory, self.dtype, self.shape, self.strides = _Memory(ordinal, tensor), tensor.dtype, tuple(tensor.shape), tensor.stride()
        self.ordinal, self.address, self._exports = ordinal, self._memory.address, []

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, index):
        """Of the first dimension: one, or a range."""
        part = Tensor.__new__(Tensor)
        part.__dict__.update(self.__dict__, _exports=[])
        begin = index.indices(len(self))[0] if isinstance(index, slice) else index
        part.address = self.address + begin * self.strides[0] * self.dtype.itemsize
        if isinstance(index, slice):
            part.shape = (len(range(*index.indices(len(self)))), *self.shape[1:])
        else:
            part.shape, part.strides = self.shape[1:], self.strides[1:]
        return part

    def torch(self):
        """The whole of it, brought to the host."""
        out = torch.empty(self.shape, dtype=self.dtype)
        assert _LIBRARY.seine_emulated_get(self.ordinal, self.address, out.data_ptr(), out.numel() * out.element_size())
        return out

    def __array__(self, *_, **__):
        raise TypeError("its memory is the device's")  # as torch says

    def __dlpack_device__(self):
        return 2, self.ordinal  # kDLCUDA

    def __dlpack__(self, *, stream=None, **_):
        Tensor.streams.append(stream)
        dims = (ctypes.c_int64 * max(1, len(self.shape)))
        shape, strides = dims(*self.shape), dims(*self.strides)
        code, bits = _CODES[self.dtype]
        managed = _DLManagedTensor(_DLTensor(self.address, 2, self.ordinal, len(self.shape), code, bits, 1, shape, strides, 0))
        self._exports.append((managed, shape, strides))
        return _NEW_CAPSULE(ctypes.addressof(managed), ctypes.addressof(_NAME), None)


class Lender:
    """seine_kv.hf.device.Lender over an emulated device: torch's tensors of the host stand for those on it."""

    def __init__(self, ordinal):
        self._ordinal = ordinal

    def holds(self, tensor):
        return True

    def here(self):
        return nullcontext()

    def lend(self, tensor):
        return Tensor(self._ordinal, tensor.detach().contiguous())

    def room(self, *shape):
        return Tensor(self._ordinal, torch.full(shape, float("nan")))

    def read(self, room):
        return room.torch()
