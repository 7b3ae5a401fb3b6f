"""seine_kv.hf where the index alone keeps keys and values: in this process, and on a server. Needs torch and transformers."""

import copy

import pytest
import torch
from small_model import EVERYTHING, PROMPT, ZONES, assert_all_served, decode, generate, make_model, prompt, tensors_held
from small_model import model  # noqa: F401 - a fixture
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from seine_kv import hf
from seine_kv.client import Client, SeineError
from seine_kv.hf.cache import IndexLayer
from seine_kv.model import cache_name


@pytest.fixture(params=["in process", "server"])
def where(request):
    """Keyword arguments of hf.install."""
    if request.param == "in process":
        return {"threads": 1}
    return {"endpoint": request.getfixturevalue("server").address, "keep_cache": False}


@pytest.fixture
def installed(model, where):
    seine = hf.install(model, dtype="float32", **where, **EVERYTHING)
    yield seine
    if model.config._attn_implementation == "seine":
        hf.uninstall(model)


def test_everything_attended_is_dense_attention_and_torch_holds_nothing(model, installed):
    logits, got, cache = decode(model, prompt(), 20)
    assert_all_served(installed)
    assert all(type(layer) is IndexLayer for layer in cache.layers) and tensors_held(cache) == []
    assert cache.get_seq_length() == PROMPT + 19 and cache.layers[2].keys.shape == (1, 2, PROMPT + 19, 64)
    hf.uninstall(model)
    expected, tokens, dense = decode(model, prompt(), 20)
    assert got == tokens
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-3)
    for layer, other in zip(cache.layers, dense.layers):  # they are torch's again
        assert type(layer) is DynamicLayer
        torch.testing.assert_close(layer.keys, other.keys, rtol=0, atol=1e-3)
        torch.testing.assert_close(layer.values, other.values, rtol=0, atol=1e-3)
    again, _, _ = decode(model, torch.tensor([[tokens[-1]]]), 3, cache)
    expected, _, _ = decode(model, torch.tensor([[tokens[-1]]]), 3, dense)
    torch.testing.assert_close(again, expected, rtol=0, atol=1e-3)


def test_a_prompt_in_blocks_reads_back_what_it_attends(model, installed):
    ids, caches = prompt(1, 400), []
    for _ in range(2):
        cache = None
        for block in ids[:, :-1].split(100, dim=1):
            cache = model(block, **{cache_name(model): cache}, use_cache=True)[cache_name(model)]
        caches.append(decode(model, ids[:, -1:], 6, cache)[0])
        if len(caches) == 1:
            assert installed.stats().appended_tokens == 3 * 399
            assert_all_served(installed)
            hf.uninstall(model)
    torch.testing.assert_close(caches[0], caches[1], rtol=0, atol=1e-3)


def test_batches_are_padded_on_the_left(model, installed):
    lengths = (150, 90, 3)
    ids, mask = torch.zeros(3, 150, dtype=torch.long), torch.zeros(3, 150, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, -length:], mask[row, -length:] = prompt(1, length, seed=row)[0], 1
    together = generate(model, ids, attention_mask=mask)
    # A second block of the same rows, after tokens that were decoded.
    out = model(ids, attention_mask=mask, use_cache=True)
    more = torch.cat([mask, torch.ones(3, 5, dtype=torch.long)], dim=1)
    block = model(prompt(3, 5), attention_mask=more, **{cache_name(model): out[cache_name(model)]}, use_cache=True).logits
    with pytest.raises(ValueError, match="padding of a row has changed"):
        model(prompt(3, 1), attention_mask=torch.ones(3, 156), **{cache_name(model): out[cache_name(model)]}, use_cache=True)
    assert_all_served(installed)
    hf.uninstall(model)
    assert torch.equal(together, generate(model, ids, attention_mask=mask))
    cache = model(ids, attention_mask=mask, use_cache=True)[cache_name(model)]
    expected = model(prompt(3, 5), attention_mask=more, **{cache_name(model): cache}, use_cache=True).logits
    torch.testing.assert_close(block, expected, rtol=0, atol=1e-3)


def test_sampling_beams_and_guessed_tokens(model, installed):
    def all_of_them():
        torch.manual_seed(7)
        sampled = generate(model, prompt(), do_sample=True, top_k=20)
        beams = generate(model, prompt(2), num_beams=3, num_return_sequences=2)
        repeated = prompt(1, 40).repeat(1, 4)
        return sampled, beams, generate(model, repeated, prompt_lookup_num_tokens=3)  # which crops what was guessed wrong

    through_seine = all_of_them()
    assert installed.stats().forks > 0
    assert_all_served(installed)
    hf.uninstall(model)
    for got, expected in zip(through_seine, all_of_them()):
        assert torch.equal(got, expected)


