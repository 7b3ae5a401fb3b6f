#!/usr/bin/env python3
"""Writes the index of docs/decisions from its pages, by subject; checks that each says what it is and whether it holds.

usage: decisions.py [--check] [ROOT]     --check writes nothing, and ends with 1 where the index differs

A page is docs/decisions/SUBJECT/NNNN-words.md. It begins with "# NNNN: its title", then "Holds since DATE." or "Replaced on
DATE by [NNNN](...)." as the first words of the next paragraph. Prints "file: what is wrong" and ends with 1 if anything is.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TITLE = re.compile(r"# (\d{4}): (\S.*)\n\n")
STATUS = re.compile(r"(Holds since|Replaced on) (\d{4}-\d{2}-\d{2})(?: by \[\d{4}\]\(\S+\))?\.")
HEAD = """# Decisions

One page each: what was decided, since when it holds, why, and the measurement behind it. Figures come from
[benchmarks](../benchmarks.md). `python3 docs/tools/decisions.py` writes this page from the others.
"""


class Page:
    def __init__(self, path):
        self.path, self.faults, text = path, [], path.read_text(encoding="utf-8")
        title = TITLE.match(text)
        self.number, self.title = (title[1], title[2]) if title else ("", "")
        if self.number != path.name[:4]:
            self.faults.append(f'does not begin with "# {path.name[:4]}: its title"')
        status = STATUS.match(text, title.end() if title else 0)
        self.replaced = bool(status) and status[1] == "Replaced on"
        if not status or self.replaced != (" by [" in status[0]):
            self.faults.append('says neither "Holds since DATE." nor "Replaced on DATE by [NNNN](...)." under its title')

    def row(self, folder):
        return f"| [{self.number}]({self.path.relative_to(folder)}) | {self.title} | {'replaced' if self.replaced else 'holds'} |"


def index(folder, pages):
    parts = [HEAD]
    for subject in sorted({page.path.parent.name for page in pages}):
        rows = [page.row(folder) for page in pages if page.path.parent.name == subject]
        parts.append(f"\n## {subject.capitalize()}\n\n| | decision | |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "".join(parts)


def main(arguments):
    check, root = "--check" in arguments, next((pathlib.Path(a) for a in arguments if a != "--check"), ROOT)
    folder = root / "docs/decisions"
    pages = sorted((Page(path) for path in folder.glob("*/*.md")), key=lambda page: page.path.name)
    wrong = [f"{page.path.relative_to(root)}: {fault}" for page in pages for fault in page.faults]
    numbers = [page.path.name[:4] for page in pages]
    wrong += [f"docs/decisions: two pages are {number}" for number in sorted({n for n in numbers if numbers.count(n) > 1})]
    wrong += [] if pages else [f"{folder}: there is no page"]
    place = folder / "README.md"
    written = place.read_text(encoding="utf-8") if place.exists() else ""
    if not wrong and check and written != index(folder, pages):
        wrong.append("docs/decisions/README.md: differs from its pages; run python3 docs/tools/decisions.py")
    for line in wrong:
        print(f"decisions: {line}", file=sys.stderr)
    if wrong:
        return 1
    if not check:
        place.write_text(index(folder, pages), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
