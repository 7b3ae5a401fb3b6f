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
from seine_kv.tensor_file import read_tensors, write_tensors  # noqa: E402


class TensorFile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "t.safetensors"
        self.tensors = {
            "layers.0.k": np.arange(42, dtype=np.float16).reshape(7, 2, 3),
            "empty": np.zeros((0, 4), np.float32),
            "layers.0.v": np.arange(5, dtype=np.float32)[::-1],  # not contiguous
        }

    def test_round_trip(self):
        write_tensors(self.path, self.tensors, {"model": "Zoë's", "tokens": "7"})
        tensors, metadata = read_tensors(self.path)
        self.assertEqual(metadata, {"seine_checksum": metadata["seine_checksum"], "model": "Zoë's", "tokens": "7"})
        self.assertEqual(list(tensors), list(self.tensors))
        for name, array in self.tensors.items():
            self.assertEqual(tensors[name].dtype, array.dtype)
            np.testing.assert_array_equal(tensors[name], array)

    def test_same_tensors_make_same_bytes(self):
        write_tensors(self.path, self.tensors, {"b": "1", "a": "2"})
        first = self.path.read_bytes()
        write_tensors(self.path, self.tensors, {"b": "1", "a": "2"})
        self.assertEqual(first, self.path.read_bytes())

    def test_checksum_is_as_the_cpp_writer_makes_it(self):
        write_tensors(self.path, {"a": np.frombuffer(b"wxyz", np.uint8)}, {"n": "7", "seine_checksum": "old"})
        header = (
            b'{"__metadata__":{"seine_checksum":"crc32:ad71efe2","n":"7"},'
            b'"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
        )
        self.assertEqual(self.path.read_bytes(), b"p" + bytes(7) + header + b"wxyz")  # tests/profile/checksum_test.cc

    def test_cut_file_is_refused(self):
        write_tensors(self.path, self.tensors, {})
        whole = self.path.read_bytes()
        for length in (0, 7, 8, 100, len(whole) - 1):
            self.path.write_bytes(whole[:length])
            with self.subTest(length=length), self.assertRaises(ValueError):
                read_tensors(self.path)

    def test_failed_write_leaves_nothing(self):
        with self.assertRaises(AttributeError):
            write_tensors(self.path, {**self.tensors, "bad": "not an array"}, {})
        self.assertEqual(list(self.path.parent.iterdir()), [])


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
