"""seine_kv.hf with rows in low-rank form: what they answer, what they take, and their settings."""

import pytest
import torch
from small_model import EVERYTHING, ZONES, assert_all_served, decode, generate, make_model, prompt
from small_model import client, model  # noqa: F401 - fixtures

from seine_kv import hf
from seine_kv.client import SeineError


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
    for low_rank, match in ((None, "subspace is set, not None"), (hf.LowRank(), "subspace.value_rank is 9, not 38")):
        with pytest.raises(ValueError, match=match):
            hf.install(model, client.address, index="low", low_rank=low_rank)