def test_cropped_caches_truncate_and_copied_ones_fork(model, installed):
    _, _, cache = decode(model, prompt(), 10)
    kept = copy.deepcopy(cache)
    assert installed.stats().forks == 1
    other = torch.tensor([[5, 9]])
    first, _, _ = decode(model, other, 6, cache)
    cache.crop(torch.tensor(-7))  # as transformers 5.15 does where tokens were guessed
    assert cache.get_seq_length() == PROMPT + 9
    again, _, _ = decode(model, other, 6, cache)
    torch.testing.assert_close(again, first, rtol=0, atol=1e-3)
    assert installed.stats().truncations >= 1
    forked, _, _ = decode(model, other, 6, kept)
    torch.testing.assert_close(forked, first, rtol=0, atol=1e-3)
    cache.reset()
    assert cache.get_seq_length() == 0
    anew, _, _ = decode(model, prompt(), 3, cache)
    expected, _, _ = decode(model, prompt(), 3)
    torch.testing.assert_close(anew, expected, rtol=0, atol=1e-3)
    assert_all_served(installed)


def test_rows_repeated_and_selected_keep_their_sequences(model, installed):
    _, _, cache = decode(model, prompt(), 2)
    cache.batch_repeat_interleave(3)
    cache.batch_select_indices(torch.tensor([2, 0]))
    assert installed.stats().forks == 2 and len(cache.batch.rows) == 2
    out = model(torch.tensor([[5], [5]]), **{cache_name(model): cache}, use_cache=True).logits
    torch.testing.assert_close(out[0], out[1])
    with pytest.raises(ValueError, match="it holds 2 rows, and 1 are asked"):
        model(torch.tensor([[8]]), **{cache_name(model): cache}, use_cache=True)
    cache.batch_select_indices(torch.tensor([False, True]))
    alone = model(torch.tensor([[8]]), **{cache_name(model): cache}, use_cache=True).logits
    hf.uninstall(model)
    _, _, dense = decode(model, prompt(), 2)
    model(torch.tensor([[5]]), **{cache_name(model): dense}, use_cache=True)
    expected = model(torch.tensor([[8]]), **{cache_name(model): dense}, use_cache=True).logits
    torch.testing.assert_close(alone, expected, rtol=0, atol=1e-3)


def test_a_cache_made_before_install_is_sent_when_it_is_used(model, where):
    _, _, cache = decode(model, prompt(), 3)
    assert type(cache) is DynamicCache
    changed = copy.deepcopy(cache)
    changed.batch_repeat_interleave(2)
    expected, _, _ = decode(model, torch.tensor([[5]]), 4, copy.deepcopy(cache))
    seine = hf.install(model, dtype="float32", **where, **EVERYTHING)
    twice = model(torch.tensor([[5], [5]]), **{cache_name(model): changed}, use_cache=True).logits[:, -1]
    torch.testing.assert_close(twice, expected[:1].expand(2, -1), rtol=0, atol=1e-3)
    logits, _, _ = decode(model, torch.tensor([[5]]), 4, cache)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-3)
    assert tensors_held(cache) == []
    assert_all_served(seine)
    hf.uninstall(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stored_dtypes(where, dtype):
    """float16 for a float32 model in this process, else the model's."""
    model = make_model().to(dtype)
    expected, _, _ = decode(model, prompt(), 4)
    seine = hf.install(model, **where, **EVERYTHING)
    stored = "float16" if dtype == torch.float32 and "threads" in where else str(dtype).removeprefix("torch.")
    assert seine.spec["geometry"]["dtype"] == stored
    logits, _, cache = decode(model, prompt(), 4)
    assert cache.layers[0].keys.dtype == logits.dtype == dtype
    torch.testing.assert_close(logits, expected, rtol=0, atol=0.05 if dtype == torch.float32 else 0.5)
    memory = seine.memory()
    assert memory.full_bytes == memory.tokens * 2 * 2 * 64 * dtype.itemsize
    assert_all_served(seine)
    hf.uninstall(model)


def test_what_the_index_cannot_do_is_raised(model, where):
    for more in ({"evict": hf.Eviction(100)}, {"low_rank": hf.LowRank()}):
        with pytest.raises(ValueError, match="keep_cache: torch must keep"):
            hf.install(model, **{**where, "keep_cache": False}, **more)
    seine = hf.install(model, memory_limit_bytes=200_000, zones=ZONES, index="small", **where)
    with pytest.raises(SeineError) as caught:
        decode(model, prompt(1, 2000), 1)
    assert caught.value.code == "RESOURCE_EXHAUSTED" and seine.stats().dense_rows == 0
    hf.uninstall(model)


def test_a_server_that_is_lost_is_an_error(model, private_server):
    process, address = private_server
    with Client(address) as client:
        client.wait_until_ready(20)
    hf.install(model, address, keep_cache=False, timeout=5, **EVERYTHING)
    _, tokens, cache = decode(model, prompt(), 5)
    process.kill()
    process.wait(20)
    with pytest.raises(SeineError) as caught:
        decode(model, torch.tensor([[tokens[-1]]]), 1, cache)
    assert caught.value.code == "UNAVAILABLE"
    with pytest.warns(RuntimeWarning, match="a cache is lost"):
        hf.uninstall(model)
    assert model.config._attn_implementation == "sdpa"
