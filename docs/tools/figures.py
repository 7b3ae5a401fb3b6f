#!/usr/bin/env python3
"""Renders docs/benchmarks.md, its plots and every figure that a page states from the JSON files of bench/results.

usage: figures.py [--check] [ROOT]     --check writes nothing, names each page that differs, and ends with 1 if one does

A page states a figure as a link to docs/benchmarks.md whose fragment is TABLE-ROW, TABLE-ROW-COLUMN or TABLE-ROW-COLUMN-also. Its text
is what the JSON says. A page shows a whole table between the lines
`<!-- table: ID -->` and `<!-- end of table -->`, or the rows whose labels end in TEXT with `<!-- table: ID of TEXT -->`. A note stands
there while no run of that part of bench/parts is recorded. A link to a figure without a recorded run is an error, and so is a time,
rate or share that README.md states without a link.

Only `./dev bench` writes the files. A table in JSON has an id, a title, a machine, the commit that was measured, a date, a command,
columns [key, title], rows [id, label, cell ...] and the sum of all that, so that one that was typed or changed by hand is an error.
Where several files hold a table, the latest counts. A cell is a number, a range [low, high], a text, null, or an object: "v" one of
these, "unit", "also" for what stands in brackets, "note" for words behind it. A "plot", of the table or of its part, draws "bars" of a
column or "lines" over columns, of the rows with the ids "rows" or of all.
"""

import decimal
import hashlib
import json
import pathlib
import re
import sys

import svg
from pages import slug

FORMAT, WRITER = "seine-figures-1", "bench/run.py"
RECORDED = ("machine", "commit", "command", "date")  # what a run that is recorded says of every table
LINK = re.compile(r"\[([^\[\]]*)\]\(([\w./-]*benchmarks\.md)#([a-z0-9]+(?:-[a-z0-9]+)+)\)")
TABLE = re.compile(r"(<!-- table: ([a-z0-9]+)(?: of ([^\n]+?))? -->\n).*?(<!-- end of table -->)", re.DOTALL)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# A figure that somebody typed: a time, a rate, a size, a share that is no setting, or a number below one.
TYPED = re.compile(r"(?<![\w.,])(?<!β )\d[\d,.]*(?:[–-]\d[\d,.]*)? ?(?:ms|µs|ns|GB/s|GFlop/s|MiB|%)(?!\w)|(?<![\w.])0?\.\d+(?!\.?\w)")
HEAD = """# Benchmarks

`./dev figures` writes this page from the JSON files of [bench/results](../bench/results); do not edit it by hand.
Each table is one run of `./dev bench --only PART`, whose part is the table's name after `run`. The commit is the one that was measured.
Of several runs of a part the latest is shown: tables are of different machines, which each names.

## In short
"""
REST = "Other tables"  # of no part
PICTURE = "plots/picture.svg"  # README.md's, drawn from the tables and rows below
WHOLE = ("runwholeanswers", (("whole", "llama.cpp"), ("exact", "our exact attention in its place"), ("seine", "Seine")))
CACHE = (
    ("runlowrank-fullrankalltokens-bytes", "all tokens, full-rank"),
    ("runlowrank-keyspreroperank20alltokens-bytes", "all tokens, low-rank"),
    ("runlowrank-fullrankhalfthetokensbykeydiff-bytes", "half evicted, full-rank"),
    ("runlowrank-keyspreroperank20halfthetokensbykeydiff-bytes", "half evicted, low-rank"),
    ("rundemo-demo-codes", "codes beside an engine's own cache"),
)


def of_bench(name):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
    import parts

    return getattr(parts, name)


def parts():
    """{id: Part} of the tables that `./dev bench` can make."""
    return {f"run{name}": part for name, part in of_bench("PARTS").items()}


class Wrong(Exception):
    """What is wrong with a figure, in one line."""


def sum_of(table):
    """A short digest of a table without its "sum"."""
    text = json.dumps({key: value for key, value in table.items() if key != "sum"}, sort_keys=True, default=float)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def number(value):
    if isinstance(value, list):
        low, high = map(number, value)
        return f"{low} to {high}" if value[0] < 0 else f"{low}–{high}"
    written = f"{value:,}" if isinstance(value, int) else str(value)
    return written.replace("-", "−")


