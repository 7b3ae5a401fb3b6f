"""Times llama-server's slots: with a full cache, and with few cells and a seined that holds the rest.

    slots.py --server PATH --model FILE --text FILE --plugin FILE --seined PATH --tokens N

Every chat has `--tokens` tokens, of which they share the first `--shared`. Each server reads them, decodes in all slots at once,
saves its slots, is killed (SIGKILL), starts again, loads them and goes on. Prints one JSON object, with what each took and how
many tokens of the two are equal. `./dev llama --slots` calls it. Standard library only.

With `--all` a full cache without flash attention is a third server. llama.cpp sums values in fp32 there, as a seined does, and in fp16
with flash attention, which loses more the longer a text is. Both others are compared with it. A chat's first token that differs has its
gap: how much likelier, in nats, each server thought its token than the next. Tokens before it say how far such gaps move.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

TIMEOUT = 3600  # seconds, of one request
A_PIECE = 16384  # characters of a text, whose tokens are asked for at once: a server takes minutes for some vocabularies' longer ones
EXACT = "full cache, no flash attention"
EVERYTHING = {"SEINE_TOP_K": "65536", "SEINE_REFINE": "65536", "SEINE_BETA": "1"}


def parse_args(argv):
    parser = argparse.ArgumentParser(description="Time llama-server's slots with a full cache and with a seined.")
    add = parser.add_argument
    add("--server", required=True, metavar="PATH", help="a llama-server")
    add("--model", required=True, metavar="FILE", help="a GGUF")
    add("--text", required=True, metavar="FILE", help="what chats read")
    add("--plugin", required=True, metavar="FILE", help="libggml-seine.so, with libggml-seine-remote.so beside it")
    add("--seined", required=True, metavar="PATH", help="the server of the plug-in")
    add("--profiles", metavar="FOLDER", help="of seined; SEINE_PROFILE names one of them")
    add("--tokens", type=int, default=16384, metavar="N", help="of a chat (default: %(default)s)")
    add("--shared", type=int, default=0, metavar="N", help="first ones that all chats have in common (default: %(default)s)")
    add("--chats", type=int, default=4, metavar="N", help="(default: %(default)s)")
    add("--cells", type=int, default=8192, metavar="N", help="that keep their memory in the engine, in all (default: %(default)s)")
    add("--steps", type=int, default=48, metavar="N", help="tokens decoded in all slots at once (default: %(default)s)")
    add("--threads", type=int, default=2, metavar="N", help="(default: %(default)s)")
    add("--all", action="store_true", help="every token is chosen, so that tokens are those of a full cache without flash attention")
    args = parser.parse_args(argv)
    if not 0 <= args.shared < args.tokens:
        parser.error(f"--shared: {args.shared} is not in [0, {args.tokens})")
    return args


class Failure(Exception):
    """One line for stderr."""


def resident_mib(process):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS:"))


class Server:
    """A llama-server that runs from here on; its slots keep their states in `folder`."""

    def __init__(self, args, folder, more, flash):
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        slot = args.tokens + 4 * args.steps + 128
        # Texts are longer than the model was trained for: a server would cut its slots back to that.
        command = [args.server, "-m", args.model, "-c", str(args.chats * slot), "-np", str(args.chats), "-t", str(args.threads),
                   "-tb", str(args.threads), "-b", "512", "-ub", "512", "-fa", flash, "-ot", "zzz=CPU", "--no-kv-unified", "--cache-ram", "0",
                   "--no-warmup", "--slot-save-path", str(folder), "--override-kv", f"llama.context_length=int:{slot}",
                   "--host", "127.0.0.1", "--port", str(self.port)]  # fmt: skip
        self.log_file = folder / "server.log"
        self.log = open(self.log_file, "ab")  # noqa: SIM115 - as long as the process
        begin = time.monotonic()
        self.asked = {"n_probs": 2} if args.all else {}  # costs a sort of all tokens
        environment = {name: value for name, value in os.environ.items() if name != "GGML_BACKEND_PATH"}
        self.process = subprocess.Popen(command, env={**environment, **more}, stdout=self.log, stderr=self.log)
        try:
            while not self.is_healthy():
                if self.process.poll() is not None or time.monotonic() > begin + 600:
                    last = self.log_file.read_text(errors="replace").strip().splitlines()[-3:]
                    raise Failure(f"{args.server} does not start: {' | '.join(last)}")
                time.sleep(0.05)
        except BaseException:
            self.end(signal.SIGKILL)
            raise
        self.start_s = time.monotonic() - begin

    def is_healthy(self):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=10) as answer:
            return answer.status == 200
        return False

    def post(self, path, body):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise Failure(f"{path}: {error.code} {error.read()[:300].decode(errors='replace')}") from None
        except OSError as error:
            raise Failure(f"{path}: {error}") from None

    def complete(self, prompt, steps, slot, **more):
        return self.post("completion", {"prompt": prompt, "n_predict": steps, "temperature": 0, "ignore_eos": True, "cache_prompt": True,
                                        "return_tokens": True, "id_slot": slot, **self.asked, **more})  # fmt: skip

    def first_given_back_cells(self):
        """Cells whose memory went back to the system when the plug-in first did so; a killed server leaves no report."""
        said = re.search(r"^seine: memory of (\d+) cells went back", self.log_file.read_text(errors="replace"), re.M)
        return int(said[1]) if said else 0

    def end(self, how):
        self.process.send_signal(how)
        self.process.wait(timeout=120)
        self.log.close()


def gaps_of(answer):
    """How much likelier each token was than the next, in nats; empty where this was not asked."""
    tops = [token["top_logprobs"] for token in answer.get("completion_probabilities", [])]
    return [first["logprob"] - second["logprob"] for first, second in tops]


def compare(ones, others):
    """Chats of two servers: how many tokens are equal, and the first of each that differs."""
    both = [list(zip(one["tokens"], two["tokens"])) for one, two in zip(ones, others)]
    differences, moved = [], []
    for chat, (pairs, one, two) in enumerate(zip(both, ones, others)):
        gaps = list(zip(one["gaps"], two["gaps"]))
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        moved += [abs(a - b) for a, b in gaps[:at]]
        if at < len(pairs):
            differences.append({"chat": chat, "token": at, "of": len(pairs), **({"gaps": gaps[at]} if gaps else {})})
    equal = sum(a == b for pairs in both for a, b in pairs)
    moves = {"mean_gap_moved": sum(moved) / len(moved), "most_gap_moved": max(moved)} if moved else {}
    return {"equal_tokens": equal, "compared_tokens": sum(map(len, both)), "first_differences": differences, **moves}


def at_once(chats, ask):
    with concurrent.futures.ThreadPoolExecutor(chats) as pool:
        return list(pool.map(ask, range(chats)))


def tokens_of(args, server, count):
    """So many of the text, from its beginning again where it ends."""
    text, tokens = pathlib.Path(args.text).read_text(encoding="utf-8"), []
    for at in range(0, len(text), A_PIECE):
        if len(tokens) < count:
            tokens += server.post("tokenize", {"content": text[at : at + A_PIECE]})["tokens"]
    return (tokens * -(-count // len(tokens)))[:count]


def read_and_decode(args, server, row):
    """Fills in the row. Returns each chat's tokens and its answers."""
    chats = range(args.chats)
    own = args.tokens - args.shared
    words = tokens_of(args, server, args.shared + args.chats * own)
    texts = [words[: args.shared] + words[args.shared + i * own : args.shared + (i + 1) * own] for i in chats]
    begin = time.monotonic()
    shared = []
    if args.shared:  # read once, and loaded into every slot
        shared = [server.complete(words[: args.shared], 1, 0)]
        server.post("slots/0?action=save", {"filename": "shared.state"})
        for i in chats[1:]:
            server.post(f"slots/{i}?action=restore", {"filename": "shared.state"})
        row["shared_s"] = time.monotonic() - begin
    firsts = [server.complete(text, 1, i) for i, text in enumerate(texts)]
    row["read_s"] = time.monotonic() - begin
    row["read_tokens"] = sum(first["timings"]["prompt_n"] for first in shared + firsts)
    texts = [text + first["tokens"] for text, first in zip(texts, firsts)]
    begin = time.monotonic()
    answers = at_once(args.chats, lambda i: server.complete(texts[i], args.steps, i))
    took = time.monotonic() - begin
    row["tokens_s"], row["step_ms"] = args.chats * args.steps / took, took * 1000 / args.steps
    texts = [text + answer["tokens"] for text, answer in zip(texts, answers)]
    one = server.complete(texts[0], args.steps, 0)
    row["alone_ms"] = one["timings"]["predicted_ms"] / max(1, one["timings"]["predicted_n"] - 1)
    texts[0] = texts[0] + one["tokens"]
    return texts, [[first, answer] + [one] * (i == 0) for i, (first, answer) in enumerate(zip(firsts, answers))]


