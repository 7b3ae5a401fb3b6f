"""bench/slots.py against a llama-server and a seined of a few lines: what is counted, and one line for what fails."""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from peer_test import make_server

SLOTS = Path(__file__).resolve().parents[1] / "bench/slots.py"
A_PROGRAM = """#!{python}
import sys
sys.path.insert(0, {folder!r})
import slots_bench_test
slots_bench_test.{function}(sys.argv)
"""


def serve(arguments):
    """A llama-server whose tokens are 1, 2, 3, ...; with the plug-in, and without flash attention, each answer's last is another.
    A slot reads what it does not hold.
    """
    options = dict(zip(arguments[1:], arguments[2:]))
    if "FAILS" in os.environ:
        sys.exit("error: no such model\nllama-server: exiting")
    states, held = Path(options["--slot-save-path"]), dict.fromkeys(range(int(options["-np"])), 0)

    def complete(body):
        tokens = list(range(1, body["n_predict"] + 1))
        if ("GGML_BACKEND_PATH" in os.environ or options["-fa"] == "off") and len(tokens) > 1:
            tokens[-1] = 99
        read = max(1, len(body["prompt"]) - held[body["id_slot"]])
        held[body["id_slot"]] = len(body["prompt"]) + len(tokens) - 1
        tops = [{"top_logprobs": [{"logprob": -0.5}, {"logprob": -0.75}]} for _ in range(len(tokens) if "n_probs" in body else 0)]
        return {"tokens": tokens, **({"completion_probabilities": tops} if tops else {}),
                "timings": {"prompt_n": read, "predicted_n": len(tokens), "predicted_ms": 10.0 * (len(tokens) - 1)}}  # fmt: skip

    answers = {"/health": lambda _: {}, "/tokenize": lambda body: {"tokens": list(range(len(body["content"])))}, "/completion": complete}
    for slot in range(int(options["-np"])):

        def save(body, slot=slot):
            (states / body["filename"]).write_text(str(held[slot]))
            return {}

        def restore(body, slot=slot):
            held[slot] = int((states / body["filename"]).read_text())
            return {}

        answers |= {f"/slots/{slot}?action=save": save, f"/slots/{slot}?action=restore": restore}
    if "SEINE_REPORT" in os.environ:
        Path(os.environ["SEINE_REPORT"]).write_text('{"answered": 7}')
        print("seine: memory of 123 cells went back to the system: the server has them", file=sys.stderr, flush=True)
    with make_server([], answers, int(options["--port"])) as server:
        server.serve_forever()


def wait(_):
    time.sleep(600)


class SlotsTest(unittest.TestCase):
    def run_slots(self, *more, **environment):
        with tempfile.TemporaryDirectory() as place:
            folder, programs = Path(place), []
            for name, function in (("llama-server", "serve"), ("seined", "wait")):
                program = folder / name
                program.write_text(A_PROGRAM.format(python=sys.executable, folder=str(Path(__file__).parent), function=function))
                program.chmod(0o755)
                programs.append(str(program))
            (folder / "text").write_text("x" * 50)
            return subprocess.run(
                [sys.executable, "-B", SLOTS, "--server", programs[0], "--seined", programs[1], "--model", "m.gguf", "--plugin", "p.so",
                 "--text", folder / "text", "--chats", "3", "--steps", "4", *more],
                capture_output=True, text=True, timeout=60, env={**os.environ, **environment})  # fmt: skip

    def test_what_both_took_and_how_many_tokens_are_equal(self):
        done = self.run_slots("--tokens", "40", "--shared", "30")
        self.assertEqual(done.returncode, 0, done.stderr)
        measured = json.loads(done.stdout)
        full, seine = measured["rows"]
        self.assertEqual((full["server"], seine["server"], seine["counts"]), ("full cache", "Seine", {"answered": 7}))
        for row in (full, seine):
            self.assertEqual((row["read_tokens"], row["back_read_tokens"], row["alone_ms"]), (30 + 3 * 10, 3, 10.0))
            self.assertTrue(row["shared_s"] > 0 and row["engine_mib"] > 1 and row["save_s"] > 0 and row["tokens_s"] > 0)
        self.assertEqual((full["held_mib"], seine["held_mib"] > 1), (0, True))
        self.assertEqual((full["first_given_back_cells"], seine["first_given_back_cells"]), (0, 123))
        # One of three chats and four tokens, one of four, and three of eight differ, each in its last token.
        beside = seine["beside"].pop("full cache")
        self.assertEqual((beside["compared_tokens"], beside["equal_tokens"]), (3 * 5 + 4 + 3 * 8, 3 * 5 + 4 + 3 * 8 - 3 - 1 - 3))
        self.assertEqual(beside["first_differences"], [{"chat": i, "token": 4, "of": 17 if i == 0 else 13} for i in range(3)])
        self.assertEqual((seine["beside"], "beside" in full, "median_gap" in measured), ({}, False, False))

    def test_where_all_is_chosen_both_are_compared_with_sums_in_fp32(self):
        done = self.run_slots("--tokens", "40", "--all")
        self.assertEqual(done.returncode, 0, done.stderr)
        measured = json.loads(done.stdout)
        _, exact, seine = measured["rows"]
        self.assertEqual((measured["median_gap"], exact["server"]), (0.25, "full cache, no flash attention"))
        full, same = seine["beside"]["full cache"], seine["beside"]["full cache, no flash attention"]
        self.assertEqual(exact["beside"]["full cache"], full)
        self.assertEqual(full["first_differences"][2], {"chat": 2, "token": 4, "of": 13, "gaps": [0.25, 0.25]})
        self.assertEqual((full["mean_gap_moved"], full["most_gap_moved"]), (0, 0))
        self.assertEqual((same["first_differences"], same["equal_tokens"]), ([], same["compared_tokens"]))

    def test_a_server_that_ends_is_one_line(self):
        done = self.run_slots("--tokens", "40", FAILS="1")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        said = done.stderr.splitlines()
        self.assertEqual(said[0], "slots: with a full cache")
        self.assertRegex(said[1], r"^--slots: .*llama-server does not start: error: no such model \| llama-server: exiting$")
        self.assertEqual(len(said), 2)

    def test_ended_early_it_ends_its_servers(self):
        with tempfile.TemporaryDirectory() as place:
            program = Path(place) / "llama-server"
            # Never healthy; says which process it is.
            program.write_text(f"#!/bin/sh\necho $$ > {place}/pid\nexec sleep 600\n")
            program.chmod(0o755)
            (Path(place) / "text").write_text("x")
            files = ["--server", program, "--seined", program, "--model", "m", "--plugin", "p", "--text", f"{place}/text"]
            process = subprocess.Popen([sys.executable, "-B", SLOTS, *files], stderr=subprocess.DEVNULL)
            pid = Path(place) / "pid"
            for _ in range(100):
                if pid.exists() and pid.read_text().strip():
                    break
                time.sleep(0.1)
            process.terminate()
            self.assertEqual(process.wait(timeout=30), 143)
            with self.assertRaises(ProcessLookupError):
                os.kill(int(pid.read_text()), 0)

    def test_what_chats_share_is_shorter_than_they_are(self):
        done = self.run_slots("--tokens", "40", "--shared", "40")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("--shared: 40 is not in [0, 40)", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
