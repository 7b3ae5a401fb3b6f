"""What codes change: tokens of a real text behind a prompt of it, given one by one, by vLLM's own attention and through Seine.

    python engines/vllm/tests/quality.py --model FOLDER --cells 7900 --steps 128

Prints the divergence of Seine's next-token distributions from vLLM's, mean and largest, and both perplexities.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import torch
from engine import Engine, make_model

CHUNK = 2048  # tokens of a prompt that are read at a time


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--cells", type=int, default=7900)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--first", default="0", help="where in the text to begin, several apart by commas")
    args = parser.parse_args()
    make_model(args.model)
    engine = Engine(args.model, dtype=args.dtype, max_num_seqs=1, max_num_batched_tokens=CHUNK, enable_prefix_caching=False)
    core = engine.engine.engine_core.engine_core
    model = core.model_executor.driver_worker.worker.model_runner.model
    own, state, chunks = model.compute_logits, {}, -(-args.cells // CHUNK)

    def compute_logits(hidden, *rest):
        logits = own(hidden, *rest)
        if state.get("given") is not None:
            state["calls"] += 1
        if state.get("given") is not None and state["calls"] >= chunks:  # a prompt's chunks have logits too, of which nobody samples
            state["logits"].append(torch.log_softmax(logits[0].float(), -1))
            at = len(state["logits"]) - 1
            if at < len(state["given"]):
                logits = torch.full_like(logits, -1e4)
                logits[0, state["given"][at]] = 1e4
        return logits

    model.compute_logits = compute_logits
    for first in map(int, args.first.split(",")):
        prompt, given = engine.tokens(args.cells, first), engine.tokens(args.steps, first + args.cells)
        read = {}
        for on in (False, True):
            engine.seine(on)
            state.update(given=given, logits=[], calls=0)
            engine.generate([prompt], args.steps)
            read[on] = torch.stack(state["logits"])
            if len(read[on]) != args.steps:
                raise SystemExit(f"{len(read[on])} distributions of {args.steps} tokens: vLLM reads prompts in other chunks")
            state.update(given=None)
        plain, ours, given = read[False], read[True], torch.tensor(given)
        divergence = (plain.exp() * (plain - ours)).sum(-1)
        row = {
            "cells": args.cells, "first": first, "steps": args.steps, "dtype": args.dtype, "kl": divergence.mean().item(),
            "kl_largest": divergence.max().item(), "same_best": (plain.argmax(-1) == ours.argmax(-1)).float().mean().item(),
            "perplexity_vllm": (-plain.gather(1, given[:, None])).mean().exp().item(),
            "perplexity_seine": (-ours.gather(1, given[:, None])).mean().exp().item(),
            "profile": os.environ.get("SEINE_PROFILE", ""),
        }  # fmt: skip
        print(json.dumps(row), flush=True)
    counts = engine.counts()
    print({name: counts[name] for name in ("coded", "exact", "gated", "declined", "gate_checks", "gate_lost", "gate")})
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
