"""Tests of the profile's parts that need neither torch nor a model, and of the profile that the repository holds. What is
expected is worked out here by numpy, from the papers' formulas and head by head."""

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest

from seine_kv import profile, rope
from seine_kv.model import CausalModel, InputError, stated_rope
from seine_kv.stream import native

from conftest import read_plainly

COMMITTED = Path(__file__).resolve().parents[3] / "bench/data/smollm2-135m.profile.safetensors"
STYLES = ("half_split", "interleaved")


def random(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def turned(x, position, table, style):
    """x [D] at position 0, seen at `position`: by complex numbers, unlike the code under test."""
    half = len(table)
    first, second = (x[:half], x[half:]) if style == "half_split" else (x[0::2], x[1::2])
    z = (first + 1j * second) * np.exp(1j * position * table)
    return np.concatenate([z.real, z.imag]) if style == "half_split" else np.stack([z.real, z.imag], 1).ravel()


def unpack(triangles, head_dim):
    """Upper triangles, row by row, [..., D (D + 1) / 2] -> [..., D, D] symmetric."""
    matrices, at = np.zeros((*triangles.shape[:-1], head_dim, head_dim)), 0
    for row in range(head_dim):
        for column in range(row, head_dim):
            matrices[..., row, column] = matrices[..., column, row] = triangles[..., at]
            at += 1
    assert at == triangles.shape[-1]
    return matrices


class TestRopeTables:
    """Against values worked out pair by pair from the papers' formulas."""

    DIM, THETA = 64, 10000.0
    BASE = [10000.0 ** (-2 * i / 64) for i in range(32)]
    LLAMA3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }

    def table(self, length=1, **fields):
        return np.array(rope.rope_of({"rope_theta": self.THETA, **fields}, self.DIM, length=length).inv_freq)

    def test_default(self):
        np.testing.assert_allclose(self.table(), self.BASE, rtol=1e-12)
        np.testing.assert_allclose(self.table(rope_type="default"), self.BASE, rtol=1e-12)

    def test_linear(self):
        np.testing.assert_allclose(self.table(rope_type="linear", factor=4.0), np.array(self.BASE) / 4, rtol=1e-12)

    def test_dynamic(self):
        fields = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 2048}
        np.testing.assert_allclose(self.table(100, **fields), self.BASE, rtol=1e-12)
        np.testing.assert_allclose(self.table(2048, **fields), self.BASE, rtol=1e-12)
        base = self.THETA * 7.0 ** (64 / 62)  # 2 * 8192 / 2048 - 1
        np.testing.assert_allclose(self.table(8192, **fields), base ** (-np.arange(0, 64, 2) / 64), rtol=1e-12)

    def test_yarn(self):
        table = self.table(rope_type="yarn", factor=4.0, original_max_position_embeddings=2048)
        # 32 turns in 2,048 tokens: pair 8.07; one turn: pair 20.1; truncated outwards to 8 and 21.
        ratio = table / self.BASE
        np.testing.assert_allclose(ratio[:9], 1, rtol=1e-12)
        np.testing.assert_allclose(ratio[21:], 0.25, rtol=1e-12)
        np.testing.assert_allclose(ratio[12], 1 - 0.75 * 4 / 13, rtol=1e-12)
        fields = {"factor": 4.0, "original_max_position_embeddings": 2048, "beta_fast": 8, "truncate": False}
        narrow = self.table(rope_type="yarn", **fields)
        assert np.argmax(narrow / self.BASE < 1 - 1e-9) == 13  # eight turns: pair 12.9

    def test_llama3(self):
        table = self.table(**self.LLAMA3)
        for got, base in zip(table, self.BASE):
            turns = 8192 * base / (2 * np.pi)
            smooth = (turns - 1) / 3
            want = base if turns > 4 else base / 8 if turns < 1 else (1 - smooth) * base / 8 + smooth * base
            assert got == pytest.approx(want, rel=1e-12)

    def test_a_part_of_a_head(self):
        for part, dim in ((0.25, 16), (0.75, 48), (1.0, 64)):
            want = [self.THETA ** (-2 * i / dim) for i in range(dim // 2)] + [0] * (32 - dim // 2)
            np.testing.assert_allclose(self.table(partial_rotary_factor=part), want, rtol=1e-12)
            assert rope.rope_of({"rope_theta": 1e4, "partial_rotary_factor": part}, 64).rotary_dim == dim
        # Stretched as a head of that width is.
        fields = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
        narrow = rope.rope_of({"rope_theta": self.THETA, **fields}, 32).inv_freq
        np.testing.assert_array_equal(self.table(**fields, partial_rotary_factor=0.5), [*narrow, *[0] * 16])

    def test_proportional(self):
        fields = {"rope_type": "proportional", "partial_rotary_factor": 0.25}
        np.testing.assert_allclose(self.table(**fields), self.BASE[:8] + [0] * 24, rtol=1e-12)
        assert rope.rope_of({"rope_theta": 1e4, **fields}, 64).rotary_dim == 64  # pairs are a whole head's

    def test_longrope(self):
        short, long = [1 + i / 16 for i in range(8)], [1 + i / 2 for i in range(8)]
        fields = {"rope_type": "longrope", "short_factor": short, "long_factor": long, "partial_rotary_factor": 0.25}
        for length, factors in ((4096, short), (4097, long)):
            got = self.table(length, **fields, original_max_position_embeddings=4096)
            want = [self.THETA ** (-i / 8) / factor for i, factor in enumerate(factors)]
            np.testing.assert_allclose(got, want + [0] * 24, rtol=1e-12)

    def test_none(self):
        assert not any(rope.rope_of(rope.NONE, 64).inv_freq)

    @pytest.mark.parametrize(
        "fields, named",
        [
            ({"rope_type": "ntk"}, "rope_type"),
            ({"rope_type": "longrope"}, "original_max_position_embeddings"),
            ({"rope_type": "longrope", "original_max_position_embeddings": 9, "short_factor": [1.0]}, "short_factor"),
            ({"partial_rotary_factor": 0.3}, "partial_rotary_factor"),
            ({"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
            ({"rope_theta": None}, "rope_theta"),
            ({"rope_theta": "10000"}, "rope_theta"),
            ({"rope_theta": -1.0}, "rope_theta"),
            ({"rope_type": "linear"}, "factor"),
            ({"rope_type": "linear", "factor": -1}, "factor"),
            ({"rope_type": "dynamic", "factor": 2.0}, "original_max_position_embeddings"),
            ({"rope_type": "yarn", "factor": 2.0}, "original_max_position_embeddings"),
            ({**LLAMA3, "low_freq_factor": None}, "low_freq_factor"),
            ({**LLAMA3, "low_freq_factor": 4.0}, "high_freq_factor"),
        ],
    )
    def test_errors_name_the_field(self, fields, named):
        with pytest.raises(ValueError, match=rf"^rope\.{named}: "):
            self.table(**fields)

    def test_places_in_images_are_positions_in_text(self):
        np.testing.assert_array_equal(self.table(mrope_section=[16, 24, 24]), self.table())

    def test_not_stated(self):
        assert rope.rope_of(None, 64).inv_freq == []
        x = random(1, 3, 64)
        np.testing.assert_array_equal(rope.undone(rope.rope_of(None, 64), x, 5), x)

    def test_dynamic_states_the_original_context(self):
        class Config:
            rope_parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
            max_position_embeddings = 2048

        assert stated_rope(Config())["original_max_position_embeddings"] == 2048
        assert "original_max_position_embeddings" not in Config.rope_parameters
        Config.rope_parameters["rope_type"], Config.original_max_position_embeddings = "longrope", 1024
        assert stated_rope(Config())["original_max_position_embeddings"] == 1024
        Config.rope_parameters = None
        assert stated_rope(Config()) is None


class TestUndoRope:
    @pytest.mark.parametrize("style", STYLES)
    def test_gives_back_what_was_turned(self, style):
        how = rope.rope_of({"rope_theta": 1e4}, 8, style)
        x = random(2, 5, 8)
        seen = np.array([[turned(x[h, i], 100 + i, np.array(how.inv_freq), style) for i in range(5)] for h in range(2)])
        np.testing.assert_allclose(rope.undone(how, seen, 100), x, atol=1e-12)

    @pytest.mark.parametrize("style", STYLES)
    def test_of_a_part(self, style):
        fields = {"rope_theta": 1e4, "partial_rotary_factor": 0.5}
        x = random(2, 5, 16)
        seen = x.astype(np.float64)
        for h in range(2):
            for i in range(5):
                seen[h, i, :8] = turned(x[h, i, :8], 100 + i, 1e4 ** (-np.arange(4) / 4), style)
        np.testing.assert_allclose(rope.undone(rope.rope_of(fields, 16, style), seen, 100), x, atol=1e-12)

    def test_of_another_width(self):
        with pytest.raises(ValueError, match="head_dim is 16, not 8"):
            rope.undone(rope.rope_of({"rope_theta": 1e4}, 8), random(2, 5, 16), 0)


class TestBuilder:
    HEADS, DIM = 2, 8
    TABLE = 1e4 ** (-np.arange(0, 8, 2) / 8)

    def rope(self, style="half_split"):
        return rope.rope_of({"rope_theta": 1e4}, 8, style)

    def written(self, builder, path, style="half_split"):
        stated = json.dumps({"rope_theta": 1e4})
        texts = {"model": "toy", "texts": ["caf\u00e9.txt"], "licence": "none", "rope": stated, "layer_ropes": ""}
        builder.write(path, **texts, rope_style=style, fp32=True)
        return read_plainly(path)

    def expected(self, x, first, style="half_split"):
        """(mean, moment) of [tokens, heads, D], head by head and token by token."""
        mean, moment = np.zeros((self.HEADS, self.DIM)), np.zeros((self.HEADS, self.DIM, self.DIM))
        for h in range(self.HEADS):
            for i, row in enumerate(x[:, h].astype(np.float64)):
                row = turned(row, -(first + i), self.TABLE, style)
                mean[h] += row / len(x)
                moment[h] += np.outer(row, row) / len(x)
        return mean, moment

    @pytest.mark.parametrize("style", STYLES)
    def test_queries_keys_and_values(self, style, tmp_path):
        q, k, v = (random(150, self.HEADS, self.DIM, seed=s) + np.float32(0.5) for s in (1, 2, 3))
        builder = native.ProfileBuilder(1, self.HEADS, self.HEADS, self.DIM)
        for a, b in ((0, 64), (64, 150)):  # as chunks come
            builder.add_queries(0, q[a:b], 16 + a, self.rope(style))
            builder.add_keys(0, k[a:b], 16 + a, self.rope(style))
            builder.add_values(0, v[a:b])
        tensors, metadata = self.written(builder, tmp_path / "p.safetensors", style)
        names = "q_mean q_moment k_mean k_moment k_residual v_mean v_moment"
        assert list(tensors) == [f"layers.0.{name}" for name in names.split()]
        assert metadata["format"] == "seine-profile-1" and json.loads(metadata["texts"]) == ["caf\u00e9.txt"]
        assert (metadata["rope_style"], metadata["key_tokens"], metadata["licence"]) == (style, "150", "none")
        for name, x in (("q", q), ("k", k)):
            mean, moment = self.expected(x, 16, style)
            np.testing.assert_allclose(tensors[f"layers.0.{name}_mean"], mean, rtol=1e-6, atol=1e-7)
            np.testing.assert_allclose(unpack(tensors[f"layers.0.{name}_moment"], self.DIM), moment, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(tensors["layers.0.v_mean"], v.mean(0, dtype=np.float64), rtol=1e-6)
        want = np.einsum("nhi,nhj->hij", v, v, dtype=np.float64) / 150
        np.testing.assert_allclose(unpack(tensors["layers.0.v_moment"], self.DIM), want, rtol=1e-6)

    def test_residuals(self, tmp_path):
        k = random(150, self.HEADS, self.DIM) + np.float32(3)
        builder = native.ProfileBuilder(1, 2, 2, self.DIM)
        builder.add_keys(0, k, 16, self.rope())
        builder.add_queries(0, k, 16, self.rope())
        tensors, _ = self.written(builder, tmp_path / "p.safetensors")
        rest = k[:128].copy()  # the last part of a window has no centre
        for h in range(self.HEADS):
            for window in (slice(0, 64), slice(64, 128)):
                mean = rest[window, h].mean(0)
                scale = np.abs(mean).max() / 127
                rest[window, h] -= (np.round(mean / scale).astype(np.int8) * scale).astype(np.float32)
        _, moment = self.expected(rest, 16)
        np.testing.assert_allclose(unpack(tensors["layers.0.k_residual"], self.DIM), moment, rtol=1e-4, atol=1e-5)

    def test_large_means_keep_their_digits(self, tmp_path):
        x = random(4096, 1, 8) + np.float32(1000)
        builder = native.ProfileBuilder(1, 1, 1, 8)
        for add in (builder.add_keys, builder.add_queries):
            add(0, x, 0, rope.rope_of(None, 8))
        tensors, _ = self.written(builder, tmp_path / "p.safetensors")
        mean, moment = tensors["layers.0.k_mean"][0].astype(np.float64), unpack(tensors["layers.0.k_moment"], 8)[0]
        want = np.cov(x[:, 0].astype(np.float64), rowvar=False, bias=True)
        np.testing.assert_allclose(moment - np.outer(mean, mean), want, atol=0.25)  # the file's fp32 of a million

    def test_what_does_not_fit_is_refused(self, tmp_path):
        builder, path, rows = native.ProfileBuilder(2, 4, 2, 8), tmp_path / "p.safetensors", random(64, 2, 8)
        with pytest.raises(ValueError, match=r"layer: 2 is not in \[0, 2\)"):
            builder.add_values(2, rows)
        with pytest.raises(ValueError, match=r"queries: must be \[tokens, 4, 8\], not \[64, 2, 8\]"):
            builder.add_queries(0, rows, 0, self.rope())
        with pytest.raises(ValueError, match="rope: is of head_dim 16"):
            builder.add_keys(0, rows, 0, rope.rope_of({"rope_theta": 1e4}, 16))
        with pytest.raises(ValueError, match="layer 0 has no queries"):
            self.written(builder, path)
        with pytest.raises(ValueError, match="rope_style: must be one of half_split, interleaved, not halves"):
            self.written(builder, path, "halves")
        with pytest.raises(ValueError, match="a profile has layers, heads and a head_dim, not 0, 1, 1, 8"):
            native.ProfileBuilder(0, 1, 1, 8)
        assert not path.exists()


class TestMeasurer:
    """The observer with a stand-in for the model: chunks and texts add up to one sum over all tokens but the sinks."""

    class Model:
        name = "toy"
        rope = unstretched_rope = {"rope_type": "default", "rope_theta": 1e4}
        turns = 1e4

        style, still = "half_split", frozenset()

        class text_config:
            num_hidden_layers = 1

        rope_of, states_rope = CausalModel.rope_of, CausalModel.states_rope

        def rope_tables(self):
            return [np.ones(3), np.array(rope.rope_of({"rope_theta": self.turns}, 8).inv_freq)]

    class Tensor:  # what the observer uses of torch's
        def __init__(self, array):
            self.array, self.shape = array, array.shape

        def __getitem__(self, item):
            return type(self)(self.array[item])

        def float(self):
            return self

        cpu = float

        def numpy(self):
            return self.array

    def written(self, measurer, path, *more):
        measurer.write(profile.parse_args(["--text", "a/b.txt", "c.py", "--out", str(path), *more]))
        return read_plainly(path)

    def feed(self, measurer, q, k, v, layer=0, cuts=(0, 80, 200)):
        for a, b in zip(cuts, cuts[1:]):
            measurer(layer, a, *(self.Tensor(x[:, a:b]) for x in (q, k, v)))

    def vectors(self, seed):
        return random(4, 200, 8, seed=seed), random(2, 200, 8, seed=seed + 1), random(2, 200, 8, seed=seed + 2)

    def test_sums_over_texts_without_sinks(self, tmp_path):
        measurer, first, second = profile.Measurer(self.Model(), 16), self.vectors(1), self.vectors(5)
        for vectors in (first, second):
            self.feed(measurer, *vectors)
        tensors, metadata = self.written(measurer, tmp_path / "p.safetensors", "--fp32")
        table = 1e4 ** (-np.arange(0, 8, 2) / 8)
        for name, which in (("q", 0), ("k", 1)):
            want = 0
            for x in (first[which], second[which]):
                rows = [[turned(row, -i, table, "half_split") for i, row in enumerate(head) if i >= 16] for head in x]
                want = want + np.einsum("hni,hnj->hij", rows, rows) / (2 * 184)
            np.testing.assert_allclose(unpack(tensors[f"layers.0.{name}_moment"], 8), want, rtol=1e-5, atol=1e-6)
        want = np.mean([x[2][:, 16:].mean(1, dtype=np.float64) for x in (first, second)], 0)
        np.testing.assert_allclose(tensors["layers.0.v_mean"], want, rtol=1e-5, atol=1e-7)
        assert all(tensor.dtype == np.float32 for tensor in tensors.values())
        assert metadata["texts"] == '["b.txt","c.py"]'
        assert (metadata["key_tokens"], metadata["query_tokens"]) == ("368", "368")
        assert (metadata["num_q_heads"], metadata["num_kv_heads"], metadata["head_dim"]) == ("4", "2", "8")
        tensors, _ = self.written(measurer, tmp_path / "p.safetensors")
        assert all(tensor.dtype == np.float16 for tensor in tensors.values())

    def test_another_table_is_refused(self):
        model = self.Model()
        model.turns = 2e4
        with pytest.raises(InputError, match="than the config states"):
            self.feed(profile.Measurer(model, 16), *self.vectors(1))

    def test_layers_must_agree_and_be_complete(self, tmp_path):
        model = self.Model()
        model.text_config = type("C", (), {"num_hidden_layers": 3})
        measurer = profile.Measurer(model, 16)
        q, k, v = self.vectors(1)
        self.feed(measurer, q, k, v, layer=1)
        with pytest.raises(InputError, match="layer 0: its attention was not seen"):
            self.written(measurer, tmp_path / "p.safetensors")
        with pytest.raises(InputError, match="layer 2: its heads are of another number"):
            self.feed(measurer, q[:2], k, v, layer=2)

    def test_what_fp16_cannot_hold(self, tmp_path):
        for value, text in ((600.0, "k_moment holds .*, which fp16 cannot; .*try --fp32"), (np.nan, "not finite; try --dtype float32")):
            measurer = profile.Measurer(self.Model(), 16)
            q, k, v = self.vectors(1)
            k[0, 100] = value
            self.feed(measurer, q, k * 10, v)
            with pytest.raises(InputError, match=text):
                self.written(measurer, tmp_path / "p.safetensors")
        assert not (tmp_path / "p.safetensors").exists()

    def test_layers_without_rope_are_measured_as_they_are_and_stated(self, tmp_path):
        model = self.Model()
        model.text_config = type("C", (), {"num_hidden_layers": 2})
        model.still = {1}
        measurer = profile.Measurer(model, 16)
        q, k, v = self.vectors(1)
        for layer in (0, 1):
            self.feed(measurer, q, k, v, layer=layer)
        tensors, metadata = self.written(measurer, tmp_path / "p.safetensors", "--fp32")
        seen = k[:, 16:].astype(np.float64)
        want = np.einsum("hni,hnj->hij", seen, seen) / seen.shape[1]
        np.testing.assert_allclose(unpack(tensors["layers.1.k_moment"], 8), want, rtol=1e-5, atol=1e-6)
        assert np.abs(unpack(tensors["layers.0.k_moment"], 8) - want).max() > 0.05
        assert metadata["format"] == "seine-profile-2" and json.loads(metadata["rope"]) == model.rope
        assert json.loads(metadata["layer_ropes"]) == [{"layers": [1], "rope": {"rope_type": "none"}}]
        model.still = {0, 1}
        _, metadata = self.written(measurer, tmp_path / "p.safetensors", "--fp32")
        assert metadata["format"] == "seine-profile-1" and json.loads(metadata["rope"]) == {"rope_type": "none"}


class TestArguments:
    def test_one_line_each(self, tmp_path):
        text = tmp_path / "text.txt"
        text.write_text("In the beginning")
        (tmp_path / "latin1.txt").write_bytes(b"caf\xe9")
        out = str(tmp_path / "p.safetensors")
        for named, options in {
            "--text": ["--text", str(tmp_path / "latin1.txt")],
            "--out": ["--out", str(tmp_path / "none" / "p")],
            "--tokens": ["--tokens", "79"],
            "--sink": ["--sink", "-1"],
            "--text-name": ["--text-name", "a", "b"],
            "--rope-scaling": ["--rope-scaling", "yarn"],
            "--model": ["--model", str(tmp_path / "none.gguf")],
        }.items():
            err = io.StringIO()
            with contextlib.redirect_stderr(err):
                assert profile.main(["--text", str(text), "--out", out, *options]) == 1, named
            assert err.getvalue().startswith(f"seine_kv.profile: error: {named}"), err.getvalue()
            assert err.getvalue().count("\n") == 1
        assert not Path(out).exists()


@pytest.fixture(scope="module")
def file():
    return read_plainly(COMMITTED)


class TestCommittedProfile:
    """bench/data/smollm2-135m.profile.safetensors: complete, and what a profile must be."""

    LAYERS, Q_HEADS, KV_HEADS, DIM = 30, 9, 3, 64

    def trace(self, triangles):
        return np.trace(unpack(triangles, self.DIM), axis1=1, axis2=2)

    def test_size(self):
        assert COMMITTED.stat().st_size <= 3.5 * 2**20

    def test_metadata(self, file):
        _, metadata = file
        assert metadata["format"] == "seine-profile-1"
        assert metadata["model"] and metadata["licence"] != "unstated"
        assert len(json.loads(metadata["texts"])) >= 2
        assert json.loads(metadata["rope"]) == {"rope_theta": 100000.0, "rope_type": "default"}
        assert metadata["rope_style"] == "half_split"
        for name, want in (("layers", self.LAYERS), ("q_heads", self.Q_HEADS), ("kv_heads", self.KV_HEADS)):
            assert metadata[f"num_{name}"] == str(want)
        assert metadata["head_dim"] == str(self.DIM)
        assert int(metadata["key_tokens"]) >= 16000 and int(metadata["query_tokens"]) >= 16000

    def test_tensors(self, file):
        tensors, _ = file
        triangle = self.DIM * (self.DIM + 1) // 2
        shapes = {"q_mean": (self.Q_HEADS, self.DIM), "q_moment": (self.Q_HEADS, triangle)}
        shapes |= {f"{x}_mean": (self.KV_HEADS, self.DIM) for x in "kv"}
        shapes |= {name: (self.KV_HEADS, triangle) for name in ("k_moment", "k_residual", "v_moment")}
        assert set(tensors) == {f"layers.{layer}.{name}" for layer in range(self.LAYERS) for name in shapes}
        for name, array in tensors.items():
            assert array.shape == shapes[name.split(".")[2]], name
            assert array.dtype == np.float16 and np.isfinite(array).all(), name

    def test_moments_are_positive_semidefinite_to_rounding(self, file):
        tensors, _ = file
        for name, array in tensors.items():
            if name.endswith("mean"):
                continue
            matrices = unpack(array.astype(np.float64), self.DIM)
            values = np.linalg.eigvalsh(matrices)
            assert (values[:, 0] > -(2.0**-11) * values[:, -1]).all(), name
            assert (values[:, -1] > 0).all(), name

    def test_moments_hold_their_means(self, file):
        """A second moment is at least the mean's outer product, and a residual's no more than the whole's."""
        tensors, _ = file
        for layer in range(self.LAYERS):
            for x in "qkv":
                mean = tensors[f"layers.{layer}.{x}_mean"].astype(np.float64)
                moment = unpack(tensors[f"layers.{layer}.{x}_moment"].astype(np.float64), self.DIM)
                spread = np.linalg.eigvalsh(moment - mean[:, :, None] * mean[:, None, :])
                assert (spread[:, 0] > -(2.0**-10) * np.trace(moment, axis1=1, axis2=2)).all(), (layer, x)
            whole, rest = (tensors[f"layers.{layer}.{name}"].astype(np.float64) for name in ("k_moment", "k_residual"))
            assert (self.trace(rest) < self.trace(whole)).all(), layer
