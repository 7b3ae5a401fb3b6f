"""What others have reported of vLLM on CPUs, of prefix caches and of plug-ins, tried through Seine with SmolLM2-135M.

    python engines/vllm/tests/reports.py --models FOLDER

Each case names the report. Codes choose all tokens here, as in equality.py, so that tokens are those of vLLM's own attention.
"""

import argparse
import os
import resource
import time
from pathlib import Path

from equality import difference  # before the others: its settings are the process's
from engine import Engine, end
from models import folder_of
from rows import say
from vllm import SamplingParams

DTYPE = "float32"
FACT = "Memorize this short fact for later: the verification passphrase is cobalt fig {}. What is the verification passphrase?"


def ask(engine, prompts, tokens=24, **sampling):
    return engine.generate(prompts, tokens, logprobs=2, **sampling)


def faults(name, expected, found):
    """A line for each text that differs more than rounding explains."""
    reasons = [difference(one, other, DTYPE)[0] for one, other in zip(expected, found)]
    return [f"{name}, text {i}: {reason}" for i, reason in enumerate(reasons) if reason is not None]


def batches(engine):
    """vllm-project/vllm#27034: texts that are answered together differ from those that are answered one by one."""
    encode = engine.llm.get_tokenizer().encode
    prompts = [engine.tokens(300, 1000) + encode(FACT.format(number)) for number in (41, 913, 768, 9687, 8578)]
    engine.seine(True)
    alone = [ask(engine, [prompt])[0] for prompt in prompts]
    wrong = faults("found in the cache, together", alone, ask(engine, prompts))
    engine.seine(True)
    return wrong + faults("read together", alone, ask(engine, prompts))


def hits(engine):
    """vllm-project/vllm#7845, tenstorrent/vllm#415: a prompt that is found in the cache is answered otherwise."""
    prompts = [engine.tokens(n, 2000 + n) for n in (384, 900, 1500)]
    engine.seine(True)
    missed = ask(engine, prompts)
    wrong = []
    for turn in range(3):
        wrong += faults(f"found for time {turn + 1}", missed, ask(engine, prompts))
    return wrong


def samples(engine):
    """Several answers of one prompt share its blocks, and write on in blocks of their own."""
    answers, prompt = [], engine.tokens(700, 3000)
    for on in (False, True):
        engine.seine(on)
        ask(engine, [prompt], 1)  # the rest of it fits a step: vLLM cannot sample behind a chunk by a seed on a CPU
        sampling = SamplingParams(temperature=0.8, n=4, seed=7, max_tokens=24, ignore_eos=True)
        found = engine.llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        answers.append([output.token_ids for output in found[0].outputs])
    alike = sum(tuple(one) == tuple(other) for one, other in zip(*answers))
    return [] if alike >= 3 else [f"{4 - alike} of 4 sampled answers differ"]  # a random number may lie between two sums


def weights(engine):
    """InternLM/lmdeploy#4917: weights change and the cache is forgotten; what was made of the old keys must not answer."""
    model = engine.engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.model
    prompt = engine.tokens(900, 5000)
    engine.seine(True)
    before = ask(engine, [prompt])
    changed = model.model.layers[3].input_layernorm.weight.data  # vLLM has products' weights packed elsewhere
    changed.mul_(4)
    try:
        engine.llm.reset_prefix_cache()
        ours = ask(engine, [prompt])
        engine.seine(False)
        plain = ask(engine, [prompt])
    finally:
        changed.div_(4)
    wrong = faults("behind new weights", plain, ours)
    if before[0].token_ids == ours[0].token_ids:
        wrong.append("the new weights changed no token: this text proves nothing")
    return wrong


def threads(engine):
    """vllm-project/vllm#10971, vllm-project/vllm-ascend#11307: who binds the process leaves attention with one core."""
    engine.seine(True)
    prompt = engine.tokens(3500, 100)
    ask(engine, [prompt], 2)
    layer = engine.served[0].shape.attention
    cores = len(os.sched_getaffinity(0))
    wall, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    engine.llm.reset_prefix_cache()
    ask(engine, [prompt], 2)
    wall, now = time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_SELF)
    share = (now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime) / wall
    say(f"{layer.threads} threads for {cores} cores, {share:.2f} processors while a prompt is read; OpenMP: {layer.openmp}")
    return [] if layer.threads >= cores and share > 0.75 * cores else [f"{layer.threads} threads use {share:.2f} of {cores} cores"]


def metrics(engine):
    """vllm-project/vllm#39906: a second part of the process takes a metric's name, and the engine ends."""
    from prometheus_client import REGISTRY, Counter
    from seine_vllm.backend import report

    if "seine_answers" not in REGISTRY._names_to_collectors:
        Counter("seine_answers", "Of another")
    engine.seine(True)
    prompt = engine.tokens(600, 7000)
    first = ask(engine, [prompt])
    report.say()
    wrong = faults("behind a name that is taken", first, ask(engine, [prompt]))
    report.say()
    return wrong if report._refused else [*wrong, "the name was not taken"]


CASES = (batches, hits, samples, weights, threads, metrics)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder of models, which are made where they are missing")
    args = parser.parse_args()
    engine, failed = Engine(folder_of(args.models, "smollm2"), dtype=DTYPE, max_num_seqs=6, max_num_batched_tokens=512, max_model_len=4096), 0
    for case in CASES:
        wrong = case(engine)
        failed += bool(wrong)
        print(f"{'FAILED' if wrong else 'as it should be'}: {case.__doc__}", flush=True)
        for line in wrong:
            print("WRONG", line, flush=True)
    counts = engine.counts()
    print(f"{counts['coded']:,} answers by codes, {counts['found_windows']} windows written unseen, declined: {counts['declined']}")
    end(1 if failed or counts["found_windows"] or not counts["coded"] else 0)


if __name__ == "__main__":
    main()
