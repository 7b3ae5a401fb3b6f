"""Chats of several users over one document, by vLLM's OpenAI server as it stands, with torch.compile: by its own attention, and through
Seine. Each user asks, waits for the answer, and asks again behind it.

    python engines/vllm/tests/chats.py --models FOLDER --cells 8000 --users 4 --turns 5

A server is started for each of the two, is warmed up with another text, and answers all; then it is ended. Times are of all users from
the first request to the last answer. Texts are given and come back as tokens, so that both have read the same.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from models import ROOT, TEXTS, folder_of, stretched
from rows import say

WAYS = ("vllm", "seine")
START_S = 600  # a server compiles when it is first started
QUESTION = 24  # tokens


class Server:
    def __init__(self, args, way, length):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        longer = stretched(length)
        options = ["--hf-overrides", json.dumps(longer["hf_overrides"])] if longer else []
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder_of(args.models, "smollm2")), "--served-model-name", "m",
            "--host", "127.0.0.1", "--port", str(self.port), "--max-model-len", str(length), "--dtype", args.dtype, "--block-size", "128",
            "--max-num-seqs", "8", "--max-num-batched-tokens", "2048", *options, *args.server_option,
        ]  # fmt: skip
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        self.metrics = tempfile.TemporaryDirectory(prefix="metrics.")
        own = {"VLLM_CPU_OMP_THREADS_BIND": cores, "SEINE_LOG_EVERY": "2", "PROMETHEUS_MULTIPROC_DIR": self.metrics.name}
        own |= {"VLLM_PLUGINS": ""} if way == "vllm" else {}
        self.log = tempfile.NamedTemporaryFile("w+", prefix=f"{way}.", suffix=".log", delete=False)
        dropped = ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_PLUGINS")
        environment = {name: value for name, value in os.environ.items() if name not in dropped} | own
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=environment, start_new_session=True)

    def wait(self):
        begin = time.monotonic()
        while time.monotonic() - begin < START_S:
            if self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return time.monotonic() - begin
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        raise SystemExit(f"vllm: the server did not start; its log is {self.log.name}:\n{Path(self.log.name).read_text()[-3000:]}")

    def answer(self, prompt, tokens):
        """The tokens that follow."""
        body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=1800) as reply:
            return json.load(reply)["choices"][0]["token_ids"]

    def answers(self):
        """Of codes, by the server's metrics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith('seine_answers_total{how="codes"'))

    def end(self):
        """Its own processes are of its group."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    def lines(self):
        """What the plug-in has said last of its answers."""
        return [line.rpartition("seine: ")[2].strip() for line in Path(self.log.name).read_text().splitlines() if "seine: answers" in line][-1:]


def chat(server, user, text, args, told):
    prompt = list(text[: args.cells])
    for turn in range(args.turns):
        first = args.cells + QUESTION * (args.turns * user + turn)
        prompt += text[first : first + QUESTION]
        begin = time.monotonic()
        tokens = server.answer(prompt, args.tokens)
        told.append({"user": user, "turn": turn, "seconds": time.monotonic() - begin, "tokens": tokens})
        prompt += tokens


def run_way(args, way, text):
    length = args.cells + args.turns * (QUESTION + args.tokens) + 128
    server = Server(args, way, length)
    try:
        say(f"{way}: the server is up after {server.wait():.0f} s")
        server.answer(text[-300:], 8)  # of other tokens
        told, failed, begin = [], [], time.monotonic()

        def one(user):
            try:
                chat(server, user, text, args, told)
            except Exception as error:  # a thread's: said below
                failed.append(f"user {user}: {error}")

        users = [threading.Thread(target=one, args=(user,)) for user in range(args.users)]
        for user in users:
            user.start()
        for user in users:
            user.join()
        seconds = time.monotonic() - begin
        if failed:
            raise SystemExit(f"vllm: {failed[0]}; the server's log is {server.log.name}")
        time.sleep(3)  # for the line of counts
        lines, by_codes = server.lines(), server.answers()
    finally:
        server.end()
    if way == "seine" and not lines:
        raise SystemExit(f"vllm: the server's log {server.log.name} has no line of Seine's answers")
    say(f"{way}: {args.users} chats of {args.turns} turns in {seconds:.1f} s" + "".join(f"; {line}" for line in lines))
    os.unlink(server.log.name)
    later = [one["seconds"] for one in told if one["turn"] > 0]
    return {
        "seconds": seconds,
        "first": max(one["seconds"] for one in told if one["turn"] == 0),
        "later": statistics.median(later) if later else None,
        "by_codes": by_codes,
        "tokens": {(one["user"], one["turn"]): one["tokens"] for one in told},
    }


def text_of(args):
    import transformers

    words = "\n".join((ROOT / name).read_text() for name in TEXTS)
    tokens = transformers.AutoTokenizer.from_pretrained(folder_of(args.models, "smollm2")).encode(words)
    wanted = args.cells + QUESTION * args.turns * args.users + 300
    return (tokens * (wanted // len(tokens) + 1))[:wanted]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder of models, which are made where they are missing")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--cells", type=int, default=8000, help="tokens of the document")
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--server-option", action="append", default=[], help="of vLLM's server; may be given again")
    parser.add_argument("-o", choices=("text", "json"), default="text")
    args = parser.parse_args()
    text, found = text_of(args), {}
    for way in args.ways.split(","):
        found[way] = run_way(args, way, text)
    row = {"cells": args.cells, "users": args.users, "turns": args.turns, "tokens": args.tokens, "dtype": args.dtype}
    row["prompt"] = os.environ.get("SEINE_PROMPT", "exact")
    for way, one in found.items():
        row |= {f"{way}_s": round(one["seconds"], 2), f"{way}_first_s": round(one["first"], 2), f"{way}_later_s": round(one["later"] or 0, 2)}
    if len(found) == 2:
        one, other = (found[way]["tokens"] for way in WAYS)
        row["ratio"] = round(found["vllm"]["seconds"] / found["seine"]["seconds"], 3)
        row["same_answers"] = sum(one[key] == other[key] for key in one)
        row["answers"] = len(one)
    if args.o == "json":
        print(json.dumps({"rows": [row]}))
    else:
        print("; ".join(f"{name} {value}" for name, value in row.items()))
    if "seine" in found and not found["seine"]["by_codes"]:
        raise SystemExit("vllm: the server's metrics have no answers by codes")
    say(f"{len(found)} servers; /metrics had {found.get('seine', {}).get('by_codes', 0):,.0f} answers by codes")


if __name__ == "__main__":
    main()
