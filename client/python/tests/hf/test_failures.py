"""seine_kv.hf where something fails: servers and sequences that are lost, and what is refused."""

import warnings

import pytest
import torch
from conftest import start
from small_model import EVERYTHING, PROMPT, ZONES, assert_all_served, decode, generate, make_gemma4, make_model, prompt
from small_model import client, installed, model  # noqa: F401 - fixtures

from seine_kv import hf
from seine_kv.client import Client, SeineError
from seine_kv.model import cache_name


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


@pytest.mark.parametrize("make", [make_model, make_gemma4])  # of three layers that are served, and one shares another's keys
def test_a_server_killed_while_it_is_used(make, tmp_path):
    """Decoding goes on densely, with the same tokens, warned of and counted; through Seine again once it is back."""
    model = make()
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
    with pytest.raises(SeineError, match="candidate_fraction") as caught:
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
    sliding.config.layer_types = ["sliding_attention"] * 3
    with pytest.raises(ValueError, match="sliding_attention"):
        hf.install(sliding, client.address)
    with pytest.raises(ValueError, match="tokens"):
        hf.install(model, client.address, evict=hf.Eviction({"ratio": 0.5}))
    hf.install(model, client.address)
    with pytest.raises(ValueError, match="already"):
        hf.install(model, client.address)
    hf.uninstall(model)
