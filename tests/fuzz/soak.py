"""Runs every target of seine-fuzz for a while, and prints what came of it: `./dev soak fuzz`.

Inputs that reached new code are kept in build/fuzz/corpus, where the next run goes on. One that broke something is kept in
build/fuzz/crashes; `seine-fuzz TARGET FILE` runs it again. The last line is JSON: the seed, and of each target its inputs and
crashes, and whether a signal ended it. Exit code 0 where nothing broke and every target ran to its end.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

MOST_CRASHES = 3  # of a target: then it waits for somebody to look
LONGEST_INPUT = 1 << 18
ENDED = (72, -signal.SIGINT, -signal.SIGTERM)  # codes of a target that somebody ended: libFuzzer's own, and signals
LIMITS = ["-timeout=60", "-rss_limit_mb=3072", "-malloc_limit_mb=1024", "-detect_leaks=0", "-print_final_stats=1"]


def parse():
    parser = argparse.ArgumentParser(prog="./dev soak fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("seconds", nargs="?", type=float, default=600, help="of all targets together (default 600)")
    parser.add_argument("--inputs", type=int, default=0, help="of all targets together, in place of seconds")
    parser.add_argument("--only", default="", help="these targets alone, separated by commas")
    parser.add_argument("--seed", type=int, default=0, help="of what is random; the same seed and folders, the same run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="targets at once (default: one a core)")
    parser.add_argument("--bin", default="build/fuzz/tests/seine-fuzz", help=argparse.SUPPRESS)
    parser.add_argument("--list", action="store_true", help="the targets")
    return parser.parse_args()


def targets_of(program, only):
    listed = subprocess.run([program, "--list"], check=True, capture_output=True, text=True).stdout
    names = [line.split(":")[0] for line in listed.splitlines()]
    chosen = [name for name in only.split(",") if name]
    for name in chosen:
        if name not in names:
            sys.exit(f"soak fuzz: --only {name}: no such target; there are {', '.join(names)}")
    return chosen or names


class Run:
    """One target, begun again after each crash until its share of the time or of the inputs is used up."""

    def __init__(self, program, name, seed):
        self.program, self.name, self.seed = program, name, seed
        self.inputs = self.crashes = 0
        self.whole = True  # libFuzzer came to its end, or to a crash
        self.ended = False  # by a signal from elsewhere, which is no crash
        root = pathlib.Path(program).resolve().parent.parent
        self.corpus, self.found = root / "corpus" / name, root / "crashes" / name
        for folder in (self.corpus, self.found):
            folder.mkdir(parents=True, exist_ok=True)
        self.log = root / "crashes" / f"{name}.log"

    def command(self, seconds, inputs):
        limit = [f"-runs={inputs}"] if inputs else [f"-max_total_time={max(1, int(seconds))}"]
        kept = pathlib.Path("tests/fuzz/corpus") / self.name
        folders = [str(self.corpus)] + ([str(kept)] if kept.is_dir() else [])
        return [self.program, self.name, *limit, *LIMITS, f"-max_len={LONGEST_INPUT}", f"-seed={self.seed + self.crashes}",
                f"-artifact_prefix={self.found}/", *folders]

    def once(self, seconds, inputs):
        """Whether it ended without a crash."""
        with open(self.log, "w", errors="replace") as log:
            code = subprocess.run(self.command(seconds, inputs), stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        text = self.log.read_text(errors="replace")
        counts = re.findall(r"stat::number_of_executed_units: (\d+)", text) or re.findall(r"^#(\d+)\s", text, re.M)
        done = int(counts[-1]) if counts else 0
        self.inputs += done
        if code == 0:
            return True
        if code in ENDED:
            self.ended, self.whole = True, False
            return False
        self.crashes += 1
        self.whole = done > 0
        print("\n".join(text.splitlines()[-40:]), file=sys.stderr)
        self.log.rename(self.log.with_name(f"{self.name}-{self.crashes}.log"))
        return False

    def go(self, seconds, inputs):
        subprocess.run([self.program, "--seeds", self.name, str(self.corpus)], check=True)
        begin = time.monotonic()
        while not self.once(seconds - (time.monotonic() - begin), max(1, inputs - self.inputs) if inputs else 0):
            over = self.inputs >= inputs if inputs else time.monotonic() - begin >= seconds
            if over or self.crashes == MOST_CRASHES or not self.whole:
                break


def main():
    arguments = parse()
    names = targets_of(arguments.bin, arguments.only)
    if arguments.list:
        return print("\n".join(names))
    seed = arguments.seed or random.SystemRandom().randrange(1, 1 << 31)
    print(f"soak fuzz: seed {seed}, {len(names)} targets", file=sys.stderr)
    os.environ.setdefault("ASAN_OPTIONS", "detect_stack_use_after_return=1:strict_string_checks=1")
    os.environ.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")
    jobs = max(1, min(arguments.jobs, len(names)))

    def run(name):
        one = Run(arguments.bin, name, seed)
        one.go(arguments.seconds * jobs / len(names), -(-arguments.inputs // len(names)))
        note = ", ended by a signal" if one.ended else ""
        print(f"{name:16} {one.inputs:10} inputs {one.crashes:3} crashes{note}", file=sys.stderr, flush=True)
        return {"target": name, "inputs": one.inputs, "crashes": one.crashes, "ended": one.ended}

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(run, names))
    total = {key: sum(result[key] for result in results) for key in ("inputs", "crashes")}
    print(json.dumps({"seed": seed, **total, "targets": results}))
    sys.exit(1 if total["crashes"] or any(result["inputs"] == 0 or result["ended"] for result in results) else 0)


if __name__ == "__main__":
    main()
