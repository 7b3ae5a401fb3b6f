#!/usr/bin/env python3
"""Runs the parts of the bench and writes their figures to bench/results/MACHINE-DATE.json; `./dev bench` calls it.

bench/parts has the parts. Each becomes a table of the format that docs/tools/figures.py reads, with the command, the commit, the
date, the machine and its bandwidth, and a sum by which figures.py sees that nobody changed it by hand. The file is written after
every part: a bench that is ended early, or run again for one part, loses nothing. Where several files have a table, ./dev figures
shows the latest.
"""

import _pydecimal
import argparse
import datetime
import inspect
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pydoc_data import topics

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import figures  # noqa: E402
from parts import PARTS, RECORDS  # noqa: E402

PROBE = "recall --synthetic gaussian --num-keys 4096 --head-dim 64"  # tells the machine's bandwidth in a second
ABOUT = ("machine", "commit", "date", "read_bandwidth_gb_s")  # of a table, beside its command
GEMMA = "build/llama/fetched/gemma-3-270m.q4_K_M.gguf"
JSON_ANYWAY = ("./dev fleet", "./dev soak")  # these take no -o


def label_of(row, keys):
    parts = [("polling" if row[key] else "blocking") if key == "polling" else row.get(key) for key in keys]
    return ", ".join(f"beta {part:g}" if key == "beta" else str(part) for key, part in zip(keys, parts) if part is not None)


def rounded(value, digits):
    if value is None or isinstance(value, str):
        return value
    return round(value, digits) if digits else round(value)


def table_of(name, rows, commands, about):
    """The part's table. Its rows are named by their labels' letters and digits."""
    part, cells_of_rows = PARTS[name], []
    for row in rows:
        label = label_of(row, part.keys)
        cells = [rounded(row.get(source), digits) for _, _, source, digits in part.columns]
        cells_of_rows.append([re.sub(r"[^a-z0-9]", "", label.lower()), label, *cells])
    table = {
        "id": f"run{name}",
        "title": part.title,
        **{key: about[key] for key in ABOUT},
        "command": "; ".join(commands),
        **({"text": list(part.text)} if part.text else {}),
        "columns": [[key, title] for key, title, _, _ in part.columns],
        "rows": cells_of_rows,
    }
    return {**table, "sum": figures.sum_of(table)}


def output_of(*command):
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


