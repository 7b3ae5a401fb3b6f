"""seine_kv.hf with prompts in blocks, held against the paper's loop in float64 and against kvpress's. Needs torch and
transformers."""

import copy
import gc
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from small_model import assert_all_served, decode, generate, make_model, prompt, tensors_held
from small_model import model  # noqa: F401 - a fixture

from seine_kv import hf
from seine_kv.client import SeineError
from seine_kv.model import cache_name
from seine_kv.tensor_file import read_tensors

BUDGET, BLOCK, SINKS = 48, 16, 4
GOLDENS = Path(__file__).resolve().parents[4] / "tests" / "golden" / "kvpress.safetensors"
SNAPKV = {"name": "snapkv", "query_window": 8, "kernel": 5}
WINDOWED = {"name": "windowed_manifoldkv", "window": 32}


# The paper's loop ----------------------------------------------------------------------------------------------------


def scored(name, keys, positions, queries):
    """float64 scores [KV heads, tokens] of what a block leaves. keys [KV heads, tokens, head_dim], positions [KV heads,
    tokens], queries [query heads, block, head_dim] of the last positions."""
    if name == "keydiff":
        unit = keys / keys.norm(dim=-1, keepdim=True)
        return -(unit * torch.nn.functional.normalize(unit.mean(dim=1, keepdim=True), dim=-1)).sum(-1)
    if name == "manifoldkv":
        return (keys - keys.mean(dim=1, keepdim=True)).norm(dim=-1)
    if name == "windowed_manifoldkv":
        scores = torch.empty(keys.shape[:2], dtype=keys.dtype)
        for head, window in enumerate(positions // WINDOWED["window"]):
            for w in window.unique():
                inside = keys[head, window == w]
                scores[head, window == w] = (inside - inside.mean(dim=0)).norm(dim=-1)
        return scores
    if name == "streaming_llm":
        return torch.where(positions < SINKS, 1e9, positions.double())
    last = 1 if name == "tova" else SNAPKV["query_window"]
    group, tokens = queries.shape[0] // keys.shape[0], keys.shape[1]
    logits = queries[:, -last:] @ keys.repeat_interleave(group, dim=0).transpose(1, 2) / keys.shape[2] ** 0.5
    seen = torch.arange(tokens) <= torch.arange(tokens - last, tokens)[:, None]
    weights = logits.masked_fill(~seen, float("-inf")).softmax(-1)[..., :-last].mean(dim=1)
    if name == "tova":
        weights = weights.mean(dim=0).expand(keys.shape[0], -1)
    else:
        pooled = torch.nn.functional.avg_pool1d(weights, SNAPKV["kernel"], 1, SNAPKV["kernel"] // 2)
        weights = pooled.view(keys.shape[0], group, -1).mean(dim=1)
    return torch.cat([weights, torch.full((keys.shape[0], last), 1e9, dtype=keys.dtype)], dim=1)


class Loop:
    """KeyDiff's equation 6: a float64 model whose attention sees what it retained of earlier blocks, and the block."""

    def __init__(self, model, scorer, budget=BUDGET):
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask

        AttentionInterface.register("loop", self._attend)
        AttentionMaskInterface.register("loop", sdpa_mask)
        self.model = copy.deepcopy(model).double()
        self.model.set_attn_implementation("loop")
        self.scorer, self.budget, self.held, self.begin = scorer, budget, {}, 0

    def read(self, ids, blocks):
        """Logits [tokens, vocabulary] of ids [1, tokens], in blocks of so many tokens each."""
        logits = []
        with torch.inference_mode():
            for block in ids.split(blocks, dim=1):
                positions = torch.arange(self.begin, self.begin + block.shape[1])[None]
                logits.append(self.model(block, position_ids=positions, use_cache=False).logits[0])
                self.begin += block.shape[1]
        return torch.cat(logits)

    def _attend(self, module, query, key, value, mask, scaling=None, **_):
        heads, new = key.shape[1], key.shape[2]
        fresh = torch.arange(self.begin, self.begin + new).expand(heads, -1)
        keys, values, positions = key[0], value[0], fresh
        if module.layer_idx in self.held:
            held = self.held[module.layer_idx]
            keys, values, positions = (torch.cat([a, b], dim=1) for a, b in zip(held, (keys, values, fresh)))
        group = query.shape[1] // heads
        logits = query[0] @ keys.repeat_interleave(group, dim=0).transpose(1, 2) * scaling
        future = positions.repeat_interleave(group, dim=0)[:, None] > fresh[0][:, None]
        output = logits.masked_fill(future, float("-inf")).softmax(-1) @ values.repeat_interleave(group, dim=0)
        self.held[module.layer_idx] = self._kept(keys, values, positions, query[0])
        return output.transpose(0, 1)[None], None

    def _kept(self, keys, values, positions, queries):
        if keys.shape[1] <= self.budget:
            return keys, values, positions
        scores = scored(self.scorer, keys, positions, queries)
        scores = torch.where(positions < SINKS, 1e12, scores)
        places = scores.topk(self.budget, dim=-1).indices.sort(dim=-1).values
        rows = places[..., None].expand(-1, -1, keys.shape[2])
        return keys.gather(1, rows), values.gather(1, rows), positions.gather(1, places)


def loop_sets(keys, score, budget, block):
    """Ascending positions that are left of keys [KV heads, tokens, head_dim] once they have come in blocks."""
    kept = torch.zeros(keys.shape[0], 0, dtype=torch.long)
    for fresh in torch.arange(keys.shape[1]).split(block):
        kept = torch.cat([kept, fresh.expand(keys.shape[0], -1)], dim=1)
        if kept.shape[1] > budget:
            scores = score(keys.double().gather(1, kept[..., None].expand(-1, -1, keys.shape[2])))
            kept = kept.gather(1, scores.topk(budget, dim=-1).indices).sort(dim=-1).values
    return kept


# Tests ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["in process", "server"])
def where(request):
    """Keyword arguments of hf.install."""
    if request.param == "in process":
        return {"threads": 1}
    return {"endpoint": request.getfixturevalue("server").address}


def install(model, scorer="keydiff", budget=BUDGET, **more):
    settings = {"dtype": "float32", "tail": False, "prefill": "blocks", "block": BLOCK, **more}
    evict = hf.Eviction(budget, scorer, {"sinks": SINKS}, interval=BLOCK)
    return hf.install(model, evict=evict, **settings)


@pytest.fixture
def uninstalled(model):
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # caches that live: they are lost
        hf.uninstall(model)


SCORERS = ["keydiff", "manifoldkv", WINDOWED, "streaming_llm", "tova", SNAPKV]


@pytest.mark.parametrize("scorer", SCORERS, ids=lambda s: s if isinstance(s, str) else s["name"])
def test_a_prompt_is_the_papers_loop(model, where, scorer, uninstalled):
    """Logits of every token of a prompt, and of those decoded after it; the sets that are left of every layer."""
    name = scorer if isinstance(scorer, str) else scorer["name"]
    ids = prompt(1, 170)  # the last block is of 10 tokens
    loop = Loop(model, name)
    expected = loop.read(ids, BLOCK)
    seine = install(model, scorer, **where)
    with torch.inference_mode():
        out = model(ids, use_cache=True)
    torch.testing.assert_close(out.logits[0].double(), expected, rtol=0, atol=1e-3)
    cache = out[cache_name(model)]
    for layer in range(3):
        held = seine.client.score(cache.batch.rows[0].sequence, layer, "knorm")
        assert [positions.tolist() for positions, _ in held] == loop.held[layer][2].tolist()
    loop.budget = 10**6  # decoding evicts no more before the interval
    token = out.logits[0, -1].argmax().reshape(1, 1)
    logits, _, _ = decode(model, token, 1, cache)
    torch.testing.assert_close(logits.double(), loop.read(token, 1), rtol=0, atol=1e-3)
    assert seine.stats().blocks == 11 * 3 and seine.stats().block_tokens == BUDGET + BLOCK
    assert_all_served(seine)


def test_the_blocks_change_what_is_attended(model, uninstalled):
    """The proof that the test above can fail: dense attention's logits, and another block's, are others."""
    ids = prompt(1, 170)
    other = Loop(model, "keydiff").read(ids, 2 * BLOCK)
    with torch.inference_mode():
        dense = model(ids).logits[0]
        install(model)
        blocks = model(ids, use_cache=True).logits[0]
    begin = BUDGET + BLOCK  # until here nothing was evicted
    torch.testing.assert_close(blocks[:begin], dense[:begin], rtol=0, atol=1e-3)
    assert (blocks[begin:] - dense[begin:]).abs().max() > 0.1
    assert (blocks - other).abs().max() > 0.1


def test_generate_is_blocks_by_hand(model, uninstalled):
    ids = prompt(1, 100)
    seine = install(model, threads=1)
    tokens = generate(model, ids, max_new_tokens=40)[0, 100:].tolist()
    assert seine.stats().blocks == 7 * 3 and 48 <= seine.stats().mean_attended_tokens <= 64
    cache = None
    for block in ids[:, :-4].split(BLOCK, dim=1):
        cache = model(block, **{cache_name(model): cache}, use_cache=True)[cache_name(model)]
    assert decode(model, ids[:, -4:], 40, cache)[1] == tokens
    assert_all_served(seine)


def test_a_budget_that_holds_all_is_dense_attention(model, where, uninstalled):
    ids = prompt(1, 170)
    expected, tokens, _ = decode(model, ids, 8)
    every = model(ids).logits
    seine = install(model, budget=400, **where)
    logits, got, _ = decode(model, ids, 8)
    assert got == tokens
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-3)
    torch.testing.assert_close(model(ids, use_cache=True).logits, every, rtol=0, atol=1e-3)
    beams = generate(model, prompt(2), num_beams=3, num_return_sequences=2)
    guessed = generate(model, prompt(1, 40).repeat(1, 4), prompt_lookup_num_tokens=3)  # which crops what was wrong
    assert seine.stats().forks > 0 and seine.stats().evicted_tokens == 0
    assert_all_served(seine)
    hf.uninstall(model)
    assert torch.equal(beams, generate(model, prompt(2), num_beams=3, num_return_sequences=2))
    assert torch.equal(guessed, generate(model, prompt(1, 40).repeat(1, 4), prompt_lookup_num_tokens=3))
    install(model)  # for the fixture


@pytest.mark.parametrize("scorer", ["keydiff", SNAPKV], ids=["by the index", "by call"])
def test_no_layer_outgrows_its_budget_in_the_index_or_in_torch(scorer, monkeypatch, request):
    """No more than budget + block are ever held a head, counted at every append and attention of 300 tokens."""
    model = make_model(head_dim=80)  # no other tensor has rows of 80
    seine, most = install(model, scorer, threads=1), {"index": 0, "torch": 0}
    append, attend = seine.client.append, seine.prompts.attend

    def counted_append(sequence, layer, position, keys, values, *queries, **given):
        before = [len(at) for at, _ in seine.client.score(sequence, layer, "knorm")] if position else [0]
        append(sequence, layer, position, keys, values, *queries, **given)
        # The index may have cut the layer back itself by now: what it held between is what came to what there was.
        most["index"] = max(most["index"], max(before) + len(keys))

    def counted_attention(*args):
        for held in gc.get_objects():
            if type(held) is torch.Tensor and held.dim() == 4 and held.shape[-1] == 80:
                most["torch"] = max(most["torch"], held.shape[2])
        return attend(*args)

    monkeypatch.setattr(seine.client, "append", counted_append)
    monkeypatch.setattr(seine.prompts, "attend", counted_attention)
    ids = prompt(1, 300)
    gc.freeze()  # what is there by now is not looked through
    request.addfinalizer(gc.unfreeze)
    with torch.inference_mode():
        cache = model(ids, use_cache=True, logits_to_keep=1)[cache_name(model)]
        assert most == {"index": BUDGET + BLOCK, "torch": BUDGET + BLOCK}
        assert tensors_held(cache) == [] and cache.get_seq_length() == 300
        for _ in range(10):
            model(ids[:, :1], **{cache_name(model): cache}, use_cache=True)
        model(ids[:, :100], **{cache_name(model): cache}, use_cache=True)  # a second turn, after decoded tokens
    assert most == {"index": BUDGET + BLOCK, "torch": BUDGET + BLOCK}
    assert seine.stats().block_tokens == BUDGET + BLOCK and seine.memory().tokens == 3 * 410
    del cache
    hf.uninstall(model)


def test_rows_are_padded_on_the_left(model, uninstalled):
    """A row whose padding is whole blocks reads as it does alone; any other in blocks that its padding has shifted."""
    lengths = (160, 96, 90)
    ids, mask = torch.zeros(3, 160, dtype=torch.long), torch.zeros(3, 160, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, -length:], mask[row, -length:] = prompt(1, length, seed=row)[0], 1
    shifted = Loop(model, "keydiff")
    first = shifted.read(prompt(1, 90, seed=2)[:, :10], 10)
    shifted = torch.cat([first, shifted.read(prompt(1, 90, seed=2)[:, 10:], BLOCK)])
    seine = install(model, threads=1)
    with torch.inference_mode():
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        together = model(ids, attention_mask=mask, use_cache=True, position_ids=positions).logits
        assert torch.isfinite(together).all()
        for row, length in enumerate(lengths[:2]):
            alone = model(prompt(1, length, seed=row), use_cache=True).logits[0]
            torch.testing.assert_close(together[row, -length:], alone, rtol=0, atol=1e-3)
        torch.testing.assert_close(together[2, -90:].double(), shifted, rtol=0, atol=1e-3)
    assert torch.equal(generate(model, ids, attention_mask=mask)[0], generate(model, prompt(1, 160, seed=0))[0])
    assert_all_served(seine)


def test_caches_are_forked_and_cropped(model, uninstalled):
    seine = install(model, threads=1)
    ids, turn = prompt(1, 150), prompt(1, 40, seed=9)
    _, tokens, cache = decode(model, ids, 5)
    kept = copy.deepcopy(cache)
    first, _, _ = decode(model, turn, 4, cache)
    again, _, _ = decode(model, turn, 4, kept)
    torch.testing.assert_close(again, first, rtol=0, atol=1e-4)
    cache.crop(-3)
    logits, _, _ = decode(model, turn, 2, cache)
    assert torch.isfinite(logits).all() and seine.stats().truncations == 1
    assert seine.stats().block_tokens <= BUDGET + BLOCK
    assert_all_served(seine)


@pytest.mark.parametrize("scorer", ["keydiff", "tova"])
def test_a_cache_filled_before_install_is_cut_back(model, scorer, uninstalled):
    """At once by a scorer of keys; by one of queries once a block has brought some."""
    _, _, cache = decode(model, prompt(1, 200), 3)
    seine = install(model, scorer, threads=1)
    with torch.inference_mode():
        model(prompt(1, 20), **{cache_name(model): cache}, use_cache=True)
    assert tensors_held(cache) == [] and cache.get_seq_length() == 222
    held = seine.client.score(cache.batch.rows[0].sequence, 1, "knorm")
    assert [len(positions) for positions, _ in held] == [BUDGET] * 2
    assert seine.stats().block_tokens == (BUDGET + BLOCK if scorer == "keydiff" else 202 + BLOCK)


def test_arguments_of_a_forward(model, uninstalled):
    ids, base = prompt(1, 100), model.base_model
    install(model, threads=1)
    with torch.inference_mode():
        expected = base(ids, use_cache=True, output_hidden_states=True)
        assert [len(expected.hidden_states)] == [4] and expected.hidden_states[1].shape == (1, 100, 64)
        torch.testing.assert_close(expected.hidden_states[-1], expected.last_hidden_state)
        positional = base(input_ids=None, inputs_embeds=base.embed_tokens(ids), use_cache=True, return_dict=False)
        torch.testing.assert_close(positional[0], expected.last_hidden_state)
        shifted = base(ids, use_cache=True, position_ids=torch.arange(7, 107)[None]).last_hidden_state
        torch.testing.assert_close(shifted, expected.last_hidden_state, rtol=0, atol=1e-2)  # RoPE is relative
        with pytest.raises(ValueError, match="odd: a prompt in blocks cannot be given it"):
            base(ids, use_cache=True, odd=torch.ones(100))
        with pytest.raises(ValueError, match=r"\[batch, tokens\]"):
            base(ids, use_cache=True, attention_mask=torch.ones(1, 1, 100, 100))
        dense = base(ids, use_cache=False).last_hidden_state  # without a cache there is nothing to evict
    assert (dense - expected.last_hidden_state).abs().max() > 0.01


def test_settings(model):
    evict = hf.Eviction(100)
    for settings, match in (
        ({"prefill": "block", "evict": evict}, "prefill: must be one of dense, blocks, not 'block'"),
        ({"prefill": "blocks"}, "prefill: blocks need evict"),
        ({"block": 64, "evict": evict}, "block: needs prefill='blocks'"),
        ({"prefill": "blocks", "evict": evict, "block": 129}, "block: must be 2 to evict.interval, 128"),
        ({"prefill": "blocks", "evict": evict, "block": 1}, "block: must be 2"),
        ({"prefill": "blocks", "evict": evict, "block": True}, "block: must be 2"),
        ({"prefill": "blocks", "evict": evict, "block": 64.0}, "block: must be 2"),
        ({"prefill": "blocks", "evict": hf.Eviction(100, interval=1)}, "evict.interval: prompts in blocks need 2"),
        ({"prefill": "blocks", "evict": evict, "keep_cache": True}, "keep_cache: with prefill='blocks'"),
    ):
        with pytest.raises(ValueError, match=match):
            hf.install(model, **settings)
    assert "forward" not in model.base_model.__dict__
    assert hf.install(model, prefill="blocks", evict=evict, block=np.int64(64), threads=1).block == 64
    hf.uninstall(model)
    seine = hf.install(model, prefill="blocks", evict=evict, threads=1)
    assert hf.installed(model) is seine and seine.block == 128 and not seine.keeps_cache and "forward" in model.base_model.__dict__
    hf.uninstall(model)
    assert "forward" not in model.base_model.__dict__ and hf.installed(model) is None


def test_a_cache_whose_tokens_were_evicted_is_lost_with_the_installation(model):
    install(model, threads=1)
    cache = model(prompt(1, 200), use_cache=True)[cache_name(model)]
    with pytest.raises(SeineError, match="was evicted from KV head"):
        cache.layers[1].keys
    with pytest.warns(RuntimeWarning, match="a cache is lost"):
        hf.uninstall(model)
    with pytest.raises(RuntimeError, match="uninstalled, and are lost"):
        model(prompt(1, 1), **{cache_name(model): cache}, use_cache=True)
    expected = model(prompt(1, 100)).logits
    install(model, threads=1, budget=300)
    cache = model(prompt(1, 100)[:, :-1], use_cache=True)[cache_name(model)]
    hf.uninstall(model)  # nothing of this one was evicted
    last = model(prompt(1, 100)[:, -1:], **{cache_name(model): cache}, use_cache=True).logits
    torch.testing.assert_close(last[0, -1], expected[0, -1], rtol=0, atol=1e-3)


def test_low_rank_rows_in_blocks(model, uninstalled):
    """What is retained is kept low-rank and read rebuilt: of the whole rank, nearly as it came."""
    ids, zones = prompt(1, 1200), {"sink": 16, "local": 32, "update_buffer": 64, "dense_threshold": 64}
    logits = {}
    for rank in (None, 1.0, 0.25):
        low_rank = None if rank is None else hf.LowRank(rank, rank)
        evict = hf.Eviction(400, interval=64)
        seine = hf.install(model, evict=evict, low_rank=low_rank, zones=zones, top_k=4096, tail=False, dtype="float32",
                           prefill="blocks", threads=1)  # fmt: skip
        with torch.inference_mode():
            logits[rank] = model(ids[:, :480], use_cache=True).logits[0]
            model(ids, use_cache=True)
        assert seine.stats().block_tokens == 464
        if rank != 0.25:
            hf.uninstall(model)
    torch.testing.assert_close(logits[1.0], logits[None], rtol=0, atol=0.1)
    assert (logits[0.25] - logits[None]).abs().max() > 0.5


def kvpress_sets(keys, budget, block):
    """What kvpress's BlockPress leaves, where kvpress can be imported."""
    from kvpress import BlockPress, KeyDiffPress

    positions = torch.arange(keys.shape[1], dtype=torch.float32)[:, None].expand(1, *keys.shape)
    press = BlockPress(KeyDiffPress(1 - (budget + 0.5) / keys.shape[1]), block_size=block)
    hidden = torch.zeros(1, keys.shape[1], keys.shape[0])
    _, kept = press.compress(None, hidden, keys[None].float(), positions, None, {})
    return kept[0, :, :, 0].long().sort(dim=-1).values


def keydiff_sets(keys, budget, block):
    return loop_sets(keys, lambda held: scored("keydiff", held, None, None), budget, block)


@pytest.mark.parametrize("peer", [keydiff_sets] + ([kvpress_sets] if find_spec("kvpress") else []))
def test_what_is_left_of_a_models_keys_is_the_peers(model, peer, uninstalled):
    """Of the first layer, whose keys no eviction changes. The budget is whole blocks: kvpress begins with as many."""
    ids = prompt(1, 333)
    with torch.inference_mode():
        keys = model(ids, use_cache=True)[cache_name(model)].layers[0].keys[0]
        evict = hf.Eviction(64, keep={}, interval=32)
        seine = hf.install(model, evict=evict, prefill="blocks", dtype="float32", threads=1)
        cache = model(ids, use_cache=True)[cache_name(model)]
    held = seine.client.score(cache.batch.rows[0].sequence, 0, "knorm")
    assert [positions.tolist() for positions, _ in held] == peer(keys, 64, 32).tolist()


@pytest.mark.parametrize("name", ["keydiff", "knorm"])
def test_an_index_leaves_what_kvpress_does(client, name):
    """kvpress 0.5.5's BlockPress on the same keys (tests/golden/make_kvpress.py), by an index that evicts by itself."""
    golden, _ = read_tensors(GOLDENS)
    keys = np.ascontiguousarray(golden["keys"].transpose(1, 0, 2))
    sets = {key: kept for key, kept in golden.items() if key.startswith(f"block.{name}.")}
    assert len(sets) == 6
    for key, expected in sets.items():
        budget, block = expected.shape[1], int(key.rpartition(".")[2])
        eviction = {"scorer": name, "budget": {"tokens": budget}, "interval": block}
        geometry = {"num_layers": 1, "num_q_heads": 4, "num_kv_heads": 2, "head_dim": 64}
        client.create_index(key, kv_store="keys", eviction=eviction, **geometry)
        sequence = client.create_sequence(key)
        client.append(sequence, 0, 0, keys)
        kept = client.evict(sequence, 0, budget, name).kept  # what came after the last whole block
        assert [positions.tolist() for positions in kept] == expected.tolist(), key
