"""./dev where it cannot do what it is asked: one line that says what to do, before anything is built."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class DevTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name)
        shutil.copy(ROOT / "dev", self.tree)
        trace = self.tree / "bench/data/smollm2-135m-kjv-8k.safetensors"
        trace.parent.mkdir(parents=True)
        trace.write_text("not read")
        # A machine that has every package, whatever this one has.
        fakes = {"dpkg-query": "echo -n install ok installed", "dpkg": "exit 0", "cmake": "echo cmake version 3.25"}
        for name, line in fakes.items():
            (self.tree / "bin").mkdir(exist_ok=True)
            (self.tree / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
            (self.tree / "bin" / name).chmod(0o755)

    def dev(self, *words):
        environment = {**os.environ, "PATH": f"{self.tree / 'bin'}:{os.environ['PATH']}"}
        environment.pop("SEINE_PRESET", None)
        return subprocess.run(["./dev", *words], cwd=self.tree, env=environment, capture_output=True, text=True)

    def test_a_build_folder_that_cannot_be_written(self):
        (self.tree / "build").write_text("a file, so that no folder can be made there, even by root")
        for command in ("demo", "build", "test"):
            done = self.dev(command)
            self.assertEqual(done.returncode, 1, done)
            errors = [line for line in done.stderr.splitlines() if line.startswith("dev: ")]
            self.assertEqual(len(errors), 1, done.stderr)
            self.assertIn(f"cannot write into {self.tree.resolve()}/build/cpu: ", errors[0])
            self.assertEqual(done.stderr.splitlines()[-1], errors[0])

    def test_a_trace_that_is_missing(self):
        (self.tree / "bench/data/smollm2-135m-kjv-8k.safetensors").unlink()
        done = self.dev("demo")
        self.assertEqual(done.returncode, 1, done)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn("smollm2-135m-kjv-8k.safetensors is missing; it is part of the repository", done.stderr)

    def test_a_peer_server_may_have_options_of_its_own(self):
        for peer, says in (
            ("sh -x", "llama: --slots many: no number of tokens"),  # the next that is wrong
            ("/no/such -x", "llama: --peer-server /no/such -x: no such program, and no URL"),
        ):
            command = [ROOT / "engines/llama.cpp/run.sh", "--peer-server", peer, "--slots", "many"]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (1, "", says + "\n"))


if __name__ == "__main__":
    unittest.main()
