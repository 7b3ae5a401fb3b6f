"""A real seined (its path in the environment variable SEINED) on a socket of its own, for tests that need a server."""

import json
import os
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

PROFILES = Path(__file__).resolve().parents[3] / "bench" / "data"
# The ways to Seine: grpcio to a server, the native module to a server, the native module alone. The environment may say
# fewer, where only those are installed (versions.py).
KINDS = os.environ.get("SEINE_TEST_CLIENTS", "grpc,remote,in_process").split(",")


def read_plainly(path):
    """(tensors, metadata) of a good safetensors file, by its format alone: tests read with it what the library wrote."""
    with open(path, "rb") as file:
        header = json.loads(file.read(*struct.unpack("<Q", file.read(8))))
        data = np.frombuffer(file.read(), np.uint8)
    metadata, tensors = header.pop("__metadata__"), {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype = {"F": "float", "I": "int", "U": "uint"}[entry["dtype"][0]] + entry["dtype"][1:]
        tensors[name] = data[begin:end].view(dtype).reshape(entry["shape"])
    return tensors, metadata


def start(socket, *more, address=None):
    """A seined that listens on the Unix socket, or at another address, with more flags, as a Popen."""
    program = os.environ.get("SEINED")
    if not program:
        pytest.fail("SEINED is not set: it must name the seined program to test against")
    flags = ["--listen", address or f"unix:{socket}", "--profiles", str(PROFILES), "--threads", "1"]
    return subprocess.Popen([program, *flags, "--log-level", "error", *more])


@pytest.fixture(scope="session")
def address(tmp_path_factory):
    socket = tmp_path_factory.mktemp("seine") / "seine.sock"
    process = start(socket)
    yield f"unix://{socket}"
    process.terminate()
    assert process.wait(timeout=20) == 0


@pytest.fixture
def private_server(tmp_path):
    """(process, address) of a server of the test's own, which it may stop or kill."""
    socket = tmp_path / "seine.sock"
    process = start(socket)
    yield process, f"unix://{socket}"
    process.kill()
    process.wait(timeout=20)


@pytest.fixture(scope="session")
def in_process():
    """One index of this process for all tests, as one server is for them."""
    from seine_kv.client import Client

    with Client.in_process(threads=1, profiles=PROFILES) as client:
        yield client


@pytest.fixture(params=[kind for kind in KINDS if kind != "in_process"])
def connect(request):
    """Makes a Client of a server, by each of the two ways: connect(address, timeout)."""
    return client_class(request.param)


@pytest.fixture(params=KINDS)
def client(request):
    """A Client by each of the three ways; its indexes are gone afterwards."""
    if request.param == "in_process":
        client = request.getfixturevalue("in_process")
    else:
        client = client_class(request.param)(request.getfixturevalue("address"))
        client.wait_until_ready(20)
    yield client
    for index in client.list_indexes():
        client.delete_index(index["spec"]["name"])
    if request.param != "in_process":
        client.close()


@pytest.fixture
def server(address):
    """A Client of the server by the native module, for what is about servers."""
    with client_class("remote")(address) as client:
        client.wait_until_ready(20)
        yield client
        for index in client.list_indexes():
            client.delete_index(index["spec"]["name"])


def client_class(kind):
    if kind == "grpc":
        from seine_kv.grpc import Client
    else:
        from seine_kv.client import Client
    return Client
