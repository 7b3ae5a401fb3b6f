"""Tokens through Seine are those of vLLM's own attention at temperature 0: single, batched, in chunks, with and without a prefix
in the cache, and in random schedules with preemption, aborts and blocks that were used before.

    python engines/vllm/tests/equality.py --model llama --dtype bfloat16 --schedules 500

Codes answer too: with the settings below they choose all tokens, and each that is read is compared with its hash. So a write that
the plug-in was not told of is counted (found_windows), and there must be none. Where tokens
differ, vLLM's own two best must lie as near as rounding: its logits are of the model's dtype. At the end the keys of a layer are
told wrongly, on purpose, and the tokens must show it.
"""

import argparse
import os
import time
from pathlib import Path

os.environ.update(SEINE_MIN_KV="256", SEINE_TOP_K="65536", SEINE_SINK="64", SEINE_LOCAL="64", SEINE_LOG_EVERY="0")

import numpy as np
from engine import Engine, end
from models import MODELS, folder_of

TIE = {"float32": 2e-3, "bfloat16": 0.26}  # of the two best log-probabilities: bfloat16 logits of 16 to 32 are .125 apart
TEXTS = 6  # at once
BLOCK = 128  # tokens
BLOCKS = 40  # so few that texts are preempted
RANDOM_BLOCKS = 11  # for models of random weights, whose texts are shorter
SLIDING_BLOCKS = 16  # more: layers that slide hold blocks of their own
GUESSES = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
SAY_EVERY = 15  # seconds


def difference(plain, ours, dtype):
    """Why two outputs differ more than rounding explains; None: they do not. And how many tokens they have in common."""
    one, other = list(plain.token_ids), list(ours.token_ids)
    if one == other:
        return None, len(one)
    at = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), None)
    if at is None:
        return f"lengths {len(one)} and {len(other)}", min(len(one), len(other))
    best = sorted((entry.logprob for entry in plain.logprobs[at].values()), reverse=True)
    gap = best[0] - best[1]
    return None if gap <= TIE[dtype] else f"token {at}: {one[at]} became {other[at]}, {gap:.4f} apart", at


def random_events(rng, engine, short):
    """Texts of shared and of own tokens that come and go. Lengths straddle blocks, windows and chunks."""
    events, added = [], 0
    for _ in range(int(rng.integers(3, 9))):
        prefix = engine.tokens(int(rng.integers(0, 6)) * (100 if short else 150), 1000 * int(rng.integers(0, 3)))
        length = int(rng.integers(1, 250 if short else 700))
        if rng.integers(0, 2):  # its block is full soon: a running text that finds no other has a later one preempted
            length += -(len(prefix) + length) % BLOCK - int(rng.integers(1, 8))
        own = engine.tokens(max(length, 1), int(rng.integers(0, 9000)))
        at = int(rng.integers(0, 40))
        events.append((at, "add", prefix + own, int(rng.integers(1, 40))))
        added += 1
    for _ in range(int(rng.integers(0, 3))):
        events.append((int(rng.integers(1, 60)), "abort", int(rng.integers(0, added))))
    return events


class Comparison:
    """What both have answered, and where they differ."""

    def __init__(self, engine, dtype):
        self.engine, self.dtype = engine, dtype
        self.wrong, self.texts, self.parted, self.tokens, self.in_common = [], 0, 0, 0, 0
        self.preempted, self.guessed, self.taken = {False: 0, True: 0}, 0, 0
        self._watch()

    def _watch(self):
        """Counts what vLLM's scheduler preempts and guesses."""
        scheduler = self.engine.engine.engine_core.engine_core.scheduler
        preempt, schedule = scheduler._preempt_request, scheduler.schedule

        def counted(*args, **named):
            self.preempted[any(getattr(impl, "shape", None) is not None for impl in self.engine.impls)] += 1
            return preempt(*args, **named)

        def scheduled(*args, **named):
            step = schedule(*args, **named)
            self.guessed += sum(map(len, step.scheduled_spec_decode_tokens.values()))
            return step

        scheduler._preempt_request, scheduler.schedule = counted, scheduled

    def both(self, name, run):
        answers = []
        for on in (False, True):
            self.engine.seine(on)
            answers.append(run())
        plain, ours = answers
        if plain.keys() != ours.keys():
            self.wrong.append(f"{name}: {sorted(plain)} ended, and through Seine {sorted(ours)}")
        for key in plain.keys() & ours.keys():
            reason, common = difference(plain[key], ours[key], self.dtype)
            self.texts += 1
            self.tokens += len(plain[key].token_ids)
            self.in_common += common
            self.parted += reason is None and common < len(plain[key].token_ids)
            if reason is not None:
                self.wrong.append(f"{name}, text {key}: {reason}")

    def notices_wrong_keys(self, run):
        self.engine.seine(False)
        plain = run()
        self.engine.seine(True)
        with self.engine.wrong_keys():
            ours = run()
        if not any(difference(plain[key], ours[key], self.dtype)[0] for key in plain.keys() & ours.keys()):
            self.wrong.append("keys that were told wrongly changed no token: these texts prove nothing")

    def line(self, began):
        return (
            f"{self.texts} texts, {self.in_common} of {self.tokens} tokens in common; {self.parted} texts part where vLLM's two best are as near as "
            f"rounding, {len(self.wrong)} faults; {time.monotonic() - began:.0f} s"
        )


