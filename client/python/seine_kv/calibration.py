"""A model's profile out of arrays that are at hand. `python -m seine_kv.profile` measures one on a model and texts.

Needs numpy, and the native module, which measures. What a profile is, and the file: profile/profile.h.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from numpy.typing import ArrayLike

from seine_kv.arrays import as_array
from seine_kv.rope import rope_of, rows_of

WINDOW = 64  # tokens whose mean is taken off their keys, as the index does
STYLES = ("half_split", "interleaved")


def calibrate(
    path: Union[str, os.PathLike[str]],
    queries: Sequence[ArrayLike],
    keys: Sequence[ArrayLike],
    values: Optional[Sequence[ArrayLike]] = None,
    rope: Union[Mapping[str, Any], Sequence[Mapping[str, Any]], None] = None,
    rope_style: str = "half_split",
    sink: int = 16,
    model: str = "",
) -> None:
    """Measures the profile of a model on one text, and writes it to `path`, NAME.profile.safetensors.

    queries, keys, values: one array a layer, in order, as attention sees them, from position 0 on. keys and values
      [tokens, num_kv_heads, head_dim], queries [n, num_q_heads, head_dim] of the last n tokens, float32, float16 or
      bfloat16. Some thousand tokens are enough. Without values the profile serves search alone.
    rope: as config.json states it: rope_theta, rope_type ("default", "linear", "dynamic", "yarn", "llama3", "longrope",
      "proportional"), partial_rotary_factor. None: moments are used as observed, which serves positions like those
      measured only. A list of one a layer where some do not turn: {"rope_type": "none"}.
    rope_style: which elements RoPE pairs, "half_split" or "interleaved".
    sink: first tokens that are left out, as the index keeps them apart. model: its name, which the file states.

    ValueError names what is wrong, or does not fit the other arrays. A file that is there is replaced.
    """
    from seine_kv.stream import native

    layers = _layers(queries, keys, values, sink)
    if rope_style not in STYLES:
        raise ValueError(f"rope_style: must be one of {', '.join(STYLES)}, not {rope_style!r}")
    ropes = list(rope) if isinstance(rope, (list, tuple)) else [rope] * len(layers)
    base, others = _stated(ropes, len(layers))
    first_q, first_k, _ = layers[0]
    head_dim = first_k.shape[2]
    builder = native.ProfileBuilder(len(layers), first_q.shape[1], first_k.shape[1], head_dim)
    for layer, (q, k, v) in enumerate(layers):
        tokens = len(k)
        how, first = rope_of(ropes[layer] or None, head_dim, rope_style, tokens), max(sink, tokens - len(q))
        builder.add_queries(layer, rows_of(q[first - (tokens - len(q)) :]), first, how)
        builder.add_keys(layer, rows_of(k[sink:]), sink, how)
        if v is not None:
            builder.add_values(layer, rows_of(v[sink:]))
    builder.write(
        path,
        model=model,
        texts=["arrays"],
        licence="",
        rope=json.dumps(dict(base)) if base else "",
        layer_ropes=json.dumps(others) if others else "",
        rope_style=rope_style,
        fp32=True,
    )


def _layers(queries: Any, keys: Any, values: Any, sink: int) -> list[tuple[Any, Any, Any]]:
    """(queries, keys, values or None) of each layer, checked against the first."""
    given = {"queries": queries, "keys": keys, "values": values}
    arrays = {name: [as_array(one) for one in many] for name, many in given.items() if many is not None}
    num_layers = len(arrays["keys"])
    if num_layers == 0:
        raise ValueError("keys: must be one array a layer, and there is none")
    for name, many in arrays.items():
        if len(many) != num_layers:
            raise ValueError(f"{name}: must be one array a layer, {num_layers} as keys has, not {len(many)}")
        for layer, one in enumerate(many):
            if one.ndim != 3 or one.shape[1:] != many[0].shape[1:]:
                wanted = "must be [tokens, heads, head_dim] as in every layer"
                raise ValueError(f"{name}[{layer}]: {wanted}, not {list(one.shape)}")
    no_values: list[Any] = [None] * num_layers
    layers = list(zip(arrays["queries"], arrays["keys"], arrays.get("values") or no_values))
    for layer, (q, k, v) in enumerate(layers):
        if not 0 <= sink <= len(k) - WINDOW:
            raise ValueError(f"keys[{layer}]: must have at least {WINDOW} tokens after sink, {sink}, not {len(k)}")
        if q.shape[2] != k.shape[2] or q.shape[1] % k.shape[1]:
            raise ValueError(f"queries[{layer}]: {list(q.shape)} does not go with keys of {list(k.shape)}")
        if not 1 <= len(q) <= len(k) or max(sink, len(k) - len(q)) >= len(k):
            raise ValueError(f"queries[{layer}]: must be of 1 to {len(k)} last tokens, not {len(q)}")
        if v is not None and v.shape != k.shape:
            raise ValueError(f"values[{layer}]: must have the shape of keys, {list(k.shape)}, not {list(v.shape)}")
    return layers


def _stated(ropes: Sequence[Any], num_layers: int) -> tuple[Any, list[dict[str, Any]]]:
    """(RoPE of most layers, layer_ropes of the others), as a profile states them."""
    if len(ropes) != num_layers or any(not one for one in ropes) and any(ropes):
        raise ValueError(f"rope: must be one a layer, {num_layers} as keys has, not {len(ropes)} or None among them")
    base = next((one for one in ropes if one and one.get("rope_type") != "none"), ropes[0])
    groups: list[dict[str, Any]] = []
    for layer, one in enumerate(ropes):
        if one == base:
            continue
        known = next((group for group in groups if group["rope"] == one), None)
        if known is None:
            groups.append(known := {"layers": [], "rope": dict(one)})
        known["layers"].append(layer)
    return base, groups
