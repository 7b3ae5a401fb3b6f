"""bench/run.py with a seine-bench of the test's own: what it writes, and what stays where a part fails or runs again."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "docs" / "tools"), str(ROOT / "bench")]

import figures  # noqa: E402
import parts  # noqa: E402
import run  # noqa: E402

# Fails where a file "broken" lies beside it; else prints what the commands of that name do.
PROGRAM = """#!/usr/bin/env python3
import json, pathlib, sys
if sys.argv[1] == "evict" and (pathlib.Path(__file__).parent / "broken").exists():
    sys.exit(3)
row = {"method": "ours", "beta": 0.05, "recall_at_k": 0.98765, "candidates": 400.0, "us_per_query": 12.345, "scan_ns_per_key": None}
out = {"read_bandwidth_gb_s": 12.34, "simd_target": "PLAIN", "rows": [row, {**row, "beta": 0.1}]}
if sys.argv[1] == "evict":
    out["rows"] = [{"scorer": "knorm", "budget": "10%", "us_per_token": 0.5}]
if sys.argv[1] == "service":
    out = {"transport": "stream", "polling": "--polling" in sys.argv, "p50_us": 99.6}
if sys.argv[1] == "sharded":
    out = {"points": [{"shards": 2, "p50_us": 12.4}, {"shards": 4, "p50_us": 20.2}]}
