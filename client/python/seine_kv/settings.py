"""What callers write, checked and put into the form of a call: dicts of words, numbers and arrays. Needs numpy alone.

Names are those of proto/seine/v1. Words of enums and names of settings are checked where they become messages; here is
what Python allows besides: short forms, numpy's numbers, positions in any order.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any, Optional

import numpy as np

from seine_kv.arrays import ALIASES, as_array, check_dtype, dtype_word
from seine_kv.messages import Append, Sequence, SequenceInfo, Snapshot, wanted_of

# Arguments and what holds them --------------------------------------------------------------------------------------


def integer(value: Any, field: str) -> int:
    """TypeError for what is none; numpy's are."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{field}: must be an int, not {value!r}") from None


def name_of(value: str, field: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{field}: must be its name, a str, not a {type(value).__name__}")
    return value


def handle_of(sequence: Sequence) -> dict[str, Any]:
    """The wire's SequenceHandle."""
    if not isinstance(sequence, Sequence):
        hint = "; its .handle is one" if isinstance(getattr(sequence, "handle", None), Sequence) else ""
        wanted = "must be a Sequence, as create_sequence returns it, or Sequence(index, id)"
        shown = repr(sequence) if isinstance(sequence, str) else f"a {type(sequence).__name__}"
        raise TypeError(f"sequence: {wanted}, not {shown}{hint}")
    return {"index": sequence.index, "id": sequence.id, "generation": sequence.generation}


def sequence_of(handle: Mapping[str, Any]) -> Sequence:
    return Sequence(handle["index"], handle["id"], handle["generation"])


def sequence_info_of(info: Mapping[str, Any]) -> SequenceInfo:
    tokens = list(info["layer_tokens"])
    return SequenceInfo(
        sequence_of(info["handle"]), tokens, info["code_bytes"], info["store_bytes"], info["on_disk"]
    )


def snapshot_of(answer: Mapping[str, Any]) -> Snapshot:
    return Snapshot(answer["bytes"], [sequence_info_of(info) for info in answer["sequences"]])


def check_append(append: Append) -> None:
    """What can be told of an append before any of it leaves; the server checks the rest."""
    handle_of(append.sequence), integer(append.layer, "layer"), integer(append.position, "position")
    shape = list(append.keys.shape)
    if len(shape) != 3:
        raise ValueError(f"keys: must be [tokens, num_kv_heads, head_dim], not {shape}")
    if append.values is not None and list(append.values.shape) != shape:
        raise ValueError(f"values: must have the shape of keys, {shape}, not {list(append.values.shape)}")
    check_dtype(append.keys, "keys")
    if append.values is not None:
        check_dtype(append.values, "values")
    if append.queries is not None:
        if len(append.queries.shape) != 3 or not 1 <= len(append.queries) <= len(append.keys):
            raise ValueError("queries: must be [1 to tokens, num_q_heads, head_dim]")
        check_dtype(append.queries, "queries")
    wanted_of(append.retained)


# Names that settings had before, which are still taken: the json_name of their fields.
OLDER_NAMES = {"beta": "candidate_fraction", "refine": "rescore_k", "rho": "collision_fraction"}


def selector_of(**selector: Any) -> dict[str, Any]:
    """The keyword arguments of a call that select, without those that are None. mass_p is a tuple (p, floor, cap)."""
    given = {name: value for name, value in selector.items() if value is not None}
    if "top_k" in given and "mass_p" in given:
        raise ValueError("top_k and mass_p exclude each other")
    if "mass_p" in given:
        try:
            p, floor, cap = given["mass_p"]
        except (TypeError, ValueError):
            raise TypeError(f"mass_p: must be (p, floor, cap), as (0.9, 1, 1000), not {given['mass_p']!r}") from None
        given["mass_p"] = (p, floor, cap)
    return given


# Eviction -----------------------------------------------------------------------------------------------------------


def positions_of(values: Any, what: str) -> np.ndarray:
    """Positions as the wire wants them: int32, ascending, each once."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError(f"{what}: must be positions, one array of integers, not {array.dtype} {list(array.shape)}")
    if array.size and not 0 <= array.min() <= array.max() < 2**31:
        raise ValueError(f"{what}: positions must lie in [0, 2^31), not {array.min()} to {array.max()}")
    return np.unique(array).astype(np.int32)


def scorer_of(scorer: Any) -> Any:
    """scorer: a name, or a dict of name and its options."""
    return {"name": scorer} if isinstance(scorer, str) else scorer


def budget_of(budget: Any, what: str = "budget") -> Any:
    """budget: tokens a head, or a dict."""
    if budget is None or isinstance(budget, Mapping):
        return budget
    try:
        return {"tokens": operator.index(budget)}
    except TypeError:
        wanted = 'must be tokens a head (an int), or a dict such as {"ratio": 0.75}, the share that goes'
        raise TypeError(f"{what}: {wanted}, not {budget!r}") from None


def keep_of(keep: Any, what: str = "keep") -> Any:
    """keep: a dict, whose positions may come in any order."""
    if not isinstance(keep, Mapping) or keep.get("positions") is None:
        return keep
    return {**keep, "positions": positions_of(keep["positions"], f"{what}.positions")}


def given_of(
    queries: Any = None,
    filters: Any = None,
    scores: Any = (),
    softmax_scale: Optional[float] = None,
    output_projection: Any = None,
) -> dict[str, Any]:
    """What scorers may need besides the keys: the wire's ScorerInputs."""
    return {
        "queries": None if queries is None else as_array(queries),
        "filters": None if filters is None else np.asarray(filters, np.float32),
        "scores": [np.asarray(head, np.float32) for head in scores],
        "softmax_scale": softmax_scale,
        "output_projection": None if output_projection is None else as_array(output_projection),
    }


# Specifications of indexes ------------------------------------------------------------------------------------------


def index_spec(
    name: str, geometry: Mapping[str, Any], dtype: Any, rope: Any, layer_ropes: Any, **settings: Any
) -> dict[str, Any]:
    """The wire's IndexSpec out of create_index's arguments; `settings`: those that are the message's own fields."""
    if not isinstance(name, str):
        raise TypeError(f"name: must be a str, not the {type(name).__name__} {name!r}")
    shape = {field: integer(value, field) for field, value in geometry.items()}
    if isinstance(settings.get("eviction"), Mapping):
        eviction = settings["eviction"] = dict(settings["eviction"])
        eviction["scorer"] = scorer_of(eviction.get("scorer"))
        eviction["budget"] = budget_of(eviction.get("budget"), "eviction.budget")
        eviction["keep"] = keep_of(eviction.get("keep"), "eviction.keep")
        if eviction.get("filters") is not None:
            eviction["filters"] = np.asarray(eviction["filters"], np.float32)
    turns = {"rope": rope, "layer_ropes": list(layer_ropes) if layer_ropes else None}
    return {"name": name, "geometry": {**shape, "dtype": dtype_word(dtype, "dtype"), **turns}, **settings}


def differences(asked: Mapping[str, Any], have: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """What of a specification, as a dict, another one has otherwise; of what is asked for, and of parts that change
    what an index does by being there."""
    for name, want in asked.items():
        at, is_now = f"{path}{name}", have.get(name)
        if isinstance(want, Mapping) and isinstance(is_now, Mapping):
            yield from differences(want, is_now, f"{at}.")
        elif isinstance(want, list) and want and isinstance(want[0], Mapping):
            if len(is_now or ()) != len(want):
                yield f"{at} is of {len(is_now or ())} parts, not {len(want)}"
            else:
                for i, (one, now) in enumerate(zip(want, is_now)):
                    yield from differences(one, now, f"{at}[{i}].")
        elif want is None or np.ndim(want) == 0 and want in ("", 0) or np.size(want) == 0:
            if name in ("eviction", "subspace") and is_now is not None:
                yield f"{at} is stated, and now is not"
        elif not _same(is_now, want) and not (name == "config_json" and have.get("inv_freq")):  # a table may be stated
            yield f"{at} is {is_now if not isinstance(is_now, Mapping) else 'stated'}, not {want}"


def _same(have: Any, want: Any) -> bool:
    """Whether an index's setting is the one asked for, which may be another name of it or more precise than float32."""
    if isinstance(want, str):
        return have == ALIASES.get(want, want)
    if have is None or isinstance(want, Mapping) or np.shape(have) != np.shape(want):
        return False
    return np.allclose(have, want, rtol=1e-6, atol=0)
