"""What codes change: tokens of a real text behind a prompt of it, given one by one, by vLLM's own attention and through Seine.

    python engines/vllm/tests/quality.py --models FOLDER --cells 7900 --steps 128

Three texts: Python's reference, five modules of its library, and pages of docs/. Prints of each the divergence of Seine's next-token
distributions from vLLM's, mean and largest, and both perplexities.
"""

import argparse
import inspect
import json
import os
import time
from pathlib import Path
from pydoc_data import topics

import torch
from engine import Engine, end
from models import TEXTS, folder_of
from rows import keep, kept, say

CHUNK = 2048  # tokens of a prompt that are read at a time
LIBRARY = Path(inspect.__file__).parent
TEXTS_OF = {
    "reference": (topics.__file__,),
    "modules": tuple(str(LIBRARY / name) for name in ("argparse.py", "typing.py", "inspect.py", "tarfile.py", "subprocess.py")),
    "pages": TEXTS,
}


class Given:
    """Puts tokens of a text in the place of those that the model would choose, and keeps its distributions."""

    def __init__(self, engine, chunks):
        core = engine.engine.engine_core.engine_core
        self.model = core.model_executor.driver_worker.worker.model_runner.model
        self.engine, self.chunks, self.given = engine, chunks, None
        self.own, self.model.compute_logits = self.model.compute_logits, self.compute_logits

    def compute_logits(self, hidden, *rest):
        logits = self.own(hidden, *rest)
        if self.given is None:
            return logits
        self.calls += 1
        if self.calls >= self.chunks:  # a prompt's chunks have logits too, of which nobody samples
            at = len(self.found)
            self.found.append(torch.log_softmax(logits[0].float(), -1))
            if at < len(self.given):
                logits = torch.full_like(logits, -1e4)
                logits[0, self.given[at]] = 1e4
        return logits

    def behind(self, prompt, given):
        self.given, self.calls, self.found = given, 0, []
        self.engine.generate([prompt], len(given))
        self.given = None
        if len(self.found) != len(given):
            raise SystemExit(f"{len(self.found)} distributions of {len(given)} tokens: vLLM reads prompts in other chunks")
        return torch.stack(self.found)


def row_of(plain, ours, given):
    divergence = (plain.exp() * (plain - ours)).sum(-1)
    given = torch.tensor(given)[:, None]
    return {
        "kl": divergence.mean().item(),
        "kl_largest": divergence.max().item(),
        "same_best": (plain.argmax(-1) == ours.argmax(-1)).float().mean().item(),
        "perplexity_vllm": (-plain.gather(1, given)).mean().exp().item(),
        "perplexity_seine": (-ours.gather(1, given)).mean().exp().item(),
    }


def rows_of(args, texts):
    engine = Engine(folder_of(args.models, "smollm2"), dtype=args.dtype, max_num_seqs=1, max_num_batched_tokens=CHUNK, enable_prefix_caching=False)
    behind = Given(engine, -(-args.cells // CHUNK)).behind
    for text in texts:
        begin, read = time.monotonic(), {}
        tokens = engine.tokens(args.cells + args.steps, texts=TEXTS_OF[text])
        for on in (False, True):
            engine.seine(on)
            read[on] = behind(tokens[: args.cells], tokens[args.cells :])
        counts = engine.counts()
        yield {
            "text": text, "cells": args.cells, "steps": args.steps, "dtype": args.dtype, **row_of(read[False], read[True], tokens[args.cells :]),
            "profile": bool(os.environ.get("SEINE_PROFILE")), "coded": counts["coded"], "gated": counts["gated"],
            "gate_lost": counts["gate_lost"] / max(counts["gate_checks"], 1), "seconds": round(time.monotonic() - begin, 1),
        }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder of models, which are made where they are missing")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--cells", type=int, default=7900)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--texts", default=",".join(TEXTS_OF), help="some of these, apart by commas")
    parser.add_argument("--rows", type=Path, help="file that keeps each row: what it has is not measured again")
    parser.add_argument("-o", choices=("text", "json"), default="text")
    args = parser.parse_args()
    texts = args.texts.split(",")
    if not set(texts) <= set(TEXTS_OF):
        parser.error(f"--texts: some of {', '.join(TEXTS_OF)}")
    begin = time.monotonic()
    there = {row["text"]: row for row in kept(args.rows) if (row["cells"], row["steps"], row["dtype"]) == (args.cells, args.steps, args.dtype)}
    missing = [text for text in texts if text not in there]
    for row in rows_of(args, missing) if missing else ():
        there[row["text"]] = row
        keep(args.rows, row)
    rows = [there[text] for text in texts]
    if args.o == "json":
        print(json.dumps({"rows": rows}))
    else:
        for row in rows:
            print(
                f"{row['text']}, {args.steps} tokens behind {args.cells:,}: KL {row['kl']:.4f}, at most {row['kl_largest']:.3f}; the same best token "
                f"in {row['same_best']:.3f}; perplexity {row['perplexity_vllm']:.3f} by vLLM, {row['perplexity_seine']:.3f} through Seine"
            )
    say(f"{len(rows)} texts in {time.monotonic() - begin:.0f} s")
    end(0)


if __name__ == "__main__":
    main()