def plain(cell, part="v"):
    """A cell's figure as a page states it: with its unit; `part` "also" is what stands in brackets."""
    if not isinstance(cell, dict):
        cell = {"v": cell}
    value = cell.get(part)
    if value is None:
        raise Wrong("there is no such figure")
    if isinstance(value, str):
        return value
    unit = cell.get("unit", "") if part == "v" else ""
    return number(value) + (" " + unit if unit else "")


def shown(cell):
    """A cell as a table shows it."""
    if cell is None:
        return "–"
    also = f" ({plain(cell, 'also')})" if isinstance(cell, dict) and "also" in cell else ""
    note = " " + cell["note"] if isinstance(cell, dict) and "note" in cell else ""
    return plain(cell) + also + note


def simple(cell):
    """The number of a cell that is drawn: of a range its middle."""
    value = cell.get("v") if isinstance(cell, dict) else cell
    return sum(map(float, value)) / 2 if isinstance(value, list) else float(value)


class Results:
    """Every table of bench/results, in the order of the files' names."""

    def __init__(self, root):
        self.tables, self.machines, self.files, self.dates = {}, {}, {}, {}
        for path in sorted((root / "bench" / "results").glob("*.json")):
            data = json.loads(path.read_text(encoding="utf-8"), parse_float=decimal.Decimal)
            if data.get("format") != FORMAT:
                raise Wrong(f"{path.name}: its format is not {FORMAT}")
            self.machines.update(data["machines"])
            for table in data["tables"]:
                self.recorded(path.name, data, table)
                self.add(path.name, table, table["date"])

    @staticmethod
    def recorded(name, data, table):
        where = f"{name}: table {table['id']} is no recorded run"
        lacks = [key for key in RECORDED if not table.get(key)]
        if data.get("written_by") != WRITER:
            raise Wrong(f"{where}: ./dev bench did not write the file")
        if lacks:
            raise Wrong(f"{where}: it has no {', '.join(lacks)}")
        if table.get("sum") != sum_of(table):
            raise Wrong(f"{where}: it was typed or changed by hand")

    def add(self, name, table, date):
        where = f"{name}: table {table['id']}"
        before = self.dates.get(table["id"])
        if date == before:
            raise Wrong(f"{where} is there twice")
        if table["machine"] not in self.machines:
            raise Wrong(f"{where}: nothing says what machine {table['machine']} is")
        rows = [row[0] for row in table["rows"]]
        if len(set(rows)) != len(rows):
            raise Wrong(f"{where}: two rows have one id")
        for row in table["rows"]:
            if len(row) != 2 + len(table["columns"]):
                raise Wrong(f"{where}, row {row[0]}: {len(row) - 2} cells for {len(table['columns'])} columns")
        if before is None or date > before:
            self.tables[table["id"]], self.files[table["id"]], self.dates[table["id"]] = table, name, date

    def cell(self, fragment):
        table_id, row_id, *rest = fragment.split("-")
        if table_id not in self.tables:
            raise Wrong(f"#{fragment}: there is no table {table_id}")
        table = self.tables[table_id]
        columns = [key for key, _ in table["columns"]]
        column = rest[0] if rest else columns[0]
        for row in table["rows"]:
            if row[0] == row_id and column in columns:
                return row[2 + columns.index(column)], "also" if rest[1:] == ["also"] else "v"
        raise Wrong(f"#{fragment}: table {table_id} has no such row or column")

    def figure(self, fragment):
        try:
            return plain(*self.cell(fragment))
        except Wrong as wrong:
            raise Wrong(f"#{fragment}: {wrong}") from None


def some_rows(table, ending):
    """The table, or its rows whose labels end so; | stands between several endings."""
    rows = [row for row in table["rows"] if row[1].endswith(tuple((ending or "").split("|")))]
    if not rows:
        raise Wrong(f"no row of table {table['id']} ends in {ending}")
    return {**table, "rows": rows}


