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

TABLE = {
    "id": "demo",
    "title": "Demo",
    "machine": "pc",
    "commit": "0123456",
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
        self.write("bench/results/a.json", json.dumps({"format": figures.FORMAT, "machines": {"pc": "a pc"}, "tables": [table]}))

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
        self.assertEqual(len(self.long("README.md", "a\n\n" * 101)), 1)
        self.assertEqual(len(self.long("README.md", "word. " * 2001)), 1)
        self.write("README.md", "")
        self.assertEqual(len(self.long("CONTRIBUTING.md", "a\n" * 151)), 1 + 1)  # and a sentence of 151 words


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
