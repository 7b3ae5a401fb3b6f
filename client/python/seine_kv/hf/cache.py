"""transformers' DynamicCache that tells its Batch of sequences what happens to its rows."""

import torch
from transformers import DynamicCache


class SeineCache(DynamicCache):
    """A DynamicCache whose rows are sequences of a server. Behaves as DynamicCache in everything else.

    Cropping needs no word: the next forward finds the cache shorter. A deep copy copies its batch, which forks.
    """

    batch = None  # the Batch, once a forward has used the cache

    @classmethod
    def adopt(cls, cache):
        """Makes `cache` a SeineCache in place, so that whoever holds it keeps it. What it holds is sent when used."""
        if type(cache) is DynamicCache:
            cache.__class__ = cls
        if not isinstance(cache, cls):
            raise ValueError(f"cache: Seine needs a DynamicCache, not a {type(cache).__name__}")
        return cache

    def reorder_cache(self, beam_idx):
        super().reorder_cache(beam_idx)
        self._select(beam_idx.tolist())

    def batch_select_indices(self, indices):
        super().batch_select_indices(indices)
        if self.batch is not None:
            self._select((indices.nonzero().flatten() if indices.dtype == torch.bool else indices).tolist())

    def batch_repeat_interleave(self, repeats):
        super().batch_repeat_interleave(repeats)
        if self.batch is not None:
            self._select([row for row in range(len(self.batch.rows)) for _ in range(repeats)])

    def _select(self, rows):
        if self.batch is not None:
            self.batch.select(rows)
