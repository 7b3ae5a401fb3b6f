"""bench/peer.py against servers of a few lines: what each says is what is printed, and what it does not say is null."""

import contextlib
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

PEER = Path(__file__).resolve().parents[1] / "bench/peer.py"
PROMPTS = [{"cells": 7, "tokens": list(range(7)), "text": "seven"}, {"cells": 11, "tokens": list(range(11)), "text": "eleven"}]
STEPS = 5
A_SERVER = """#!{python}
import sys
sys.path.insert(0, {folder!r})
import peer_test
if "--help" in sys.argv:
    print("-fa,   --flash-attn [on|off|auto]   set Flash Attention use")
else:
    peer_test.serve_llama(sys.argv)
"""


class Handler(http.server.BaseHTTPRequestHandler):
    """What a subclass answers: `answers` has a function of the body for each path."""

    def log_message(self, *_):
        pass

    def reply(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path in self.server.answers:
            return self.reply(200, json.dumps(self.server.answers[self.path](None)).encode())
        found = self.path in self.server.known
        return self.reply(200 if found else 404, b"{}" if found else b"no such page")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body))
        if self.path not in self.server.answers:
            return self.reply(404, b"no such call")
        answer = self.server.answers[self.path](body)
        if isinstance(answer, dict):
            return self.reply(200, json.dumps(answer).encode())
        self.send_response(200)
        self.end_headers()
        for piece in answer:
            self.wfile.write(b"data: " + (piece if isinstance(piece, bytes) else json.dumps(piece).encode()) + b"\n\n")
            self.wfile.flush()
        return None


def make_server(known, answers, port=0):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.known, server.answers, server.asked = known, answers, []
    return server


