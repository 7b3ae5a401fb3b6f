"""Plants citations in a tree of its own: each that leads nowhere must be found, with its line, and nothing else."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs" / "tools"))

import citations  # noqa: E402

REFERENCES = """# References

| paper | arXiv | what is taken |
|---|---|---|
| <a id="x"></a>ParisKV: Fast and so on | 1 | section 4.1 and appendix B: codes |
| <a id="y"></a>OjaKV: Online and so on | 2 | 3.1, A.3: bases; Algorithm 1 |
"""
GOOD = [
    ("index/a.h", "// The scan (kernels/scan.h) and scan.h alone."),
    ("index/a.cc", 'const char* file = "gone.md";  // what docs/codecs.md#what-it-is says'),
    ("index/b.cc", "// As ParisKV, section 4.1, and ParisKV's appendix B have it; OjaKV (sections 3.1 and A.3), Algorithm 1."),
    ("index/c.h", "// index/scorers/NAME.cc has it, and xxhash.h; decision 0007 says why."),
    ("tools/a.py", '"""Reads.\n\nusage: a.py BOOK.txt\n    python -m a --text book.txt > out.txt\n"""\nname = "gone.md"\n'),
    ("tools/b.sh", "# See docs/codecs.md.\ncat gone.md > none.txt\n"),
    ("docs/page.md", "As decision 0007 has it.\n```\n# decision 9999\n```\n"),
]
BAD = [
    ("index/a.h", "// fine\n// The scan (kernels/gone.h).", 2, "there is no kernels/gone.h"),
    ("index/a.cc", "int a;  // retrieval.md, \"Encoding\"", 1, "there is no retrieval.md"),
    ("index/b.cc", "// (ojakv.txt, 3.2)", 1, "there is no ojakv.txt"),
    ("index/c.h", "// docs/codecs.md#where-it-is", 1, "docs/codecs.md has no #where-it-is"),
    ("index/d.cu", "// decision 9999", 1, "there is no decision 9999"),
    ("docs/page.md", "As decision 0123 has it.", 1, "there is no decision 0123"),
    ("index/e.h", "// OjaKV, section 5.9", 1, "docs/references.md does not say that 5.9 of OjaKV is taken"),
    ("docs/other.md", "ParisKV's appendix C says so.", 1, "docs/references.md does not say that C of ParisKV is taken"),
    ("index/f.h", "// OjaKV (sections 3.1 and A.8)", 1, "docs/references.md does not say that A.8 of OjaKV is taken"),
    ("tools/a.py", '"""Reads.\n\nAs subspace.md has it.\n"""\n', 3, "there is no subspace.md"),
    ("tools/b.py", "x = 1  # as gone.py has it", 1, "there is no gone.py"),
    ("proto/a.proto", "// see proto/b.proto", 1, "there is no proto/b.proto"),
    ("CMakeLists.txt", "# gone.sh makes it", 1, "there is no gone.sh"),
]


class CitationsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("docs/references.md", REFERENCES)
        self.write("docs/codecs.md", "# Codecs\n\n## What it is\n")
        self.write("docs/decisions/codecs/0007-so.md", "# So\n")
        self.write("kernels/scan.h", "\n")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def test_what_is_there_is_passed_over(self):
        for name, text in GOOD:
            self.write(name, text)
        self.assertEqual(list(citations.wrong(self.root)), [])

    def test_what_is_not_there_is_named_with_its_line(self):
        for name, text, line, fault in BAD:
            self.write(name, text)
            self.assertEqual(list(citations.wrong(self.root)), [f"{name}:{line}: {fault}"])
            (self.root / name).unlink()


if __name__ == "__main__":
    unittest.main()
