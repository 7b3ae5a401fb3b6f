"""Tests of the recorder's parts that need neither torch nor a model. Run: python -m unittest discover client/python/tests"""

import argparse
import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from seine_kv import model, trace  # noqa: E402


class Arguments(unittest.TestCase):
    def test_layers(self):
        self.assertEqual(trace.parse_layers("5,0,5", 6), [0, 5])
        self.assertEqual(trace.parse_layers(None, 30), [4, 15, 26])
        self.assertEqual(trace.parse_layers(None, 1), [0])
        for spec in ("6", "-1", "a", "", "0,,1"):
            with self.subTest(spec=spec), self.assertRaises(model.InputError):
                trace.parse_layers(spec, 6)

    def test_rope_scaling(self):
        self.assertEqual(model.parse_rope_scaling("yarn:4"), ("yarn", 4.0))
        for spec in ("yarn", "yarn:", "yarn:1", "yarn:nan", "yarn:inf", "cubic:2", "4"):
            with self.subTest(spec=spec), self.assertRaises(model.InputError):
                model.parse_rope_scaling(spec)

    def test_scale_rope(self):
        def config():
            rope = {"rope_type": "default", "rope_theta": 1e5}
            return argparse.Namespace(max_position_embeddings=8192, rope_parameters=rope)

        scaled = config()
        model.scale_rope(scaled, ("yarn", 4.0), 32768)
        self.assertEqual(scaled.max_position_embeddings, 32768)
        self.assertEqual(
            scaled.rope_parameters,
            {"rope_type": "yarn", "rope_theta": 1e5, "factor": 4.0, "original_max_position_embeddings": 8192},
        )
        model.scale_rope(config(), None, 8192)
        for scaling, tokens in ((None, 8193), (("yarn", 2.0), 16385)):
            with self.subTest(tokens=tokens), self.assertRaises(model.InputError):
                model.scale_rope(config(), scaling, tokens)
        with self.assertRaises(model.InputError):
            model.scale_rope(scaled, ("yarn", 2.0), 100)  # scaled already


class Keys:
    """As torch's [heads, tokens, head_dim], of one token."""

    def __init__(self, value):
        self.value = value

    def __getitem__(self, index):
        return self

    def transpose(self, *axes):
        return self

    float = cpu = lambda self: self

    def numpy(self):
        return np.full((1, 1, 4), self.value, np.float32)


class Layers(unittest.TestCase):
    def test_are_counted_among_those_that_attend_all(self):
        kinds = ["sliding_attention"] * 2 + ["full_attention"] + ["sliding_attention"] * 2 + ["full_attention"]
        served = model.full_layers(argparse.Namespace(num_hidden_layers=6, layer_types=kinds))
        self.assertEqual(trace.parse_layers(None, len(served)), [0, 1])
        recorder = trace.Recorder([1], served, query_start=0)
        for layer in range(6):
            recorder(layer, 0, *[Keys(layer)] * 3)
        tensors = recorder.tensors()
        self.assertEqual(sorted(tensors), ["layers.1.k", "layers.1.q", "layers.1.v"])
        self.assertEqual(tensors["layers.1.k"].tolist(), [[[5.0] * 4]])


class Errors(unittest.TestCase):
    """Each mistake gives one line that names the option, status 1, and no file."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.text = self.folder / "text.txt"
        self.text.write_text("In the beginning")
        (self.folder / "latin1.txt").write_bytes(b"caf\xe9")

    def check(self, named, *options):
        err = io.StringIO()
        defaults = ["--text", str(self.text), "--out", str(self.folder / "t.safetensors")]
        with contextlib.redirect_stderr(err):
            status = trace.main([*defaults, *options])
        self.assertEqual(status, 1)
        self.assertEqual(err.getvalue().count("\n"), 1, err.getvalue())
        self.assertIn(f"error: {named}", err.getvalue())
        self.assertFalse((self.folder / "t.safetensors").exists())

    def test_one_line_each(self):
        self.check("--text", "--text", str(self.folder / "none.txt"))
        self.check("--text", "--text", str(self.folder / "latin1.txt"))
        self.check("--out", "--out", str(self.folder / "none" / "t.safetensors"))
        self.check("--out", "--out", str(self.folder))
        self.check("--tokens", "--tokens", "1")
        self.check("--queries-last", "--queries-last", "9000")
        self.check("--queries-last", "--queries-last", "0")
        self.check("--rope-scaling", "--rope-scaling", "yarn")
        self.check("--model", "--model", str(self.folder / "none.gguf"))
        self.check("--gguf-file", "--model", str(self.folder), "--gguf-file", "none.gguf")


if __name__ == "__main__":
    unittest.main()
