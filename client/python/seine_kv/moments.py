"""First and second moments of queries, keys and values in the frame before RoPE, summed in float64. Needs numpy alone.

What a profile holds of a layer, and the file: profile/profile.h.
"""

import numpy as np

WINDOW = 64  # tokens whose mean is taken off their keys, as the index does


def pack(matrices):
    """Upper triangles, row by row. [..., D, D] symmetric -> [..., D (D + 1) / 2]"""
    row, column = np.triu_indices(matrices.shape[-1])
    return matrices[..., row, column]


def unpack(triangles, head_dim):
    """[..., D (D + 1) / 2] -> [..., D, D] symmetric."""
    row, column = np.triu_indices(head_dim)
    matrices = np.empty((*triangles.shape[:-1], head_dim, head_dim), triangles.dtype)
    matrices[..., row, column] = matrices[..., column, row] = triangles
    return matrices


def centres(keys):
    """Means of windows of 64 as the index stores them, int8 with one scale a window, a row for every key.

    keys [heads, n, D], n a multiple of 64 -> the same shape."""
    heads, n, head_dim = keys.shape
    mean = keys.reshape(heads, n // WINDOW, WINDOW, head_dim).mean(2)
    scale = np.abs(mean).max(2, keepdims=True) / 127
    scale[scale == 0] = 1  # a window of zeros
    return np.repeat(np.round(mean / scale) * scale, WINDOW, axis=1)


class Sums:
    """Sums of vectors and of their outer products, for each head."""

    def __init__(self):
        self.vectors, self.products, self.count = 0.0, 0.0, 0

    def add(self, x):
        """x [heads, n, D] float64"""
        self.vectors = self.vectors + x.sum(1)
        self.products = self.products + np.matmul(x.transpose(0, 2, 1), x)
        self.count += x.shape[1]

    def mean(self):
        return self.vectors / self.count

    def moment(self):
        return self.products / self.count


class LayerMoments:
    """The sums of one layer. Vectors are [heads, n, D] after RoPE, already turned back by `undo` where it is given."""

    def __init__(self):
        self.q, self.k, self.residual, self.v = Sums(), Sums(), Sums(), Sums()

    def add_queries(self, queries, undo):
        self.q.add(undo(queries))

    def add_keys(self, keys, undo):
        """Windows begin at the first key; a last part of one counts in k_moment only."""
        self.k.add(undo(keys))
        whole = keys.shape[1] // WINDOW * WINDOW
        if whole:
            self.residual.add(undo(keys[:, :whole] - centres(keys[:, :whole])))

    def add_values(self, values):
        self.v.add(values.astype(np.float64))

    def tensors(self, layer, with_values=True):
        """name -> float64, as the file holds them; values' only where there were any."""
        name = f"layers.{layer}."
        tensors = {
            f"{name}q_mean": self.q.mean(),
            f"{name}q_moment": pack(self.q.moment()),
            f"{name}k_mean": self.k.mean(),
            f"{name}k_moment": pack(self.k.moment()),
            f"{name}k_residual": pack(self.residual.moment()),
        }
        if with_values:
            tensors.update({f"{name}v_mean": self.v.mean(), f"{name}v_moment": pack(self.v.moment())})
        return tensors
