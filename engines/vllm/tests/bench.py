"""Milliseconds a decode step and time to the first token, vLLM's own attention, Seine, and no attention at all, by turns in one
process, behind prompts that were read.

    python engines/vllm/tests/bench.py --model FOLDER --cells 1024,4096 --texts 1,4 --out rows.json

Each round reads the prompts and decodes behind them, in each of the three. A step is one token of every text.
"""

import argparse
import json
import os
import platform
import re
import statistics
import sys
import time
from pathlib import Path

from engine import Engine, make_model
from vllm import SamplingParams

MODES = ("vllm", "seine", "none")


class NoAttention:
    """Puts forwards that attend nothing in the place of those of the layers, while `on`."""

    def __init__(self, impls):
        self.impls = impls

    def set(self, on):
        for impl in self.impls:
            for name in ("forward", "do_kv_cache_update"):
                if name in impl.__dict__:
                    delattr(impl, name)
            if on:
                impl.forward = lambda layer, query, key, value, cache, metadata, output, *a, **k: output.zero_()
                impl.do_kv_cache_update = lambda *a, **k: None


def processor():
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


def run(engine, prompts, steps):
    """(seconds to the first token, milliseconds of each step behind it)."""
    params = SamplingParams(temperature=0, max_tokens=steps + 1, ignore_eos=True)
    begin = time.perf_counter()
    for prompt in prompts:
        engine.engine.add_request(str(engine._ids), {"prompt_token_ids": prompt}, params)
        engine._ids += 1
    lengths, first, times = {}, None, []
    while engine.engine.has_unfinished_requests():
        start = time.perf_counter()
        outputs = engine.engine.step()
        now = time.perf_counter()
        if len(lengths) == len(prompts) and all(lengths.values()):
            times.append(1000 * (now - start))
        for output in outputs:
            lengths[output.request_id] = len(output.outputs[0].token_ids)
        if first is None and len(lengths) == len(prompts) and all(lengths.values()):
            first = now - begin
    return first, times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--cells", default="1024,4096")
    parser.add_argument("--texts", default="1,4")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--out", help="file that rows are added to, one JSON object a line")
    args = parser.parse_args()
    make_model(args.model)
    engine = Engine(args.model, dtype=args.dtype, max_num_seqs=8, max_num_batched_tokens=2048, enable_prefix_caching=False)
    nothing = NoAttention(engine.impls)
    run(engine, [engine.tokens(100)], 4)
    for cells in map(int, args.cells.split(",")):
        for texts in map(int, args.texts.split(",")):
            row = {"cells": cells, "texts": texts, "dtype": args.dtype, "threads": int(os.environ.get("OMP_NUM_THREADS", 0)), "machine": processor()}
            measured = {mode: ([], []) for mode in args.modes.split(",")}
            for _ in range(args.rounds):
                for mode, (firsts, steps) in measured.items():
                    nothing.set(mode == "none")
                    engine.seine(mode == "seine")
                    first, times = run(engine, [engine.tokens(cells - args.steps - 2, 7919 * i) for i in range(texts)], args.steps)
                    firsts.append(first)
                    steps += times[1:]  # the first encodes
                    row[f"{mode}_first_step_ms"] = round(times[0], 1)
            nothing.set(False)
            for mode, (firsts, steps) in measured.items():
                row[f"{mode}_first_token_s"] = round(statistics.median(firsts), 3)
                row[f"{mode}_step_ms"] = round(statistics.median(steps), 2)
            print(json.dumps(row), flush=True)
            if args.out:
                with open(args.out, "a") as file:
                    file.write(json.dumps(row) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
