"""Prompts attended by Seine's kernel: as torch attends them, and over chosen keys; what torch must do is counted."""

import pytest
import torch
from small_model import PROMPT, decode, make_model, prompt
from torch.nn.functional import scaled_dot_product_attention

from seine_kv import hf
from seine_kv.hf.prompts import Prompts
from seine_kv.model import cache_name


def forward(model, ids, cache=None, **more):
    with torch.inference_mode():
        out = model(ids, **{cache_name(model): cache}, use_cache=True, **more)
    return out.logits, out[cache_name(model)]


@pytest.mark.parametrize("geometry", [{}, {"num_key_value_heads": 4, "head_dim": 80}, {"num_key_value_heads": 1, "head_dim": 128}])
def test_a_prompt_is_attended_as_torch_does(geometry):
    model, ids = make_model(3, **geometry), prompt(2, 333, seed=5)
    expected, _ = forward(model, ids)
    seine = hf.install(model, threads=2)
    logits, _ = forward(model, ids)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-3)
    counts = seine.stats().prompts
    assert counts.tokens == 2 * 333 * 3 and counts.torch_tokens == 0 and counts.runs_taken == counts.runs_seen > 0
    assert "tokens of prompts attended by Seine" in str(seine.stats())


def test_what_torch_would_make_of_it_is_not_what_comes_back(monkeypatch):
    """The proof that the test above can fail: the kernel's answer is the one that is used."""
    model, ids = make_model(3), prompt(1, 200)
    expected, _ = forward(model, ids)
    hf.install(model, threads=1)
    attend = Prompts.attend
    monkeypatch.setattr(Prompts, "attend", lambda *args: attend(*args).mul(0.5))
    logits, _ = forward(model, ids)
    assert (logits - expected).abs().max() > 0.01


def test_padded_rows_and_later_parts_of_a_prompt():
    model, lengths = make_model(4), (170, 90, 3)
    ids, mask = torch.zeros(3, 170, dtype=torch.long), torch.zeros(3, 170, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, -length:], mask[row, -length:] = prompt(1, length, seed=row)[0], 1

    def parts():
        cache, out = None, []
        for begin, end in ((0, 100), (100, 101), (101, 131), (131, 170)):
            logits, cache = forward(model, ids[:, begin:end], cache, attention_mask=mask[:, :end])
            out.append(logits)
        return torch.cat(out, dim=1)

    expected = parts()
    seine = hf.install(model, top_k=4096, dtype="float32", threads=2)
    got = parts()
    assert torch.isfinite(got).all()  # of padding too, which sees nothing
    seen = mask.bool()
    torch.testing.assert_close(got[seen], expected[seen], rtol=0, atol=1e-3)
    assert seine.stats().prompts.tokens == 3 * 3 * 169 and seine.stats().prompts.torch_tokens == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_nearer_to_double_than_torch(dtype):
    torch.manual_seed(1)
    query = torch.randn(2, 6, 70, 64).to(dtype)
    key, value = (torch.randn(2, 2, 500, 64).to(dtype) for _ in range(2))
    mask = torch.rand(2, 1, 70, 500) < 0.7

    def torchs(convert):
        both = (convert(rows.repeat_interleave(3, 1)) for rows in (key, value))
        return scaled_dot_product_attention(convert(query), *both, attn_mask=mask, scale=0.2).transpose(1, 2)

    want = torchs(torch.Tensor.double)
    got = Prompts("exact", None, 2).attend(query, key, value, mask, 0.2)
    assert got.dtype == dtype and got.shape == (2, 70, 6, 64)
    assert (got - want).abs().mean() <= (torchs(lambda rows: rows) - want).abs().mean() * 1.01


def test_every_head_may_have_a_mask_of_its_own():
    torch.manual_seed(2)
    query, key, value = torch.randn(1, 4, 9, 64), torch.randn(1, 2, 200, 64), torch.randn(1, 2, 200, 64)
    mask = (torch.rand(1, 2, 9, 200) < 0.3).repeat_interleave(2, 1)
    both = (rows.repeat_interleave(2, 1) for rows in (key, value))
    want = scaled_dot_product_attention(query, *both, attn_mask=mask).transpose(1, 2)
    got = Prompts("exact", None, 1).attend(query, key, value, mask, None)
    torch.testing.assert_close(got, want)