@contextlib.contextmanager
def serving(known, answers):
    with make_server(known, answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server, f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def timed(body):
    """As llama-server times: 2 ms a token of the prompt, 30 ms a token behind its first."""
    return {"timings": {"prompt_n": len(body["prompt"]), "prompt_ms": 2.0 * len(body["prompt"]),
                        "predicted_n": body["n_predict"], "predicted_ms": 30.0 * (body["n_predict"] - 1)}}  # fmt: skip


def serve_llama(arguments):
    value = lambda name: arguments[arguments.index(name) + 1]  # noqa: E731
    if os.environ.get("GGML_BACKEND_PATH") or value("-fa") != "on" or value("-ctk") != "q8_0" or "-own" not in arguments:
        raise SystemExit(f"started otherwise than asked: {arguments}")
    make_server({"/health", "/props"}, {"/completion": timed}, int(value("--port"))).serve_forever()


def streamed(usage):
    def answer(body):
        time.sleep(0.05)
        for _ in range(body["max_tokens"]):
            yield {"choices": [{"text": "a"}]}
            time.sleep(0.02)
        if usage is not None:
            yield {"choices": [], "usage": {"completion_tokens": body["max_tokens"], **usage}}
        yield b"[DONE]"

    return answer


class Peer(unittest.TestCase):
    def run_peer(self, server, *options, good=0):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"steps": STEPS, "prompts": PROMPTS}, file)
            file.flush()
            done = subprocess.run([sys.executable, str(PEER), "--server", server, "--model", "m.gguf", "--prompts", file.name, *options],
                                  capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
        self.assertEqual(done.returncode, good, done.stderr)
        return json.loads(done.stdout) if good == 0 else done.stderr

    def test_llama_server_times_itself(self):
        with serving({"/props"}, {"/completion": timed}) as (server, url):
            said = self.run_peer(url + "/")
            self.assertEqual(said["rows"], [{"cells": n, "prompt_tokens": n, "prompt_ms": 2.0 * n, "ms": 30.0} for n in (7, 11)])
            self.assertEqual((said["asked_by"], said["threads"], said["cache_type_k"]), ("tokens", None, None))
            self.assertEqual([body["prompt"] for _, body in server.asked], [p["tokens"] for p in PROMPTS])
            self.assertFalse(any(body["cache_prompt"] for _, body in server.asked))

    def test_what_a_cache_held_is_no_prompt(self):
        half = lambda body: {"timings": {**timed(body)["timings"], "prompt_n": 3}}  # noqa: E731
        with serving({"/props"}, {"/completion": half}) as (_, url):
            self.assertEqual(self.run_peer(url)["rows"][0], {"cells": 7, "prompt_tokens": 3, "prompt_ms": None, "ms": 30.0})
        with serving({"/props"}, {"/completion": lambda _: {"content": "no timings"}}) as (_, url):
            self.assertEqual(self.run_peer(url)["rows"][0], {"cells": 7, "prompt_tokens": None, "prompt_ms": None, "ms": None})

    def test_openai_is_timed_from_here(self):
        with serving(set(), {"/v1/completions": streamed({"prompt_tokens": 9})}) as (server, url):
            said = self.run_peer(url + "/v1")
            self.assertEqual(said["asked_by"], "text")
            for row in said["rows"]:
                self.assertEqual(row["prompt_tokens"], 9)
                self.assertGreaterEqual(row["prompt_ms"], 50)
                self.assertGreaterEqual(row["ms"], 20)
                self.assertLess(row["ms"], 50 + row["prompt_ms"])
            self.run_peer(url)
            numbers, texts = zip(*(body["prompt"].split("\n") for _, body in server.asked))
            self.assertEqual(texts, ("seven", "eleven") * 2)
            self.assertEqual(len({number[:4] for number in numbers}), 4)  # no first block of tokens is another prompt's or run's
            self.assertEqual({body["model"] for _, body in server.asked}, {"m.gguf"})

    def test_a_model_is_asked_by_the_servers_name(self):
        for listed, asked in ((["org/small", "other"], "org/small"), (["other", "m.gguf"], "m.gguf"), ([], "m.gguf")):
            answers = {"/v1/completions": streamed({}), "/v1/models": lambda _, ids=listed: {"data": [{"id": name} for name in ids]}}
            with serving(set(), answers) as (server, url):
                self.run_peer(url)
                self.assertEqual([body["model"] for _, body in server.asked], [asked] * 2)

    def test_openai_without_counts(self):
        with serving(set(), {"/v1/completions": streamed(None)}) as (_, url):
            row = self.run_peer(url)["rows"][0]
            self.assertIsNone(row["ms"])  # a piece may hold several tokens
            self.assertIsNone(row["prompt_tokens"])
            self.assertGreaterEqual(row["prompt_ms"], 50)
        several = lambda body: streamed({"completion_tokens": body["max_tokens"] + 2})(body)  # noqa: E731
        with serving(set(), {"/v1/completions": several}) as (_, url):
            self.assertIsNone(self.run_peer(url)["rows"][0]["ms"])
        cached = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}
        with serving(set(), {"/v1/completions": streamed(cached)}) as (_, url):
            self.assertIsNone(self.run_peer(url)["rows"][0]["prompt_ms"])

    def test_a_program_is_started_and_ended(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "llama-server"
            program.write_text(A_SERVER.format(python=sys.executable, folder=str(Path(__file__).parent)))
            program.chmod(0o755)
            os.environ["GGML_BACKEND_PATH"] = "/a/plug-in"
            try:
                said = self.run_peer(f"{program} -own", "-ctk", "q8_0", "--threads", "3")
                self.assertEqual((said["threads"], said["cache_type_k"], said["rows"][1]["ms"]), (3, "q8_0", 30.0))
                errors = self.run_peer(str(program), good=1)
            finally:
                del os.environ["GGML_BACKEND_PATH"]
            self.assertIn("ended with 1: started otherwise than asked", errors)

    def test_a_peer_that_is_ended_ends_its_server(self):
        with tempfile.TemporaryDirectory() as folder:
            program, said, prompts = (Path(folder) / name for name in ("llama-server", "pid", "prompts"))
            program.write_text(f"#!/bin/sh\n[ $1 != --help ] || exit 0\necho $$ > {said}.new; mv {said}.new {said}; exec sleep 300\n")
            program.chmod(0o755)
            prompts.write_text(json.dumps({"steps": STEPS, "prompts": PROMPTS}))
            peer = subprocess.Popen([sys.executable, str(PEER), "--server", str(program), "--model", "m", "--prompts", str(prompts)])
            while not said.exists():
                self.assertIsNone(peer.poll())
                time.sleep(0.02)
            peer.terminate()
            self.assertEqual(peer.wait(timeout=60), 143)
            with self.assertRaises(ProcessLookupError):
                os.kill(int(said.read_text()), 0)

    def test_failures_are_one_line(self):
        errors = self.run_peer("/no/such/server", good=1)
        self.assertEqual(errors, "--peer-server: /no/such/server: No such file or directory\n")
        self.assertIn("Connection refused", self.run_peer("http://127.0.0.1:9", good=1))
        with serving(set(), {}) as (_, url):
            self.assertIn("/v1/completions: 404 no such call", self.run_peer(url, good=1))
        broken_off = lambda _: [b"{\"choices\": [{\"te"]  # noqa: E731
        with serving(set(), {"/v1/completions": broken_off}) as (_, url):
            self.assertRegex(self.run_peer(url, good=1), r"^peer: .*\n--peer-server: .*\n$")
        with serving({"/props"}, {"/completion": broken_off}) as (_, url):
            self.assertRegex(self.run_peer(url, good=1), r"^peer: .*\n--peer-server: .*\n$")


if __name__ == "__main__":
    unittest.main()
