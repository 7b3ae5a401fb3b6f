#!/usr/bin/env python3
"""Writes a ledger of `./dev soak --ledger LEDGER` as a table for docs/benchmarks.md.

usage: soak_figures.py LEDGER MACHINE > bench/results/soak-DATE.json     MACHINE: what it ran on, in words

The last run of each attack counts, of those on the ledger's last commit. Then ./dev figures renders it.
"""

import json
import sys

COLUMNS = [
    ["ops", "operations"],
    ["faults", "of them faults"],
    ["p99", "step p99"],
    ["max", "longest step"],
    ["grown", "memory grown by"],
    ["end", "ended in"],
]
TEXT = [
    "Each attack had a server of its own. A bystander's Decode steps ran beside it; through the front, where there is one. "
    "Operations are the attack's and the bystander's.",
    "Memory is the server's resident memory at its peak, over that before the attack; of clients killed, that which stayed.",
]


def cell(run, figure, digits, unit):
    value = run["figures"].get(figure)
    return None if value is None else {"v": round(value, digits) if digits else round(value), "unit": unit}


def name(run):
    transport = run.get("transport", "unix")
    return run["attack"] if transport == "unix" else f"{run['attack']} over {transport}"


def row(run):
    return [
        name(run).replace("-", "").replace(" ", ""),
        name(run),
        run["ops"],
        run["faults"],
        cell(run, "step_p99_ms", 1, "ms"),
        cell(run, "step_max_ms", 0, "ms"),
        cell(run, "rss_grown_mib", 0, "MiB"),
        cell(run, "end_s", 1, "s"),
    ]


def main(ledger, machine):
    with open(ledger, encoding="utf-8") as file:
        runs = [json.loads(line) for line in file]
    commit = runs[-1]["commit"]
    last = {name(run): run for run in runs if run["commit"] == commit}
    table = {
        "id": "soak",
        "title": "Attacks, and what a bystander sees",
        "machine": "soaked",
        "commit": commit,
        "command": "./dev soak --ledger LEDGER",
        "text": TEXT,
        "columns": COLUMNS,
        "rows": [row(run) for run in last.values()],
    }
    page = {
        "format": "seine-figures-1",
        "about": "Written by docs/tools/soak_figures.py from a soak's ledger.",
        "machines": {"soaked": machine},
        "tables": [table],
    }
    print(json.dumps(page, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