def test_without_a_mask_the_tokens_are_those_of_the_last_places():
    torch.manual_seed(4)
    query, key, value = torch.randn(2, 4, 3, 64), torch.randn(2, 2, 90, 64), torch.randn(2, 2, 90, 64)
    mask = torch.ones(3, 90, dtype=torch.bool).tril(87)
    both = (rows.repeat_interleave(2, 1) for rows in (key, value))
    want = scaled_dot_product_attention(query, *both, attn_mask=mask).transpose(1, 2)
    torch.testing.assert_close(Prompts("exact", None, 1).attend(query, key, value, None, None), want)


def sharp(tokens, places, seed):
    """Queries that follow a few runs of keys, as heads of models do."""
    torch.manual_seed(seed)
    query, key, value = (torch.randn(1, heads, n, 64) for heads, n in ((6, tokens), (2, places), (2, places)))
    key[..., 0] += 8 * (torch.rand(1, 2, places // 8) < 0.05).repeat_interleave(8, 2)
    query[..., 0] += 8
    return query, key, value


def test_sparse_prompts_attend_most_of_the_mass_over_few_keys():
    query, key, value = sharp(256, 6000, 3)
    mask = torch.ones(256, 6000, dtype=torch.bool).tril(6000 - 256)[None, None]
    exact, sparse = Prompts("exact", None, 2), Prompts("sparse", None, 2)
    want, got = (way.attend(query, key, value, mask, None) for way in (exact, sparse))
    assert sparse.stats.exact_blocks == 0 and 0.02 < sparse.stats.runs_taken / sparse.stats.runs_seen < 0.3
    assert 1e-4 < (got - want).norm() / want.norm() < 0.15
    wide, least = Prompts("sparse", 0.99, 2), Prompts("sparse", 0.5, 2)
    errors = [(way.attend(query, key, value, mask, None) - want).norm() for way in (least, sparse, wide)]
    assert errors[0] > errors[1] > errors[2]
    alone = Prompts("sparse", None, 1)
    assert torch.equal(alone.attend(query, key, value, mask, None), got)  # any number of threads


def test_short_prompts_are_exact_where_sparse_ones_are_asked_for():
    query, key, value = sharp(64, 2048, 4)
    mask = torch.ones(1, 1, 64, 2048, dtype=torch.bool)
    exact, sparse = (Prompts(way, None, 1).attend(query, key, value, mask, None) for way in ("exact", "sparse"))
    assert torch.equal(exact, sparse)


def test_what_the_kernel_cannot_attend_torch_does_and_the_reason_is_counted():
    model, ids = make_model(5), prompt(1, 60)
    seine = hf.install(model, threads=1)
    model(ids, use_cache=True).logits.sum().backward()
    assert dict(seine.stats().prompts.torch_reasons) == {"gradients": 180}
    assert all(p.grad is not None for p in model.parameters())
    hf.uninstall(model)
    seen = Prompts("exact", None, 1)
    assert seen.attend(*(torch.randn(1, 2, 5, 40) for _ in range(3)), None, None) is None
    assert seen.attend(*(torch.randn(1, 2, 5, 64) for _ in range(3)), torch.zeros(1, 1, 5, 5), None) is None
    assert seen.attend(torch.randn(1, 2, 3, 64), *(torch.randn(1, 2, 5, 64) for _ in range(2)), None, None, causal=False) is None
    assert set(seen.stats.torch_reasons) == {"head_dim", "a mask that weighs", "no mask"} and seen.stats.tokens == 0


def test_prompts_are_torchs_where_that_is_asked_for():
    model, ids = make_model(6), prompt(1, PROMPT)
    expected, _, _ = decode(model, ids, 1)
    seine = hf.install(model, prompt="torch", threads=1)
    logits, _, _ = decode(model, ids, 1)
    assert torch.equal(logits, expected)
    assert seine.stats().prompts.torch_reasons == {"as installed": PROMPT * 3} and seine.stats().prompts.tokens == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt": "dense"}, "prompt: must be one of exact, sparse, torch, not 'dense'"),
        ({"prompt_mass": 0.9}, "prompt_mass: needs prompt='sparse'"),
        ({"prompt": "sparse", "prompt_mass": 1.0}, "prompt_mass: must be above 0 and below 1, not 1.0"),
        ({"prompt": "sparse", "prompt_mass": 0}, "prompt_mass: must be above 0 and below 1, not 0"),
    ],
)
def test_settings_that_make_no_sense(settings, message):
    with pytest.raises(ValueError) as raised:
        hf.install(make_model(7), threads=1, **settings)
    assert str(raised.value) == message