class Runner:
    """Runs commands as bench/parts writes them, with what its words stand for."""

    def __init__(self, folder, scratch, peers):
        self.folder, self.package = folder, folder.parent / "python"
        self.peers = f"--peers {shlex.quote(peers)}" if peers else ""
        self.files = {
            "LEDGER": f"{scratch}/ledger.jsonl",
            "REFERENCE": topics.__file__,
            "MODULE": inspect.__file__,
            "DECIMAL": _pydecimal.__file__,
            "GEMMA": str(ROOT / GEMMA),
            **{name: f"{scratch}/{name.lower()}.safetensors" for name in RECORDS},
        }
        self.programs = {"seine-bench": str(folder / "seine-bench"), "PYTHON": os.environ.get("SEINE_PYTHON") or sys.executable}
        self.typed = []  # what has run, as one would type it

    def output(self, command):
        """What a command prints. Ends the bench where it fails."""
        words = shlex.split(command.replace("PEERS", self.peers).replace("BIN", str(self.folder)))
        if words[0] not in ("./dev", "PYTHON"):
            words.insert(0, "seine-bench")
        if words[0] == "PYTHON" and not self.package.exists():
            sys.exit(f"bench: {self.package} is missing; SEINE_PYTHON=PYTHON ./dev build makes it, of a Python with torch and nanobind")
        typed = shlex.join(["python" if word == "PYTHON" else word for word in words])
        self.typed.append(typed.replace(f"{ROOT}/", ""))
        words = [self.programs.get(word, self.files.get(word, word)) for word in words]
        if command not in RECORDS.values() and not command.startswith(JSON_ANYWAY):
            words += ["-o", "json"]
        path = os.pathsep.join(filter(None, [str(self.package), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
        if done.returncode != 0:
            sys.exit(f"{done.stdout[-4000:]}\nbench: {typed} ended with {done.returncode}")
        return done.stdout

    def measured(self, command):
        """What a command printed or wrote as JSON."""
        for name in shlex.split(command):
            if name in RECORDS and not pathlib.Path(self.files[name]).exists():
                if "GEMMA" in shlex.split(RECORDS[name]) and not (ROOT / GEMMA).exists():
                    sys.exit(f"bench: {GEMMA} is missing; ./dev llama --gemma fetches it, under Gemma's terms")
                self.output(RECORDS[name])
        ledger = pathlib.Path(self.files["LEDGER"])
        ledger.unlink(missing_ok=True)  # of the command before
        printed = self.output(command)
        if "LEDGER" not in command:
            return json.loads(printed)
        return [json.loads(line) for line in ledger.read_text(encoding="utf-8").splitlines()]


def rows_of(part, folder):
    """(rows, commands) of a part, all of its commands run."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        runner = Runner(folder, scratch, os.environ.get("SEINE_PEERS", ""))
        for command in part.commands:
            rows += part.rows(runner.measured(command))
    return rows, runner.typed


def machine(folder, now):
    """Where and on what it runs: name, description and commit."""
    probe = Runner(folder, "", "").measured(PROBE)
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
    cpu, cores = model[1].strip() if model else os.uname().machine, len(os.sched_getaffinity(0))
    bandwidth = round(probe["read_bandwidth_gb_s"], 1)
    # Processors of one name may differ in what counts most here, as those of a cloud do.
    spoken = f"{cpu.lower().partition(' @')[0]} {probe['simd_target'].lower()}".replace("(r)", "").replace("(tm)", "")
    name = "-".join(re.findall(r"[a-z0-9]+", spoken.replace("_", "")))
    commit = output_of("git", "rev-parse", "--short=10", "HEAD") or "unknown"
    changed = output_of("git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results")
    return {
        "machine": f"{name}-{now:%Y-%m-%d}",
        "date": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "commit": commit + (" with changes" if changed else ""),
        "cpu": cpu,
        "cores": cores,
        "simd_target": probe["simd_target"],
        "read_bandwidth_gb_s": bandwidth,
        "text": f"{cpu}, {cores} cores, {probe['simd_target']}, {bandwidth} GB/s a core on {now:%Y-%m-%d}",
    }


def keep(path, about, table):
    """Puts the table into the file, in place of the one that an earlier run of that day left."""
    tables = json.loads(path.read_text(encoding="utf-8"))["tables"] if path.exists() else []
    tables = [old for old in tables if old["id"] != table["id"]] + [table]
    measured = {key: value for key, value in about.items() if key not in ("machine", "text")}
    data = {
        "format": figures.FORMAT,
        "written_by": figures.WRITER,
        "measured": measured,
        "machines": {about["machine"]: about["text"]},
        "tables": tables,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".tmp")
    new.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    new.replace(path)


def listing():
    lines = []
    for name, part in PARTS.items():
        how = f"{part.minutes:g} min" + (", wants a quiet machine" if part.quiet else "") + (", only if named" if part.asked else "")
        lines += [f"{name} ({how}): {part.title}"]
        lines += [f"  {'' if command.startswith(('./dev', 'PYTHON')) else 'seine-bench '}{command}" for command in part.commands]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="./dev bench", description="Measures, and writes bench/results/MACHINE-DATE.json.")
    parser.add_argument("--only", metavar="NAME", action="append", choices=PARTS, help="one part; may be given again")
    parser.add_argument("--list", action="store_true", help="name the parts, their minutes and commands")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "bench" / "results", help="folder that is written to")
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/cpu/bin"), help="folder of the programs")
    arguments = parser.parse_args()
    if arguments.list:
        print(listing())
        return
    folder = ROOT / arguments.bin
    chosen = arguments.only or [name for name, part in PARTS.items() if not part.asked]
    for number, name in enumerate(chosen, 1):
        part, now = PARTS[name], datetime.datetime.now(datetime.timezone.utc)
        about = machine(folder, now)
        path = arguments.results / f"{about['machine']}.json"
        print(f"bench: {number} of {len(chosen)}, {name}: {part.title}", file=sys.stderr, flush=True)
        begin = time.monotonic()
        rows, commands = rows_of(part, folder)
        table = table_of(name, rows, commands, about)
        keep(path, about, table)
        print(f"\n{table['title']}\n\n{figures.table_text(table)}", flush=True)
        print(f"bench: {name} took {time.monotonic() - begin:.0f} s; it is in {path}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
