"""A child of fork that has a model's installation from its parent: its exit deletes nothing, and its forward is refused."""

import atexit
import os
import signal
import time

import pytest

from small_model import EVERYTHING, model, prompt  # noqa: F401 - model is a fixture

from seine_kv import hf
from seine_kv.messages import SeineError
from seine_kv.model import cache_name


@pytest.fixture(params=["in process", "server"])
def installed(model, request):
    where = {"threads": 1}
    if request.param == "server":
        where = {"endpoint": request.getfixturevalue("server").address, "keep_cache": False}
    seine = hf.install(model, dtype="float32", **where, **EVERYTHING)
    yield seine
    hf.uninstall(model)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("asked", ["nothing", "a forward"])
def test_a_childs_exit_deletes_nothing(model, installed, asked):
    ids = prompt()
    cache = model(ids, use_cache=True)[cache_name(model)]
    held = [row.sequence for row in cache.batch.rows]
    assert all(held)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        if asked == "a forward":
            try:
                model(ids[:, :1], **{cache_name(model): cache}, use_cache=True)
            except SeineError as error:
                said = f"{error.code}: {error}"
        os.write(write, said.encode())
        try:
            atexit._run_exitfuncs()
        finally:
            os._exit(7)
    os.close(write)
    end = time.monotonic() + 3
    ended, status = 0, 0
    while not ended and time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended and os.waitstatus_to_exitcode(status) == 7
    with os.fdopen(read) as pipe:
        said = pipe.read()
    assert said == asked or said.startswith("FAILED_PRECONDITION: made before fork: ")
    for sequence in held:
        assert installed.client.get_sequence(sequence).layer_tokens[0] == ids.shape[1]
