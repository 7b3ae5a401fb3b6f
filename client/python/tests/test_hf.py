"""seine_kv.hf against a real server: small, randomly initialised models of the Llama architecture. Needs torch and
transformers; without them it fails rather than pass unseen."""

import copy
import warnings

import pytest
import torch
from conftest import start
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from seine_kv import hf
from seine_kv.client import Client, SeineError
from seine_kv.hf.eviction import QueryWindow
from seine_kv.model import cache_name

VOCABULARY, PROMPT = 97, 150
ZONES = {"sink": 16, "local": 32, "update_buffer": 64, "dense_threshold": 64}
EVERYTHING = {"top_k": 4096, "zones": ZONES}  # k >= n: what Seine attends is all there is


def make_model(seed=0, **geometry):
    torch.manual_seed(seed)
    shape = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, **geometry}
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        max_position_embeddings=4096,
        initializer_range=0.3,  # far from uniform attention, and no two tokens alike
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
        **shape,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def model():
    return make_model()


def prompt(rows=1, tokens=PROMPT, seed=1):
    return torch.randint(2, VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def decode(model, ids, steps, cache=None, **options):
    """Logits [steps, vocabulary] and tokens of greedy decoding after a prefill of `ids`, by hand."""
    logits, tokens = [], []
    with torch.inference_mode():
        for _ in range(steps):
            out = model(ids, **{cache_name(model): cache}, use_cache=True, **options)
            cache = out[cache_name(model)]
            logits.append(out.logits[0, -1])
            ids = logits[-1].argmax().reshape(1, 1)
            tokens.append(int(ids))
    return torch.stack(logits), tokens, cache


def generate(model, ids, **options):
    settings = {"max_new_tokens": 12, "do_sample": False, **options}
    settings.setdefault("attention_mask", torch.ones_like(ids))
    return model.generate(ids, **settings)


@pytest.fixture
def client(server):
    """Another client of the server that models are installed with."""
    return server


@pytest.fixture
def installed(model, client):
    """The model with everything attended through Seine."""
    seine = hf.install(model, client.address, **EVERYTHING)
    yield seine
    if model.config._attn_implementation == "seine":
        hf.uninstall(model)


def assert_all_served(seine):
    stats = seine.stats()
    assert stats.rows > 0 and stats.dense_rows == 0, str(stats)


def test_everything_attended_is_dense_attention(model, client):
    ids = prompt()
    expected, tokens, _ = decode(model, ids, 20)
    for scope, tail in (("per_q_head", False), ("per_q_head", None), ("per_kv_head", False)):
        seine = hf.install(model, client.address, tail=tail, selector={"scope": scope}, **EVERYTHING)
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
    seine = hf.install(model, client.address, **EVERYTHING)
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


def test_padding_on_the_right_is_refused(model, installed):
    mask = torch.ones(1, PROMPT, dtype=torch.long)
    mask[0, -1] = 0
    with pytest.raises(ValueError, match="padding_side"):
        model(prompt(), attention_mask=mask, use_cache=True)


def test_caches_and_masks_of_another_kind_are_refused(model, installed):
    with pytest.raises(ValueError, match="DynamicCache, not a StaticCache"):
        generate(model, prompt(), cache_implementation="static")
    with pytest.raises(ValueError, match=r"\[batch, tokens\]"):
        model(prompt(), attention_mask=torch.ones(1, 1, PROMPT, PROMPT), use_cache=True)


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


def test_a_server_killed_while_it_is_used(model, tmp_path):
    """Decoding goes on densely, with the same tokens, warned of and counted; through Seine again once it is back."""
    expected, tokens, _ = decode(model, prompt(), 30)
    socket = tmp_path / "seine.sock"
    process = start(socket)
    with Client(f"unix://{socket}") as client:
        client.wait_until_ready(20)
    seine = hf.install(model, f"unix://{socket}", retry=0.05, timeout=5, **EVERYTHING)
    try:
        logits, got, cache = decode(model, prompt(), 10)
        assert_all_served(seine)
        served = seine.stats().rows
        process.kill()
        process.wait(20)
        with pytest.warns(hf.DenseFallbackWarning, match="UNAVAILABLE"):
            more, then, cache = decode(model, torch.tensor([[got[-1]]]), 10, cache)
        stats = seine.stats()
        assert stats.rows == served and stats.dense_rows == 30 and set(stats.dense_reasons) == {"UNAVAILABLE"}
        process = start(socket)
        with Client(f"unix://{socket}") as client:
            client.wait_until_ready(20)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", hf.DenseFallbackWarning)
            last, end, _ = decode(model, torch.tensor([[then[-1]]]), 10, cache)
        assert got + then + end == tokens
        torch.testing.assert_close(torch.cat([logits, more, last]), expected, rtol=0, atol=1e-3)
        assert seine.stats().rows > served and seine.stats().rebuilt_sequences >= 1, str(seine.stats())
        assert "UNAVAILABLE" in str(seine.stats())
    finally:
        hf.uninstall(model)
        process.kill()
        process.wait(20)


def test_a_sequence_that_somebody_deleted_is_sent_again(model, installed, client):
    expected, tokens, cache = decode(model, prompt(), 5)
    client.delete_sequence(client.list_sequences(installed.index)[0].handle)
    with pytest.warns(hf.DenseFallbackWarning, match="NOT_FOUND"):
        decode(model, torch.tensor([[5]]), 5, cache)
    stats = installed.stats()
    assert stats.dense_rows == 1 and stats.rebuilt_sequences == 1 and stats.rows == 2 * len(tokens) * 3 - 3 - 1


def test_one_row_that_fails_leaves_the_others_to_seine(model, installed, client):
    expected = {}
    for seine in (True, False):
        cache = model(prompt(3), use_cache=True)[cache_name(model)]
        if seine:
            client.delete_sequence(cache.batch.rows[1].sequence)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", hf.DenseFallbackWarning)
            expected[seine] = model(torch.tensor([[5], [6], [7]]), **{cache_name(model): cache}, use_cache=True).logits
        if seine:
            stats = installed.stats()
            assert stats.dense_rows == 1 and stats.dense_reasons == {"NOT_FOUND": 1} and stats.rows == 3 * 3 - 1
            hf.uninstall(model)
    torch.testing.assert_close(expected[True], expected[False], rtol=0, atol=1e-3)


def test_an_index_that_somebody_deleted_is_made_again(model, installed, client):
    _, _, cache = decode(model, prompt(), 3)
    client.delete_index(installed.index)
    with pytest.warns(hf.DenseFallbackWarning, match="NOT_FOUND"):
        decode(model, torch.tensor([[5]]), 5, cache)
    assert installed.stats().dense_rows == 1 and client.list_sequences(installed.index)


def test_settings_that_the_server_refuses_are_raised(model, client):
    hf.install(model, client.address, zones=ZONES, selector={"beta": 7.0})
    with pytest.raises(SeineError, match="beta") as caught:
        generate(model, prompt())
    assert caught.value.code == "INVALID_ARGUMENT"
    hf.uninstall(model)


def test_an_index_that_does_not_fit_is_refused(model, client):
    geometry = {"num_layers": 3, "num_q_heads": 4, "num_kv_heads": 2, "head_dim": 64, "dtype": "float32"}
    for name, wrong, match in (
        ("heads", {"num_kv_heads": 4}, "geometry.num_kv_heads is 4, not 2"),
        ("dim", {"head_dim": 128}, "geometry.head_dim is 128, not 64"),
        ("dtype", {"dtype": "float16"}, "geometry.dtype is float16, not float32"),
        ("store", {"kv_store": "keys"}, "kv_store is keys, not keys_values"),
    ):
        client.create_index(name, **{"kv_store": "keys_values", **geometry, **wrong})
        with pytest.raises(ValueError, match=match):
            hf.install(model, client.address, index=name)
    assert model.config._attn_implementation == "sdpa"


def test_what_cannot_be_served_is_refused(model, client):
    with pytest.raises(SeineError, match="codec.profile"):
        hf.install(model, client.address, profile="nobody")
    with pytest.raises(SeineError) as caught:
        hf.install(model, "unix:///nowhere/seine.sock")
    assert caught.value.code == "UNAVAILABLE"
    with pytest.raises(ValueError, match="base model"):
        hf.install(model.model, client.address)
    with pytest.raises(ValueError, match="not installed"):
        hf.uninstall(model)
    sliding = make_model()
    sliding.config.layer_types = ["full_attention", "sliding_attention", "full_attention"]
    with pytest.raises(ValueError, match="sliding_attention"):
        hf.install(sliding, client.address)
    with pytest.raises(ValueError, match="tokens"):
        hf.install(model, client.address, evict=hf.Eviction({"ratio": 0.5}))
    hf.install(model, client.address)
    with pytest.raises(ValueError, match="already"):
        hf.install(model, client.address)
    hf.uninstall(model)


def test_a_forward_without_a_cache_is_torchs(model, installed):
    assert model(prompt(), use_cache=False).get(cache_name(model)) is None
    assert installed.stats().appended_tokens == 0


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


@pytest.mark.parametrize("frame", ["pre_rope", "post_rope"])
def test_low_rank_of_the_whole_rank_is_dense_attention(model, client, frame):
    """To the rounding of bases, which are stored in fp16; and of a smaller rank it is not."""
    ids = prompt(1, 300)
    expected, tokens, _ = decode(model, ids, 10)
    seine = hf.install(model, client.address, tail=False, low_rank=hf.LowRank(8, 0.125, frame), **EVERYTHING)
    logits, _, _ = decode(model, ids, 10)
    assert (logits[0] - expected[0]).abs().max() < 1e-3 and (logits[1] - expected[1]).abs().max() > 0.5
    hf.uninstall(model)
    seine = hf.install(model, client.address, tail=False, low_rank=hf.LowRank(64, 1.0, frame), **EVERYTHING)
    logits, got, _ = decode(model, ids, 10)
    assert got == tokens and seine.spec["subspace"]["key_rank"] == seine.spec["subspace"]["value_rank"] == 64
    torch.testing.assert_close(logits, expected, rtol=0, atol=0.1)
    assert_all_served(seine)
    held = client.list_sequences(seine.index)[-1]
    assert client.describe_head(held.handle, 1, 0)["subspace"]["low_rank_tokens"] == 256
    hf.uninstall(model)


@pytest.mark.parametrize("evict", [None, hf.Eviction(1000, interval=64), hf.Eviction(1000, "snapkv", interval=64)])
def test_low_rank_takes_less_and_decodes(model, client, evict):
    """Alone, and of what the index or calls retain; beams fork it."""
    ids, shares = prompt(1, 2000), {}
    for low_rank in (None, hf.LowRank(16, 0.25)):
        seine = hf.install(model, client.address, zones=ZONES, evict=evict, low_rank=low_rank)
        assert seine.memory().tokens == 0 and seine.memory().share == 0
        logits, _, cache = decode(model, ids, 8)
        assert torch.isfinite(logits).all() and seine.stats().tail_rows == 7 * 3
        memory = seine.memory()
        assert memory.tokens == 2007 * 3 and memory.full_bytes == memory.tokens * 2 * 2 * 64 * 4
        shares[low_rank is not None] = memory.share
        del cache
        generate(model, prompt(2, 300), num_beams=2, max_new_tokens=4)
        assert seine.stats().forks > 0 and "% of the full" in str(seine.memory())
        assert_all_served(seine)
        hf.uninstall(model)
    assert shares[True] < 0.65 * shares[False] and shares[False] < (1.2 if evict is None else 0.7), shares


def test_low_rank_chooses_by_queries(model, client):
    """A prompt brings its last queries, and steps ask theirs: no block lacks them. Ranks may be each layer's."""
    own = {"full_rank": 0.125, "full_rank_queries": 16, "prompt_pool": 4}
    low_rank = hf.LowRank([16, 0.25, 20], 0.5, more=own)
    seine = hf.install(model, client.address, zones=ZONES, low_rank=low_rank)
    assert seine.spec["subspace"]["key_ranks"] == [16, 16, 20] and seine.choosing_queries == 16
    logits, _, cache = decode(model, prompt(1, 2000), 80)
    assert torch.isfinite(logits).all()
    held = client.list_sequences(seine.index)[-1]
    for layer in range(3):
        for head in client.get_basis(held.handle, layer)[2]:
            assert head["full_rank_tokens"] > 0 and head["blocks_without_queries"] == 0
    del cache
    hf.uninstall(model)
    with pytest.raises(ValueError, match=r"low_rank.key_rank\[1\]: must be 1 to head_dim, 64, not 65"):
        hf.install(model, client.address, low_rank=hf.LowRank([16, 65, 20]))


def test_low_rank_settings(model, client):
    for low_rank, match in (
        (hf.LowRank(65), "low_rank.key_rank: must be 1 to head_dim, 64, not 65"),
        (hf.LowRank(0.5, 1.5), "low_rank.value_rank: a share"),
        (hf.LowRank(more={"rank": 3}), "subspace: unknown setting rank"),
    ):
        with pytest.raises(ValueError, match=match):
            hf.install(model, client.address, low_rank=low_rank)
    with pytest.raises(SeineError, match="profile"):
        hf.install(model, client.address, low_rank=hf.LowRank(profile="nobody"))
    unstated = make_model()
    unstated.config.rope_parameters["rope_type"] = "unheard_of"  # once it is built
    for one, frame in ((model, "pre_rope"), (unstated, "post_rope")):
        seine = hf.install(one, client.address, low_rank=hf.LowRank(), evict=hf.Eviction(100))
        assert seine.spec["subspace"]["frame"] == frame and seine.spec["subspace"]["key_rank"] == 38
        assert seine.spec["zones"]["dense_threshold"] < 2**20  # what is retained is searched: rows are low-rank in a zone
        hf.uninstall(one)
    hf.install(model, client.address, index="low", low_rank=hf.LowRank(0.5, 9))
    hf.uninstall(model)
    for low_rank, match in ((None, "subspace.key_rank is 32, not None"), (hf.LowRank(), "subspace.value_rank is 9, not 38")):
        with pytest.raises(ValueError, match=match):
            hf.install(model, client.address, index="low", low_rank=low_rank)


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
