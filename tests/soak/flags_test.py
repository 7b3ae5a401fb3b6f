#!/usr/bin/env python3
"""./dev reads the flags of `soak` and `fleet` before it builds.

usage: flags_test.py SEINE_SOAK DEV
"""

import re
import subprocess
import sys
import unittest

SOAK, DEV = sys.argv[1:]


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    return done.returncode, done.stdout, done.stderr


class FlagsTest(unittest.TestCase):
    def test_dev_knows_the_flags_of_the_soak(self):
        told = set(re.findall(r"^\s+(?:-h,)?(--[a-z]+)", run(SOAK, "--help")[1], re.M)) - {"--help"}
        with open(DEV, encoding="utf-8") as file:
            known = re.search(r"^SOAK_FLAGS=\((.*?)\)", file.read(), re.M)[1].split()
        self.assertEqual(sorted(told), sorted(known))

    def test_a_flag_that_is_not_there_is_told_without_a_build(self):
        for command, says in {
            ("soak", "--sed", "3"): "dev: soak: there is no flag --sed; try ./dev soak --help\n",
            ("fleet", "--minutes", "0"): "./dev fleet: argument --minutes: must be above 0, not 0\n",
            ("fleet", "--seeds", "3"): "./dev fleet: unrecognized arguments: --seeds 3\n",
        }.items():
            code, out, error = run(DEV, *command)
            self.assertEqual((code != 0, out, error), (True, "", says))

    def test_the_soak_names_the_transports_that_there_are(self):
        code, out, error = run(SOAK, "--transport", "pigeon", "--list")
        self.assertEqual(code, 2)
        self.assertEqual(out, "")
        self.assertEqual(error, "seine-soak: --transport: there is no transport pigeon; there are unix, tcp and tls\n")

    def test_help_is_told_without_a_build(self):
        for command, says in {("soak",): "soak fuzz", ("soak", "fuzz"): "--inputs", ("fleet",): "wrong"}.items():
            code, out, error = run(DEV, *command, "--help")
            self.assertEqual(code, 0)
            self.assertIn(says, out)
            self.assertNotIn("build: ", error)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