assert sys.argv[-2:] == ["-o", "json"]
print(json.dumps(out))
"""


class RunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.results = self.root / "bench" / "results"
        program = self.root / "seine-bench"
        program.write_text(PROGRAM, encoding="utf-8")
        program.chmod(0o755)

    def run_parts(self, *parts):
        command = [sys.executable, ROOT / "bench" / "run.py", "--bin", self.root, "--results", self.results]
        only = [word for part in parts for word in ("--only", part)]
        return subprocess.run([*command, *only], capture_output=True, text=True)

    def data(self):
        (path,) = self.results.iterdir()
        return path, json.loads(path.read_text(encoding="utf-8"))

    def test_every_figure_has_its_command_commit_and_machine(self):
        done = self.run_parts("recall", "polling", "sharded")
        self.assertEqual(done.returncode, 0, done.stderr)
        path, data = self.data()
        measured = data["measured"]
        self.assertEqual((measured["read_bandwidth_gb_s"], measured["simd_target"]), (12.3, "PLAIN"))
        self.assertTrue(measured["cpu"] and measured["commit"] and measured["cores"])
        recall, polling, sharded = data["tables"]
        self.assertEqual([row[:3] for row in sharded["rows"]], [["2", "2", 12], ["4", "4", 20]])
        self.assertEqual(list(data["machines"]), [path.stem])
        self.assertIn("-plain-", path.stem)  # else two processors of one name and day would share a file
        self.assertEqual((recall["id"], recall["machine"]), ("runrecall", path.stem))
        self.assertTrue(recall["command"].startswith("seine-bench recall --trace bench/data/"), recall["command"])
        self.assertNotIn("PEERS", recall["command"])
        self.assertEqual(recall["rows"][0], ["oursbeta005", "ours, beta 0.05", None, 0.9877, None, None, 400])
        for table in (recall, polling, sharded):
            self.assertRegex(table["date"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
            self.assertTrue(table["commit"] and table["command"])
            self.assertEqual(table["sum"], figures.sum_of(table))
        self.assertEqual(data["written_by"], figures.WRITER)
        self.assertEqual(polling["rows"][0][:3], ["streampolling", "stream, polling", 100])
        self.assertIn("bench: 1 of 3, recall: ", done.stderr)
        self.assertIn("| ours, beta 0.1 |", done.stdout)
        self.assertEqual(figures.Results(self.root).figure("runrecall-oursbeta005-recall"), "0.9877")

    def test_a_part_that_fails_or_runs_again_leaves_the_others(self):
        self.assertEqual(self.run_parts("recall").returncode, 0)
        (self.root / "broken").touch()
        done = self.run_parts("recall", "evict", "service")
        self.assertEqual(done.returncode, 1)
        self.assertIn("bench: seine-bench evict --trace", done.stderr)
        self.assertIn("ended with 3", done.stderr)
        self.assertEqual([table["id"] for table in self.data()[1]["tables"]], ["runrecall"])
        (self.root / "broken").unlink()
        self.assertEqual(self.run_parts("evict").returncode, 0)
        self.assertEqual([table["id"] for table in self.data()[1]["tables"]], ["runrecall", "runevict"])

    def test_the_latest_of_several_files_counts(self):
        self.assertEqual(self.run_parts("recall").returncode, 0)
        path, data = self.data()
        for name, date, recall in (("a-old.json", "2020-01-01T00:00:00Z", 0.5), ("z-older.json", "2019-01-01T00:00:00Z", 0.4)):
            table = data["tables"][0]
            table["rows"][0][3], table["date"] = recall, date
            table["sum"] = figures.sum_of(table)
            path.with_name(name).write_text(json.dumps(data), encoding="utf-8")
        self.assertEqual(figures.Results(self.root).figure("runrecall-oursbeta005-recall"), "0.9877")
        path.unlink()
        self.assertEqual(figures.Results(self.root).figure("runrecall-oursbeta005-recall"), "0.5")
        path.with_name("b.json").write_text(path.with_name("a-old.json").read_text(encoding="utf-8"), encoding="utf-8")
        with self.assertRaises(figures.Wrong):  # two of one moment
            figures.Results(self.root)

    def test_two_commands_make_one_table_and_a_ledger_is_read(self):
        self.assertEqual(self.run_parts("codes").returncode, 0)
        (table,) = self.data()[1]["tables"]
        self.assertEqual(len(table["rows"]), 4)
        self.assertIn("--codec rsq; seine-bench recall", table["command"])
        ledger = [
            {"attack": "resets", "ops": 5, "faults": 1, "figures": {"step_p99_ms": 1.26}},
            {"attack": "resets", "ops": 9, "faults": 2, "figures": {"step_p99_ms": 2.36}},
            {"attack": "resets", "transport": "tls", "ops": 7, "faults": 3, "figures": {"rss_grown_mib": 3.6}},
        ]
        rows = run.table_of("soak", parts.PARTS["soak"].rows(ledger), ["x"], dict.fromkeys(run.ABOUT, "x"))["rows"]
        self.assertEqual(rows[0], ["resetsunix", "resets, unix", 9, 2, 2.4, None, None, None, None, None])
        self.assertEqual(rows[1], ["resetstls", "resets, tls", 7, 3, None, None, None, None, 4, None])

    def test_records_are_written_once_and_gemma_is_asked_for(self):
        recorder = self.root / "recorder"
        recorder.write_text('#!/bin/sh\nwhile [ $# -gt 1 ]; do [ "$1" = --out ] && echo x >> "$2"; shift; done\n', encoding="utf-8")
        recorder.chmod(0o755)
        runner = run.Runner(self.root, self.root, "")
        runner.package = self.root
        runner.programs |= {"PYTHON": str(recorder), "seine-bench": str(self.root / "seine-bench")}
        for _ in range(2):
            self.assertEqual(runner.measured("recall --trace TRACE")["simd_target"], "PLAIN")
        self.assertEqual(pathlib.Path(runner.files["TRACE"]).read_text(encoding="utf-8"), "x\n")
        self.assertEqual(len(runner.typed), 3)
        original, run.GEMMA = run.GEMMA, "no/such.gguf"
        try:
            with self.assertRaisesRegex(SystemExit, "no/such.gguf is missing; ./dev llama --gemma fetches it"):
                runner.measured("recall --trace GEMMATRACE")
        finally:
            run.GEMMA = original

    def test_wide_heads_have_a_row_a_code_group_and_length(self):
        step = {"head_dim": 256, "codec": "rsq", "layers": 1, "num_kv_heads": 2, "num_q_heads": 32}
        steps = parts.PARTS["widesteps"].rows({**step, "rows": [{"num_keys": 8192, "code_bytes": 16384 * 83, "us_attend": 9.6}]})
        table = run.table_of("widesteps", steps, ["x"], dict.fromkeys(run.ABOUT, "x"))
        self.assertEqual(table["rows"][0][1:3], ["head_dim 256, rsq, groups of 16, 8,192 keys", 83.0])
        about = {"layers": [2], "codec": "balanced", "head_dim": 256, "num_kv_heads": 1, "num_q_heads": 4}
        found = parts.PARTS["wideheads"].rows({**about, "rows": [{"beta": 0.05, "recall_at_k": 0.99}, {"exact": True}]})
        table = run.table_of("wideheads", found, ["x"], dict.fromkeys(run.ABOUT, "x"))
        self.assertEqual([row[1:4] for row in table["rows"]], [["layer 2, balanced, beta 0.05", 256, 4]])

    def test_every_part_is_listed_with_its_minutes(self):
        done = subprocess.run([sys.executable, ROOT / "bench" / "run.py", "--list"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        for name, part in parts.PARTS.items():
            self.assertRegex(done.stdout, rf"(?m)^{name} \({part.minutes:g} min")

    def test_an_unknown_part_is_refused(self):
        done = self.run_parts("everything")
        self.assertEqual(done.returncode, 2)
        self.assertIn("invalid choice: 'everything'", done.stderr)


if __name__ == "__main__":
    unittest.main()
