"""Plants faults in pages, figures and protos of a tree of its own: each must be found, and nothing else."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "tools"
sys.path.insert(0, str(TOOLS))

import figures  # noqa: E402
import pages  # noqa: E402
import protos  # noqa: E402
import site_pages  # noqa: E402

TABLE = {
    "id": "demo",
    "title": "Demo",
    "machine": "pc",
    "commit": "0123456",
    "date": "2026-01-02T03:04:05Z",
    "command": "./dev demo",
    "plot": {"kind": "bars", "column": "value", "title": "a plot"},
    "columns": [["value", "value"], ["cost", "cost"]],
    "rows": [["recall", "recall", {"v": 0.5, "also": 0.25}, {"v": [1, 2], "unit": "ms"}], ["size", "size", 2048, None]],
}


class Tree(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path


class FiguresTest(Tree):
    def results(self, table):
        """Writes it as a bench that was run does."""
        table = {**table, "sum": figures.sum_of(table)}
        page = {"format": figures.FORMAT, "written_by": figures.WRITER, "machines": {"pc": "a pc"}, "tables": [table]}
        return self.write("bench/results/a.json", json.dumps(page))

    def check(self):
        command = [sys.executable, str(TOOLS / "figures.py"), "--check", str(self.root)]
        return subprocess.run(command, capture_output=True, text=True)

    def render(self):
        subprocess.run([sys.executable, str(TOOLS / "figures.py"), str(self.root)], check=True, capture_output=True)

    def setUp(self):
        super().setUp()
        self.results(TABLE)
        self.page = self.write(
            "README.md",
            "[?](docs/benchmarks.md#demo-recall), [?](docs/benchmarks.md#demo-recall-value-also), "
            "[?](docs/benchmarks.md#demo-recall-cost), [?](docs/benchmarks.md#demo-size), [a table](docs/benchmarks.md#demo)\n"
            "<!-- table: demo -->\n<!-- end of table -->\n",
        )
        self.render()

    def test_figures_and_tables_are_those_of_the_json(self):
        text = self.page.read_text(encoding="utf-8")
        for figure in ("[0.5](", "[0.25](", "[1–2 ms](", "[2,048](", "[a table](", "| recall | 0.5 (0.25) | 1–2 ms |", "| size | 2,048 | – |"):
            self.assertIn(figure, text)
        self.assertEqual(self.check().returncode, 0)
        benchmarks = (self.root / "docs/benchmarks.md").read_text(encoding="utf-8")
        self.assertIn('<a id="demo-recall-cost"></a>1–2 ms', benchmarks)
        self.assertTrue((self.root / "docs/plots/demo.svg").exists())

    def test_a_page_that_differs_is_named(self):
        for page, was, now in (("README.md", "[0.5](", "[0.6]("), ("docs/benchmarks.md", "2,048", "2,049"), ("README.md", "| 2,048", "| 2,050")):
            path = self.root / page
            text = path.read_text(encoding="utf-8")
            self.assertIn(was, text)
            path.write_text(text.replace(was, now), encoding="utf-8")
            done = self.check()
            self.assertEqual(done.returncode, 1)
            self.assertIn(page + ":", done.stderr)
            path.write_text(text, encoding="utf-8")

    def test_json_that_changes_is_seen(self):
        self.results(dict(TABLE, rows=[["recall", "recall", 0.7, 1], ["size", "size", 2048, None]]))
        self.assertNotEqual(self.check().returncode, 0)

    def test_wrong_references_and_tables_are_errors(self):
        for fragment in ("demo-none", "demo-recall-none", "none-recall", "demo-size-cost"):
            with self.assertRaises(figures.Wrong, msg=fragment):
                figures.Results(self.root).figure(fragment)
        for wrong in ({"machine": "mac"}, {"rows": [["a", "a", 1]]}, {"rows": [["a", "a", 1, 2], ["a", "b", 1, 2]]}):
            self.results(dict(TABLE, **wrong))
            with self.assertRaises(figures.Wrong, msg=wrong):
                figures.Results(self.root)

    def test_a_table_that_no_run_left_is_an_error(self):
        path = self.results(TABLE)
        written = json.loads(path.read_text(encoding="utf-8"))
        typed = json.loads(path.read_text(encoding="utf-8"))
        typed["tables"][0]["rows"][1][2] = 4096
        faults = [(typed, "typed or changed by hand"), ({**written, "written_by": "me"}, "did not write the file")]
        faults += [({key: value for key, value in written.items() if key != "written_by"}, "did not write the file")]
        for lacking in ("commit", "command", "date"):
            for without in ({**TABLE, lacking: None}, {key: value for key, value in TABLE.items() if key != lacking}):
                faults.append(({**written, "tables": [{**without, "sum": figures.sum_of(without)}]}, f"it has no {lacking}"))
        faults.append(({**written, "tables": [TABLE]}, "typed or changed by hand"))
        for page, said in faults:
            path.write_text(json.dumps(page), encoding="utf-8")
            done = self.check()
            self.assertEqual(done.returncode, 1, said)
            self.assertIn("a.json: table demo is no recorded run: ", done.stderr)
            self.assertIn(said, done.stderr)
        path.write_text(json.dumps(written), encoding="utf-8")
        self.assertEqual(self.check().returncode, 0)

    def test_a_figure_without_a_run_is_an_error_and_a_table_is_absent(self):
        self.write("docs/a.md", "before\n<!-- table: runmillion -->\n| old |\n<!-- end of table -->\nafter\n")
        self.render()
        text = (self.root / "docs/a.md").read_text(encoding="utf-8")
        note = "*No run of `./dev bench --only million` is recorded yet.*"
        self.assertEqual(text, f"before\n<!-- table: runmillion -->\n{note}\n<!-- end of table -->\nafter\n")
        for wrong in ("[1.2 ms](benchmarks.md#runmillion-a)", "<!-- table: runnothing -->\n<!-- end of table -->"):
            self.write("docs/a.md", wrong)
            self.assertEqual(self.check().returncode, 1, wrong)

    def test_a_page_may_show_some_rows(self):
        self.write("docs/a.md", "<!-- table: demo of ize -->\n<!-- end of table -->\n")
        self.render()
        text = (self.root / "docs/a.md").read_text(encoding="utf-8")
        self.assertIn("| size | 2,048 | – |\n<!-- end", text)
        self.assertNotIn("recall", text)
        self.write("docs/a.md", "<!-- table: demo of none -->\n<!-- end of table -->\n")
        self.assertIn("ends in none", self.check().stderr)

    def test_readme_states_no_figure_without_a_link(self):
        text = self.page.read_text(encoding="utf-8")
        for typed in ("It takes 12.5 ms.", "| 141 µs |", "Recall is 0.983.", "It holds 57 % of it.", "at 7 GB/s", "some 24.6 MiB"):
            self.page.write_text(text + typed + "\n", encoding="utf-8")
            self.assertEqual(self.check().returncode, 1, typed)
            self.assertIn("README.md:", self.check().stderr)
        for stated in ("β 5 % and 128 tokens of Debian 12", "`sleep 5 ms`", "```\n0.5 ms\n```", "version 0.3.36, 30 layers"):
            self.page.write_text(text + stated + "\n", encoding="utf-8")
            self.assertEqual(self.check().returncode, 0, stated)

    def test_every_part_answers_one_question(self):
        named = [name for question in figures.of_bench("QUESTIONS") for name in question.parts]
        self.assertEqual(sorted(named), sorted(figures.of_bench("PARTS")))

    def test_benchmarks_sums_up_what_is_recorded(self):
        part = {**TABLE, "id": "runevict", "title": "What is kept", "columns": [["kept", "kept"]]}
        self.results({**part, "rows": [["qfilters10", "a", 0.75], ["streamingllm10", "b", 0.25]], "plot": None})
        self.page.write_text("", encoding="utf-8")
        self.render()
        text = (self.root / "docs/benchmarks.md").read_text(encoding="utf-8")
        self.assertIn("| [What does eviction keep?](#what-does-eviction-keep) | A tenth of the tokens holds [0.75](#runevict-qfilters10)", text)
        self.assertIn("    - [What is kept](#runevict)", text)
        self.assertIn('<a id="runevict-qfilters10"></a>0.75', text)
        self.assertLess(text.index("## What does eviction keep?"), text.index("### What is kept"))
        self.assertEqual(list(pages.broken_links(self.root)), [], "fragments that the summary leads to")
        self.assertNotIn("How long does an answer take?", text, "nothing of it is recorded")
        self.results({**part, "id": "runfleet", "rows": [["a", "a", 1]], "plot": None})
        self.render()
        self.assertIn("*Not all of it is recorded.*", (self.root / "docs/benchmarks.md").read_text(encoding="utf-8"))

    def test_the_picture_is_drawn_of_recorded_runs_alone(self):
        self.page.write_text("![picture](docs/plots/picture.svg)\n", encoding="utf-8")
        self.assertIn("there is no table runwholeanswers", self.check().stderr)
        whole = {**TABLE, "id": "runwholeanswers", "columns": [["whole", "a"], ["exact", "b"], ["seine", "c"]], "plot": None}
        whole["rows"] = [["1000", "1000", 1.5, 1.4, 1.25], ["8000", "8000", 47.5, 25.5, 22.5]]
        stored = {**TABLE, "id": "runlowrank", "columns": [["bytes", "bytes"]], "plot": None}
        stored["rows"] = [[f.split("-")[1], "a", 0.5 + i / 8] for i, (f, _) in enumerate(figures.CACHE[:-1])]
        demo = {**TABLE, "id": "rundemo", "columns": [["codes", "codes"]], "rows": [["demo", "demo", 0.0625]], "plot": None}
        tables = [{**table, "sum": figures.sum_of(table)} for table in (whole, stored, demo)]
        page = {"format": figures.FORMAT, "written_by": figures.WRITER, "machines": {"pc": "a pc"}, "tables": tables}
        self.write("bench/results/a.json", json.dumps(page))
        self.render()
        drawn = (self.root / "docs/plots/picture.svg").read_text(encoding="utf-8")
        for figure in ("47.5", "25.5", "22.5", "0.0625", "0.875", "8,000", "a pc"):
            self.assertIn(f"{figure}<" if figure != "a pc" else figure, drawn)
        self.assertEqual((drawn.count("<circle"), drawn.count("<polyline")), (6, 3))
        self.assertEqual(self.check().returncode, 0)

    def test_a_plot_draws_the_rows_that_it_names(self):
        for rows, drawn in (({}, True), ({"rows": ["recall"]}, False)):
            svg = figures.plot(dict(TABLE, plot={**TABLE["plot"], **rows}))
            self.assertIn(">recall<", svg)
            self.assertEqual(">size<" in svg, drawn)

    def test_code_is_left_as_it_is(self):
        code = "```sh\necho '[?](docs/benchmarks.md#demo-recall)'\n```\n"
        self.write("docs/page.md", code)
        self.render()
        self.assertEqual((self.root / "docs/page.md").read_text(encoding="utf-8"), code)


class PagesTest(Tree):
    def broken(self, text):
        self.write("docs/a.md", text)
        self.write("docs/b.md", '# One heading: `code`\n<a id="named"></a>\n```sh\n# no heading\n```\n')
        return [line.partition(": ")[2] for line in pages.broken_links(self.root)]

    def test_links_that_lead_somewhere(self):
        good = "[a](b.md) [b](b.md#one-heading-code) [c](b.md#named) [d](../docs) [e](https://example.org/x) [f](#here)\n\n## Here\n"
        self.assertEqual(self.broken(good), [])
        self.assertEqual(self.broken("```sh\n[a](none.md)\n```\n"), [])

    def test_links_that_do_not(self):
        for link in ("none.md", "b.md#no-heading", "b.md#none", "#nowhere", "../../etc"):
            self.assertEqual(len(self.broken(f"[a]({link})")), 1, link)

    def test_sources_that_pages_name(self):
        self.write("kernels/ops/scan.h", "")
        self.write("docs/a.md", "`scan.h`, `kernels/ops/scan.h`, `NAME_test.cc`\n```sh\ncat `gone.h`\n```\n")
        self.assertEqual(list(pages.lost_sources(self.root)), [])
        self.write("docs/a.md", "`gone.h`\n`index/scan.h`\n`can.h`")
        self.assertEqual([line.split(":")[1] for line in pages.lost_sources(self.root)], ["1", "2", "3"])

    def long(self, name, text):
        self.write(name, text)
        return list(pages.long_sentences(self.root)) + list(pages.long_pages(self.root))

    def test_sentences(self):
        short, long = "word " * 29 + "end. ", "word " * 30 + "end. "
        self.assertEqual(self.long("docs/a.md", short * 3 + "\n- " + short + "\n\n| " + short + "|\n```sh\n" + long + "\n```\n"), [])
        for text in (long, "- " + long, "# " + long, f"| {long} |", f"[{long}](b.md)"):
            self.assertEqual(len(self.long("docs/a.md", text)), 1, text)
        self.assertEqual(self.long("docs/a.md", "") + self.long("bench/data/README.md", long), [])

    def test_lengths(self):
        figure = "[1](docs/benchmarks.md#runa-b). "
        for text, said in (
            ("a\n\n" * 61, "122 lines"),
            ("word. " * 601, "601 words"),
            (figure * 31, "31 figures"),
        ):
            self.assertEqual(len(self.long("README.md", text)), 1, said)
            self.assertIn(said, self.long("README.md", text)[0])
        code = "```sh\n" + "word " * 700 + "\n```\n"
        self.assertEqual(self.long("README.md", code + "word. " * 570 + figure * 30), [])
        self.write("README.md", "")
        self.assertEqual(len(self.long("CONTRIBUTING.md", "a\n" * 151)), 1 + 1)  # and a sentence of 151 words


class SiteTest(Tree):
    def test_pages_are_read_as_markdown_viewers_read_them(self):
        page = self.write("docs/a.md", "")
        text = "Words:\n- one\n  more\n- two\n<!-- table: a -->\n| a |\n|---|\n1. x\n2. y\n```sh\nls\n- no list\n```\n"
        made = site_pages.for_mkdocs(text, page, {page})
        self.assertIn("Words:\n\n- one\n  more\n- two\n\n| a |\n|---|\n\n1. x\n2. y\n", made)
        self.assertIn("ls\n- no list", made)

    def test_links_lead_to_pages_alone(self):
        page, other = self.write("docs/a.md", ""), self.write("docs/b.md", "")
        for text in ("[b](b.md#x)", "[c](https://example.org)", "[d](#here)", "![e](b.md)"):
            self.assertEqual(site_pages.for_mkdocs(text, page, {page, other}), text)
        self.assertEqual(site_pages.for_mkdocs("[`h`](../index/index.h) [b](c.md)", page, {page, other}), "`h` b")

    def test_what_is_wrong_with_a_site_is_named(self):
        self.write("b.html", '<p id="x"></p><a name="y"></a>')
        good = '<a href="b.html#x">b</a><a href="b.html?q=1#y"></a><a href="#z"></a><h1 id="z"></h1><a href="https://example.org"></a>'
        self.write("a.html", good + '<img src="data:image/svg+xml,1">')
        self.assertEqual(list(site_pages.broken(self.root)), [])
        for wrong, said in (
            ('<a href="c.html">', "leads nowhere"),
            ('<a href="b.html#z">', "there is no #z"),
            ('<script src="https://example.org/a.js"></script>', "loads https://example.org/a.js"),
            ('<link href="//example.org/a.css">', "loads //example.org/a.css"),
            ('<img src="c.png">', "leads nowhere"),
        ):
            self.write("a.html", good + wrong)
            (found,) = site_pages.broken(self.root)
            self.assertIn(said, found)


class DecisionsTest(Tree):
    def run_tool(self, *arguments):
        command = [sys.executable, str(TOOLS / "decisions.py"), *arguments, str(self.root)]
        return subprocess.run(command, capture_output=True, text=True)

    def page(self, name, status="Holds since 2026-01-02.", title=None):
        self.write(f"docs/decisions/{name}.md", f"# {title or pathlib.Path(name).name[:4] + ': A title'}\n\n{status}\n\n## Decision\n")

    def setUp(self):
        super().setUp()
        self.page("service/0002-b")
        self.page("codecs/0003-c", "Replaced on 2026-01-03 by [0002](../service/0002-b.md).")
        self.page("codecs/0001-a", "Holds since 2026-01-02. It was tried for a week.")

    def test_the_index_is_by_subject_and_in_order(self):
        self.assertEqual(self.run_tool().returncode, 0)
        text = (self.root / "docs/decisions/README.md").read_text(encoding="utf-8")
        places = [text.index(part) for part in ("## Codecs", "0001-a.md) | A title | holds", "0003-c.md) | A title | replaced", "## Service", "0002-b")]
        self.assertEqual(places, sorted(places))
        self.assertEqual(self.run_tool("--check").returncode, 0)
        self.page("service/0004-d")
        told = self.run_tool("--check")
        self.assertEqual((told.returncode, "differs from its pages" in told.stderr), (1, True))

    def test_a_folder_without_pages_is_one_line(self):
        told = subprocess.run([sys.executable, str(TOOLS / "decisions.py"), str(self.root / "none")], capture_output=True, text=True)
        self.assertEqual((told.returncode, told.stderr.count("\n")), (1, 1))
        self.assertIn("there is no page", told.stderr)

    def test_each_fault_is_named(self):
        for what, fault in (
            ({"status": "It holds."}, "says neither"),
            ({"status": "Replaced on 2026-01-03."}, "says neither"),
            ({"status": "Holds since May."}, "says neither"),
            ({"title": "0005: Another's number"}, "does not begin with"),
            ({"title": "6. A title"}, "does not begin with"),
        ):
            self.page("service/0006-f", **what)
            told = self.run_tool()
            self.assertEqual((told.returncode, fault in told.stderr), (1, True), what)
        self.page("service/0006-f")
        self.page("codecs/0006-g")
        self.assertIn("two pages are 0006", self.run_tool().stderr)


class ProtosTest(Tree):
    PROTO = """// What it is for.
