"""Times llama-server's slots: with a full cache, and with few cells and a seined that holds the rest.

    slots.py --server PATH --model FILE --text FILE --plugin FILE --seined PATH --tokens N

Every chat has `--tokens` tokens, of which they share the first `--shared`. Each server reads them, decodes in all slots at once,
saves its slots, is killed (SIGKILL), starts again, loads them and goes on. Prints one JSON object, with what each took and how
many tokens of the two are equal. `./dev llama --slots` calls it. Standard library only.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

TIMEOUT = 3600  # seconds, of one request
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
    add("--all", action="store_true", help="every token is chosen, so that tokens must be equal")
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

    def __init__(self, args, folder, more):
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        slot = args.tokens + 4 * args.steps + 128
        # Texts are longer than the model was trained for: a server would cut its slots back to that.
        command = [args.server, "-m", args.model, "-c", str(args.chats * slot), "-np", str(args.chats), "-t", str(args.threads),
                   "-tb", str(args.threads), "-b", "512", "-ub", "512", "-fa", "on", "-ot", "zzz=CPU", "--no-kv-unified", "--cache-ram", "0",
                   "--no-warmup", "--slot-save-path", str(folder), "--override-kv", f"llama.context_length=int:{slot}",
                   "--host", "127.0.0.1", "--port", str(self.port)]  # fmt: skip
        self.log = open(folder / "server.log", "ab")  # noqa: SIM115 - as long as the process
        begin = time.monotonic()
        environment = {name: value for name, value in os.environ.items() if name != "GGML_BACKEND_PATH"}
        self.process = subprocess.Popen(command, env={**environment, **more}, stdout=self.log, stderr=self.log)
        try:
            while not self.is_healthy():
                if self.process.poll() is not None or time.monotonic() > begin + 600:
                    last = (folder / "server.log").read_text(errors="replace").strip().splitlines()[-3:]
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
                                        "return_tokens": True, "id_slot": slot, **more})  # fmt: skip

    def end(self, how):
        self.process.send_signal(how)
        self.process.wait(timeout=120)
        self.log.close()


def at_once(chats, ask):
    with concurrent.futures.ThreadPoolExecutor(chats) as pool:
        return list(pool.map(ask, range(chats)))


def measure_server(args, name, more, held_mib):
    """One server's row. held_mib() is what its helper holds."""
    row, chats = {"server": name}, range(args.chats)
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        server = Server(args, folder, more)
        try:
            row["start_s"], row["started_mib"] = server.start_s, resident_mib(server.process)
            words = server.post("tokenize", {"content": pathlib.Path(args.text).read_text(encoding="utf-8")})["tokens"]
            own = args.tokens - args.shared
            if len(words) < args.shared + args.chats * own:
                words *= -(-(args.shared + args.chats * own) // len(words))
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
            row["engine_mib"], row["held_mib"] = resident_mib(server.process), held_mib()
            begin = time.monotonic()
            for i in chats:
                server.post(f"slots/{i}?action=save", {"filename": f"{i}.state"})
            row["save_s"] = time.monotonic() - begin
        finally:
            server.end(signal.SIGKILL)
        begin = time.monotonic()
        server = Server(args, folder, more)
        try:
            for i in chats:
                server.post(f"slots/{i}?action=restore", {"filename": f"{i}.state"})
            back = [server.complete(texts[i], 8, i) for i in chats]
            row["back_s"] = time.monotonic() - begin
            row["back_read_tokens"] = sum(answer["timings"]["prompt_n"] for answer in back)
            row["back_engine_mib"] = resident_mib(server.process)
        finally:
            server.end(signal.SIGTERM)
        row["tokens"] = [first["tokens"] + answer["tokens"] for first, answer in zip(firsts, answers)] + [one["tokens"]]
        row["tokens"] += [answer["tokens"] for answer in back]
    return row


def measure(args):
    rows, variables = [], {"SEINE_LOG": "0"}
    say = lambda what: print(f"slots: {what}", file=sys.stderr, flush=True)  # noqa: E731
    say("with a full cache")
    rows.append(measure_server(args, "full cache", variables, lambda: 0))
    with tempfile.TemporaryDirectory() as place:
        report, endpoint = pathlib.Path(place) / "report.json", f"unix://{place}/seine.sock"
        command = [args.seined, "--listen", endpoint, "--log-level", "error"] + (["--profiles", args.profiles] if args.profiles else [])
        seined = subprocess.Popen(command)
        try:
            say(f"with {args.cells} cells and a seined")
            more = {**variables, "GGML_BACKEND_PATH": args.plugin, "SEINE_ENDPOINT": endpoint, "SEINE_INDEX": "slots",
                    "SEINE_CELLS": str(args.cells), "SEINE_REPORT": str(report), **(EVERYTHING if args.all else {})}  # fmt: skip
            rows.append(measure_server(args, "Seine", more, lambda: resident_mib(seined)))
            rows[-1]["counts"] = json.loads(report.read_text(encoding="utf-8"))  # of the server that went on
        finally:
            seined.terminate()
            seined.wait(timeout=120)
    full, seine = (row.pop("tokens") for row in rows)
    equal = sum(a == b for one, other in zip(full, seine) for a, b in zip(one, other))
    about = {name: getattr(args, name) for name in ("tokens", "shared", "chats", "cells", "steps", "threads", "all")}
    return {**about, "model": pathlib.Path(args.model).name, "equal_tokens": equal, "all_tokens": sum(map(len, full)), "rows": rows}


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