def table_text(table, linked=()):
    """A table in Markdown; cells that pages link to get an anchor."""
    columns = [key for key, _ in table["columns"]]
    out = ["| | " + " | ".join(title for _, title in table["columns"]) + " |", "|---" * (len(columns) + 1) + "|"]
    for row_id, label, *cells in table["rows"]:
        line = [label]
        for i, cell in enumerate(cells):
            names = [f"{table['id']}-{row_id}-{columns[i]}"] + ([f"{table['id']}-{row_id}"] if i == 0 else [])
            names = [f"{name}{end}" for name in names for end in ("", "-also")]
            line.append("".join(f'<a id="{name}"></a>' for name in names if name in linked) + shown(cell))
        out.append("| " + " | ".join(line) + " |")
    return "\n".join(out) + "\n"


def plot_of(table):
    """How the table is drawn, or None."""
    part = parts().get(table["id"])
    return table.get("plot") or (part and part.plot)


def plot(table):
    """The table's SVG, drawn as its plot says."""
    wanted = plot_of(table)
    rows = [row for row in table["rows"] if "rows" not in wanted or row[0] in wanted["rows"]]
    at = {key: i + 2 for i, (key, _) in enumerate(table["columns"])}
    labels = [re.sub(r"[*`]", "", row[1]) for row in rows]
    if wanted["kind"] == "bars":
        column = at[wanted["column"]]
        return svg.bars(wanted["title"], [(label, simple(row[column]), plain(row[column])) for label, row in zip(labels, rows)])
    values = [[simple(row[at[key]]) for key in wanted["columns"]] for row in rows]
    return svg.lines(wanted["title"], wanted["x"], list(zip(labels, values)))


def picture(results):
    """README.md's picture: whole answers over the prompt's length, and beside it how small the cache gets."""
    table_id, ways = WHOLE
    if table_id not in results.tables:
        raise Wrong(f"docs/{PICTURE}: there is no table {table_id}")
    table = results.tables[table_id]
    at = {key: i + 2 for i, (key, _) in enumerate(table["columns"])}
    curves = [(label, [simple(row[at[column]]) for row in table["rows"]]) for column, label in ways]
    bars = [(label, simple(results.cell(fragment)[0]), results.figure(fragment)) for fragment, label in CACHE]
    return svg.picture(
        ("Prompt and 256 tokens of SmolLM2-135M, seconds", "tokens of the prompt", [int(row[0]) for row in table["rows"]], curves),
        ("Bytes held, of the full fp16 cache of 8,192 tokens", bars),
        f"llama.cpp: {results.machines[table['machine']]}",
    )


def questions(results):
    """[(title, in short or "", [(id, table), ...])] of what is recorded, in the page's order."""
    known, grouped = set(), []
    for question in of_bench("QUESTIONS"):
        tables = [(f"run{name}", results.tables[f"run{name}"]) for name in question.parts if f"run{name}" in results.tables]
        known |= {table_id for table_id, _ in tables}
        grouped += [(question.title, question.short, tables)] if tables else []
    rest = [(table_id, table) for table_id, table in sorted(results.tables.items()) if table_id not in known]
    return grouped + ([(REST, "", rest)] if rest else [])


def in_short(text, results, linked):
    """The sentence with its figures; without it where a figure's table is of no recorded run."""
    fragments = re.findall(r"\{([a-z0-9-]+)\}", text)
    if not all(fragment.split("-")[0] in results.tables for fragment in fragments):
        return "*Not all of it is recorded.*"
    linked.update(fragments)
    return re.sub(r"\{([a-z0-9-]+)\}", lambda match: f"[{results.figure(match[1])}](#{match[1]})", text)


