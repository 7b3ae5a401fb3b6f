"""seine_kv.hf with eviction: budgets, what is retained, and the queries that decide."""

import copy

import pytest
import torch
from small_model import assert_all_served, decode, generate, prompt
from small_model import client, model  # noqa: F401 - fixtures
from transformers import DynamicCache

from seine_kv import hf
from seine_kv.hf.eviction import QueryWindow
from seine_kv.model import cache_name


@pytest.mark.parametrize("scorer", ["knorm", "snapkv"])
def test_eviction_keeps_to_its_budget(model, client, scorer):
    """By the index itself, and by calls with queries: what is attended is what is retained."""
    evict = hf.Eviction(100, scorer, interval=16)
    seine = hf.install(model, client.address, tail=False, evict=evict)
    generate(model, prompt(2, 200), max_new_tokens=40)
    stats = seine.stats()
    assert 100 <= stats.mean_attended_tokens <= 117 and set(stats.paths) == {"dense"}
    assert_all_served(seine)
    held = [client.score(info.handle, 1, "knorm") for info in client.list_sequences(seine.index)]
    assert all(100 <= len(positions) <= 116 for heads in held for positions, _ in heads)
    assert evict.by_call == (scorer == "snapkv") and stats.evicted_tokens > 0
    hf.uninstall(model)


@pytest.mark.parametrize("scorer", ["keydiff", "snapkv"])
def test_retained_positions_are_known_without_asking(model, client, scorer, monkeypatch):
    """By the answers to appends, steps and evictions; over a copy, a roll-back and a row that is doubled."""
    seine = hf.install(model, client.address, tail=False, evict=hf.Eviction(100, scorer, interval=16))
    _, _, cache = decode(model, prompt(), 40)
    copied = copy.deepcopy(cache)
    copied.crop(-9)
    decode(model, torch.tensor([[5]]), 30, copied)
    copied.batch_repeat_interleave(2)
    for token in range(20):
        decode(model, torch.tensor([[5 + token], [7]]), 1, copied)
    asked = []
    monkeypatch.setattr(seine.client, "retained", lambda *a: asked.append(a))
    for held, rows in ((cache, 1), (copied, 2)):
        for row in range(rows):
            for layer in range(3):
                truth = [positions for positions, _ in client.score(held.batch.rows[row].sequence, layer, "knorm")]
                followed = seine.retained(held, layer, row)
                assert [head.tolist() for head in followed] == [head.tolist() for head in truth]
    assert not asked
    info = client.get_index(seine.index)
    assert seine.stats().evicted_tokens == info["evicted_tokens"]
    assert_all_served(seine)
    with pytest.raises(ValueError, match="cache: no forward"):
        seine.retained(DynamicCache(), 0)
    hf.uninstall(model)
    seine = hf.install(model, client.address)
    with pytest.raises(ValueError, match="retained: nothing is evicted"):
        seine.retained(cache, 0)
    hf.uninstall(model)


@pytest.mark.parametrize("scorer", hf.eviction.QUERY_SCORERS)
@pytest.mark.parametrize("budget", [100, 4])
def test_a_short_prompt_loses_nothing_before_the_interval(model, client, scorer, budget):
    """Shorter than the budget, or than snapkv's window: decoding is dense attention's."""
    seine = None
    for tokens in (1, 10, 63):
        ids = prompt(1, tokens)
        expected, want, _ = decode(model, ids, 4)
        seine = hf.install(model, client.address, tail=False, evict=hf.Eviction(budget, scorer))
        logits, got, _ = decode(model, ids, 4)
        if budget > tokens or scorer == "snapkv":
            assert got == want and seine.stats().evicted_tokens == 0
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-3)
        else:
            assert seine.stats().evicted_tokens > 0
        assert_all_served(seine)
        hf.uninstall(model)


def test_a_cache_filled_before_install_is_evicted_once_the_window_was_seen(model, client):
    _, _, cache = decode(model, prompt(), 1)
    seine = hf.install(model, client.address, tail=False, evict=hf.Eviction(100, "snapkv", interval=16))
    ids = torch.tensor([[5]])
    for step in range(70):
        with torch.inference_mode():
            model(ids, **{cache_name(model): cache}, use_cache=True)
        assert (seine.stats().evicted_tokens > 0) == (step >= 63), step
    assert_all_served(seine)
    hf.uninstall(model)


def test_eviction_by_call_states_the_models_scale(model, client, monkeypatch):
    for layer in model.model.layers:
        layer.self_attn.scaling = 0.05
    seine = hf.install(model, client.address, tail=False, evict=hf.Eviction(20, "tova", interval=16))
    stated, evict = set(), seine.client.evict
    monkeypatch.setattr(seine.client, "evict", lambda *a, **given: (stated.add(given["softmax_scale"]), evict(*a, **given))[1])
    decode(model, prompt(1, 40), 20)
    assert stated == {0.05} and seine.stats().evicted_tokens > 0
    hf.uninstall(model)
    with pytest.raises(ValueError, match="evict.queries: 64, but snapkv needs 128"):
        hf.Eviction(1000, {"name": "snapkv", "query_window": 128})


def test_a_query_window_follows_crops_and_gaps():
    columns = torch.arange(20.0).reshape(1, 1, 20, 1)
    window = QueryWindow(6)
    held = lambda: window.queries[0, 0, :, 0].tolist()  # noqa: E731
    window.add(columns[:, :, :10], 10)
    assert held() == [4, 5, 6, 7, 8, 9]
    window.add(-columns[:, :, 7:9], 9)  # three columns were cropped, and two others came
    assert held() == [4, 5, 6, -7, -8]
    window.add(columns[:, :, 12:14], 14)  # what lies between was not seen
    assert held() == [12, 13]
    assert window.row(0, 1).shape == (1, 1, 1)
