#!/usr/bin/env python3
"""Checks what comments, docstrings and pages cite: files, pages and their sections, decisions, and sections of papers.

usage: citations.py [ROOT]     prints "file:line: what is wrong" and ends with 1 if anything is

A source file, page or text that a comment names is there, under any folder if it names none; capitals such as NAME stand for any, and
texts that Python's docstrings name are the reader's own. A
page's #fragment is one of its headings. "decision NNNN" is a page of docs/decisions. What a comment or page cites of a paper, as in
"ParisKV, section 4.1", stands in that paper's row of docs/references.md. Files of other projects are in ELSEWHERE.
"""

import pathlib
import re
import subprocess
import sys

import pages

ELSEWHERE = {"xxhash.h", "pyconfig.h", "omp.h", "faiss/IndexFlat.h", "google/protobuf/any.proto", "house/v1/common.proto"}
SLASHES, HASHES = (".h", ".cc", ".cu", ".proto"), (".py", ".pyi", ".sh", ".cmake", ".yaml", ".yml", "CMakeLists.txt", "dev")
SLASH, HASH = re.compile(r"(?:^|\s)//+\s?(.*)"), re.compile(r"(?:^|\s)#\s(.*)")
FILE = re.compile(r"(?<![\w./<*${-])(\w[\w./-]*\.(?:md|txt|h|cc|cu|py|proto|sh))(#[\w-]+)?(?![\w/*(])")
PLANTED = "tests/house/citations_test.py"  # its citations are wrong on purpose
COMMAND = re.compile(r"usage:| > |--\w|^\s*(?:\$|python|seine)")  # a line that shows a command: its files are the reader's own
DECISION = re.compile(r"[Dd]ecisions? (\d{4})\b")
KIND = r"(?:[Ss]ections?|[Aa]ppendi(?:x|ces)|[Ee]quations?|[Aa]lgorithm|[Tt]able|[Tt]heorem) "
PLACE = r"([A-Z]?\.?\d+(?:\.\d+)*|[A-Z](?:\.\d+)*)(?![\w])"


def tracked(root):
    done = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, text=True)
    if done.returncode == 0 and done.stdout:
        return [name for name in done.stdout.split("\0") if name and (root / name).exists()]
    return [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file() and "build" not in path.parts]


def prose(name, text):
    """(line, text) of a file's comments and docstrings, or of a page outside its code blocks."""
    if name.endswith(".md"):
        return list(enumerate(pages.blanked(text).splitlines(), 1))
    found, inside, comment = [], False, SLASH if name.endswith(SLASHES) else HASH
    for number, line in enumerate(text.splitlines(), 1):
        quotes = line.count('"""') if name.endswith((".py", ".pyi")) else 0
        if inside or quotes:
            found.append((number, line))
        elif match := comment.search(line):
            found.append((number, match[1]))
        inside ^= quotes % 2 == 1
    return found


def papers(root):
    """{short name: what docs/references.md says is taken of the paper}."""
    page, rows = root / "docs" / "references.md", {}
    for line in page.read_text(encoding="utf-8").splitlines() if page.exists() else []:
        if match := re.match(r'\| <a id="\w+"></a>([\w-]+):? [^|]*\|[^|]*\|(.*)\|$', line):
            rows[match[1]] = match[2]
    return rows


def lost_papers(text, rows):
    for name, taken in rows.items():
        for match in re.finditer(rf"\b{name}\b[^.;:]{{0,40}}?(?: |\(){KIND}{PLACE}(?:(?:,| and|, and) (?:{KIND})?{PLACE})?", text):
            for place in filter(None, match.groups()):
                if not re.search(rf"(?<![\w.]){re.escape(place)}(?![\w])", taken):
                    yield f"docs/references.md does not say that {place} of {name} is taken"


def lost_files(root, name, text, files):
    for match in () if COMMAND.search(text) else FILE.finditer(text):
        cited, fragment = match[1], match[2]
        stands_for_any = re.search(r"[A-Z]{4}", re.sub("README|CONTRIBUTING", "", cited))
        if cited in ELSEWHERE or stands_for_any or (name.endswith(".py") and cited.endswith(".txt")):
            continue
        there = [file for file in files if ("/" + file).endswith("/" + cited)]
        beside = (root / name).parent / cited
        if not there and not beside.exists():
            yield f"there is no {cited}"
        elif fragment and cited.endswith(".md") and not any(fragment[1:] in pages.fragments(root / file) for file in there):
            yield f"{cited} has no {fragment}"


def wrong(root):
    files, rows = tracked(root), papers(root)
    numbers = {pathlib.Path(file).name[:4] for file in files if file.startswith("docs/decisions/")}
    for name in files:
        page = name.endswith(".md")
        if name == PLANTED or not page and not name.endswith(SLASHES + HASHES):
            continue
        for line, text in prose(name, (root / name).read_text(encoding="utf-8", errors="replace")):
            found = [f"there is no decision {number}" for number in DECISION.findall(text) if number not in numbers]
            found += lost_papers(text, rows)
            found += [] if page else lost_files(root, name, text, files)  # pages.py links holds those of pages
            yield from (f"{name}:{line}: {fault}" for fault in found)


def main(arguments):
    root = pathlib.Path(arguments[0]) if arguments else pathlib.Path(__file__).resolve().parents[2]
    faults = list(wrong(root))
    print("\n".join(faults), end="\n" if faults else "", file=sys.stderr)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
