#!/usr/bin/env python3
"""Holds deploy/'s dashboard and alert rules, and docs/metrics.md, against what a running server exports.

usage: observed_test.py names SEINED SEINE TREE       every metric that they name is exported, and all that is exported is documented
       observed_test.py top SEINED SEINE              seine top: its JSON, its table, keys that leave it, what it refuses
       observed_test.py promtool PROMTOOL TREE        Prometheus takes the rules, and every expression of the dashboard
"""

import contextlib
import json
import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

NAME = re.compile(r"\b((?:seine|grpc_server)_[a-z0-9_]+)\b")
LABELS = {"grpc_method", "grpc_code", "grpc_service", "grpc_type"}
GEOMETRY = ["--layers", "1", "--q-heads", "2", "--kv-heads", "2", "--head-dim", "64", "--dtype", "fp16"]


def expressions(tree):
    """Every PromQL expression of the dashboard, its variables filled in, and the queries of the variables themselves."""
    dashboard = json.loads((tree / "deploy/grafana/seine.json").read_text())
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    variables = [one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    return [expr.replace("$__rate_interval", "1m") for expr in panels], variables


@contextlib.contextmanager
def server(seined, seine):
    """A server that holds an index and has been called: its address, and where its metrics are."""
    with tempfile.TemporaryDirectory() as folder:
        address, log = f"unix:{folder}/s.sock", pathlib.Path(folder, "log")
        with log.open("w") as out:
            process = subprocess.Popen([seined, "--listen", address, "--metrics-listen", "127.0.0.1:0"], stderr=out)
        try:
            for _ in range(200):
                found = re.search(r"metrics: (http://\S+)", log.read_text())
                if found or process.poll() is not None:
                    break
                time.sleep(0.05)
            assert found, log.read_text()
            for words in (["health", "--wait", "10"], ["index", "create", "demo", *GEOMETRY], ["seq", "create", "demo", "s"]):
                subprocess.run([seine, *words, "--server", address], check=True, stdout=subprocess.DEVNULL)
            yield address, found[1]
        finally:
            process.terminate()
            assert process.wait(timeout=20) == 0


def exported(seined, seine):
    """Names of samples, and families."""
    with server(seined, seine) as (_, url):
        text = urllib.request.urlopen(url, timeout=10).read().decode()
    samples = {re.match(r"[a-zA-Z_0-9]+", line)[0] for line in text.splitlines() if line and line[0] != "#"}
    families = set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))
    helped = set(re.findall(r"^# HELP (\S+) \S", text, re.MULTILINE))
    assert families == helped, families ^ helped
    return samples, families


def check_names(seined, seine, tree):
    samples, families = exported(seined, seine)
    panels, variables = expressions(tree)
    rules = (tree / "deploy/prometheus/alerts.yml").read_text()
    wrong = []
    for where, texts in (("deploy/grafana/seine.json", panels + variables), ("deploy/prometheus/alerts.yml", [rules])):
        names = {name for text in texts for name in NAME.findall(text)} - LABELS
        assert len(names) > 3, f"{where} names next to nothing"
        wrong += [f"{where}: {name} is not exported" for name in sorted(names - samples)]
    page = (tree / "docs/metrics.md").read_text()
    documented = set(re.findall(r"^\| `((?:seine|grpc_server)_[a-z_]+)", page, re.MULTILINE))
    wrong += [f"docs/metrics.md: {name} has no row in a table" for name in sorted(families - documented)]
    wrong += [f"docs/metrics.md: {name} is not exported" for name in sorted(documented - families)]
    bare = {re.sub(r"_(bucket|sum|count)$", "", name) for text in panels for name in NAME.findall(text)}
    wrong += [f"deploy/grafana/seine.json: {name} is on no panel" for name in sorted(families - bare)]
    return wrong


def check_with_promtool(promtool, tree):
    def takes(file):
        done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True)
        return [] if done.returncode == 0 else [done.stdout + done.stderr]

    wrong = takes(tree / "deploy/prometheus/alerts.yml")
    panels, _ = expressions(tree)
    rules = [{"record": f"dashboard:{i}", "expr": expr} for i, expr in enumerate(panels)]
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        json.dump({"groups": [{"name": "dashboard", "rules": rules}]}, file)  # JSON is YAML
        file.flush()
        wrong += takes(file.name)
        file.seek(0)
        file.truncate()
        json.dump({"groups": [{"name": "planted", "rules": [{"record": "wrong", "expr": "sum by ("}]}]}, file)
        file.flush()
        if not takes(file.name):
            wrong.append("promtool takes an expression that is none")
    return wrong


def on_a_terminal(command, key):
    """The exit code and the output of a command on a terminal of its own, where `key` is pressed once a table stands there."""
    process, terminal = pty.fork()
    if process == 0:
        os.execv(command[0], command)
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # it has ended
            break
        if key and b"steps/s" in shown:
            os.write(terminal, key)
            key = b""
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), shown.decode()


def check_top(seined, seine):
    wrong = []

    def expect(true, what):
        if not true:
            wrong.append(what)

    with server(seined, seine) as (address, _):
        top = [seine, "top", "--server", address, "--interval", "0.2"]
        once = subprocess.run([*top, "--once", "-o", "json"], capture_output=True, text=True, check=True)
        told = json.loads(once.stdout)
        expect(told["counting"] and told["uptime_seconds"] > 0 and told["seconds"] >= 0.2, f"the server: {once.stdout}")
        (index,) = told["indexes"]
        expect(index["name"] == "demo" and index["num_sequences"] == 1 and index["other_bytes"] > 0, f"the index: {index}")
        expect(index["steps_per_s"] == 0 and index["step_p50_us"] is None, f"no step was made: {index}")
        table = subprocess.run([*top, "--once"], capture_output=True, text=True, check=True).stdout
        expect("steps/s" in table and "demo" in table, f"the table: {table}")
        for key in (b"q", b"\x03"):
            code, shown = on_a_terminal(top, key)
            expect(code == 0 and "demo" in shown and shown.rstrip().endswith("\x1b[?1049l"), f"{key}: {code} {shown!r}")
        for flags in ([], ["-o", "json"], ["--interval", "0"], ["--once", "--interval", "x"]):
            refused = subprocess.run([seine, "top", "--server", address, *flags], capture_output=True, stdin=subprocess.DEVNULL)
            expect(refused.returncode == 2 and refused.stdout == b"", f"{flags}: {refused}")
    code, shown = on_a_terminal([seine, "top", "--server", address], b"")
    expect(code == 4, f"without a server: {code} {shown!r}")
    return wrong


def main():
    what, *paths = sys.argv[1:]
    if what == "names":
        wrong = check_names(paths[0], paths[1], pathlib.Path(paths[2]))
    elif what == "top":
        wrong = check_top(*paths)
    else:
        wrong = check_with_promtool(paths[0], pathlib.Path(paths[1]))
    print("\n".join(wrong) or "nothing is wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
