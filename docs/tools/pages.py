#!/usr/bin/env python3
"""Checks every Markdown page of the tree: its links, and of README.md, CONTRIBUTING.md and docs/ the length of sentences.

usage: pages.py links|words [ROOT]     prints "page:line: what is wrong" and ends with 1 if anything is

links: a relative link leads to a file or folder of the tree, and its fragment to a heading or an <a id> of that page. A
       source file that README.md, CONTRIBUTING.md or docs/ names in `code` is there, under any folder if none is named.
words: no sentence has over 30 words; README.md has at most 120 lines, 600 words beyond code, which are read aloud in four
       minutes, and 30 figures; CONTRIBUTING.md has at most 150 lines.
       Of a generated page the sentences stand in what it is made from.
"""

import pathlib
import re
import sys
import urllib.parse

MAX_WORDS, CONTRIBUTING_LINES = 30, 150
README_LINES, README_WORDS, README_FIGURES = 120, 600, 30
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
ANCHOR = re.compile(r'<a id="([^"]+)">')
SOURCE = re.compile(r"`([\w./-]+\.(?:h|cc|cu|py|proto|sh))`")
FIGURE = re.compile(r"benchmarks\.md#\w+-")
ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")


def pages(root):
    skipped = {"build", "node_modules", ".git"}
    return sorted(page for page in root.rglob("*.md") if not skipped & set(page.relative_to(root).parts[:-1]))


def blanked(text):
    """The page with its code blocks emptied, lines kept."""
    return FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)


def slug(heading):
    """The fragment by which Markdown viewers find a heading."""
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def fragments(page):
    text = blanked(page.read_text(encoding="utf-8"))
    return {slug(match) for match in re.findall(r"^#+ (.*)$", text, re.MULTILINE)} | set(ANCHOR.findall(text))


def broken_links(root):
    for page in pages(root):
        text = blanked(page.read_text(encoding="utf-8"))
        for match in LINK.finditer(text):
            where = f"{page.relative_to(root)}:{text.count(chr(10), 0, match.start()) + 1}"
            target = urllib.parse.unquote(match[1])
            if re.match(r"[a-z]+:", target):
                continue
            path, _, fragment = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists():
                yield f"{where}: {match[1]} leads nowhere"
            elif root.resolve() not in [file.resolve(), *file.resolve().parents]:
                yield f"{where}: {match[1]} leads out of the tree"
            elif fragment and file.suffix == ".md" and fragment not in fragments(file):
                yield f"{where}: {match[1]}: there is no #{fragment}"


def prose_pages(root):
    for page in pages(root):
        name = page.relative_to(root).as_posix()
        if name in ("README.md", "CONTRIBUTING.md") or name.startswith("docs/"):
            yield name, page


def lost_sources(root):
    """Names with NAME or AREA in capitals stand for any."""
    folders = [folder for folder in root.iterdir() if folder.is_dir() and folder.name not in ("build", ".git")]
    files = {"/" + file.relative_to(root).as_posix() for folder in folders for file in folder.rglob("*.*")}
    for name, page in prose_pages(root):
        text = blanked(page.read_text(encoding="utf-8"))
        for match in SOURCE.finditer(text):
            if not re.search("NAME|AREA", match[1]) and not any(file.endswith("/" + match[1]) for file in files):
                yield f"{name}:{text.count(chr(10), 0, match.start()) + 1}: there is no {match[1]}"


def units(text):
    """(line, text) of every paragraph, list item, heading and table cell."""
    found, open_line, words = [], 0, []

    def close():
        if words:
            found.append((open_line, " ".join(words)))
        words.clear()

    for number, line in enumerate(blanked(text).splitlines(), 1):
        bare = line.strip()
        if bare.startswith("|"):
            close()
            found += [(number, cell) for cell in bare.strip("|").split("|")]
        elif not bare or bare.startswith(("#", "<!--")) or ITEM.match(line):
            close()
            open_line, bare = number, "" if bare.startswith("<!--") else ITEM.sub("", bare).lstrip("# ")
            words += [bare] if bare else []
        else:
            open_line = open_line if words else number
            words.append(bare)
    close()
    return found


def plain(text):
    text = re.sub(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^()\s]*\)", r"\1", text)
    return re.sub(r"<[^>]*>|[*`]", "", text)


def long_sentences(root):
    for name, page in prose_pages(root):
        for line, text in units(page.read_text(encoding="utf-8")):
            text = re.sub(r"`[^`]*`", "code", text)  # a command is one word, however long it is
            for sentence in re.split(r"(?<=[.!?])\s+", plain(text)):
                count = len([word for word in sentence.split() if re.search(r"\w", word)])
                if count > MAX_WORDS:
                    yield f"{name}:{line}: a sentence of {count} words: {sentence[:60]}..."


def long_pages(root):
    for name, limits in (("README.md", (README_LINES, README_WORDS, README_FIGURES)), ("CONTRIBUTING.md", (CONTRIBUTING_LINES,))):
        text = (root / name).read_text(encoding="utf-8") if (root / name).exists() else ""
        counts = text.count("\n"), len(plain(blanked(text)).split()), len(FIGURE.findall(text))
        for what, count, most in zip(("lines", "words", "figures"), counts, limits):
            if count > most:
                yield f"{name}: {count} {what}, and {most} at most"


def main(arguments):
    if arguments[:1] not in (["links"], ["words"]) or len(arguments) > 2:
        sys.exit(__doc__)
    root = pathlib.Path(arguments[1]) if arguments[1:] else pathlib.Path(__file__).resolve().parents[2]
    checks = [broken_links, lost_sources] if arguments[0] == "links" else [long_sentences, long_pages]
    wrong = [line for check in checks for line in check(root)]
    print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
