"""client/python/README.md as a reader types it: every block, top to bottom. What of the shell is not run here is named in OUTSIDE, with
where it is.
"""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "client" / "python" / "README.md"
OUTSIDE = {  # how a line of shell begins -> what proves it in place of this test
    "python3 -m venv build/venv && . build/venv/bin/activate": "versions.py makes environments",
    "pip install ./client/python": "versions.py does it",
    "cmake -DSEINE_PYTHON=": "how this very test is run",
    "python client/python/generate_stubs.py": "python.stubs of ctest",
    "python client/python/tests/wheel/versions.py": "a step of CI",
}


def blocks():
    """(line, language, text) of every fenced block; a fence that is not of the form that is read here fails."""
    text = PAGE.read_text(encoding="utf-8")
    found = [
        (text[: match.start(2)].count("\n") + 1, match[1], match[2])
        for match in re.finditer(r"^```(sh|python)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]
    assert text.count("```") == 2 * len(found) == 8, "a fence of another language or form"
    return found


def check_shell(text):
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if not words or any(line.startswith(known) for known in OUTSIDE):
            continue
        variables = {word.partition("=")[0] for word in words if re.match(r"[A-Z_]+=", word)}
        words = [word for word in words if not re.match(r"[A-Z_]+=", word)]
        if words[:3] != ["python", "-m", "pytest"]:
            pytest.fail(f"nothing runs: {line}")
        assert all((ROOT / word).exists() for word in words[3:]) and variables == {"SEINED", "PYTHONPATH"}


def test_every_block_runs_in_the_order_in_which_it_is_read(capsys):
    for line, language, text in blocks():
        if language == "python":
            exec(compile("\n" * (line - 1) + text, str(PAGE), "exec"), {"__name__": "__main__"})
        else:
            check_shell(text)
    top_k, visible = map(int, capsys.readouterr().out.split())
    assert top_k == 100 and 100 < visible < 2000
