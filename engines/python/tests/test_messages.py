"""Messages as dicts: every message of every method both ways, words, wrong words, wrong types, arrays."""

import array

import ml_dtypes
import numpy as np
import pytest
import torch
from conftest import same

from seine_kv import _native
from seine_kv.messages import Sequence

SAMPLES = {
    "int": 7,
    "float": 0.5,
    "bool": True,
    "str": "grün",
    "bytes": b"\0\xff",
    "word": None,
    "array": None,
    "dict": None,
}
MESSAGES = sorted({method[side] for method in _native.methods() for side in ("request", "response")})


def sample(message, taken=()):
    """Settings that use every field of a message, one of each oneof, and what they read as."""
    given, read = {}, dict.fromkeys(_native.schema(message))
    for name, field in _native.schema(message).items():
        if field.get("message") == "Status":  # comes out alone
            read[name] = [] if field["repeated"] else None
            continue
        if (message, name) in (("Budget", "ratio"), ("Selector", "mass_p")):  # its other half is given
            continue
        if field["type"] == "dict":
            value, back = sample(field["message"])
        elif field["type"] == "array":
            value = back = (
                np.arange(6, dtype=np.int32) if name == "positions" else np.arange(6, dtype=np.float32).reshape(2, 3)
            )
        else:
            value = back = field["enum"][-1] if field["type"] == "word" else SAMPLES[field["type"]]
        given[name] = [value, value] if field["repeated"] else value
        read[name] = [back, back] if field["repeated"] else back
    return given, read


def test_there_are_methods():
    assert len(MESSAGES) >= 40 and "seine.v1.RetrievalService/Decode" in [
        method["name"] for method in _native.methods()
    ]


@pytest.mark.parametrize("message", MESSAGES)
def test_every_field_reads_as_it_was_put_in(message):
    given, read = sample(message)
    checked = _native.checked(message, given)
    assert same(checked, read), (checked, read)
    assert same(_native.checked(message, checked), read)  # None is left out again
    empty = _native.checked(message, {})
    for name, field in _native.schema(message).items():
        absent = (
            []
            if field["repeated"]
            else None if field["optional"] or "enum" in field else type(SAMPLES[field["type"]])()
        )
        assert empty[name] == absent, name


def test_short_forms():
    spec = _native.checked("EvictRequest", {"handle": Sequence("a", "b", 3), "scorer": "knorm", "budget": np.int64(40)})
    assert spec["handle"] == {"index": "a", "id": "b", "generation": 3}
    assert spec["scorer"]["name"] == "knorm" and spec["budget"]["tokens"] == 40 and spec["budget"]["ratio"] is None
    assert _native.checked("Selector", {"mass_p": (0.5, 1, 9)})["mass_p"] == {"p": 0.5, "floor": 1, "cap": 9}
    assert [
        s["name"] for s in _native.checked("DiagnoseRequest", {"scorers": ("knorm", {"name": "tova"})})["scorers"]
    ] == ["knorm", "tova"]
    for alias, word in (("fp32", "float32"), ("fp16", "float16"), ("bf16", "bfloat16")):
        assert _native.checked("Geometry", {"dtype": alias})["dtype"] == word
    assert _native.checked("Selector", {"scope": "q_head"})["scope"] == "per_q_head"
    for older, name in (("beta", "candidate_fraction"), ("refine", "rescore_k")):
        assert _native.checked("Selector", {older: 1})[name] == 1
        with pytest.raises(ValueError, match=f"{older} and {name} are one setting"):
            _native.checked("Selector", {older: 1, name: 1})


