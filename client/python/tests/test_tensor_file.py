"""Files of tensors, written by numpy and read by the C++ reader: what is wrong with a file is a ValueError that names it."""

import json
import random
import struct

import numpy as np
import pytest

from conftest import read_plainly
from seine_kv.tensor_file import read_filters, read_tensors, write_tensors

A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
TWO = np.array([1, 2], "<f4").tobytes()


def raw(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def b_with(**changes):
    return {"a": A, "b": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16], **changes}}


WRONG = {
    "empty": b"",
    "short": b"1234567",
    "text": b"The quick brown fox",
    "no object": raw(b"[1, 2]"),
    "no JSON": raw(b"{"),
    "no UTF-8": raw(b'{"\xff": 1}'),
    "lone surrogate": raw(b'{"\\ud800": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}'),
    "NaN": raw(b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], "more": NaN}}', TWO),
    "a name twice": raw(b'{"a": %s, "a": %s}' % ((json.dumps(A).encode(),) * 2), TWO),
    "a field twice": raw(b'{"a": {"dtype": "F32", "dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}', TWO),
    "deep": raw(b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "deeper than 64": raw(b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}"),
    "metadata a number": raw({"__metadata__": 3}),
    "metadata of numbers": raw({"__metadata__": {"n": 3}, "a": A}, TWO),
    "entry a number": raw({"a": 7}),
    "no dtype": raw({"a": {"shape": [2], "data_offsets": [0, 8]}}, TWO),
    "dtype a number": raw(b_with(dtype=3), TWO + TWO),
    "dtype a list": raw(b_with(dtype=["F32"]), TWO + TWO),
    "shape a number": raw(b_with(shape=2), TWO + TWO),
    "shape negative": raw(b_with(shape=[-2]), TWO + TWO),
    "shape -1": raw(b_with(shape=[-1]), TWO + TWO),
    "shapes negative": raw(b_with(shape=[-1, -2]), TWO + TWO),
    "shape a fraction": raw(b_with(shape=[2.0]), TWO + TWO),
    "shape a bool": raw(b_with(shape=[True, 2]), TWO + TWO),
    "shape of words": raw(b_with(shape=["2"]), TWO + TWO),
    "shape too large": raw(b_with(shape=[2**62, 2**62]), TWO + TWO),
    "shape of another size": raw(b_with(shape=[3]), TWO + TWO),
    "shape of too many dimensions": raw(b_with(shape=[1] * 99 + [2]), TWO + TWO),
    "offsets a number": raw(b_with(data_offsets=8), TWO + TWO),
    "one offset": raw(b_with(data_offsets=[8]), TWO + TWO),
    "three offsets": raw(b_with(data_offsets=[8, 16, 16]), TWO + TWO),
    "offsets negative": raw(b_with(data_offsets=[-8, 0]), TWO + TWO),
    "offsets fractions": raw(b_with(data_offsets=[8.0, 16.0]), TWO + TWO),
    "offsets null": raw(b_with(data_offsets=[None, 16]), TWO + TWO),
    "offsets backwards": raw(b_with(data_offsets=[16, 8]), TWO + TWO),
    "overlap": raw(b_with(data_offsets=[0, 8]), TWO),
    "overlap in part": raw(b_with(data_offsets=[4, 12]), TWO + TWO),
    "hole": raw(b_with(data_offsets=[12, 20]), TWO + TWO + b"1234"),
    "bytes after": raw({"a": A}, TWO + b"1234"),
    "cut short": raw({"a": A}, TWO[:-1]),
    "odd BF16": raw({"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 3]}}, b"123"),
    "unknown dtype, hole": raw({"a": {"dtype": "F8", "shape": [2], "data_offsets": [2, 4]}}, b"1234"),
}


@pytest.mark.parametrize("bytes_", WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize("read", [read_tensors, read_filters])
def test_what_is_wrong_is_a_value_error_that_names_the_file(tmp_path, read, bytes_):
    path = tmp_path / "wrong.safetensors"
    path.write_bytes(bytes_)
    with pytest.raises(ValueError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_damage_of_any_kind_is_no_other_error(tmp_path):
    """Bytes of a header changed, cut and repeated; 3,000 files."""
    path, chance = tmp_path / "damaged.safetensors", random.Random(49)
    whole = raw({"__metadata__": {"k": "v"}, **b_with(), "q_filters": {"dtype": "BF16", "shape": [1, 1, 2], "data_offsets": [16, 20]}}, TWO + TWO + b"1234")
    read = refused = 0
    for _ in range(3_000):
        text = bytearray(whole[8:-20])
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(text))
            text[at : at + chance.randint(0, 4)] = bytes(chance.choices(b'0123456789-.,:[]{}"eENntf \\\x00\xff', k=chance.randint(0, 4)))
        path.write_bytes(raw(bytes(text), whole[-20:]))
        for function in (read_tensors, read_filters):
            try:
                function(path)
                read += 1
            except ValueError as error:
                assert str(error).startswith(f"{path}: "), error
                refused += 1
    assert read > 50 and refused > 1_000


def test_a_tensor_of_an_unknown_dtype_is_in_nobodys_way(tmp_path):
    path = tmp_path / "mixed.safetensors"
    filters = np.arange(8, dtype="<f4").reshape(2, 2, 2)
    header = {
        "f8": {"dtype": "F8_E4M3", "shape": [2, 3], "data_offsets": [0, 6]},
        "c64": {"dtype": "C64", "shape": [1], "data_offsets": [6, 14]},
        "q_filters": {"dtype": "F32", "shape": [2, 2, 2], "data_offsets": [14, 46]},
    }
    path.write_bytes(raw(header, b"?" * 14 + filters.tobytes()))
    tensors, _ = read_tensors(path)
    assert list(tensors) == ["q_filters"]
    assert np.array_equal(read_filters(path, negated=False), filters)
    header["q_filters"]["dtype"] = "F8_E5M2"
    path.write_bytes(raw(header, b"?" * 14 + filters.tobytes()))
    with pytest.raises(ValueError, match="tensor q_filters: unknown dtype \"F8_E5M2\""):
        read_filters(path)


def test_bf16_filters_are_read(tmp_path):
    path = tmp_path / "bf16.safetensors"
    filters = np.array([1.0, -2.5, 3.0e38, 1e-40, 0.0, -0.0, 0.15625, 7.0], "<f4")
    halves = (filters.view("<u4") >> 16).astype("<u2")
    header = {"q_filters": {"dtype": "BF16", "shape": [2, 2, 2], "data_offsets": [0, 16]}}
    path.write_bytes(raw(header, halves.tobytes()))
    expected = (halves.astype("<u4") << 16).view("<f4").reshape(2, 2, 2)
    read = read_filters(path)
    assert read.dtype == np.float32 and np.array_equal(read, -expected)
    assert np.array_equal(read_tensors(path)[0]["q_filters"], expected)
    header["q_filters"]["shape"] = [1, 4, 2]
    path.write_bytes(raw(header, np.full(8, 0x7F80, "<u2").tobytes()))
    with pytest.raises(ValueError, match="hold NaN or infinity"):
        read_filters(path)


@pytest.mark.parametrize("dtype", "bool u1 i1 u2 i2 f2 u4 i4 f4 u8 i8 f8".split())
def test_every_dtype_is_written_and_read(tmp_path, dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    write_tensors(tmp_path / "t", {"x": array, "none": array[:0]}, {"k": "v"})
    tensors, metadata = read_tensors(tmp_path / "t")
    assert np.array_equal(tensors["x"], array) and tensors["x"].dtype == array.dtype and tensors["none"].shape == (0, 3)
    assert metadata["k"] == "v"


SOME = {
    "layers.0.k": np.arange(42, dtype=np.float16).reshape(7, 2, 3),
    "empty": np.zeros((0, 4), np.float32),
    "layers.0.v": np.arange(5, dtype=np.float32)[::-1],  # not contiguous
}


@pytest.mark.parametrize("read", [read_tensors, read_plainly])
def test_what_is_written_is_read(tmp_path, read):
    write_tensors(tmp_path / "t", SOME, {"model": "Zoë's", "tokens": "7"})
    tensors, metadata = read(tmp_path / "t")
    assert metadata == {"seine_checksum": metadata["seine_checksum"], "model": "Zoë's", "tokens": "7"}
    assert list(tensors) == list(SOME)
    for name, array in SOME.items():
        assert tensors[name].dtype == array.dtype
        np.testing.assert_array_equal(tensors[name], array)


def test_tensors_outlive_their_file_and_cannot_be_written(tmp_path):
    write_tensors(tmp_path / "t", SOME, {})
    key = read_tensors(tmp_path / "t")[0]["layers.0.k"]
    (tmp_path / "t").unlink()
    np.testing.assert_array_equal(key, SOME["layers.0.k"])
    with pytest.raises(ValueError, match="read-only"):
        key[0] = 0


def test_same_tensors_make_same_bytes(tmp_path):
    for name in "xy":
        write_tensors(tmp_path / name, SOME, {"b": "1", "a": "2"})
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def test_the_checksum_is_as_the_cpp_writer_makes_it(tmp_path):
    write_tensors(tmp_path / "t", {"a": np.frombuffer(b"wxyz", np.uint8)}, {"n": "7", "seine_checksum": "old"})
    header = b'{"__metadata__":{"seine_checksum":"crc32:ad71efe2","n":"7"},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
    assert (tmp_path / "t").read_bytes() == b"p" + bytes(7) + header + b"wxyz"  # tests/profile/checksum_test.cc


def test_a_cut_or_changed_file_is_refused(tmp_path):
    write_tensors(tmp_path / "t", {**SOME, "q_filters": np.ones((1, 1, 2), np.float32)}, {})
    whole = (tmp_path / "t").read_bytes()
    for length in (0, 7, 8, 100, len(whole) - 1):
        (tmp_path / "t").write_bytes(whole[:length])
        for read in (read_tensors, read_filters):
            with pytest.raises(ValueError):
                read(tmp_path / "t")
    (tmp_path / "t").write_bytes(whole[:-8] + b"?" + whole[-7:])
    with pytest.raises(ValueError, match="checksum"):  # which a mapped file is not asked for
        read_filters(tmp_path / "t")


def test_a_failed_write_leaves_nothing(tmp_path):
    with pytest.raises(AttributeError):
        write_tensors(tmp_path / "t", {**SOME, "bad": "not an array"}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_read_is_an_os_error(tmp_path):
    for read in (read_tensors, read_filters):
        with pytest.raises(FileNotFoundError, match="none"):
            read(tmp_path / "none")
        with pytest.raises((OSError, ValueError)):
            read(tmp_path)
        with pytest.raises(ValueError):
            read("a\0b")


def test_published_filters_are_read_in_the_scorers_sign(tmp_path):
    filters = np.random.default_rng(4).standard_normal((2, 2, 64)).astype(np.float32)
    write_tensors(tmp_path / "published.safetensors", {"q_filters": -filters}, {})
    np.testing.assert_array_equal(read_filters(tmp_path / "published.safetensors"), filters)


def test_files_without_filters_are_refused(tmp_path):
    write_tensors(tmp_path / "other", {"filters": np.ones((2, 2, 64), np.float32)}, {})
    with pytest.raises(ValueError, match="no q_filters"):
        read_filters(tmp_path / "other")
    write_tensors(tmp_path / "flat", {"q_filters": np.ones((2, 64), np.float32)}, {})
    with pytest.raises(ValueError, match="num_kv_heads"):
        read_filters(tmp_path / "flat")
    write_tensors(tmp_path / "nan", {"q_filters": np.full((2, 2, 64), np.nan, np.float32)}, {})
    with pytest.raises(ValueError, match="NaN"):
        read_filters(tmp_path / "nan")
