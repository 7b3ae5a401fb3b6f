"""Attention over a paged cache, as vLLM's plug-in asks it, beside numpy in float64: any blocks, mixed steps, blocks used anew,
writes that nobody tells of, and codes."""

import ml_dtypes
import numpy as np
import pytest
from conftest import PROFILES

from seine_kv import _native

HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 64, 128
NAMES = {"num_layers": 1, "num_q_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM, "block_size": BLOCK}
TOLERANCE = {np.float32: 2e-6, np.float16: 2e-6, ml_dtypes.bfloat16: 2e-6}  # rows are read as they lie


def reference(queries, keys, values, scale, softcap=0.0):
    """queries [rows, heads, dim] of the text's last rows; keys, values [tokens, KV heads, dim]."""
    q, k, v = (x.astype(np.float64) for x in (queries, keys, values))
    group, rows, tokens = q.shape[1] // k.shape[1], len(q), len(k)
    out = np.empty_like(q)
    for head in range(q.shape[1]):
        logits = scale * q[:, head] @ k[:, head // group].T
        if softcap:
            logits = softcap * np.tanh(logits / softcap)
        logits[np.arange(tokens)[None, :] > tokens - rows + np.arange(rows)[:, None]] = -np.inf
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        out[:, head] = weights @ v[:, head // group] / weights.sum(axis=1, keepdims=True)
    return out


class Engine:
    """What vLLM does: texts in blocks of a pool, in any order, and a table of them."""

    def __init__(self, rng, num_blocks=40, dtype=np.float32, **settings):
        self.rng, self.dtype = rng, dtype
        self.scale = settings.get("scale", DIM**-0.5)
        self.softcap = settings.get("softcap", 0.0)
        made = {"num_blocks": num_blocks, "max_tokens": 8192, "scale": self.scale, "threads": 2, "min_tokens": 512, "gate": 0.0}
        self.attention = _native.PagedAttention(**{**NAMES, **made, **settings})
        self.cache = np.full((num_blocks, BLOCK, KV_HEADS, 2 * DIM), np.nan, np.float32).astype(dtype)
        if dtype == ml_dtypes.bfloat16:
            import torch

            self.tensor = lambda x: torch.from_numpy(np.ascontiguousarray(x).view(np.uint16)).view(torch.bfloat16)
        else:
            self.tensor = lambda x: x
        self.layer = self.attention.layer(0, self.tensor(self.cache))
        self.free = list(rng.permutation(num_blocks))
        self.texts = {}  # name -> (blocks, keys, values)

    def rows(self, count):
        return self.rng.standard_normal((count, KV_HEADS, DIM)).astype(self.dtype)

    def drop(self, name):
        self.free = [*self.free, *self.texts.pop(name)[0]]

    def step(self, news):
        """news: name -> new tokens. Returns the largest relative error of a text's outputs: name -> error."""
        names, slots, new_keys, new_values = list(news), [], [], []
        for name in names:
            blocks, keys, values = self.texts.get(name, ([], np.empty((0, KV_HEADS, DIM), self.dtype), np.empty((0, KV_HEADS, DIM), self.dtype)))
            k, v, begin = self.rows(news[name]), self.rows(news[name]), len(keys)
            keys, values = np.concatenate([keys, k]), np.concatenate([values, v])
            blocks = [*blocks, *(self.free.pop() for _ in range(-(-len(keys) // BLOCK) - len(blocks)))]
            self.texts[name] = (blocks, keys, values)
            slots += [blocks[t // BLOCK] * BLOCK + t % BLOCK for t in range(begin, len(keys))]
            new_keys.append(k), new_values.append(v)
        fused = np.concatenate([np.concatenate(new_keys), np.concatenate(new_values)], axis=1)  # strided, as vLLM's are
        fused = self.tensor(fused)
        padded = np.array([*slots, -1], np.int64)
        self.layer.write(fused[:, :KV_HEADS], fused[:, KV_HEADS:], padded[:-1])
        return self.attend(news)

    def attend(self, news, asked=None):
        """asked: a place of every text; its key is what the queries look for."""
        names = list(news)
        starts = np.cumsum([0, *(news[name] for name in names)]).astype(np.int32)
        lengths = np.array([len(self.texts[name][1]) for name in names], np.int32)
        table = np.zeros((len(names), 64), np.int32)
        for i, name in enumerate(names):
            table[i, : len(self.texts[name][0])] = self.texts[name][0]
        queries = 2 * self.rng.standard_normal((starts[-1] + 3, HEADS, DIM)).astype(np.float32)  # padded
        if asked is not None:
            for i, name in enumerate(names):
                queries[starts[i]] = 4 * np.repeat(self.texts[name][1][asked].astype(np.float32), HEADS // KV_HEADS, axis=0)
        output = np.full_like(queries, np.nan)
        self.layer.attend(self.attention.step(starts, lengths, table), queries, output)
        errors = {}
        for i, name in enumerate(names):
            part = slice(starts[i], starts[i + 1])
            _, keys, values = self.texts[name]
            wanted = reference(queries[part], keys, values, self.scale, self.softcap)
            errors[name] = np.abs(output[part] - wanted).max() / np.abs(wanted).max()
        assert np.isnan(output[starts[-1] :]).all()
        return errors


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_mixed_steps_over_any_blocks_are_exact(dtype):
    engine = Engine(np.random.default_rng(1), dtype=dtype, min_tokens=1 << 30)
    steps = [{"a": 300, "b": 1}, {"a": 1, "c": 129, "b": 1}, {"c": 200, "a": 1, "b": 127}, {"b": 1, "a": 1, "c": 1}, {"d": 2, "c": 1}]
    for news in steps:
        errors = engine.step(news)
        assert max(errors.values()) < TOLERANCE[dtype], errors
    counts = engine.layer.counts()
    assert counts["exact"] == 8 and counts["coded"] == counts["encoded_keys"] == 0
    assert counts["prompt_tokens"] == 300 + 129 + 200 + 127 + 2


def test_it_runs_on_torchs_threads_where_torch_is_loaded():
    import torch

    engine = Engine(np.random.default_rng(7), threads=0, top_k=1 << 16)
    assert engine.attention.openmp and engine.attention.threads == torch.get_num_threads()
    assert max(engine.step({"a": 800, "b": 64}).values()) < 2e-6
    torch.set_num_threads(2)
    assert engine.attention.threads == 2
    for _ in range(3):
        assert max(engine.step({"a": 1, "b": 1}).values()) < 2e-6
    torch.set_num_threads(1)
    assert not Engine(np.random.default_rng(7), threads=1).attention.openmp


def test_a_soft_cap_holds_in_prompts_and_decoding():
    engine = Engine(np.random.default_rng(2), softcap=3.0, scale=0.3, top_k=4096)
    assert max(engine.step({"a": 700}).values()) < 2e-5
    assert max(engine.step({"a": 1}).values()) < 2e-5
    assert engine.layer.counts()["coded"] == 1


def test_codes_that_choose_all_are_exact_in_blocks_used_before_and_shared():
    engine = Engine(np.random.default_rng(3), top_k=1 << 16, num_blocks=24)
    for round_ in range(4):
        before = engine.layer.counts()["changed_windows"]
        assert max(engine.step({"a": 900 + round_, "b": 700}).values()) < 2e-6
        told = engine.layer.counts()["changed_windows"] - before  # by the writes: a prompt compares no hashes
        assert (told > 0) == (round_ > 0), (round_, told)
        blocks, keys, values = engine.texts["a"]
        engine.texts["c"] = (blocks[:6], keys[: 6 * BLOCK], values[: 6 * BLOCK])  # a prefix, found in the cache
        for _ in range(3):
            errors = engine.step({"b": 1, "c": 1, "a": 1})
            assert max(errors.values()) < 2e-6, errors
        engine.texts["c"] = (engine.texts["c"][0][6:], *engine.texts["c"][1:])  # its own blocks alone are free again
        for name in ("a", "b", "c"):
            engine.drop(name)
        engine.rng.shuffle(engine.free)
    counts = engine.layer.counts()
    assert counts["coded"] == 4 * 3 * 3 and counts["declined"] == {} and counts["changed_windows"] > 0
    assert counts["found_windows"] == 0
    zone = (900 - 256 - 64) // 64 * 64 * KV_HEADS  # c's is of a's blocks: it adds but what is its own
    assert counts["encoded_keys"] < 4 * (3 * zone)


@pytest.mark.parametrize("num_blocks", [20, 40])
def test_codes_of_all_blocks_take_what_is_said_before(num_blocks):
    engine = Engine(np.random.default_rng(12), num_blocks=num_blocks)
    most = engine.layer.most_bytes
    assert engine.layer.counts()["bytes"] == 0
    engine.step({"a": (num_blocks - 1) * BLOCK})
    engine.step({"a": 1})
    assert engine.layer.counts()["bytes"] == most > 0


def test_blocks_beyond_the_memory_for_codes_are_attended_row_by_row():
    whole = Engine(np.random.default_rng(13), num_blocks=70)
    bound = whole.layer.most_bytes // 2
    engine = Engine(np.random.default_rng(13), num_blocks=70, codes_bytes=bound, top_k=1 << 16)
    blocks = engine.attention.code_blocks
    assert 0 < blocks < 70 and 0 < engine.layer.most_bytes <= bound
    engine.free = [*range(blocks), *range(69, blocks - 1, -1)]  # the first text has blocks beyond alone, the last ones within
    for news in ({"beyond": 900}, {"both": (70 - blocks - 8) * BLOCK + 1000}, {"within": 700}):
        engine.step(news)
    (of_both, *_), (of_beyond, *_) = engine.texts["both"], engine.texts["beyond"]
    assert min(of_both) < blocks <= max(of_both) and min(of_beyond) >= blocks
    for _ in range(3):
        errors = engine.step({"within": 1, "beyond": 1, "both": 1})
        assert max(errors.values()) < 2e-6, errors
    counts = engine.layer.counts()
    assert counts["declined"] == {"no room for codes": 3}
    assert counts["coded"] == 6 and counts["cut"] == 3 and counts["found_windows"] == 0
    assert 0 < counts["bytes"] <= bound
    few = Engine(np.random.default_rng(13), num_blocks=20, codes_bytes=1)
    assert few.attention.code_blocks == 0 and max(few.step({"a": 900}).values()) < 2e-6 and max(few.step({"a": 1}).values()) < 2e-6
    assert few.layer.counts()["declined"] == {"no room for codes": 1} and few.layer.counts()["bytes"] == 0


def test_tokens_that_matter_are_chosen_wherever_their_blocks_lie():
    engine = Engine(np.random.default_rng(4), top_k=20, gate=0.05)
    engine.step({"a": 1900, "b": 1500})
    for asked in engine.rng.integers(0, 1500, 20):
        errors = engine.attend({"b": 1, "a": 1}, asked)
        assert max(errors.values()) < 1e-3, (asked, errors)
    counts = engine.layer.counts()
    assert counts["coded"] == 40 and counts["gated"] == 0 and counts["gate_checks"] > 1
    assert counts["gate_lost"] < 0.01 * counts["gate_checks"]


def test_writes_that_nobody_tells_of_are_found_and_encoded_anew():
    engine = Engine(np.random.default_rng(5), top_k=1 << 16)
    engine.step({"a": 1500})
    assert engine.step({"a": 1})["a"] < 2e-6
    blocks, keys, values = engine.texts["a"]
    before = engine.layer.counts()
    keys[256:384] = engine.rows(128)
    engine.cache[blocks[2], :, :, :DIM] = keys[256:384]
    assert engine.step({"a": 1})["a"] < 2e-6
    after = engine.layer.counts()
    assert after["found_windows"] == 2 * KV_HEADS and after["changed_windows"] == before["changed_windows"]
    assert after["encoded_keys"] - before["encoded_keys"] == 128 * KV_HEADS
    keys[300] = np.nan
    engine.cache[blocks[2], 300 - 256, :, :DIM] = np.nan
    engine.attend({"a": 1})
    assert engine.layer.counts()["declined"] == {"a key or value that is not finite": 1}


def test_rows_beside_one_that_belongs_to_nobody_are_told_of():
    engine = Engine(np.random.default_rng(9), top_k=1 << 16)
    engine.free = list(range(39, -1, -1))  # so that the text begins at slot 0, the next above -1
    engine.step({"a": 1500})
    engine.step({"a": 1})
    _, keys, values = engine.texts["a"]
    keys[:200], values[:200] = engine.rows(200), engine.rows(200)
    before = engine.layer.counts()["changed_windows"]
    nobody = engine.rows(1)
    engine.layer.write(np.concatenate([nobody, keys[:200]]), np.concatenate([nobody, values[:200]]), np.arange(-1, 200))
    counts = engine.layer.counts()
    assert counts["changed_windows"] - before == 3 * KV_HEADS  # the first 64 tokens have no codes
    assert engine.step({"a": 1})["a"] < 2e-6
    assert engine.layer.counts()["found_windows"] == 0


def test_few_tokens_of_a_text_are_exact_where_prompts_are_sparse():
    engine = Engine(np.random.default_rng(10), prompt_mass=0.5, prompt_min=256)
    assert engine.step({"a": 2000})["a"] > 1e-3
    for rows in (3, 2, 63):
        assert engine.step({"a": rows})["a"] < 1e-5, rows
    assert engine.step({"a": 64})["a"] > 1e-3


def test_wide_heads_and_blocks_of_a_window():
    rng = np.random.default_rng(6)
    shape = {"num_q_heads": 4, "num_kv_heads": 1, "head_dim": 128, "block_size": 64, "num_layers": 3}
    attention = _native.PagedAttention(**shape, num_blocks=30, max_tokens=2048, scale=0.1, min_tokens=256, top_k=4096, threads=1)
    cache = np.zeros((30, 64, 1, 256), np.float16)
    layer = attention.layer(2, cache)
    blocks, length = rng.permutation(30)[:15], 950
    keys, values = (rng.standard_normal((length, 1, 128)).astype(np.float16) for _ in range(2))
    slots = np.array([blocks[t // 64] * 64 + t % 64 for t in range(length)])
    layer.write(keys, values, slots)
    queries = rng.standard_normal((1, 4, 128)).astype(np.float32)
    output = np.empty_like(queries)
    layer.attend(attention.step(np.array([0, 1]), np.array([length]), blocks[None].astype(np.int32)), queries, output)
    assert np.abs(output - reference(queries, keys, values, 0.1)).max() < 2e-6
    assert layer.counts()["coded"] == 1


def test_codes_by_a_profile_are_made_anew_head_by_head_as_a_text_grows():
    shape = {"num_layers": 30, "num_q_heads": 9, "num_kv_heads": 3, "head_dim": 64, "block_size": 128}
    rope = '{"rope_type": "default", "rope_theta": 100000.0}'
    profile = str(PROFILES / "smollm2-135m.profile.safetensors")
    more = {"max_tokens": 4096, "scale": 0.125, "min_tokens": 512, "top_k": 1 << 16, "gate": 0.0, "threads": 1}
    attention = _native.PagedAttention(**shape, **more, num_blocks=12, profile=profile, rope=rope)
    rng = np.random.default_rng(8)
    keys, values = (rng.standard_normal((1100, 3, 64)).astype(np.float32) for _ in range(2))
    cache = np.zeros((12, 128, 3, 128), np.float32)
    layer = attention.layer(5, cache)
    table = rng.permutation(12)[None, :9].astype(np.int32)
    slots = np.array([table[0, t // 128] * 128 + t % 128 for t in range(1100)])
    layer.write(keys[:1000], values[:1000], slots[:1000])
    queries = rng.standard_normal((1000, 9, 64)).astype(np.float32)
    layer.attend(attention.step(np.array([0, 1000]), np.array([1000]), table), queries, np.empty_like(queries))
    encoded = []
    for t in range(1000, 1100):
        layer.write(keys[t : t + 1], values[t : t + 1], slots[t : t + 1])
        output = np.empty_like(queries[:1])
        layer.attend(attention.step(np.array([0, 1]), np.array([t + 1]), table), queries[:1], output)
        assert np.abs(output - reference(queries[:1], keys[: t + 1], values[: t + 1], 0.125)).max() < 2e-6
        encoded.append(layer.counts()["encoded_keys"])
    steps = [now - before for before, now in zip(encoded, encoded[1:])]
    anew = [step for step in steps if step >= 10 * 64]  # a head's whole zone
    assert len(anew) == 3 and max(anew) < 2 * 13 * 64, [(i, s) for i, s in enumerate(steps) if s]
    assert layer.counts()["coded"] == 100
    late = attention.layer(6, cache)  # which comes to a text that was read
    for _ in range(40):
        late.attend(attention.step(np.array([0, 1]), np.array([1100]), table), queries[:1], output)
    assert late.counts()["encoded_keys"] == 3 * 12 * 64


def test_a_profile_serves_keys_whose_pairs_are_neighbours():
    shape = {"num_layers": 30, "num_q_heads": 9, "num_kv_heads": 3, "head_dim": 64, "block_size": 128, "num_blocks": 12}
    more = {"max_tokens": 2048, "scale": 0.125, "min_tokens": 512, "top_k": 20, "refine": 0, "gate": 0.0, "threads": 1}
    profile, rope = str(PROFILES / "smollm2-135m.profile.safetensors"), '{"rope_type": "default", "rope_theta": 100000.0}'
    rng = np.random.default_rng(11)
    keys, values = (rng.standard_normal((1400, 3, 64)).astype(np.float32) for _ in range(2))
    queries = rng.standard_normal((1, 9, 64)).astype(np.float32)
    neighbours = np.arange(64).reshape(2, 32).T.reshape(-1)  # halves as pairs (2i, 2i + 1)

    def answer(style, order):
        attention = _native.PagedAttention(**shape, **more, profile=profile, rope=rope, rope_style=style)
        layer = attention.layer(5, np.zeros((12, 128, 3, 128), np.float32))
        layer.write(np.ascontiguousarray(keys[..., order]), values, np.arange(1400))
        output = np.empty_like(queries)
        step = attention.step(np.array([0, 1]), np.array([1400]), np.arange(12, dtype=np.int32)[None])
        layer.attend(step, np.ascontiguousarray(queries[..., order]), output)
        assert layer.counts()["coded"] == 1
        return output

    wanted = answer("half_split", np.arange(64))
    assert np.abs(answer("interleaved", neighbours) - wanted).max() < 1e-5
    assert np.abs(answer("half_split", neighbours) - wanted).max() > 1e-2


def test_layers_that_do_not_turn_are_stated_by_themselves(tmp_path):
    """A profile that says so is of a model that turns so, and of no other."""
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    own = str(PROFILES / "smollm2-135m.profile.safetensors")
    with safe_open(own, "np") as file:
        about = file.metadata()
    still = '[{"layers": [5, 7], "rope": {"rope_type": "none"}}]'
    about |= {"format": "seine-profile-2", "layer_ropes": still}
    about.pop("seine_checksum", None)
    profile = str(tmp_path / "still.safetensors")
    save_file(load_file(own), profile, about)
    shape = {"num_layers": 30, "num_q_heads": 9, "num_kv_heads": 3, "head_dim": 64, "block_size": 128, "num_blocks": 12}
    more = {"max_tokens": 2048, "scale": 0.125, "min_tokens": 512, "top_k": 20, "refine": 0, "gate": 0.0, "threads": 1}
    more["rope"] = '{"rope_type": "default", "rope_theta": 100000.0}'
    rng = np.random.default_rng(14)
    keys, values = (rng.standard_normal((1400, 3, 64)).astype(np.float32) for _ in range(2))
    queries = rng.standard_normal((1, 9, 64)).astype(np.float32)

    def answer(number, profile, **ropes):
        attention = _native.PagedAttention(**shape, **more, profile=profile, **ropes)
        layer = attention.layer(number, np.zeros((12, 128, 3, 128), np.float32))
        layer.write(keys, values, np.arange(1400))
        output = np.empty_like(queries)
        layer.attend(attention.step(np.array([0, 1]), np.array([1400]), np.arange(12, dtype=np.int32)[None]), queries, output)
        assert layer.counts()["coded"] == 1
        return output

    assert np.array_equal(answer(6, profile, layer_ropes=still), answer(6, own))
    assert not np.array_equal(answer(5, profile, layer_ropes=still), answer(5, own))  # other codes, for its keys do not turn
    with pytest.raises((ValueError, _native.NativeError), match="rope"):
        answer(5, profile)
    with pytest.raises((ValueError, _native.NativeError), match="layer_ropes: must be a list"):
        answer(5, own, layer_ropes="{}")


def made(**other):
    return _native.PagedAttention(**{**NAMES, "num_blocks": 4, "max_tokens": 512, "scale": 0.1, "threads": 1, **other})


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"block_size": 96}, "block_size: must be a multiple of 64, not 96"),
        ({"num_blocks": 0}, "num_blocks: must be positive"),
        ({"prompt_mass": 0.0}, r"prompt_mass: must be in \(0, 1\]"),
        ({"gate": 2.0}, r"gate: must be in \[0, 1\]"),
        ({"min_tokens": 0}, "min_tokens: must be positive"),
        ({"rope_style": "neox"}, "rope_style: must be half_split or interleaved, not 'neox'"),
        ({"codes_bytes": -1}, "codes_bytes: must be 0 or more"),
        ({"head_dim": 48}, "head_dim"),
        ({"profile": "/nowhere"}, "/nowhere"),
    ],
)
def test_settings_that_cannot_be_are_one_line(other, message):
    with pytest.raises((ValueError, _native.NativeError), match=message):
        made(**other)


def test_arrays_that_do_not_fit_are_one_line():
    attention = made()
    cache = np.zeros((4, BLOCK, KV_HEADS, 2 * DIM), np.float32)
    with pytest.raises(ValueError, match=r"cache: must be dense \[4, 128, 2, 128\]"):
        attention.layer(0, cache[:, :64])
    layer = attention.layer(0, cache)
    rows = np.zeros((3, KV_HEADS, DIM), np.float32)
    with pytest.raises(ValueError, match="slots: 512 is not below 512"):
        layer.write(rows, rows, np.array([1, 2, 512]))
    with pytest.raises(ValueError, match="keys: must have the cache's dtype"):
        layer.write(rows.astype(np.float16), rows, np.array([1, 2, 3]))
    with pytest.raises(ValueError, match=r"values: must be \[3 or more, 2, 64\]"):
        layer.write(rows, rows[:2], np.array([1, 2, 3]))
    table = np.array([[1, 9]], np.int32)
    with pytest.raises(ValueError, match="block_table: text 0 has block 9 of 4"):
        attention.step(np.array([0, 1]), np.array([200]), table)
    with pytest.raises(ValueError, match="block_table: text 0 of 300 tokens has 2 blocks"):
        attention.step(np.array([0, 1]), np.array([300]), table)
    with pytest.raises(ValueError, match="seq_lens: text 0 has 2 tokens and 3 queries"):
        attention.step(np.array([0, 3]), np.array([2]), table)
    step = attention.step(np.array([0, 1]), np.array([20]), table)
    queries = np.zeros((1, HEADS, DIM), np.float32)
    with pytest.raises(ValueError, match="step: is of another PagedAttention"):
        layer.attend(made(num_blocks=40).step(np.array([0, 1]), np.array([20]), np.array([[39]], np.int32)), queries, queries)
    with pytest.raises(ValueError, match="output: must be float32"):
        layer.attend(step, queries, queries.astype(np.float16))