def benchmarks(results, linked):
    grouped = questions(results)
    rows = [f"| [{title}](#{slug(title)}) | {in_short(short, results, linked)} |\n" for title, short, _ in grouped]
    out = [HEAD, "| question | in short |\n|---|---|\n" + "".join(rows), "## Contents\n"]
    out += ["".join(f"- [{title}](#{slug(title)})\n" + "".join(f"    - [{t['title']}](#{i})\n" for i, t in tables) for title, _, tables in grouped)]
    for title, _, tables in grouped:
        out.append(f"## {title}\n")
        for table_id, table in tables:
            out.append(f'<a id="{table_id}"></a>\n\n### {table["title"]}\n')
            out += [line + "\n" for line in table.get("text", [])]
            out.append(table_text(table, linked))
            if plot_of(table):
                out.append(f"![{plot_of(table)['title']}](plots/{table_id}.svg)\n")
            out.append(
                f"Command: `{table['command']}`. Machine: {results.machines[table['machine']]}. Commit {table['commit']}, "
                f"[{results.files[table_id]}](../bench/results/{results.files[table_id]}).\n"
            )
    return "\n".join(out)


def pages(root):
    found = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    return [page for page in found if page.exists() and page != root / "docs" / "benchmarks.md"]


def outside_fences(text, change):
    """`change` applied to all of a page but its code blocks."""
    out, at = [], 0
    for fence in FENCE.finditer(text):
        out += [change(text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join(out) + change(text[at:])


def with_figures(text, results, linked):
    def link(match):
        linked.add(match[3])
        return f"[{results.figure(match[3])}]({match[2]}#{match[3]})"

    def table(match):
        if match[2] in results.tables:
            return match[1] + table_text(some_rows(results.tables[match[2]], match[3])) + match[4]
        if match[2] not in parts():
            raise Wrong(f"there is no table {match[2]}, and no part of the bench that makes it")
        part = match[2].removeprefix("run")
        return f"{match[1]}*No run of `./dev bench --only {part}` is recorded yet.*\n{match[4]}"

    return outside_fences(text, lambda part: TABLE.sub(table, LINK.sub(link, part)))


def typed(text):
    """(line, figure) of what a page states without a link to a recorded run."""
    bare = FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)
    bare = TABLE.sub(lambda table: "\n" * table[0].count("\n"), bare)
    bare = re.sub(r"`[^`\n]*`", "", LINK.sub("", bare))
    return [(bare.count("\n", 0, match.start()) + 1, match[0]) for match in TYPED.finditer(bare)]


def render(root):
    """{path: text} of everything that follows from the JSON."""
    results, linked, files = Results(root), set(), {}
    for page in pages(root):
        try:
            files[page] = with_figures(page.read_text(encoding="utf-8"), results, linked)
        except Wrong as wrong:
            raise Wrong(f"{page.relative_to(root)}: {wrong}") from None
    for line, figure in typed(files.get(root / "README.md", "")):
        raise Wrong(f"README.md:{line}: {figure} is stated without a link to a recorded run")
    files[root / "docs" / "benchmarks.md"] = benchmarks(results, linked)
    if PICTURE in files.get(root / "README.md", ""):
        files[root / "docs" / PICTURE] = picture(results)
    for table_id, table in results.tables.items():
        if plot_of(table):
            files[root / "docs" / "plots" / f"{table_id}.svg"] = plot(table)
    return files


def main(arguments):
    check = "--check" in arguments
    roots = [argument for argument in arguments if argument != "--check"]
    root = pathlib.Path(roots[0] if roots else __file__).resolve()
    root = root if roots else root.parents[2]
    try:
        files = render(root)
    except Wrong as wrong:
        sys.exit(f"figures: {wrong}")
    old = {path: path.read_text(encoding="utf-8") if path.exists() else "" for path in files}
    differ = [path for path, text in files.items() if old[path] != text]
    if check:
        for path in differ:
            lines = zip(old[path].splitlines() + [""], files[path].splitlines() + [""])
            at = next((i for i, (was, now) in enumerate(lines, 1) if was != now), 0)
            print(f"figures: {path.relative_to(root)}:{at} differs from bench/results; run ./dev figures", file=sys.stderr)
        sys.exit(1 if differ else 0)
    for path in differ:
        path.parent.mkdir(exist_ok=True)
        path.write_text(files[path], encoding="utf-8")
        print(f"figures: wrote {path.relative_to(root)}")


if __name__ == "__main__":
    main(sys.argv[1:])
