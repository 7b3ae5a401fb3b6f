"""RoPE as a model's config.json states it: rotation tables, and vectors turned back to position 0. Needs numpy alone.

At position n, pair i of a vector turns by n * inv_freq[i]. Source: RoFormer (arXiv 2104.09864), YaRN (2309.00071), and
transformers' modeling_rope_utils for the names of the parameters. Attention factors scale a head's logits as a whole
and are left out.
"""

import math

import numpy as np

TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional", "none")
NONE = {"rope_type": "none"}  # of layers that do not turn


def rotary_dim(rope, head_dim):
    """In how many first coordinates of a head pairs lie. ValueError for a part that is none."""
    part = rope.get("partial_rotary_factor")
    if part is None or rope.get("rope_type") in ("proportional", "none"):
        return head_dim
    dim = int(part * head_dim) if isinstance(part, (int, float)) and 0 < part <= 1 else 0
    if dim < 2 or dim % 2:
        raise ValueError(f"partial_rotary_factor: must turn an even number of a head's {head_dim} coordinates, not {part}")
    return dim


def inv_freq(rope, head_dim, length):
    """Radians a token of each pair, 0 of those that do not turn. [head_dim / 2] float64

    `rope`: rope_parameters of transformers 5, or NONE. `length`: tokens of the sequence, which dynamic NTK and LongRoPE
    depend on. ValueError names the field that is missing, wrong or not known."""
    kind = rope.get("rope_type", "default")
    if kind not in TYPES:
        raise ValueError(f"rope_type: {kind} is not known; known are {', '.join(TYPES)}")
    table = np.zeros(head_dim // 2)
    if kind != "none":
        turned = _turned(rope, kind, head_dim, length)
        table[: len(turned)] = turned
    return table


def _turned(rope, kind, head_dim, length):
    dim, base = rotary_dim(rope, head_dim), _positive(rope, "rope_theta")
    if kind == "dynamic":
        return _dynamic(rope, base, dim, length)
    table = _powers(base, dim)
    if kind == "proportional":  # Gemma 4's: frequencies of a whole head, of which a part's turn
        return table[: int(rope.get("partial_rotary_factor", 1.0) * head_dim // 2)] / (rope.get("factor") or 1.0)
    if kind == "longrope":
        field = "long_factor" if length > _positive(rope, "original_max_position_embeddings") else "short_factor"
        factors = rope.get(field)
        if not isinstance(factors, (list, tuple)) or len(factors) != len(table):
            raise ValueError(f"{field}: expected {len(table)} factors, got {factors}")
        return table / np.array(factors, np.float64)
    if kind == "linear":
        return table / _positive(rope, "factor")
    if kind == "yarn":
        return _yarn(rope, base, table)
    return _llama3(rope, table) if kind == "llama3" else table


def _positive(rope, field):
    value = rope.get(field)
    if not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"{field}: expected a positive number, got {value}")
    return float(value)


def _powers(base, head_dim):
    return base ** (-np.arange(0, head_dim, 2) / head_dim)


def _dynamic(rope, base, head_dim, length):
    """NTK: the base grows once the sequence outgrows the original context."""
    factor, original = _positive(rope, "factor"), _positive(rope, "original_max_position_embeddings")
    stretch = factor * max(length, original) / original - (factor - 1)
    return _powers(base * stretch ** (head_dim / (head_dim - 2)), head_dim)


def _yarn(rope, base, table):
    """Pairs that turn often in the original context stay, those that turn less than once slow down, a ramp between."""
    factor, original = _positive(rope, "factor"), _positive(rope, "original_max_position_embeddings")
    half = len(table)

    def pair_of(turns):  # that turns so often in the original context
        return half * math.log(original / (turns * 2 * math.pi)) / math.log(base)

    low, high = pair_of(rope.get("beta_fast") or 32), pair_of(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    slowed = np.clip((np.arange(half) - low) / (high - low if high != low else 0.001), 0, 1)
    return table * (1 - slowed) + table / factor * slowed


def _llama3(rope, table):
    factor, original = _positive(rope, "factor"), _positive(rope, "original_max_position_embeddings")
    low, high = _positive(rope, "low_freq_factor"), _positive(rope, "high_freq_factor")
    if low >= high:
        raise ValueError(f"low_freq_factor: {low} must be below high_freq_factor ({high})")
    turns = original * table / (2 * math.pi)  # in the original context
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return table * kept + table / factor * (1 - kept)


def undo_rope(x, first_position, table, style, part=None):
    """x [heads, n, head_dim] seen at first_position, first_position + 1, ..., turned back to position 0; float64.

    part: rotary_dim(), in which pairs lie; None: all of the head."""
    dim = part or 2 * len(table)
    half = dim // 2
    first, second = {
        "half_split": (slice(0, half), slice(half, dim)),
        "interleaved": (slice(0, dim, 2), slice(1, dim, 2)),
    }[style]
    angle = (first_position + np.arange(x.shape[1]))[:, None] * table[:half]
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = x[..., first].astype(np.float64), x[..., second].astype(np.float64)
    out = x.astype(np.float64)
    out[..., first], out[..., second] = a * cos + b * sin, b * cos - a * sin
    return out
