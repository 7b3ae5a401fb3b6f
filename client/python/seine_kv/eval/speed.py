"""Milliseconds a decoded token through Seine beside dense attention, where they go, and the memory of both."""

import copy
import ctypes
import gc
import statistics
import time
from pathlib import Path

import torch

from seine_kv.eval.engine import Prompt, through
from seine_kv.model import cache_name


class Decoder:
    """Greedy decoding after a prompt, a token at a time. `grown`: bytes by which the process has grown with its cache."""

    def __init__(self, model, prompt):
        self.model, self.name = model, cache_name(model)
        before = resident_bytes()
        self.cache, logits = prompt.begin(model)
        self.token, self.times = logits.argmax().reshape(1, 1), []
        self.step()  # the first allocates, and hands on what is to be encoded: it is not timed
        self.times.clear()
        self.grown = resident_bytes() - before

    def step(self):
        begun = time.perf_counter()
        with torch.inference_mode():
            out = self.model(self.token, **{self.name: self.cache}, use_cache=True)
            self.token = out.logits[0, -1].argmax().reshape(1, 1)
        self.times.append(time.perf_counter() - begun)


def twin_of(model):
    """A second model of the same weights, which lie in memory once."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def resident_bytes():
    """Of this process, once what is free has been given back to the system."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


def measure(model, ids, contexts, method, endpoint, tokens, progress):
    """One dict a context length: ms a token of dense and of Seine, by turns, medians; of Seine's the mean of RPC and index,
    the rest being the engine's; and the memory that each cache takes."""
    rows, dense_model = [], twin_of(model)
    for n, context in enumerate(contexts):
        prompt = Prompt(model, ids[:, :context])
        with through(model, method.of(context), endpoint) as installation:
            seine = Decoder(model, prompt)
            dense = Decoder(dense_model, prompt)
            begin = installation.stats()
            for _ in range(tokens):
                dense.step()
                seine.step()
            end = installation.stats()
        step, index = ((getattr(end, name) - getattr(begin, name)) / tokens for name in ("step_seconds", "server_seconds"))
        dense_s, seine_s = statistics.median(dense.times), statistics.median(seine.times)
        rows.append({
            "context": context,
            "dense_ms": 1e3 * dense_s,
            "seine_ms": 1e3 * seine_s,
            "engine_ms": 1e3 * (seine_s - step),
            "rpc_ms": 1e3 * (step - index),
            "index_ms": 1e3 * index,
            "dense_tokens_per_s": 1 / dense_s,
            "seine_tokens_per_s": 1 / seine_s,
            "dense_mib": dense.grown / 2**20,
            "seine_mib": seine.grown / 2**20,
        })  # fmt: skip
        del seine, dense
        progress(n + 1, len(contexts))
    return rows
