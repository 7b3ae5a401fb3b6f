"""RoPE as a model's config.json states it, by the C++ of profiles and indexes (profile/rope.h).

Source: RoFormer (arXiv 2104.09864), YaRN (2309.00071), and transformers' modeling_rope_utils for the names of the
parameters. Attention factors scale a head's logits as a whole and are left out.
"""

import json

import numpy as np

TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional", "none")
NONE = {"rope_type": "none"}  # of layers that do not turn


def rope_of(parameters, head_dim, style="half_split", length=1):
    """How heads turn that these rope_parameters of transformers 5, or NONE, are of: native's Rope (_native.pyi).

    None: not stated, and undo leaves vectors as they are. `length`: tokens of the sequence, which dynamic NTK and LongRoPE
    depend on. ValueError names the field that is missing, wrong or not known: "rope.factor: ..."."""
    from seine_kv.stream import native

    if parameters is None:
        return native.Rope("", head_dim, style, length)
    # In text all axes of a model that turns by places in images are the position.
    text = {name: value for name, value in parameters.items() if not name.startswith("mrope")}
    return native.Rope(json.dumps(text), head_dim, style, length)


def undone(rope, x, first_position):
    """x [heads, n, head_dim] seen at first_position, first_position + 1, ..., turned back to position 0; float64."""
    out = np.array(x, np.float64, order="C")
    rope.undo(out, first_position)
    return out


def rows_of(x):
    """x [tokens, heads, head_dim] as a ProfileBuilder takes rows."""
    return np.ascontiguousarray(x, np.float32)
