"""transformers' DynamicCache that tells its Batch of sequences what happens to its rows, and may leave them to the index."""

from copy import deepcopy

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer


class SeineCache(DynamicCache):
    """A DynamicCache whose rows are sequences of an index. Behaves as DynamicCache in everything else.

    A crop, a reset or an edit through its layers is seen before the next forward, or the next copy: `settle` compares the
    layers' tensors with those that the last forward left. A deep copy copies its batch, which forks.
    """

    batch = None  # the Batch, once a forward has used the cache
    seen = ()  # a Seen a layer, as the last forward left it

    @classmethod
    def adopt(cls, cache):
        """Makes `cache` a SeineCache in place, so that whoever holds it keeps it. What it holds is sent when used."""
        if type(cache) is DynamicCache:
            cache.__class__ = cls
        if not isinstance(cache, cls):
            raise ValueError(f"cache: Seine needs a DynamicCache, not a {type(cache).__name__}")
        return cache

    def follow(self, batch):
        """Makes `batch` that of the cache. Where its owner keeps no rows in torch, the cache's layers leave them to it."""
        self.batch, served = batch, batch.owner.sources
        while len(self.layers) <= max(served):  # transformers adds a layer when it is first written
            self.layers.append(DynamicLayer())
        for layer in map(self.layers.__getitem__, served):
            if type(layer) is DynamicSlidingWindowLayer:  # of a window that never binds
                layer.__class__ = DynamicLayer
        if batch.owner.keeps_cache:
            return
        for layer, number in served.items():
            IndexLayer.adopt(self.layers[layer], batch, number)

    def holds_elsewhere(self):
        """Whether rows of the cache lie in an index, and nowhere else."""
        return any(isinstance(layer, IndexLayer) and layer.length and layer.pending is None for layer in self.layers)

    def settle(self):
        """Has the batch forget the columns that are no longer those that the last forward left."""
        if self.batch is None or not self.seen:
            return
        lengths = {layer.length for layer in self.layers if isinstance(layer, IndexLayer)}
        if len(lengths) > 1:
            raise ValueError(f"cache: its layers hold {sorted(lengths)} tokens; crop all to the same length")
        kept = [seen.kept(layer, self.offloading) for seen, layer in zip(self.seen, self._served())]
        self.seen = ()  # lets the tensors go before they are copied
        self.batch.cut(min(kept))

    def note(self):
        """Remembers the layers as they are: what the batch has been told of."""
        self.seen = tuple(map(Seen, self._served()))

    def _served(self):
        """The layers that the index has rows of."""
        return [self.layers[layer] for layer in self.batch.owner.sources] if self.batch is not None else ()

    def __deepcopy__(self, memo):
        self.settle()
        copy = memo[id(self)] = self.__class__.__new__(self.__class__)
        copy.__dict__.update((name, deepcopy(value, memo)) for name, value in self.__dict__.items())
        for cache in (self, copy):
            cache.note()
        return copy

    def reorder_cache(self, beam_idx):
        self.settle()
        super().reorder_cache(beam_idx)
        self._select(beam_idx.tolist())

    def batch_select_indices(self, indices):
        self.settle()
        super().batch_select_indices(indices)
        if self.batch is not None:
            self._select((indices.nonzero().flatten() if indices.dtype == torch.bool else indices).tolist())

    def batch_repeat_interleave(self, repeats):
        self.settle()
        super().batch_repeat_interleave(repeats)
        if self.batch is not None:
            self._select([row for row in range(len(self.batch.rows)) for _ in range(repeats)])

    def _select(self, rows):
        if self.batch is not None:
            self.batch.select(rows)
            self.note()


class Seen:
    """A layer's tensors as they were. They are held, so that no other can lie where they did."""

    def __init__(self, layer):
        self.held = ()
        if isinstance(layer, IndexLayer):
            layer.kept = layer.length
        elif layer.get_seq_length():
            self.held = tuple((rows, _version(rows)) for rows in (layer.keys, layer.values))

    def kept(self, layer, moved):
        """Columns from the first on that `layer` still has as they were. moved: its tensors travel between devices, so
        that their lengths alone tell."""
        if isinstance(layer, IndexLayer):
            return min(layer.kept, layer.length)
        if not self.held or not layer.get_seq_length():
            return 0
        now = (layer.keys, layer.values)
        if not moved and not all(_begins(rows, *was) for rows, was in zip(now, self.held)):
            return 0
        return min(rows.shape[-2] for rows in (*now, *(rows for rows, _ in self.held)))


