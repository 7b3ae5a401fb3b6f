"""Tokens through Seine are those of vLLM's own attention at temperature 0: single, batched, in chunks, with and without a prefix
in the cache, and in random schedules with preemption, aborts and blocks that were used before.

    python engines/vllm/tests/equality.py --model FOLDER --dtype bfloat16 --schedules 20

Codes answer too: with the settings below they choose all tokens, and each that is read is compared with its hash. So a write that
the plug-in was not told of is counted (found_windows), and there must be none. Where tokens
differ, vLLM's own two best must lie as near as rounding: its logits are of the model's dtype.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.update(SEINE_MIN_KV="256", SEINE_TOP_K="65536", SEINE_SINK="64", SEINE_LOCAL="64", SEINE_LOG_EVERY="0")

import numpy as np
from engine import Engine, make_gemma, make_model

TIE = {"float32": 2e-3, "bfloat16": 0.26}  # of the two best log-probabilities: bfloat16 logits of 16 to 32 are .125 apart
BLOCKS = 40  # of 128 tokens: so few that texts are preempted
GEMMA_BLOCKS = 16  # more: layers that slide hold blocks of their own


def difference(plain, ours, dtype):
    """Why two outputs differ more than rounding explains; None: they do not. And whether they differ at all."""
    one, other = list(plain.token_ids), list(ours.token_ids)
    if one == other:
        return None, False
    at = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), None)
    if at is None:
        return f"lengths {len(one)} and {len(other)}", True
    best = sorted((entry.logprob for entry in plain.logprobs[at].values()), reverse=True)
    gap = best[0] - best[1]
    reason = None if gap <= TIE[dtype] else f"token {at}: {one[at]} became {other[at]}, {gap:.4f} apart"
    return reason, True


def random_events(rng, engine):
    events, added = [], 0
    for _ in range(int(rng.integers(3, 9))):
        prefix = engine.tokens(int(rng.integers(0, 6)) * 150, 1000 * int(rng.integers(0, 3)))
        own = engine.tokens(int(rng.integers(1, 700)), int(rng.integers(0, 9000)))
        at = int(rng.integers(0, 40))
        events.append((at, "add", prefix + own, int(rng.integers(1, 40))))
        added += 1
    for _ in range(int(rng.integers(0, 3))):
        events.append((int(rng.integers(1, 60)), "abort", int(rng.integers(0, added))))
    return events


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--gemma", type=Path, help="folder of a Gemma 3 of random weights, which is served in its place: three of its layers slide")
    parser.add_argument("--ngram", action="store_true", help="tokens are guessed from the text, three at a time (speculative decoding)")
    parser.add_argument("--dtype", choices=sorted(TIE), default="float32")
    parser.add_argument("--schedules", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="schedules end after so long")
    args = parser.parse_args()
    make_model(args.model)
    if args.gemma:
        make_gemma(args.gemma, args.model)
    guesses = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    engine = Engine(
        args.gemma or args.model, dtype=args.dtype, max_num_seqs=6, max_num_batched_tokens=256, max_model_len=4096,
        num_gpu_blocks_override=BLOCKS + (GEMMA_BLOCKS if args.gemma else 0), enable_chunked_prefill=True,
        speculative_config=guesses if args.ngram else None,
    )  # fmt: skip
    wrong, ties, compared, began = [], 0, 0, time.monotonic()
    scheduler, preempted = engine.engine.engine_core.engine_core.scheduler, {False: 0, True: 0}
    preempt = scheduler._preempt_request

    def counted(*args, **named):
        preempted[any(getattr(impl, "shape", None) is not None for impl in engine.impls)] += 1
        return preempt(*args, **named)

    scheduler._preempt_request = counted

    def compare(name, plain, ours):
        nonlocal ties, compared
        if plain.keys() != ours.keys():
            wrong.append(f"{name}: {sorted(plain)} ended, and through Seine {sorted(ours)}")
        for key in plain.keys() & ours.keys():
            reason, differs = difference(plain[key], ours[key], args.dtype)
            compared += 1
            ties += differs and reason is None
            if reason is not None:
                wrong.append(f"{name}, text {key}: {reason}")

    def both(name, run):
        answers = []
        for on in (False, True):
            engine.seine(on)
            answers.append(run())
        compare(name, *answers)
        print(f"{name}: {len(answers[0])} texts, {time.monotonic() - began:.0f} s; wrong so far: {len(wrong)}, by rounding: {ties}", flush=True)

    def outputs(prompts, tokens=24):
        return dict(enumerate(engine.generate(prompts, tokens, logprobs=2)))

    both("single", lambda: outputs([engine.tokens(300)]))
    both("chunks", lambda: outputs([engine.tokens(1500, 500)]))
    both("batch", lambda: outputs([engine.tokens(n, 37 * n) for n in (5, 64, 129, 300, 641, 1000)]))
    prefix = engine.tokens(700, 4000)
    again = [prefix + engine.tokens(n, 99 * n) for n in (3, 40, 200)]

    def twice():
        first = outputs(again)
        return {**first, **{key + 10: value for key, value in outputs(again).items()}}

    both("prefix cache", twice)
    seed, end = args.seed, time.monotonic() + args.seconds
    while seed < args.seed + args.schedules and time.monotonic() < end:
        events = random_events(np.random.default_rng(seed), engine)
        both(f"schedule {seed}", lambda: engine.schedule(list(events)))
        seed += 1
    counts = engine.counts()
    served = sum(shape is not None for shape in engine.shapes)
    if served != (1 if args.gemma else 30):
        wrong.append(f"{served} layers are served")
    print(f"{args.dtype}, {served} layers served: {compared} texts compared, {seed - args.seed} schedules from seed {args.seed}; {ties} differ by rounding, "
          f"{len(wrong)} otherwise", flush=True)  # fmt: skip
    print({name: counts[name] for name in ("coded", "exact", "gated", "prompt_tokens", "encoded_keys", "changed_windows", "found_windows", "declined")},
          f"preempted: {preempted[False]} texts, and through Seine {preempted[True]}")  # fmt: skip
    for line in wrong[:20]:
        print("WRONG", line)
    if not counts["coded"] or not counts["exact"] or not counts["changed_windows"] or counts["declined"] or counts["found_windows"]:
        wrong.append("counts")
        print("WRONG: codes and exact attention must both have answered, blocks been used anew, nothing been declined or written unseen")
    if not preempted[True]:
        wrong.append("preemption")
        print("WRONG: no text was preempted through Seine: too few schedules, or too many blocks")
    sys.stdout.flush()
    os._exit(1 if wrong else 0)  # vLLM's own end waits for threads


if __name__ == "__main__":
    main()
