"""Between torch's tensors and numpy's arrays, without a copy where both lie in the host's memory."""

import torch


def to_numpy(tensor):
    """A contiguous array of the same dtype; bfloat16, which numpy has not, as ml_dtypes has it."""
    tensor = tensor.detach().to("cpu").contiguous()
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    import ml_dtypes

    return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def from_numpy(array, dtype):
    """A tensor of an index's rows, which are of `dtype`; bfloat16 comes as its bits."""
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor.view(dtype)


def dtype_name(dtype):
    """`torch.float16` -> "float16"."""
    return str(dtype).removeprefix("torch.")