def run(args):
    make, layers, short = MODELS[args.model]
    folder = folder_of(args.models, args.model, *([args.gguf] if args.gguf else []))
    sliding = args.model.startswith("gemma3")
    blocks = (RANDOM_BLOCKS if short else BLOCKS) + (SLIDING_BLOCKS if sliding else 0)
    engine = Engine(
        folder, dtype=args.dtype, max_num_seqs=TEXTS, max_num_batched_tokens=256, max_model_len=1150 if short else 4096,
        enable_chunked_prefill=True,
        num_gpu_blocks_override=blocks,
        speculative_config=GUESSES if args.ngram else None,
    )  # fmt: skip
    began, found = time.monotonic(), Comparison(engine, args.dtype)

    def outputs(prompts, tokens=24):
        return dict(enumerate(engine.generate(prompts, tokens, logprobs=2)))

    found.both("single", lambda: outputs([engine.tokens(300)]))
    found.both("chunks", lambda: outputs([engine.tokens(1100 if short else 1500, 500)]))
    found.both("batch", lambda: outputs([engine.tokens(n, 37 * n) for n in (5, 64, 129, 300, 641, 1000)]))
    prefix = engine.tokens(700, 4000)
    again = [prefix + engine.tokens(n, 99 * n) for n in (3, 40, 200)]

    def twice():
        first = outputs(again)
        return {**first, **{key + 10: value for key, value in outputs(again).items()}}

    found.both("prefix cache", twice)
    usable = blocks - 1  # vLLM keeps one
    crowd = [engine.tokens(usable // TEXTS * BLOCK - 4, 1500 * i) for i in range(TEXTS)]
    found.both("preemption", lambda: outputs(crowd, BLOCK + 12))  # each needs two more blocks, and fewer are left
    print(f"single, chunks, batch, prefix cache, preemption: {found.line(began)}", flush=True)
    seed, last, until = args.seed, args.seed + args.schedules, time.monotonic() + args.seconds
    said = time.monotonic()
    while seed < last and time.monotonic() < until:
        events = random_events(np.random.default_rng(seed), engine, short)
        found.both(f"schedule {seed}", lambda: engine.schedule(list(events)))
        seed += 1
        if time.monotonic() - said > SAY_EVERY:
            said = time.monotonic()
            print(f"schedule {seed - args.seed} of {args.schedules}: {found.line(began)}", flush=True)
    counts = engine.counts()
    found.notices_wrong_keys(lambda: outputs([engine.tokens(n, 11 * n) for n in (300, 500, 700)]))
    wrong = found.wrong
    if len(engine.served) != layers:
        wrong.append(f"{len(engine.served)} layers are served, and {layers} attend all")
    if not counts["coded"] or not counts["exact"] or not counts["changed_windows"]:
        wrong.append("codes and exact attention must both have answered, and blocks been used anew")
    if counts["declined"] or counts["found_windows"] or counts["gated"]:
        wrong.append("nothing may be declined, written unseen, or given up by the gate")
    if not found.preempted[True]:
        wrong.append("no text was preempted through Seine: too many blocks")
    if args.ngram and not found.guessed:
        wrong.append("no token was guessed")
    shown = {name: counts[name] for name in ("coded", "exact", "prompt_tokens", "encoded_keys", "changed_windows", "found_windows", "declined")}
    print(f"{shown}, preempted: {found.preempted[False]} texts, and through Seine {found.preempted[True]}; {found.guessed} tokens guessed")
    for line in wrong[:20]:
        print("WRONG", line)
    print(
        f"{args.model}, {args.dtype}{', guessed tokens' if args.ngram else ''}, {len(engine.served)} of {len(engine.impls)} layers served, "
        f"{seed - args.seed} schedules from seed {args.seed}: {found.line(began)}: {'FAILED' if wrong else 'as vLLM'}"
    )
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder of models, which are made where they are missing")
    parser.add_argument("--model", choices=sorted(MODELS), default="llama")
    parser.add_argument("--gguf", help="of gemma3-270m")
    parser.add_argument("--ngram", action="store_true", help="tokens are guessed from the text, three at a time (speculative decoding)")
    parser.add_argument("--dtype", choices=sorted(TIE), default="float32")
    parser.add_argument("--schedules", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="schedules end after so long")
    end(run(parser.parse_args()))


if __name__ == "__main__":
    main()
