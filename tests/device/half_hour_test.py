"""What the half hour runs beside the suite, without a GPU: exact attention's figures on the CPU, answers compared, and what
each says where something is missing."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def run(*command, **environment):
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


def test_exact_attention(folder):
    path = folder / "exact.json"
    program = (sys.executable, HERE / "exact_attention.py", "-o", path)
    ended = run(*program, "--device", "cpu", "--tokens", "256,704", "--batch", "1,3")
    if ended.returncode == 3:
        assert "torch is not on this machine" in ended.stderr, ended.stderr
        return
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(path.read_text())["figures"]
    assert [(f["what"], f["batch"], f["tokens"]) for f in figures] == [
        (what, batch, tokens) for tokens in (256, 704) for batch in (1, 3) for what in ("math", "scores")
    ], figures
    assert all(f["us"] > 0 for f in figures)
    ended = run(*program, "--device", "cpu", "--limit", "0", "--tokens", "256")
    assert ended.returncode == 1 and "time was up" in path.read_text()
    ended = run(*program, CUDA_VISIBLE_DEVICES="")
    assert ended.returncode == 3 and "no GPU" in ended.stderr, ended.stderr


def test_same_recall(folder):
    program = (sys.executable, HERE / "same_recall.py")
    report = {"backend": "cpu", "rows": [{"name": "seine", "recall": 0.978, "scan_us": 5.0}, {"name": "x", "recall": 0.5}]}
    one, other = folder / "one.json", folder / "other.json"
    one.write_text(json.dumps(report))
    report["backend"], report["rows"][0]["scan_us"] = "cuda", 1.0
    other.write_text(json.dumps(report))
    ended = run(*program, one, other)
    assert ended.returncode == 0 and "4 values, 0 differ" in ended.stdout, ended.stdout
    report["rows"][0]["recall"] = 0.9781
    other.write_text(json.dumps(report))
    ended = run(*program, one, other)
    assert ended.returncode == 1 and ".rows[0].recall: 0.978 and 0.9781" in ended.stdout, ended.stdout
    del report["rows"][1]
    other.write_text(json.dumps(report))
    assert run(*program, one, other).returncode == 1
    for text in ("", "{}"):
        one.write_text(text)
        assert run(*program, one, other).returncode == 2


def test_half_hour(folder):
    """Parts over the emulated device's suite: results come, a step that fails stops nothing, figures are marked."""
    script = HERE / "half_hour.sh"
    for wrong in ((), ("7", "x"), ("1",)):
        assert run(script, *wrong).returncode == 2
    out, tools = folder / "out", folder / "tools"
    assert run(script, "1", out, SEINE_DEVICE_TOOLS=str(tools)).returncode == 2  # nothing was built
    tools.mkdir()
    suite = tools / "seine-device-suite"
    suite.write_text(f'#!/bin/sh\ncase "$*" in *items\\ 500*) sleep 1; exit 1;; esac\nexec {sys.argv[1]} "$@" --items 2\n')
    suite.chmod(0o755)
    (tools / "commit").write_text("abc\n")
    ended = run(script, "1", out, SEINE_DEVICE_TOOLS=str(tools))
    steps = (out / "steps.txt").read_text()
    assert ended.returncode == 1, ended.stdout
    assert "alive: done" in steps and "right: FAILED: exit code 1" in steps, steps
    assert "first-figures: FAILED" in steps, steps  # the emulated device has no such part
    summary = json.loads((out / "summary.json").read_text())
    assert summary["commit"] == "abc" and summary["parts"]["items"]["passed"], summary
    other = folder / "other"
    run(script, "6", other, SEINE_DEVICE_TOOLS=str(tools))
    assert json.loads((other / "summary.json").read_text()) == summary  # for what this part's figures rest on
    assert "recall-cpu: FAILED" in (other / "steps.txt").read_text()


if __name__ == "__main__":
    for test in (test_exact_attention, test_same_recall, test_half_hour):
        with tempfile.TemporaryDirectory() as name:
            test(pathlib.Path(name))
