"""Attention of prompts over arrays: what is refused. seine_kv.hf's tests have what is attended."""

import numpy as np
import pytest

from seine_kv import _native


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (np.zeros((1, 1, 4, 8), np.float32), "seen: must be a dense uint8 array of 4 dimensions"),
        (np.zeros((1, 1, 8, 4), np.uint8).swapaxes(2, 3), "seen: must be a dense uint8 array of 4 dimensions"),
        (np.zeros((4, 8), np.uint8), "seen: must be a dense uint8 array of 4 dimensions"),
        (np.zeros((1, 1, 4, 7), np.uint8), r"seen: must be \[rows, KV heads or 1, 4, 8\], not \[1, 1, 4, 7\]"),
    ],
)
def test_a_prompts_mask_is_taken_as_it_is_or_not_at_all(seen, message):
    attention = _native.PromptAttention(1)
    with pytest.raises(ValueError, match=message):
        attention.mask(4, 8, 1, seen)
    assert attention.mask(4, 8, 1, np.ones((1, 1, 4, 8), np.uint8)).places == 8


ROWS, QUERIES = np.zeros((1, 1, 8, 64), np.float32), np.zeros((1, 2, 4, 64), np.float32)


@pytest.mark.parametrize(
    ("arrays", "more", "message"),
    [
        ((QUERIES[0], ROWS, ROWS), {}, r"queries: must be float32 \[rows, query heads, tokens, head_dim\]"),
        ((QUERIES[..., :24], ROWS, ROWS), {}, "queries: head_dim must be a multiple of 16 up to 512, not 24"),
        ((QUERIES[:, :1], ROWS, ROWS), {}, r"queries: \[1, 1, 4, 64\] do not fit the mask"),
        ((QUERIES, ROWS[:, :, :7], ROWS), {}, r"keys: must be \[1, 1, 8, 64\], not \[1, 1, 7, 64\]"),
        ((QUERIES, ROWS, ROWS.astype(np.float16)), {}, "values: must have the dtype of keys"),
        ((QUERIES, ROWS.astype(np.int32), ROWS), {}, "keys: dtype must be float32, float16 or bfloat16"),
        ((QUERIES, ROWS, ROWS), {"mass": 0.0}, r"mass: must be in \(0, 1\], not 0"),
        ((QUERIES, ROWS, ROWS), {"most": 1.5}, r"most: must be in \[0, 1\], not 1.5"),
        ((QUERIES, ROWS, ROWS), {"softcap": -1.0}, "softcap: must be finite and 0 or more"),
        ((QUERIES, ROWS, ROWS), {"sample": -1}, "sample: must be 0 or more, not -1"),
    ],
)
def test_arrays_that_do_not_fit_are_one_line(arrays, more, message):
    attention = _native.PromptAttention(1)
    with pytest.raises(ValueError, match=message):
        attention.attend(attention.mask(4, 8, 2), *arrays, 0.125, **more)
