"""What systemd and Kubernetes run before they end a server: read from deploy/, and run between two servers.

SEINED and SEINE name the programs.
"""

import configparser
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import time

import pytest
import yaml

DEPLOY = pathlib.Path(__file__).parents[2] / "deploy"
SEINE = os.environ["SEINE"]
PATIENCE = "600"  # seconds, of a drain on a machine that does other things too
INDEX = ["--layers", "1", "--q-heads", "2", "--kv-heads", "1", "--head-dim", "64"]
GEOMETRY = "{num_layers: 1, num_q_heads: 2, num_kv_heads: 1, head_dim: 64, dtype: float16}"
SETTINGS = f"indexes:\n- {{name: both, geometry: {GEOMETRY}}}\n"


def systemd_words(to, socket):
    """ExecStop's words as systemd splits them, with the programs and the socket of the test."""
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str
    unit.read(DEPLOY / "systemd" / "drain.conf")
    stop = unit["Service"]["ExecStop"]
    assert stop.startswith("-"), "a drain that fails must not keep systemd from SIGTERM"
    words = stop.removeprefix("-").split()
    assert int(words[1]) < int(unit["Service"]["TimeoutStopSec"]) - 60
    words[1] = PATIENCE
    there = {"/usr/bin/seine": [SEINE], "unix:///run/seine/seine.sock": [f"unix://{socket}"], "$SEINE_DRAIN_TO": to.split()}
    return [word for each in words for word in there.get(each, [each])]


def kubernetes_words(to, socket):
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "seine.yaml").read_text())
    pod = next(d for d in documents if d["kind"] == "StatefulSet")["spec"]["template"]["spec"]
    server = pod["containers"][0]
    assert {"name": "SEINE_DRAIN_TO", "value": ""} in server["env"]
    folder = os.path.dirname(SEINE)
    setting = f"export PATH={shlex.quote(folder)}:$PATH SEINE_SERVER=unix://{socket} SEINE_DRAIN_TO={shlex.quote(to)}; "
    shell, option, script = server["lifecycle"]["preStop"]["exec"]["command"]
    return [shell, option, setting + re.sub(r"timeout \d+ ", f"timeout {PATIENCE} ", script)]


class Server:
    def __init__(self, folder, node):
        self.socket = folder / f"{node}.sock"
        config = folder / "seined.yaml"
        config.write_text(SETTINGS)
        flags = ["--snapshots-dir", folder / "snapshots", "--snapshots-node", node, "--snapshots-at-exit", "--threads", "1"]
        self.log = open(folder / f"{node}.log", "w+")
        self.process = subprocess.Popen(
            [os.environ["SEINED"], "--config", config, "--listen", f"unix:{self.socket}", *flags], stderr=self.log
        )
        deadline = time.monotonic() + 60
        while not self.socket.exists() and time.monotonic() < deadline:
            assert self.process.poll() is None, (folder / f"{node}.log").read_text()
            time.sleep(0.02)

    def seine(self, *words):
        done = subprocess.run([SEINE, "--server", f"unix://{self.socket}", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def sequences(self, index):
        return [s["id"] for s in json.loads(self.seine("seq", "list", index, "-o", "json"))["sequences"]]

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(600)


@pytest.fixture
def servers(tmp_path):
    both = [Server(tmp_path, node) for node in ("n0", "n1")]
    yield both
    for server in both:
        server.process.kill()
        server.process.wait()


@pytest.mark.parametrize("words", [systemd_words, kubernetes_words])
def test_families_move_before_the_end_and_the_rest_is_written(servers, tmp_path, words):
    source, target = servers
    source.seine("index", "create", "alone", *INDEX)
    for index, sequence in (("both", "chat"), ("both", "chat/draft"), ("alone", "stays")):
        source.seine("seq", "create", index, sequence)
    done = subprocess.run(words(f"--to n1={target.socket}", source.socket), capture_output=True, text=True)
    assert done.returncode == 8, done.stdout + done.stderr  # one family is left, and in a snapshot
    assert source.end() == 0
    assert sorted(target.sequences("both")) == ["chat", "chat/draft"]
    written = [str(path.relative_to(tmp_path / "snapshots")) for path in tmp_path.glob("snapshots/**/at-exit/**/*.snapshot")]
    assert len(written) == 1 and written[0].startswith("node-n0/own/at-exit/index-alone/")


def test_nothing_moves_unless_somebody_says_where_to(servers):
    source, _ = servers
    source.seine("seq", "create", "both", "chat")
    assert subprocess.run(kubernetes_words("", source.socket)).returncode == 0
    assert source.sequences("both") == ["chat"]
