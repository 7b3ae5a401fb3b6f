#!/usr/bin/env python3
"""Makes a static site of README.md and the pages of docs/, with search, and checks every link in it.

usage: site_pages.py OUT [ROOT]     OUT/site is the site, OUT/pages what it is made of; ends with 1 where a page or a link is wrong

Needs mkdocs-material. Pages keep their places, so that their links hold; what they link to beyond pages and pictures, such as a
source file, is no link there. mkdocs is strict: what it warns of ends the build. The pages load nothing from elsewhere.
"""

import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

import pages

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
COMMENT = re.compile(r"^<!--.*?-->$", re.MULTILINE)
ITEM = re.compile(r"(?:[-*]|\d+\.) ")
KEPT = (".md", ".svg", ".png", ".jpg", ".webp")  # what a page of the site may lead to
ORDER = ("install", "engines", "vllm", "python", "models", "prompts", "profile", "server", "fleet", "sharded", "metrics", "configuration", "cli",
         "grpc", "architecture", "codecs", "eviction", "subspaces", "gpu", "benchmarks", "glossary", "references")  # fmt: skip


def slugify(value, _separator):
    """As pages.py and Markdown viewers name headings."""
    return pages.slug(value)


def sources(root):
    """The pages of the site, from the tree's root."""
    more = [root / name for name in ("README.md", "CONTRIBUTING.md", "client/python/README.md", "bench/data/README.md")]
    return [page for page in [*more, *sorted((root / "docs").rglob("*.md"))] if page.exists()]


def for_mkdocs(text, page, kept):
    """A page as Python-Markdown reads it: lists and tables begin behind an empty line, and links lead to pages alone."""

    def link(match):
        path = urllib.parse.unquote(match[3].partition("#")[0])
        if re.match(r"[a-z]+:", path) or not path or (page.parent / path).resolve() in kept:
            return match[0]
        return match[2]

    out = []
    for part in re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL):
        if not part.startswith("```"):
            part, before, lines = LINK.sub(link, COMMENT.sub("", part)), "", []
            for line in part.split("\n"):
                begins = ITEM.match(line) and not ITEM.match(before) and not before.startswith(" ")
                if before and (begins or (line.startswith("|") and not before.startswith("|"))):
                    lines.append("")
                lines.append(line)
                before = line
            part = "\n".join(lines)
        out.append(part)
    return "".join(out)


def title(page):
    return pages.plain(re.search(r"^# (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)[1])


def navigation(root, found):
    """README.md, the pages in the order of ORDER and then others, decisions by subject, and the rest."""
    docs, places = root / "docs", {page: page.relative_to(root).as_posix() for page in found}
    first = [docs / f"{name}.md" for name in ORDER]
    ordered = [page for page in first if page in places] + [page for page in found if page.parent == docs and page not in first]
    decisions = [{"Index": "docs/decisions/README.md"}]
    for folder in sorted(folder for folder in (docs / "decisions").iterdir() if folder.is_dir()):
        decisions.append({folder.name.capitalize(): [places[page] for page in found if page.parent == folder]})
    rest = ["CONTRIBUTING.md", {"client/python": "client/python/README.md"}, {"bench/data": "bench/data/README.md"}]
    return [{"Seine": "README.md"}, *({title(page): places[page]} for page in ordered), {"Decisions": decisions}, *rest]


def configuration(root, out, found):
    """mkdocs.yml, which JSON is; but for the name of a function."""
    settings = {
        "site_name": "Seine",
        "docs_dir": "pages",
        "site_dir": "site",
        "use_directory_urls": False,  # so that the site can be read without a server; its search wants one
        "nav": navigation(root, found),
        "validation": {"links": {"not_found": "warn", "anchors": "warn", "unrecognized_links": "warn"}},
        "plugins": ["search"],
        "markdown_extensions": ["tables", "fenced_code", "attr_list", {"toc": {"slugify": "FUNCTION", "permalink": True}}],
        "theme": {
            "name": "material",
            "font": False,  # they would come from elsewhere
            "features": ["navigation.sections", "navigation.prune", "toc.follow", "search.suggest", "content.code.copy"],
            "palette": [
                {"media": "(prefers-color-scheme: light)", "scheme": "default", "primary": "teal"},
                {"media": "(prefers-color-scheme: dark)", "scheme": "slate", "primary": "teal"},
            ],
        },
    }
    (out / "mkdocs.yml").write_text(json.dumps(settings, indent=1).replace('"FUNCTION"', "!!python/name:site_pages.slugify "), encoding="utf-8")


class Page(html.parser.HTMLParser):
    """The ids of a page of the site, and what it leads to or loads."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids.update(filter(None, (given.get("id"), given.get("name") if tag == "a" else None)))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        self.loads += [given[name] for name in ("src", "href") if tag in ("script", "img", "link") and given.get(name)]


def broken(site):
    """Links of the site that lead nowhere, and what a page would load from elsewhere."""
    read = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if path.name != "404.html"}
    for path, page in read.items():
        where = path.relative_to(site.resolve())
        for target in page.links + page.loads:
            if re.match(r"[a-z]+:|//", target):
                if target in page.loads and not target.startswith("data:"):
                    yield f"{where} loads {target}"
                continue
            file, _, fragment = urllib.parse.unquote(target).partition("#")
            file = (path.parent / file.partition("?")[0]).resolve() if file else path
            if not file.exists():
                yield f"{where}: {target} leads nowhere"
            elif fragment and file in read and fragment not in read[file].ids and not fragment.startswith("__"):
                yield f"{where}: {target}: there is no #{fragment}"


def main(arguments):
    if len(arguments) not in (1, 2):
        sys.exit(__doc__)
    out, root = pathlib.Path(arguments[0]).resolve(), pathlib.Path(arguments[1] if arguments[1:] else __file__).resolve()
    root = root if arguments[1:] else root.parents[2]
    shutil.rmtree(out, ignore_errors=True)
    found = sources(root)
    pictures = [file for file in (root / "docs").rglob("*") if file.suffix in KEPT[1:]]
    kept = set(found) | set(pictures)
    for file in [*found, *pictures]:
        copy = out / "pages" / file.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file in pictures:
            shutil.copyfile(file, copy)
        else:
            copy.write_text(for_mkdocs(file.read_text(encoding="utf-8"), file, kept), encoding="utf-8")
    configuration(root, out, found)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    if subprocess.run(command, cwd=out, env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(pathlib.Path(__file__).parent)}).returncode:
        sys.exit("site: mkdocs failed")
    wrong = list(broken(out / "site"))
    print("\n".join(f"site: {line}" for line in wrong), end="\n" if wrong else "", file=sys.stderr)
    if wrong:
        sys.exit(1)
    size = sum(file.stat().st_size for file in (out / "site").rglob("*") if file.is_file()) / 2**20
    print(f"site: {len(found)} pages, {size:.0f} MiB, every link leads somewhere. To read and search it: python3 -m http.server -d {arguments[0]}/site")


if __name__ == "__main__":
    main(sys.argv[1:])
