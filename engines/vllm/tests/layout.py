"""The order of keys and values in a block of vLLM's cache, by its own kernels and by Seine: what is read through one is decoded by
the other."""

import torch
from vllm import _custom_ops as ops

BLOCKS_AT_ONCE = 256  # of a layer, that are copied


class Order:
    """Of the blocks of layers of one shape, by what vLLM's own write does with numbers."""

    def __init__(self, layer, block_size, head_dim, dtype):
        self.block, self.dim = block_size, head_dim
        self.keys, self.values = self._found(layer.isa, dtype)

    def _found(self, isa, dtype):
        """[block x head_dim] of each of keys and values: where in its half of the block a token's element lies."""
        count = self.block * self.dim
        digits = 128  # bfloat16 holds such numbers
        found = [torch.zeros(count, dtype=torch.int64), torch.zeros(count, dtype=torch.int64)]
        for power in (digits, 1):
            numbers = (torch.arange(count) // power % digits).to(dtype).view(self.block, 1, self.dim)
            cache = torch.zeros(1, 1, 2 * self.block, self.dim, dtype=dtype)
            keys, values = cache.chunk(2, dim=2)
            ops.cpu_attn_reshape_and_cache(
                numbers, numbers, keys, values, torch.arange(self.block), isa, k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto"
            )
            for half, lies in zip(found, (keys, values)):
                half += power * lies.reshape(-1).to(torch.int64)
        for lies in found:  # position in the half -> element
            if not torch.equal(lies.sort().values, torch.arange(count)):
                raise RuntimeError("vLLM's kernels do not put each element in one place of a block")
        return found

    def to_stock(self, cache):
        """From Seine's rows [blocks, block_size, KV heads, 2 head_dim] to vLLM's [blocks, KV heads, halves], in place."""
        for part in cache.split(BLOCKS_AT_ONCE):
            n, heads = part.shape[:2]
            rows = part.reshape(n, self.block, heads, 2, self.dim).permute(0, 2, 3, 1, 4).reshape(n, heads, 2, -1)
            part.view(n, heads, 2, -1).copy_(torch.stack([rows[:, :, 0, self.keys], rows[:, :, 1, self.values]], dim=2))

    def to_rows(self, cache):
        """Back."""
        for part in cache.split(BLOCKS_AT_ONCE):
            n, heads = part.shape[:2]
            halves, rows = part.view(n, heads, 2, -1), torch.empty(n, heads, 2, self.block * self.dim, dtype=part.dtype)
            rows[:, :, 0, self.keys], rows[:, :, 1, self.values] = halves[:, :, 0], halves[:, :, 1]
            part.view(n, self.block, heads, 2 * self.dim).copy_(
                rows.view(n, heads, 2, self.block, self.dim).permute(0, 3, 1, 2, 4).reshape(n, self.block, heads, -1)
            )
