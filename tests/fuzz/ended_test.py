#!/usr/bin/env python3
"""soak.py tells a target that a signal ended from one that broke.

usage: ended_test.py SOAK_PY
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOAK = sys.argv.pop(1)
PROGRAM = """#!/bin/sh
case "$1" in
--list) echo "made-up: a target" ;;
--seeds) ;;
*) echo "#7 NEW"; {end} ;;
esac
"""


def soak(end):
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "tests" / "made-up"
        program.parent.mkdir()
        program.write_text(PROGRAM.format(end=end), encoding="utf-8")
        os.chmod(program, 0o700)
        command = [sys.executable, "-B", SOAK, "1", "--seed", "1", "--inputs", "7", "--bin", str(program)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=50, check=False)
    return done.returncode, json.loads(done.stdout)["targets"][0], done.stderr


class EndedTest(unittest.TestCase):
    def test_a_target_that_a_signal_ended_is_no_crash(self):
        for end in ("exit 72", "kill -TERM $$", "kill -INT $$"):
            code, target, told = soak(end)
            self.assertEqual((code, target), (1, {"target": "made-up", "inputs": 7, "crashes": 0, "ended": True}), end)
            self.assertIn("0 crashes, ended by a signal", told)

    def test_a_target_that_broke_is_one(self):
        for end in ("exit 77", "kill -SEGV $$"):
            code, target, _ = soak(end)
            self.assertEqual((code, target["ended"]), (1, False), end)
            self.assertGreater(target["crashes"], 0)

    def test_a_target_that_came_to_its_end_is_neither(self):
        code, target, told = soak("exit 0")
        self.assertEqual((code, target["crashes"], target["ended"]), (0, 0, False))
        self.assertNotIn("signal", told)


if __name__ == "__main__":
    unittest.main()