def go_on(args, server, row, texts):
    """A server that was started again loads its chats and answers them."""
    begin = time.monotonic() - server.start_s
    for i in range(args.chats):
        server.post(f"slots/{i}?action=restore", {"filename": f"{i}.state"})
    back = [server.complete(text, 8, i) for i, text in enumerate(texts)]
    row["back_s"] = time.monotonic() - begin
    row["back_read_tokens"] = sum(answer["timings"]["prompt_n"] for answer in back)
    row["back_engine_mib"] = resident_mib(server.process)
    return back


def measure_server(args, name, more, held_mib, flash="on"):
    """One server's row and its chats: tokens and gaps of each. held_mib() is what its helper holds."""
    row = {"server": name}
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        server = Server(args, folder, more, flash)
        try:
            row["start_s"], row["started_mib"] = server.start_s, resident_mib(server.process)
            texts, answers = read_and_decode(args, server, row)
            row["engine_mib"], row["held_mib"] = resident_mib(server.process), held_mib()
            begin = time.monotonic()
            for i in range(args.chats):
                server.post(f"slots/{i}?action=save", {"filename": f"{i}.state"})
            row["save_s"] = time.monotonic() - begin
        finally:
            server.end(signal.SIGKILL)
        row["first_given_back_cells"] = server.first_given_back_cells()
        server = Server(args, folder, more, flash)
        try:
            for of_chat, answer in zip(answers, go_on(args, server, row, texts)):
                of_chat.append(answer)
        finally:
            server.end(signal.SIGTERM)
    chats = [
        {"tokens": [t for a in of_chat for t in a["tokens"]], "gaps": [gap for a in of_chat for gap in gaps_of(a)]} for of_chat in answers
    ]
    return row, chats


