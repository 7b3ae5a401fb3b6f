#!/usr/bin/env python3
"""Writes what `./dev fleet` printed as tables for docs/benchmarks.md.

usage: fleet_figures.py JSON COMMIT MACHINE > bench/results/fleet-DATE.json     MACHINE: what it ran on, in words

Then ./dev figures renders them.
"""

import json
import sys

KINDS = {"server": "a server", "supervisor": "a supervisor", "raylet": "a raylet", "head": "the head's control process"}
TIMES = [
    ["first_answer_s", "first", "first answer of what it held"],
    ["last_answer_s", "last", "last answer of that"],
    ["new_family_s", "new", "a new family"],
    ["others_stall_s", "others", "longest wait of other families"],
]
COUNTS = ["steps", "answers", "wrong", "unstated_errors", "lost", "moves", "kills", "drains", "added"]


def seconds(kind, figure):
    return {"v": kind[figure], "unit": "s"} if figure in kind else None


def table_of(name, title, columns, rows, about):
    return {"id": name, "title": title, **about, "columns": columns, "rows": rows}


def tables(counts, commit):
    about = {"machine": "fleet", "commit": commit, "command": f"./dev fleet --minutes 5 --seed {counts['seed']}"}
    totals = [[name.replace("_", ""), name.replace("_", " "), counts[name]] for name in COUNTS]
    kinds = [
        [kind, KINDS[kind], counts["by_kind"][kind]["kills"], *(seconds(counts["by_kind"][kind], time[0]) for time in TIMES)]
        for kind in KINDS
        if kind in counts["by_kind"]
    ]
    columns = [["kills", "kills"], *(time[1:] for time in TIMES)]
    return [
        table_of("fleet", "64 sequences decode on a fleet that is killed", [["count", "count"]], totals, about),
        table_of("fleetgaps", "After a kill -9, the longest seconds until", columns, kinds, about),
    ]


def main(path, commit, machine):
    with open(path, encoding="utf-8") as file:
        counts = json.load(file)
    page = {
        "format": "seine-figures-1",
        "about": "Written by docs/tools/fleet_figures.py from what ./dev fleet printed.",
        "machines": {"fleet": machine},
        "tables": tables(counts, commit),
    }
    print(json.dumps(page, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
