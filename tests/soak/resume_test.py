#!/usr/bin/env python3
"""A long soak that is killed and started again: the ledger keeps what had ended, and the next run goes on.

usage: resume_test.py SEINE_SOAK
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

SOAK = sys.argv.pop()


class Resume(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.ledger = pathlib.Path(folder.name) / "soak.jsonl"

    def command(self, hours, commit="abc"):
        words = [SOAK, "--seconds", ".2", "--brief", "--only", "churn", "--hours", str(hours)]
        return [*words, "--ledger", str(self.ledger), "--commit", commit]

    def soak(self, hours, commit="abc"):
        done = subprocess.run(self.command(hours, commit), capture_output=True, text=True, timeout=120)
        return done, json.loads(done.stdout.splitlines()[-1])

    def seeds(self):
        text = self.ledger.read_text(encoding="utf-8") if self.ledger.exists() else ""
        return [json.loads(line)["seed"] for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def test_a_killed_run_is_gone_on_with(self):
        killed = subprocess.Popen(self.command(1), stdout=subprocess.DEVNULL)
        self.addCleanup(killed.wait)
        self.addCleanup(killed.kill)
        end = time.monotonic() + 90
        while not self.seeds() and time.monotonic() < end:
            time.sleep(0.02)
        killed.kill()
        killed.wait()
        had = len(self.seeds())
        self.assertGreaterEqual(had, 1)
        done, totals = self.soak(1e-6)  # less than what is there: nothing is left to run
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual((totals["runs"], totals["failed"]), (had, []))
        self.assertIn("going on", done.stdout)
        done, totals = self.soak(1e-6, commit="def")  # which has none yet
        self.assertEqual(totals["runs"], 1)
        self.assertEqual(self.seeds(), [*range(1, had + 1), 1])
        self.assertGreaterEqual(totals["faults"], 1)

    def test_what_is_no_ledger_ends_it(self):
        self.ledger.write_text("hello\n", encoding="utf-8")
        done = subprocess.run(self.command(1), capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr, f"seine-soak: --ledger {self.ledger}:1: no line of a soak's ledger\n")


if __name__ == "__main__":
    unittest.main()
