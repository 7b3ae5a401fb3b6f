"""A real seined (its path in the environment variable SEINED) on a socket of its own, for tests that need a server."""

import os
import subprocess
from pathlib import Path

import pytest


def start(socket, *more):
    """A seined that listens on the Unix socket, with more flags, as a Popen."""
    program = os.environ.get("SEINED")
    if not program:
        pytest.fail("SEINED is not set: it must name the seined program to test against")
    profiles = Path(__file__).resolve().parents[3] / "bench" / "data"
    flags = ["--listen", f"unix:{socket}", "--profiles", str(profiles), "--threads", "1", "--log-level", "error", *more]
    return subprocess.Popen([program, *flags])


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


@pytest.fixture
def client(address):
    from seine_kv.client import Client

    with Client(address) as client:
        client.wait_until_ready(20)
        yield client
        for index in client.list_indexes():
            client.delete_index(index["spec"]["name"])
