"""The gate: answers are compared with exact ones where they are given, and a layer that loses too much attends exactly."""

import time
import warnings

import pytest
import torch
from small_model import ZONES, assert_all_served, decode, make_model, prompt

from seine_kv import hf

SETTINGS = {"zones": {**ZONES, "local": 0}, "dtype": "float32", "threads": 1}
POOR = {**SETTINGS, "top_k": 20, "selector": {"candidate_fraction": 0.03, "rescore_k": 20}}  # candidates are few
LONG = prompt(1, 700)


@pytest.fixture
def model():
    return make_model()


def test_layers_that_lose_much_attend_exactly(model):
    """What is left of the error comes from the rows that the first tokens wrote."""
    expected, tokens, _ = decode(model, LONG, 120)
    hf.install(model, gate=False, **POOR)
    unwatched = decode_given(model, LONG, tokens)
    hf.uninstall(model)
    seine = hf.install(model, gate_bound=1e-4, **POOR)
    with pytest.warns(hf.GateWarning, match="^layer [0-2] attends exactly from now on: .* more than 0.0001") as told:
        got = decode_given(model, LONG, tokens, pause=0.01)
    assert len([one for one in told if one.category is hf.GateWarning]) == 1
    stats = seine.stats()
    assert sorted(stats.gate.exact_layers) == [0, 1, 2] and stats.gate.exact_rows == stats.paths["gate"] > 3 * 30
    assert "layers that attend exactly" in str(stats) and stats.gate.mean_lost > 1e-4
    error, before = ((logits[90:] - expected[90:]).abs().mean() for logits in (got, unwatched))
    assert error < before / 4
    assert_all_served(seine)
    hf.uninstall(model)


def test_without_it_nothing_is_checked(model):
    _, tokens, _ = decode(model, LONG, 20)
    seine = hf.install(model, gate=False, **POOR)
    with warnings.catch_warnings():
        warnings.simplefilter("error", hf.GateWarning)
        decode_given(model, LONG, tokens)
    assert seine.spec["retrieval"]["gate"] == 0
    assert seine.stats().gate.checks == 0 and not seine.stats().gate.exact_layers
    hf.uninstall(model)


def test_good_answers_are_left_alone_and_counted(model):
    _, tokens, _ = decode(model, LONG, 40)
    seine = hf.install(model, top_k=300, selector={"candidate_fraction": 0.9, "rescore_k": 300}, **SETTINGS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", hf.GateWarning)
        decode_given(model, LONG, tokens)
    assert seine.spec["retrieval"]["gate"] == 0.05
    deadline = time.monotonic() + 20
    while seine.stats().gate.checks < 7 and time.monotonic() < deadline:  # 2, 8, 32 of the first layer, 3, 12 and 4, 16 of the others
        time.sleep(0.01)
    gate = seine.stats().gate
    assert gate.checks == 7 and gate.mean_lost < 0.01 and not gate.exact_layers and gate.exact_rows == 0
    hf.uninstall(model)


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"gate_bound": 0.0}, "gate_bound: must be above 0"),
        ({"gate": True, "gate_bound": -1}, "gate_bound: must be above 0"),
        ({"gate_bound": float("nan")}, "gate_bound: must be above 0"),
        ({"gate": False, "gate_bound": 0.1}, "gate_bound: nothing is watched"),
        ({"gate_bound": 0.1, "evict": hf.Eviction(64)}, "gate_bound: nothing is watched"),
        ({"gate": True, "evict": hf.Eviction(64)}, "gate: with evict or low_rank"),
        ({"gate": True, "low_rank": hf.LowRank()}, "gate: with evict or low_rank"),
    ],
)
def test_a_gate_that_cannot_be_is_refused(model, settings, said):
    with pytest.raises(ValueError, match=said):
        hf.install(model, **settings)


def decode_given(model, ids, tokens, pause=0.0):
    """Logits of the given tokens behind `ids`. pause: seconds before each, for checks run beside."""
    logits, cache = [], None
    with torch.inference_mode():
        for token in [None, *tokens[:-1]]:
            time.sleep(pause)
            part = ids if token is None else torch.tensor([[token]])
            out = model(part, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            logits.append(out.logits[0, -1])
    return torch.stack(logits)
