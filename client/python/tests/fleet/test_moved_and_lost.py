"""Families that moved to a node which has lost them since, without Ray; and families that are sent from node to node."""

import numpy as np
import pytest
from servers import DIM, HEADS, NAMES, TOKENS, make, rows_of
from servers import own, rows  # noqa: F401 - fixtures

from seine_kv.fleet import SequenceLost, connect
from seine_kv.fleet.client import FleetClient
from seine_kv.fleet.description import Description, Node
from seine_kv.fleet.mover import Mover
from seine_kv.fleet.placement import ranked
from seine_kv.fleet.route import Route
from seine_kv.messages import Answer, Item, SeineError, Sequence, Step


@pytest.fixture
def client(own):
    with connect(own.fleet, timeout=20, patience=0.3) as client:
        yield client


def moved(client, own, rows):
    """A family that has moved from the node that is its first by rendezvous hashing: its handle, and the nodes' names."""
    (chat,) = make(client, rows, 1)
    source, target, other = ranked("chat-0", NAMES)
    Mover(None).migrate(own.fleet.node(source), own.fleet.node(target), "m", "chat-0", 1)
    return chat, target, other


def asked(client, sequence, streamed):
    """The error of a read, as a call or in a step; None: it is answered."""
    if streamed:
        step = client.step((), [Item(sequence, 0, np.ones((HEADS, DIM), np.float32))], on_error="return")
        return step.answers[0].error
    try:
        client.get_sequence(sequence)
    except SeineError as error:
        return error


@pytest.mark.parametrize("streamed", [False, True])
def test_a_family_that_its_new_node_has_lost_is_lost_and_made_anew_there(client, own, rows, streamed):
    chat, target, _ = moved(client, own, rows)
    own.restart(target)
    error = asked(client, chat, streamed)
    assert isinstance(error, SequenceLost) and (error.families, error.node) == (("chat-0",), target)
    again = client.create_sequence("m", "chat-0")
    assert client.node_of(again) == target  # the node that it left takes it no more
    assert client.append(again, 0, 0, *rows_of(rows, 0)) == TOKENS
    with connect(own.fleet, timeout=20) as other:
        assert other.node_of(Sequence("m", "chat-0")) == target and asked(other, again, streamed) is None


@pytest.mark.parametrize("streamed", [False, True])
def test_where_the_new_node_does_not_serve_a_third_takes_it(client, own, rows, streamed):
    chat, target, other = moved(client, own, rows)
    own.kill(target)
    assert asked(client, chat, streamed).code == "UNAVAILABLE"  # it may have it
    assert client.node_of(client.create_sequence("m", "chat-0")) == other
    assert asked(client, Sequence("m", "chat-0"), streamed) is None


def test_where_the_new_node_drains_a_third_takes_it(client, own, rows):
    _, target, other = moved(client, own, rows)
    own.restart(target)
    client.node(target)._invoke("SetDraining", {"draining": True})
    assert client.node_of(client.create_sequence("m", "chat-0")) == other


def test_where_no_other_node_takes_it_the_caller_may_try_again(client, own, rows):
    _, target, other = moved(client, own, rows)
    own.kill(target), own.kill(other)
    with pytest.raises(SeineError) as caught:
        client.create_sequence("m", "chat-0")
    assert (caught.value.code, caught.value.reason) == ("UNAVAILABLE", "NO_NODE")


def test_a_node_outside_of_the_fleet_is_named(client, own, rows):
    moved(client, own, rows)
    fewer = Description("fewer", tuple(node for node in own.fleet.nodes if node.name != ranked("chat-0", NAMES)[1]))
    with connect(fewer, timeout=20, patience=0.3) as other:
        for call in (lambda: other.get_sequence(Sequence("m", "chat-0")), lambda: other.create_sequence("m", "chat-0")):
            with pytest.raises(SeineError, match="no node of this fleet") as caught:
                call()
            assert (caught.value.code, caught.value.reason) == ("FAILED_PRECONDITION", "NOT_IN_FLEET")


class Around:
    """A directory and its nodes: each says that the family is at the other, or what it is told to say."""

    def __init__(self, error=SeineError("FAILED_PRECONDITION", "family 'x' has moved", "", "MOVED")):
        self.calls, self.error = 0, error

    def place(self, family, index, id, known, without=()):
        return self.locate(family, index, id)

    def locate(self, family, index, id):
        self.calls += 1
        name = NAMES[self.calls % 2]
        return Route(family, index, name, name, 1, moves=self.calls)

    def moved(self, route, making=False): ...

    def remove_sequence(self, family, index, id): ...

    def at(self, address):
        return self

    def all(self, calls):
        return {name: call() for name, call in calls.items()}

    def close(self, cancel=False): ...

    def decode_stream(self, timeout):
        return self

    def _invoke(self, *_):
        raise self.error

    def _answered(self, appends, items, attention, selector):
        none = np.empty(0, np.int32)
        answers = [Answer("unknown", 0, 0, 0, False, none, none, None, error=self.error) for _ in items]
        return Step([], answers, 1)


def ended(call, nodes, patience):
    """The error of a call to a sequence of the family."""
    client = FleetClient(nodes, nodes, 1.0, patience)
    if call == "step":
        return asked(client, Sequence("m", "x"), True)
    with pytest.raises(SeineError) as caught:
        client.get_sequence(Sequence("m", "x")) if call == "get" else client.create_sequence("m", "x")
    return caught.value


@pytest.mark.parametrize("call", ["get", "create", "step"])
def test_who_is_sent_from_node_to_node_may_try_again(call):
    """For as long as patience says, not for a number of hops; and no caller is told that the family has MOVED."""
    nodes = Around()
    error = ended(call, nodes, 0.25)
    assert (error.code, error.reason) == ("UNAVAILABLE", "MOVING") and "node to node" in str(error)
    assert nodes.calls > 3


@pytest.mark.parametrize("call", ["get", "create", "step"])
def test_a_server_says_how_long_to_wait(call):
    """Where there is no time for that, the caller hears of it at once."""
    nodes = Around(SeineError("UNAVAILABLE", "family 'x' moves", "", "MOVING", retry_delay=3600.0))
    error = ended(call, nodes, 60.0)
    assert (error.reason, error.retry_delay, nodes.calls) == ("MOVING", 3600.0, 1)