syntax = "proto3";
package a;

// A service.
service DoorService {
  // Opens.
  rpc Open(stream OpenRequest) returns (OpenResponse);
}

enum Lock {
  LOCK_UNSPECIFIED = 0; // open
}

// Lost: an empty line follows.

message OpenRequest {
  // Which one,
  // by number.
  optional int32 door = 1; // from 1
  oneof how {
    bytes key = 2;
  }
  message Hinge {
    map<string, int64> sizes = 1;
  }
  repeated Hinge hinges = 3;
}

message OpenResponse {}
"""

    def test_everything_is_read(self):
        file = protos.File(self.write("a.proto", self.PROTO))
        self.assertEqual(file.comment, "What it is for.")
        blocks = {block.name: (block.kind, block.comment, block.rows) for block in file.blocks}
        self.assertEqual(list(blocks), ["DoorService", "Lock", "OpenRequest", "OpenRequest.Hinge", "OpenResponse"])
        self.assertEqual(blocks["DoorService"], ("service", "A service.", [("Open", "stream of OpenRequest → OpenResponse", "Opens.")]))
        self.assertEqual(blocks["Lock"][2], [("LOCK_UNSPECIFIED", "0", "open")])
        fields = [("door", "int32", "Which one, by number. from 1"), ("key", "bytes (one of `how`)", ""), ("hinges", "repeated Hinge", "")]
        self.assertEqual(blocks["OpenRequest"], ("message", "", fields))
        self.assertEqual(blocks["OpenRequest.Hinge"][2], [("sizes", "map<string, int64>", "")])

    def test_a_line_that_is_not_understood_is_an_error(self):
        for line in ("int32 a = 1; int32 b = 2;", "group A = 1 {", "what is this"):
            with self.assertRaises(ValueError, msg=line):
                protos.File(self.write("a.proto", self.PROTO.replace("bytes key = 2;", line)))


if __name__ == "__main__":
    unittest.main()
