"""Three real servers that a test may kill and start again, and what they are asked."""

import numpy as np
import pytest
from conftest import client_class, start

from seine_kv.fleet import connect, nodes
from seine_kv.fleet.description import Description, Node
from seine_kv.messages import SeineError, Sequence

HEADS, KV_HEADS, DIM, TOKENS = 4, 2, 64, 96
SHAPE = dict(num_layers=2, num_q_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, dtype="float32")
NAMES = ("n0", "n1", "n2")


class Servers:
    """Each at an address of its own, in a folder, with more flags."""

    def __init__(self, folder, *flags):
        self.folder = folder
        self.processes = {name: start(folder / f"{name}.sock", *flags) for name in NAMES}
        self.fleet = Description("test", tuple(Node(name, f"unix://{folder}/{name}.sock") for name in NAMES))
        for name in NAMES:
            self._wait(name)

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait(timeout=20)

    def restart(self, name):
        self.kill(name)
        self.processes[name] = start(self.folder / f"{name}.sock")
        self._wait(name)

    def _wait(self, name):
        with client_class("remote")(self.fleet.node(name).address) as client:
            client.wait_until_ready(20)


def rows_of(rows, i, tokens=TOKENS, begin=0):
    """Keys and values of sequence i: its own shift of the same rows."""
    return rows[begin:tokens] + np.float32(i), rows[begin:tokens] - np.float32(i)


def make(client, rows, count=12, index="m"):
    """An index, and sequences chat-0, chat-1 ... with their tokens in layer 0."""
    client.create_index(index, kv_store="keys_values", **SHAPE, exist_ok=True)
    made = [client.create_sequence(index, f"chat-{i}") for i in range(count)]
    for i, sequence in enumerate(made):
        assert client.append(sequence, 0, 0, *rows_of(rows, i)) == TOKENS
    return made


def given_up(client, sequence, target, address):
    """Moves a family of one sequence as seine family migrate does, up to where its mover is killed: the old node has given
    it up, and the new one holds it."""
    source, there = client.node(client.node_of(sequence)), client.node(target)
    family = {"index": sequence.index, "family": sequence.id}
    frozen = source._invoke("SetFamilyState", {**family, "state": "frozen"})
    moves, file = int(frozen["generation"]) + 1, f"stopped-{frozen['freeze']}"
    source.snapshot(Sequence(sequence.index, sequence.id), file)
    request = {"index": sequence.index, "file": file, "generation": moves, "hold_seconds": 60}
    held = there._invoke("Restore", request)["base"]
    home = {"node": target, "address": address, "generation": moves, "held": [held]}
    source._invoke("SetFamilyState", {**family, **home, "freeze": frozen["freeze"], "state": "moved"})
    with pytest.raises(SeineError, match="not found"):
        there.get_sequence(Sequence(sequence.index, sequence.id))


def expected(rows, queries, i, tokens=TOKENS):
    """Exact attention of every query head of sequence i, in float64."""
    outputs = []
    keys, values = (each.astype(np.float64) for each in rows_of(rows, i, tokens))
    for head in range(HEADS):
        logits = keys[:, head // 2] @ queries[head] / np.sqrt(DIM)
        weights = np.exp(logits - logits.max())
        outputs.append(weights @ values[:, head // 2] / weights.sum())
    return np.stack(outputs)


# Fixtures, which a module of tests imports by their names. Its own fixture `shared` is the servers.


@pytest.fixture(params=["remote", "grpc"])
def client(request, shared, monkeypatch):
    """A fleet's client by each of the two ways; its indexes are gone afterwards."""
    monkeypatch.setattr(nodes, "client_class", lambda: client_class(request.param))
    with connect(shared.fleet, timeout=20) as client:
        yield client
        for index in client.list_indexes():
            client.delete_index(index["spec"]["name"])


@pytest.fixture
def own(tmp_path):
    """Servers that the test may kill."""
    servers = Servers(tmp_path, "--snapshots-dir", str(tmp_path))
    yield servers
    for name in NAMES:
        servers.kill(name)


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(7).standard_normal((TOKENS + 1, KV_HEADS, DIM), np.float32)