@pytest.mark.parametrize(
    "error, text, message, settings",
    [
        (
            ValueError,
            "zones: unknown setting sinks; there are sink, local, update_buffer, dense_threshold",
            "IndexSpec",
            {"zones": {"sinks": 1}},
        ),
        (ValueError, "IndexSpec: unknown setting colour; there are name, ", "IndexSpec", {"colour": 1}),
        (
            ValueError,
            "retrieval.scope: must be one of per_kv_head, per_q_head, not 'head'",
            "IndexSpec",
            {"retrieval": {"scope": "head"}},
        ),
        (ValueError, "kv_store: must be one of none, keys, keys_values, not 3", "IndexSpec", {"kv_store": 3}),
        (
            ValueError,
            "kv_store: must be one of none, keys, keys_values, not 'unspecified'",
            "IndexSpec",
            {"kv_store": "unspecified"},
        ),
        (
            ValueError,
            "budget: tokens and ratio exclude each other",
            "EvictRequest",
            {"budget": {"tokens": 9, "ratio": 0.5}},
        ),
        (TypeError, "zones: must be a dict of settings, not the int 16", "IndexSpec", {"zones": 16}),
        (TypeError, "zones.sink: 'many' does not fit: must be an int", "IndexSpec", {"zones": {"sink": "many"}}),
        (TypeError, "zones.sink: 1.0 does not fit: must be an int", "IndexSpec", {"zones": {"sink": 1.0}}),
        (
            TypeError,
            "zones.sink: 2147483648 does not fit: must be in [-2147483648, 2147483647]",
            "IndexSpec",
            {"zones": {"sink": 2**31}},
        ),
        (
            TypeError,
            "memory_limit_bytes: 9223372036854775808 does not fit: must be in",
            "IndexSpec",
            {"memory_limit_bytes": 2**63},
        ),
        (
            TypeError,
            "handle.generation: -1 does not fit: must be in [0, 18446744073709551615]",
            "EvictRequest",
            {"handle": {"generation": -1}},
        ),
        (TypeError, "retrieval.beta: 'x' does not fit: must be a number", "IndexSpec", {"retrieval": {"beta": "x"}}),
        (TypeError, "selector.exact: 'yes' does not fit", "RetrieveRequest", {"selector": {"exact": "yes"}}),
        (
            TypeError,
            "selector.exact: 2 does not fit: must be True or False",
            "RetrieveRequest",
            {"selector": {"exact": 2}},
        ),
        (TypeError, "name: 7 does not fit: must be a str", "IndexSpec", {"name": 7}),
        (TypeError, "name: b'x' does not fit: must be a str", "IndexSpec", {"name": b"x"}),
        (TypeError, "items: 'x' does not fit: must be a list", "RetrieveRequest", {"items": "x"}),
        (TypeError, "items: {} does not fit: must be a list", "RetrieveRequest", {"items": {}}),
        (
            TypeError,
            "items[1].layer: [None] does not fit: must be an int",
            "RetrieveRequest",
            {"items": [{}, {"layer": [None]}]},
        ),
        (
            TypeError,
            "selector.mass_p: must be (p, floor, cap), as (0.9, 1, 1000), not 0.9",
            "RetrieveRequest",
            {"selector": {"mass_p": 0.9}},
        ),
        (
            TypeError,
            'budget: must be tokens a head (an int), or a dict such as {"ratio": 0.75}, the share that goes, not 0.25',
            "EvictRequest",
            {"budget": 0.25},
        ),
        (
            TypeError,
            "keep.positions: must be positions, one array of integers, not float64 [1]",
            "EvictRequest",
            {"keep": {"positions": [1.5]}},
        ),
        (
            ValueError,
            "positions: positions must lie in [0, 2^31), not -1 to 3",
            "GatherRequest",
            {"positions": [3, -1]},
        ),
        (
            ValueError,
            "given.queries: dtype must be float32, float16 or bfloat16, not float64",
            "EvictRequest",
            {"given": {"queries": np.zeros(3)}},
        ),
        (ValueError, "message: there is no Nothing", "Nothing", {}),
    ],
)
def test_what_cannot_be_sent_is_said_with_its_path(error, text, message, settings):
    with pytest.raises(error) as caught:
        _native.checked(message, settings)
    assert str(caught.value).startswith(text)


def test_positions_are_any_integers_and_what_is_kept_is_a_set():
    for positions in ([5, 2, 5], np.array([5, 2, 5], np.uint16), (5, 2, 5), np.array([5, 0, 2, 0, 5])[::2]):
        assert _native.checked("GatherRequest", {"positions": positions})["positions"].tolist() == [5, 2, 5]
        assert _native.checked("Keep", {"positions": positions})["positions"].tolist() == [2, 5]
    assert _native.checked("Keep", {"positions": []})["positions"].shape == (0,)


def tensors():
    plain = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    return {
        "numpy": (plain, plain),
        "float16": (plain.astype(np.float16), plain.astype(np.float16)),
        "ml_dtypes": (plain.astype(ml_dtypes.bfloat16), plain.astype(ml_dtypes.bfloat16).view(np.uint16)),
        "strided ml_dtypes": (
            plain.astype(ml_dtypes.bfloat16)[:, ::2],
            plain.astype(ml_dtypes.bfloat16)[:, ::2].copy().view(np.uint16),
        ),
        "strided": (plain[:, ::2], plain[:, ::2].copy()),
        "backwards": (plain[::-1], plain[::-1].copy()),
        "transposed": (plain.T, plain.T.copy()),
        "big-endian": (plain.astype(">f4"), plain),
        "read-only": (np.frombuffer(plain.tobytes(), np.float32), plain.ravel()),
        "empty": (plain[:0], plain[:0]),
        "no dimensions": (np.float32(3), np.float32(3).reshape(())),
        "array": (array.array("f", [1, 2]), np.array([1, 2], np.float32)),
        "torch": (torch.from_numpy(plain), plain),
        "strided torch": (torch.from_numpy(plain)[:, ::2], plain[:, ::2].copy()),
        "torch with a gradient": (torch.from_numpy(plain).clone().requires_grad_(), plain),
        "bfloat16 torch": (torch.from_numpy(plain).bfloat16(), plain.astype(ml_dtypes.bfloat16).view(np.uint16)),
        "transposed bfloat16 torch": (
            torch.from_numpy(plain).bfloat16().mT,
            plain.astype(ml_dtypes.bfloat16).swapaxes(1, 2).copy().view(np.uint16),
        ),
    }


def test_arrays_of_every_kind():
    for name, (given, read) in tensors().items():
        back = _native.checked("ScorerInputs", {"queries": given})["queries"]
        assert same(back, np.ascontiguousarray(read).reshape(read.shape)), name
        assert back.flags.writeable and back.flags.c_contiguous


def test_arrays_that_are_none():
    for wrong, error in (
        (np.zeros(2, np.int64), ValueError),
        (torch.zeros(2, dtype=torch.float64), ValueError),
        ("text", ValueError),
        (torch.zeros(2, device="meta"), (TypeError, NotImplementedError)),  # torch's own
    ):
        with pytest.raises(error):
            _native.checked("ScorerInputs", {"queries": wrong})
