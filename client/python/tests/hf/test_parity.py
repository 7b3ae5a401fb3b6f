"""seine_kv.hf against a real server: the tokens and logits of dense attention, whatever happens to a cache."""

import copy

import pytest
import torch
from small_model import EVERYTHING, PROMPT, ZONES, assert_all_served, decode, generate, make_model, prompt
from small_model import client, installed, model  # noqa: F401 - fixtures
from transformers import DynamicCache

from seine_kv import hf
from seine_kv.model import cache_name


def test_everything_attended_is_dense_attention(model, client):
    ids = prompt()
    expected, tokens, _ = decode(model, ids, 20)
    for scope, tail in (("per_q_head", False), ("per_q_head", None), ("per_kv_head", False)):
        seine = hf.install(model, client.address, tail=tail, selector={"scope": scope, "candidate_fraction": 0.05}, **EVERYTHING)
        logits, got, _ = decode(model, ids, 20)
        assert got == tokens
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-3)
        assert seine.stats().paths["index"] == 19 * 3  # the first token is the prompt's; a row a layer after it
        assert seine.stats().appended_tokens == PROMPT * 3
        assert_all_served(seine)
        hf.uninstall(model)
    again, _, _ = decode(model, ids, 3)
    torch.testing.assert_close(again, expected[:3])


def test_few_tokens_attended_is_not_dense_attention(model, client):
    """The proof that the tests above can fail: what comes back is what is used."""
    expected, _, _ = decode(model, prompt(), 4)
    seine = hf.install(model, client.address, top_k=1, tail=False, zones={**ZONES, "local": 0, "sink": 0})
    logits, _, _ = decode(model, prompt(), 4)
    assert (logits[0] - expected[0]).abs().max() < 1e-3 < (logits[1] - expected[1]).abs().max()
    assert 1 <= seine.stats().mean_attended_tokens <= 65
    hf.uninstall(model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(client, dtype):
    model = make_model().to(dtype)
    expected, _, _ = decode(model, prompt(), 1)
    seine = hf.install(model, client.address, prompt="torch", **EVERYTHING)
    logits, _, _ = decode(model, prompt(), 4)
    assert logits.dtype == dtype and torch.isfinite(logits).all()
    torch.testing.assert_close(logits[0], expected[0])
    assert seine.spec["geometry"]["dtype"] == str(dtype).removeprefix("torch.")
    assert_all_served(seine)
    hf.uninstall(model)


def test_batches_are_padded_on_the_left(model, installed):
    lengths = (150, 90, 3)
    ids, mask = torch.zeros(3, 150, dtype=torch.long), torch.zeros(3, 150, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, -length:], mask[row, -length:] = prompt(1, length, seed=row)[0], 1
    together = generate(model, ids, attention_mask=mask)
    assert_all_served(installed)
    hf.uninstall(model)
    expected = generate(model, ids, attention_mask=mask)
    assert torch.equal(together, expected)
    for row, length in enumerate(lengths):
        assert torch.equal(generate(model, prompt(1, length, seed=row))[0, length:], expected[row, 150:])


def test_sampling_and_beams(model, installed):
    def both():
        torch.manual_seed(7)
        sampled = generate(model, prompt(), do_sample=True, top_k=20)
        beams = generate(model, prompt(2), num_beams=3, num_return_sequences=2)
        return sampled, beams

    through_seine = both()
    assert installed.stats().forks > 0
    assert_all_served(installed)
    hf.uninstall(model)
    for got, expected in zip(through_seine, both()):
        assert torch.equal(got, expected)


def test_cropped_caches_truncate_and_copied_ones_fork(model, installed, client):
    _, tokens, cache = decode(model, prompt(), 10)
    kept = copy.deepcopy(cache)
    assert installed.stats().forks == 1 and len(client.list_sequences(installed.index)) == 2
    other = torch.tensor([[5, 9]])
    first, _, _ = decode(model, other, 6, cache)
    cache.crop(-5)  # decode appended 2 + 5 tokens: back into what it has appended itself
    cache.crop(-2)
    again, _, _ = decode(model, other, 6, cache)
    torch.testing.assert_close(again, first, rtol=0, atol=1e-3)
    assert installed.stats().truncations >= 1
    forked, _, _ = decode(model, other, 6, kept)
    torch.testing.assert_close(forked, first, rtol=0, atol=1e-3)
    assert_all_served(installed)
    del cache, kept, _
    decode(model, prompt(), 1)  # sequences of caches that are gone are deleted at the next forward
    decode(model, prompt(), 1)
    assert len(client.list_sequences(installed.index)) <= 2


def test_rows_repeated_and_selected_keep_their_sequences(model, installed):
    _, _, cache = decode(model, prompt(), 2)
    cache.batch_repeat_interleave(3)
    cache.batch_select_indices(torch.tensor([2, 0]))
    assert installed.stats().forks == 2 and len(cache.batch.rows) == 2
    out = model(torch.tensor([[5], [5]]), **{cache_name(model): cache}, use_cache=True).logits
    torch.testing.assert_close(out[0], out[1])
    cache.batch_select_indices(torch.tensor([False, True]))
    alone = model(torch.tensor([[8]]), **{cache_name(model): cache}, use_cache=True).logits
    hf.uninstall(model)
    _, _, dense = decode(model, prompt(), 2)
    model(torch.tensor([[5]]), **{cache_name(model): dense}, use_cache=True)
    expected = model(torch.tensor([[8]]), **{cache_name(model): dense}, use_cache=True).logits
    torch.testing.assert_close(alone, expected, rtol=0, atol=1e-3)


def test_a_cache_made_before_install_is_sent_when_it_is_used(model, client):
    _, _, cache = decode(model, prompt(), 3)
    assert type(cache) is DynamicCache
    expected, _, _ = decode(model, torch.tensor([[5]]), 4, copy.deepcopy(cache))
    seine = hf.install(model, client.address, **EVERYTHING)
    logits, _, _ = decode(model, torch.tensor([[5]]), 4, cache)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-3)
    assert_all_served(seine)
    hf.uninstall(model)


def test_two_models_interleaved(client):
    """Two tenants of one index, token by token in turns, and a third of another geometry."""
    models = [make_model(seed=0), make_model(seed=1), make_model(seed=2, num_key_value_heads=1)]
    ids = [prompt(1, 120 + 10 * i, seed=i) for i in range(3)]
    expected = [decode(model, i, 10)[1] for model, i in zip(models, ids)]
    seines = [hf.install(model, client.address, **EVERYTHING) for model in models]
    assert seines[0].index == seines[1].index != seines[2].index
    states = [(i, None) for i in ids]
    got = [[], [], []]
    for _ in range(10):
        for n, model in enumerate(models):
            _, tokens, cache = decode(model, states[n][0], 1, states[n][1])
            got[n] += tokens
            states[n] = (torch.tensor([tokens]), cache)
    assert got == expected
    for seine, model in zip(seines, models):
        assert_all_served(seine)
        hf.uninstall(model)
    assert client.list_sequences(seines[0].index) == []


def test_a_forward_without_a_cache_is_torchs(model, installed):
    assert model(prompt(), use_cache=False).get(cache_name(model)) is None
    assert installed.stats().appended_tokens == 0