def measure(args):
    variables = {"SEINE_LOG": "0"}
    say = lambda what: print(f"slots: {what}", file=sys.stderr, flush=True)  # noqa: E731
    say("with a full cache")
    row, full = measure_server(args, "full cache", variables, lambda: 0)
    rows, beside = [row], {"full cache": full}
    if args.all:
        say("with a full cache, without flash attention")
        row, exact = measure_server(args, EXACT, variables, lambda: 0, "off")
        rows.append({**row, "beside": {"full cache": compare(full, exact)}})
        beside[EXACT] = exact
    with tempfile.TemporaryDirectory() as place:
        report, endpoint = pathlib.Path(place) / "report.json", f"unix://{place}/seine.sock"
        command = [args.seined, "--listen", endpoint, "--log-level", "error"] + (["--profiles", args.profiles] if args.profiles else [])
        seined = subprocess.Popen(command)
        try:
            say(f"with {args.cells} cells and a seined")
            more = {**variables, "GGML_BACKEND_PATH": args.plugin, "SEINE_ENDPOINT": endpoint, "SEINE_INDEX": "slots",
                    "SEINE_CELLS": str(args.cells), "SEINE_REPORT": str(report), **(EVERYTHING if args.all else {})}  # fmt: skip
            row, chats = measure_server(args, "Seine", more, lambda: resident_mib(seined))
            counts = json.loads(report.read_text(encoding="utf-8"))  # of the server that went on
            rows.append({**row, "beside": {name: compare(of_it, chats) for name, of_it in beside.items()}, "counts": counts})
        finally:
            seined.terminate()
            seined.wait(timeout=120)
    about = {name: getattr(args, name) for name in ("tokens", "shared", "chats", "cells", "steps", "threads", "all")}
    gaps = sorted(gap for chat in full for gap in chat["gaps"])
    return {**about, "model": pathlib.Path(args.model).name, **({"median_gap": gaps[len(gaps) // 2]} if gaps else {}), "rows": rows}


def main(argv):
    args = parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the servers are ended
    try:
        print(json.dumps(measure(args), indent=1))
    except (Failure, OSError, ValueError, subprocess.TimeoutExpired) as failure:
        print(f"--slots: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
