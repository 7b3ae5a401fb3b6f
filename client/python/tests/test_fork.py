"""A child of fork with what its parent made: told at once, and what it does not own lives on."""

import atexit
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest

from seine_kv.messages import Append, Item, SeineError

KEYS = np.random.default_rng(7).standard_normal((200, 2, 64)).astype(np.float32)
QUERIES = np.random.default_rng(8).standard_normal((4, 64)).astype(np.float32)
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def in_child(body, seconds=3.0):
    """What body() returns, or the error that it raises, in a child that ends as an interpreter does. Its exit counts."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            begun = time.monotonic()
            try:
                said = f"returned {body()!r}"
            except SeineError as error:
                said = f"{error.code}: {error}"
            said = f"{time.monotonic() - begun:.3f} {said}"
        except BaseException as error:  # pytest's frames must not go on in the child
            said = f"0 {error!r}"
        os.write(write, said.encode())
        atexit._run_exitfuncs()
        os._exit(7)
    os.close(write)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.01)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the child did not end")
    with os.fdopen(read) as pipe:
        took, said = pipe.read().split(" ", 1)
    assert os.waitstatus_to_exitcode(status) == 7
    assert float(took) < 1
    return said


@pytest.fixture
def chat(client):
    client.create_index("x", num_layers=1, num_q_heads=4, num_kv_heads=2, head_dim=64, dtype="float32")
    chat = client.create_sequence("x")
    client.append(chat, layer=0, position=0, keys=KEYS)
    return chat


def test_calls_are_refused_and_the_sequence_lives(client, chat):
    calls = [
        lambda: client.get_sequence(chat),
        lambda: client.delete_sequence(chat),
        lambda: client.retrieve(chat, layer=0, queries=QUERIES),
        lambda: client.append(chat, layer=0, position=200, keys=KEYS),
        lambda: client.list_indexes(),
    ]
    for call in calls:
        said = in_child(call)
        assert said.startswith("FAILED_PRECONDITION: made before fork: "), said
    assert client.get_sequence(chat).layer_tokens == [200]


def test_steps_are_refused_and_the_parents_go_on(client, chat):
    with client.decode_stream() as stream:
        stream.step([Append(chat, 0, 200, KEYS[:1])], [Item(chat, 0, QUERIES)])

        def step():
            try:
                return stream.step([Append(chat, 0, 201, KEYS[:1])], [Item(chat, 0, QUERIES)])
            finally:
                stream.close(cancel=True)

        said = in_child(step)
        assert said.startswith("FAILED_PRECONDITION: made before fork: "), said
        assert len(stream.step([Append(chat, 0, 201, KEYS[:1])], [Item(chat, 0, QUERIES)]).answers) == 1
    assert client.get_sequence(chat).layer_tokens == [202]


def _worker(client, chat, queue):
    try:
        queue.put(repr(client.get_sequence(chat)))
    except SeineError as error:
        queue.put(f"{error.code}: {error}")


def test_multiprocessing_by_fork(client, chat):
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=_worker, args=(client, chat, queue))
    process.start()
    process.join(3)
    alive = process.is_alive()
    if alive:
        process.kill()
    assert not alive and process.exitcode == 0
    assert queue.get().startswith("FAILED_PRECONDITION: made before fork: ")
    assert client.get_sequence(chat).layer_tokens == [200]


def test_a_close_in_the_child_closes_nothing(client, chat):
    assert in_child(client.close) == "returned None"
    assert client.get_sequence(chat).layer_tokens == [200]
