"""Connections to test: one in process, and one to a real seined (its path in the environment variable SEINED)."""

import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from seine_kv import _native
from seine_kv.messages import Sequence

PROFILES = Path(__file__).resolve().parents[3] / "bench" / "data"
GEOMETRY = {"num_layers": 2, "num_q_heads": 4, "num_kv_heads": 2, "head_dim": 64, "dtype": "float32"}
ZONES = {"sink": 16, "local": 64, "update_buffer": 64, "dense_threshold": 128}


def start(socket, *more):
    """A seined on the Unix socket, once it answers: (process, connection)."""
    program = os.environ.get("SEINED")
    if not program:
        pytest.fail("SEINED is not set: it must name the seined program to test against")
    flags = ["--listen", f"unix:{socket}", "--profiles", str(PROFILES), "--threads", "1", "--log-level", "error", *more]
    process = subprocess.Popen([program, *flags])
    connection = _native.Connection.connect(f"unix://{socket}", timeout=30)
    for _ in range(200):
        try:
            connection.call("GetServerInfo")
            return process, connection
        except _native.NativeError:
            time.sleep(0.05)
    process.kill()
    pytest.fail("seined did not come up")


@pytest.fixture(scope="session")
def remote(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seine")
    process, connection = start(folder / "seine.sock", "--snapshots-dir", str(folder / "snapshots"))
    yield connection
    process.terminate()
    assert process.wait(timeout=20) == 0


def in_process():
    return _native.Connection.in_process(threads=1, profiles=PROFILES)


@pytest.fixture(params=["in process", "remote"])
def connection(request):
    """Each of the two, without indexes."""
    made = in_process() if request.param == "in process" else request.getfixturevalue("remote")
    for index in made.call("ListIndexes")["indexes"]:
        made.call("DeleteIndex", {"name": index["spec"]["name"]})
    return made


@pytest.fixture
def both(remote):
    for index in remote.call("ListIndexes")["indexes"]:
        remote.call("DeleteIndex", {"name": index["spec"]["name"]})
    return in_process(), remote


def create(connection, name="x", **spec):
    """An index and a sequence in it."""
    geometry = {**GEOMETRY, **spec.pop("geometry", {})}
    connection.call("CreateIndex", {"spec": {"name": name, "geometry": geometry, "zones": ZONES, **spec}})
    return Sequence(**connection.call("CreateSequence", {"index": name})["handle"])


def append(connection, sequence, layer, position, keys, values=None, **more):
    return connection.append(sequence.index, sequence.id, sequence.generation, layer, position, keys, values, **more)


def rows(tokens, seed=0, heads=2, dim=64, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal((tokens, heads, dim)).astype(dtype)


def same(one, other):
    """Whether two results are the same to the byte: dicts, lists, arrays and plain values."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return type(one) is type(other) and one == other
