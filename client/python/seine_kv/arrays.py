"""Arrays that go into calls: numpy's, torch's and what numpy can read; the names of their dtypes. Needs numpy alone."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

FLOATS = ("float32", "float16", "bfloat16")  # of keys, values and queries
DTYPES = (*FLOATS, "int32")  # of all that travels
# Other names of settings' words, those of the command line among them.
ALIASES = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "q_head": "per_q_head",
    "kv_head": "per_kv_head",
}


def as_array(array: Any) -> np.ndarray:
    """A numpy array of the same values, not copied where the memory is the host's; bfloat16 is ml_dtypes'."""
    if not is_torch(array):
        return np.asarray(array)
    tensor = array.detach().cpu().contiguous()
    if str(tensor.dtype) != "torch.bfloat16":
        return tensor.numpy()
    import ml_dtypes  # numpy has no bfloat16 of its own

    return tensor.view(sys.modules["torch"].int16).numpy().view(ml_dtypes.bfloat16)


def on_device(array: Any) -> bool:
    """Whether it lies in a CUDA device's memory, as DLPack says."""
    if isinstance(array, np.ndarray) or not hasattr(array, "__dlpack_device__"):
        return False
    kind, _ = array.__dlpack_device__()
    return int(kind) in (2, 13)  # kDLCUDA, kDLCUDAManaged


def is_torch(array: Any) -> bool:
    """Whether it is a torch tensor; torch itself is not imported for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def dtype_word(dtype: Any, field: str) -> str:
    """The word of a float dtype: a word, or numpy's, ml_dtypes' or torch's."""
    word = dtype if isinstance(dtype, str) else str(dtype)
    word = ALIASES.get(word, word.rpartition(".")[2])  # "torch.float16"
    if word not in FLOATS:
        try:
            word = np.dtype(dtype).name  # np.float16, of which str is "<class 'numpy.float16'>"
        except TypeError:
            pass  # refused below
    if word not in FLOATS:
        raise ValueError(f"{field}: must be one of {', '.join(FLOATS)}, not {dtype!r}")
    return word


def check_dtype(array: np.ndarray, name: str) -> None:
    """ValueError for an array of a dtype that does not travel; of one on a device the native module tells."""
    if isinstance(array, np.ndarray) and array.dtype.name not in DTYPES:
        raise ValueError(f"{name}: dtype must be {', '.join(FLOATS[:-1])} or {FLOATS[-1]}, not {array.dtype.name}")
