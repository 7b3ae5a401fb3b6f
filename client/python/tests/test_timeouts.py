"""`timeout=` of clients and streams: what is longer than any clock counts has no end, and what is no time is an error."""

import math

import numpy as np
import pytest

from seine_kv.fleet.nodes import NodeClients
from seine_kv.messages import Append, Item
from seine_kv.timeouts import LONGEST, seconds_of

HUGE = [None, math.inf, 1e10, 9.3e9, 1e18, 1e300, 10**400, np.float32(1e10), np.int64(10**12)]
WRONG = [math.nan, 0, 0.0, -1, -math.inf, -(10**400), np.float64("nan")]
SHAPE = {"num_layers": 1, "num_q_heads": 2, "num_kv_heads": 1, "head_dim": 64, "dtype": "float32"}
ONE = np.ones((1, 1, 64), np.float32)


def step_of(client, timeout):
    client.create_index("timeouts", **SHAPE)
    try:
        sequence = client.create_sequence("timeouts")
        with client.decode_stream(timeout=timeout) as stream:
            step = stream.step(appends=[Append(sequence, 0, 0, ONE)], items=[Item(sequence, 0, np.ones((2, 64), np.float32))])
        assert step.answers[0].num_tokens == 1
    finally:
        client.delete_index("timeouts")


@pytest.mark.parametrize("timeout", HUGE, ids=str)
def test_a_huge_timeout_is_none(connect, address, timeout):
    with connect(address, timeout) as client:
        client.wait_until_ready(20)
        assert client.timeout is None
        step_of(client, timeout)


@pytest.mark.parametrize("timeout", HUGE, ids=str)
def test_in_process(in_process, timeout):
    step_of(in_process, timeout)
    if timeout is None or timeout < 1e300:  # what a double holds
        assert in_process._connection.call("GetServerInfo", {}, timeout)["num_threads"] == 1


@pytest.mark.parametrize("timeout", WRONG, ids=str)
def test_what_is_no_time_is_one_clear_error(connect, address, in_process, timeout):
    with pytest.raises(ValueError, match="^timeout: must be above 0 s, not "):
        connect(address, timeout)
    with pytest.raises(ValueError, match="^timeout: must be above 0 s, not "):
        NodeClients(None, timeout)
    with pytest.raises(ValueError, match="^timeout: must be above 0 s, not "):
        in_process.decode_stream(timeout)
    with connect(address) as client:
        with pytest.raises(ValueError, match="^timeout: must be above 0 s, not "):
            client.decode_stream(timeout)
        if timeout != 0:
            with pytest.raises(ValueError, match="^seconds: must be at least 0 s, not "):
                client.wait_until_ready(timeout)


def test_what_is_no_number_is_a_type_error(connect, address):
    for wrong in ("5", b"5", [5], {}):
        with pytest.raises(TypeError, match="^timeout: must be seconds, a number, not a "):
            connect(address, wrong)


@pytest.mark.parametrize("seconds", [math.inf, 1e10, 10**400], ids=str)
def test_a_server_may_be_waited_for_without_end(connect, address, seconds):
    with connect(address) as client:
        client.wait_until_ready(seconds)


def test_what_a_time_is():
    assert [seconds_of(value) for value in (1, 0.5, LONGEST)] == [1.0, 0.5, LONGEST]
    assert seconds_of(LONGEST * 1.001) is None
    assert seconds_of(0, zero=True) == 0.0
