"""Tensors of a model on a CUDA device, handed to an index of this process that searches there: neither queries nor outputs
leave it, and keys and values go by one copy of the driver's to the page-locked memory that keeps them (docs/gpu.md)."""

import torch


class Lender:
    """Of one device, by its ordinal. Torch exports tensors of its current device alone, so calls are made inside `here`."""

    def __init__(self, ordinal):
        self._device = torch.device("cuda", ordinal)

    def holds(self, tensor):
        return tensor.device == self._device

    def here(self):
        """A context manager around the calls that take what was lent."""
        return torch.cuda.device(self._device)

    def lend(self, tensor):
        """As the native module takes it."""
        return tensor.detach().contiguous()

    def room(self, *shape):
        """A float32 tensor for an answer."""
        return torch.empty(shape, dtype=torch.float32, device=self._device)

    def read(self, room):
        """What an answer has left in a room, as torch has it."""
        return room


def ordinal_of(model):
    """Of the CUDA device that the model decodes on; None: none, or the host."""
    device = model.device
    return None if device.type != "cuda" else device.index or 0