def _begins(rows, was, version):
    """Whether `rows` are `was`, unwritten since, or its first columns."""
    if _version(rows) != version or rows.data_ptr() != was.data_ptr() or rows.device != was.device:
        return False
    return rows.stride() == was.stride() and rows.shape[:2] == was.shape[:2] and rows.shape[3:] == was.shape[3:]


def _version(rows):
    """How often a tensor has been written in place; torch counts it not for those of inference mode."""
    return None if rows.is_inference() else rows._version


class IndexLayer(DynamicLayer):
    """One layer of a cache whose keys and values lie in the index alone.

    A decode step's update hands on the new token and no more, as does a prompt's block where it attends what is
    retained; a longer one also what is read back. `keys` and `values`
    read all back, [rows, KV heads, tokens, head_dim], in the dtype that came; to the index's rounding.
    """

    @classmethod
    def adopt(cls, layer, batch, number):
        """Makes `layer` one of these in place. What it holds is pending: the next update hands it on, to be sent."""
        if type(layer) is DynamicLayer:
            held = (layer.keys, layer.values) if layer.get_seq_length() else None
            layer.__dict__.pop("keys", None)
            layer.__dict__.pop("values", None)
            layer.__class__ = cls
            layer.pending, layer.length = held, held[0].shape[-2] if held else 0
            layer.kept = layer.length  # columns that no crop or reset has touched since the last forward
            if held:
                layer.lazy_initialization(*held)
        if not isinstance(layer, cls):
            raise ValueError(f"cache: Seine needs layers of the kind DynamicLayer, not {type(layer).__name__}")
        layer.batch, layer.number = batch, number
        batch.layers[number] = layer

    def restore(self):
        """Makes it a DynamicLayer again, which holds what was read back."""
        keys, values = self._held()
        self.__class__ = DynamicLayer
        del self.pending, self.length, self.kept, self.batch, self.number
        self.keys, self.values = keys, values

    def __deepcopy__(self, memo):
        copy = IndexLayer.__new__(IndexLayer)
        copy.__dict__.update(self.__dict__)
        copy.batch = memo[id(self.batch)] if id(self.batch) in memo else self.batch.__deepcopy__(memo)
        memo[id(self.batch)] = copy.batch
        copy.batch.layers[copy.number] = copy
        return copy

    def lazy_initialization(self, key_states, value_states):
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True

    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        past, new, owner = self.length, key_states.shape[-2], self.batch.owner
        if past and self.pending is None and not owner.attached:
            raise RuntimeError("cache: its keys and values lay in an index that has been uninstalled, and are lost")
        new_alone = (new == 1 and not self.batch.shows_all) or past == 0 or owner.block is not None
        before = self.pending if self.pending is not None or new_alone else self._held()
        self.length, self.pending = past + new, None
        if before is None:
            return key_states, value_states
        return torch.cat([before[0], key_states], dim=-2), torch.cat([before[1], value_states], dim=-2)

    def get_seq_length(self):
        return self.length

    @property
    def keys(self):
        return self._held()[0]

    @property
    def values(self):
        return self._held()[1]

    def _held(self):
        if self.pending is not None or not self.length:
            return self.pending or (None, None)
        return self.batch.read(self.number, self.length, self.dtype, self.device)

    def reset(self):
        self.pending, self.length, self.kept, self.is_initialized = None, 0, 0, False

    def crop(self, tokens_to_remove):
        """As the version of transformers at hand crops: some read 0 or more as the length that is left, some give a tensor."""
        like = DynamicLayer()
        like.keys = like.values = torch.empty(1, 1, self.length, 1, device="meta")
        like.is_initialized = True
        like.crop(tokens_to_remove)
        self.length = like.keys.shape[-2]
        self.kept = min(self.kept, self.length)
        self._change(lambda rows: rows[..., : self.length, :])

    def reorder_cache(self, beam_idx):
        self._change(lambda rows: rows.index_select(0, beam_idx.to(rows.device)))

    def batch_repeat_interleave(self, repeats):
        self._change(lambda rows: rows.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices):
        self._change(lambda rows: rows[indices, ...])

    def _change(self, change):
        """What lies in the index follows the Batch."""
        if self.pending is not None:
            self.pending = tuple(change(rows) for rows in self.pending)

    def offload(self):
        """Nothing of it lies on a device."""

    def prefetch(self):
        """Nothing of it lies on a device."""
