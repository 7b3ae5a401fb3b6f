"""The gate: answers are checked against exact attention, and a layer that errs too much attends exactly."""

import warnings

import pytest
import torch
from small_model import ZONES, assert_all_served, decode, make_model, prompt

from seine_kv import hf
from seine_kv.hf.gate import EARLY, EVERY, KEPT, PAUSE, Gate

POOR = {"top_k": 1, "tail": False, "zones": {**ZONES, "local": 0}, "selector": {"beta": 0.01}, "dtype": "float32", "threads": 1}
LONG = prompt(1, 700)


@pytest.fixture
def model():
    return make_model()


def test_answers_that_are_far_off_end(model):
    """What is left of the error comes from the rows that the first tokens wrote."""
    expected, tokens, _ = decode(model, LONG, 60)
    hf.install(model, gate=False, **POOR)
    unwatched, _, _ = decode_given(model, LONG, tokens)
    hf.uninstall(model)
    seine = hf.install(model, gate=True, **POOR)
    with pytest.warns(hf.GateWarning, match="^layer [0-2] attends exactly from now on: .* above 0.25") as told:
        got, _, _ = decode_given(model, LONG, tokens)
    assert len([one for one in told if one.category is hf.GateWarning]) == 1
    stats = seine.stats()
    assert sorted(stats.gate.exact_layers) == [0, 1, 2] and stats.gate.exact_rows > 3 * 30
    assert "layers that attend exactly" in str(stats) and stats.gate.worst > 0.25
    error, before = ((logits[40:] - expected[40:]).abs().mean() for logits in (got, unwatched))
    assert error < before / 4
    assert_all_served(seine)
    hf.uninstall(model)


def test_without_it_nothing_is_checked(model):
    _, tokens, _ = decode(model, LONG, 20)
    seine = hf.install(model, **POOR)
    with warnings.catch_warnings():
        warnings.simplefilter("error", hf.GateWarning)
        decode_given(model, LONG, tokens)
    assert seine.stats().gate.checks == 0 and not seine.stats().gate.exact_layers
    hf.uninstall(model)


def test_good_answers_are_left_alone_and_counted(model):
    _, tokens, _ = decode(model, LONG, 20)
    seine = hf.install(model, gate=True, top_k=400, zones=ZONES, selector={"beta": 1.0}, dtype="float32", threads=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", hf.GateWarning)
        decode_given(model, LONG, tokens)
    gate = seine.stats().gate
    assert gate.checks == 3 * sum(1 < number <= 18 for number in EARLY) and 0 < gate.mean_error < 0.1
    hf.uninstall(model)


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"gate": True, "gate_bound": 0.0}, "gate_bound: must be above 0"),
        ({"gate": True, "gate_bound": -1}, "gate_bound: must be above 0"),
        ({"gate_bound": 0.1}, "gate_bound: needs gate=True"),
        ({"gate": True, "evict": hf.Eviction(64)}, "gate: with evict or low_rank"),
        ({"gate": True, "low_rank": hf.LowRank()}, "gate: with evict or low_rank"),
    ],
)
def test_a_gate_that_cannot_be_is_refused(model, settings, said):
    with pytest.raises(ValueError, match=said):
        hf.install(model, **settings)


def test_a_layer_is_tried_again_with_more_tokens():
    gate, one = Gate(0.1, [4, 9]), torch.ones(2, 3).numpy()
    gate.answered(9, ["index"])
    with pytest.warns(hf.GateWarning, match="layer 9"):
        for _ in range(4):
            gate.check(9, 2 * one, one)
    assert gate.exact(9) and not gate.exact(4) and gate.stats.exact_layers == {9: 1.0}
    assert gate.due(9, 5) is None and gate.widened(4, {"top_k": 10}) == {"top_k": 10}
    gate.count_exact(9, PAUSE)
    assert not gate.exact(9) and not gate.stats.exact_layers
    assert gate.widened(9, {"top_k": 10}) == {"top_k": 20} and gate.widened(9, {"mass_p": (0.9, 1, 9)}) == {"mass_p": (0.9, 1, 9)}
    gate.answered(9, ["index"])
    assert gate.due(9, 1) == 0  # the first behind it that comes from the codes is watched at once


def test_checks_take_turns_over_layers():
    gate, due = Gate(0.1, range(30)), [0] * 30
    for token in range(EVERY * (KEPT + 1)):
        for layer in range(30):
            due[layer] += gate.due(layer, 1) is not None
            gate.answered(layer, ["index"])
    assert all(KEPT <= count <= KEPT + 2 + len(EARLY) for count in due)


def decode_given(model, ids, tokens):
    """As decode, of given tokens."""
    logits, cache = [], None
    with torch.inference_mode():
        for token in [None, *tokens[:-1]]:
            part = ids if token is None else torch.tensor([[token]])
            out = model(part, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            logits.append(out.logits[0, -1])
    return torch.stack(logits), tokens, cache
