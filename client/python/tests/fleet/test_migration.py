"""Families that move between plain servers while a fleet's client calls them: MOVED is followed, MOVING is waited for."""

import threading

import numpy as np
import pytest
from conftest import client_class
from servers import DIM, HEADS, NAMES, SHAPE, TOKENS, Servers, given_up, rows_of
from servers import client, own, rows  # noqa: F401 - fixtures

from seine_kv.fleet import SequenceLost, connect
from seine_kv.fleet.description import Description, Node
from seine_kv.fleet.families import FamilyState
from seine_kv.fleet.placement import ranked
from seine_kv.fleet.server import Server
from seine_kv.fleet.trail import followed
from seine_kv.messages import Append, Attention, Item, SeineError, Sequence


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moves")
    servers = Servers(folder, "--snapshots-dir", str(folder / "snapshots"))
    yield servers
    for name in NAMES:
        servers.kill(name)


def filled(client, rows):
    client.create_index("m", kv_store="keys_values", **SHAPE)
    chat = client.create_sequence("m", "chat")
    client.append(chat, 0, 0, *rows_of(rows, 0))
    return chat


def freeze(client):
    source = client.node(client.router.known(Sequence("m", "chat")).node)
    answer = source._invoke("SetFamilyState", {"index": "m", "family": "chat", "state": "frozen"})
    return source, {"index": "m", "family": "chat", "freeze": answer["freeze"]}, int(answer["generation"]) + 1


def copied(client, target, sequence, file, generation):
    """A copy of a family at another node, in a generation."""
    client.node(client.node_of(sequence)).snapshot(sequence, file)
    client.node(target)._invoke("Restore", {"index": sequence.index, "file": file, "generation": generation})


def move(client, servers):
    """Moves the family to another node, as seine family migrate does; returns the node's name."""
    source, state, generation = freeze(client)
    target = next(name for name in NAMES if name != client.router.known(Sequence("m", "chat")).node)
    copied(client, target, Sequence("m", "chat"), f"moved-{state['freeze']}", generation)
    home = {"node": target, "address": servers.fleet.node(target).address, "generation": generation}
    source._invoke("SetFamilyState", {**state, **home, "state": "moved"})
    return target


def test_calls_follow_a_family_that_has_moved(client, rows, shared):
    chat = filled(client, rows)
    target = move(client, shared)
    assert client.append(chat, 0, TOKENS, *rows_of(rows, 0, TOKENS + 1, TOKENS)) == 1
    assert client.node_of(chat) == target
    assert client.get_sequence(chat).layer_tokens[0] == TOKENS + 1
    move(client, shared)
    assert client.fork(chat, "chat/draft").id == "chat/draft"  # what may not be repeated is followed as well
    move(client, shared)
    assert client.create_sequence("m", "chat/new").id == "chat/new"


def test_steps_follow_a_family_that_has_moved(client, rows, shared):
    chat = filled(client, rows)
    other = client.create_sequence("m", "other")
    client.append(other, 0, 0, *rows_of(rows, 1))
    with client.decode_stream() as stream:
        queries = np.ones((HEADS, DIM), np.float32)
        before = stream.step((), [Item(other, 0, queries), Item(chat, 0, queries)], Attention(), exact=True)
        target = move(client, shared)
        after = stream.step((), [Item(other, 0, queries), Item(chat, 0, queries)], Attention(), exact=True)
        for one, two in zip(before.attended, after.attended):
            np.testing.assert_array_equal(one.output, two.output)
        step = stream.step([Append(chat, 0, TOKENS, *rows_of(rows, 0, TOKENS + 1, TOKENS))], [Item(chat, 0, queries)], top_k=5)
        assert step.append_errors == [None] and step.answers[0].num_tokens == TOKENS + 1
    assert client.node_of(chat) == target


def test_one_index_of_a_family_moves_and_another_stays(client, rows, shared):
    """Families of two indexes are two, as servers have it, though their names be the same."""
    chat = filled(client, rows)
    client.create_index("draft", kv_store="keys_values", **SHAPE)
    draft = client.create_sequence("draft", "chat")
    there = client.node_of(draft)
    move(client, shared)
    assert client.append(chat, 0, TOKENS, *rows_of(rows, 0, TOKENS + 1, TOKENS)) == 1
    assert client.append(draft, 0, 0, *rows_of(rows, 1)) == TOKENS
    assert client.node_of(draft) == there != client.node_of(chat)


def test_of_several_copies_the_newest_that_takes_changes_counts(client, rows, shared):
    """Where none does, the family moves, and its old node will tell where to."""
    chat = filled(client, rows)
    old = client.node_of(chat)
    newest, older = (name for name in NAMES if name != old)
    copied(client, newest, chat, "copy-3", 3)
    copied(client, older, chat, "copy-2", 2)
    for found, frozen in ((newest, []), (older, [newest]), (old, [older, old])):
        for name in frozen:
            client.node(name)._invoke("SetFamilyState", {"index": "m", "family": "chat", "state": "frozen"})
        with connect(shared.fleet, timeout=20) as other:
            assert other.node_of(Sequence("m", "chat")) == found


def test_a_lookup_that_fails_is_its_familys_error(client, rows, shared, monkeypatch):
    """UNAVAILABLE may be tried again; MOVED would say that the caller is to do something."""
    chat = filled(client, rows)
    other = next(f"other-{i}" for i in range(99) if ranked(f"other-{i}", NAMES)[0] != client.node_of(chat))
    there = client.create_sequence("m", other)
    client.append(there, 0, 0, *rows_of(rows, 1))
    move(client, shared)

    def silent(route, making):
        raise SeineError("UNAVAILABLE", "the fleet's directory does not answer", "", "NO_DIRECTORY")

    monkeypatch.setattr(client.router.directory, "moved", silent)
    queries = np.ones((HEADS, DIM), np.float32)
    step = client.step((), [Item(there, 0, queries), Item(chat, 0, queries)], on_error="return")
    assert step.answers[0].error is None and step.answers[1].error.reason == "NO_DIRECTORY"


@pytest.mark.parametrize("streamed", [False, True])
def test_what_had_moved_is_not_lost_with_its_old_node(own, rows, streamed):
    """A node is emptied and started again, as for an upgrade. A client that has not called meanwhile finds the family where
    it is, and hears of those alone that were lost."""
    with connect(own.fleet, timeout=20) as client, connect(own.fleet, timeout=20) as mover:
        chat = filled(client, rows)
        node = client.node_of(chat)
        lost = next(f"lost-{i}" for i in range(99) if ranked(f"lost-{i}", NAMES)[0] == node)
        left = client.create_sequence("m", lost)
        assert mover.node_of(chat) == node
        target = move(mover, own)
        own.restart(node)
        if streamed:
            queries = np.ones((HEADS, DIM), np.float32)
            step = client.step((), [Item(left, 0, queries), Item(chat, 0, queries)], on_error="return")
            assert step.answers[1].error is None and step.answers[1].num_tokens == TOKENS
            error = step.answers[0].error
        else:
            assert client.fork(chat, "chat/draft").id == "chat/draft"  # which may not be repeated otherwise
            with pytest.raises(SequenceLost) as caught:
                client.get_sequence(left)
            error = caught.value
        assert isinstance(error, SequenceLost) and error.families == (lost,)
        assert client.node_of(chat) == target and client.append(chat, 0, TOKENS, *rows_of(rows, 0, TOKENS + 1, TOKENS)) == 1


def test_what_is_lost_while_it_is_waited_for_is_said_as_lost(own, rows):
    """The item is asked again alone, so that what its node says of it names another place than the step's."""
    with connect(own.fleet, timeout=20) as client:
        chat = filled(client, rows)
        node = client.node_of(chat)
        other = next(f"other-{i}" for i in range(99) if ranked(f"other-{i}", NAMES)[0] != node)
        there = client.create_sequence("m", other)
        client.append(there, 0, 0, *rows_of(rows, 1))
        freeze(client)
        restart = threading.Timer(0.2, lambda: own.restart(node))
        restart.start()
        queries = np.ones((HEADS, DIM), np.float32)
        appends = [Append(each, 0, TOKENS, *rows_of(rows, 0, TOKENS + 1, TOKENS)) for each in (there, chat)]
        step = client.step(appends, [Item(each, 0, queries) for each in (there, chat)], on_error="return")
        restart.join()
        assert step.append_errors[0] is None and step.answers[0].error is None
        for error in (step.append_errors[1], step.answers[1].error):
            assert isinstance(error, SequenceLost) and error.families == ("chat",)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_frozen_family_is_waited_for(client, rows, streamed):
    chat = filled(client, rows)
    source, state, _ = freeze(client)
    append = Append(chat, 0, TOKENS, *rows_of(rows, 0, TOKENS + 1, TOKENS))
    thaw = threading.Timer(0.2, lambda: source._invoke("SetFamilyState", {**state, "state": "serving"}))
    thaw.start()
    if streamed:
        step = client.step([append], [Item(chat, 0, np.ones((HEADS, DIM), np.float32))])
        assert step.answers[0].num_tokens == TOKENS + 1  # the item is asked again with its append
    else:
        assert client.append(chat, 0, TOKENS, append.keys, append.values) == 1
    thaw.join()


def test_waiting_has_an_end(client, rows):
    chat = filled(client, rows)
    freeze(client)
    client.router.patience = 0.1
    with pytest.raises(SeineError) as caught:
        client.append(chat, 0, TOKENS, *rows_of(rows, 0, TOKENS + 1, TOKENS))
    assert (caught.value.code, caught.value.reason) == ("UNAVAILABLE", "MOVING")
    assert caught.value.retry_delay == 0.02
    append = Append(chat, 0, TOKENS, *rows_of(rows, 0, TOKENS + 1, TOKENS))
    (error,) = client.step([append], on_error="return").append_errors
    assert (error.reason, error.retry_delay) == ("MOVING", 0.02)
    assert client.get_sequence(chat).layer_tokens[0] == TOKENS  # reads are answered


def test_a_node_that_drains_keeps_what_it_has_and_gets_no_new_family(client, rows, shared):
    chat = filled(client, rows)
    node = client.router.known(Sequence("m", "chat")).node
    client.node(node)._invoke("SetDraining", {"draining": True})
    try:
        made = [client.create_sequence("m", f"new-{i}") for i in range(12)]
        assert all(client.node_of(each) != node for each in made)
        assert client.append(chat, 0, TOKENS, *rows_of(rows, 0, TOKENS + 1, TOKENS)) == 1
        assert client.node_of(client.create_sequence("m", "chat/new")) == node
    finally:
        client.node(node)._invoke("SetDraining", {"draining": False})


def test_a_node_that_begins_to_drain_is_left_for_another(client, rows, shared):
    client.create_index("m", kv_store="keys_values", **SHAPE)
    first = client.router.place("late", "m", "late").node
    client.node(first)._invoke("SetDraining", {"draining": True})  # after the client has chosen it
    try:
        assert client.node_of(client.create_sequence("m", "late")) != first
    finally:
        client.node(first)._invoke("SetDraining", {"draining": False})


def test_a_supervisor_lets_a_server_that_drains_live(tmp_path):
    server = Server(f"unix://{tmp_path}/s.sock", [])
    try:
        server.wait_until_serving(20)
        with client_class("remote")(server.address) as client:
            client._invoke("SetDraining", {"draining": True})
            assert client.call("GetServerInfo")["draining"]
        assert server.serves()
    finally:
        server.stop(10)


def stopped(client, servers):
    """The family's mover is killed between its last two calls. Returns the new node's name."""
    chat = Sequence("m", "chat")
    target = next(name for name in NAMES if name != client.node_of(chat))
    given_up(client, chat, target, servers.fleet.node(target).address)
    return target


@pytest.mark.parametrize("knows", [True, False])
def test_a_family_whose_mover_was_killed_is_brought_up_by_who_is_sent_on(client, rows, shared, knows):
    chat = filled(client, rows)
    target = stopped(client, shared)
    with connect(shared.fleet, timeout=20) as stranger:
        other, chat = (client, chat) if knows else (stranger, Sequence("m", "chat"))
        assert other.append(chat, 0, TOKENS, *rows_of(rows, 0, TOKENS + 1, TOKENS)) == 1
        assert other.node_of(chat) == target
        assert other.get_sequence(chat).layer_tokens[0] == TOKENS + 1


def test_steps_bring_up_a_family_whose_mover_was_killed(client, rows, shared):
    chat = filled(client, rows)
    target = stopped(client, shared)
    step = client.step((), [Item(chat, 0, np.ones((HEADS, DIM), np.float32))])
    assert step.answers[0].num_tokens == TOKENS and client.node_of(chat) == target


def test_a_family_whose_mover_was_killed_is_not_made_anew(client, rows, shared):
    filled(client, rows)
    target = stopped(client, shared)
    with connect(shared.fleet, timeout=20) as other:
        with pytest.raises(SeineError) as caught:
            other.create_sequence("m", "chat")
        assert caught.value.code == "ALREADY_EXISTS"
        assert other.node_of(other.create_sequence("m", "chat/new")) == target


def test_who_may_not_bring_a_family_up_waits_for_who_may():
    home, node = FamilyState("moved", 3, "n1", "h:1", ("a",)), Node("n1", "h:1")
    fleet, answers = Description("f", (node,)), [FamilyState(), FamilyState(), FamilyState(moves=3)]

    def refused(node, left):
        raise SeineError("PERMISSION_DENIED", "a reader")

    assert followed(fleet, home, lambda node: answers.pop(0), refused).came and not answers
    with pytest.raises(SeineError) as caught:
        followed(fleet, home, lambda node: FamilyState(), refused)
    assert (caught.value.code, caught.value.reason) == ("UNAVAILABLE", "MOVING")

    def full(node, left):
        raise SeineError("RESOURCE_EXHAUSTED", "quota")

    with pytest.raises(SeineError, match="quota"):  # it is not lost
        followed(fleet, home, lambda node: FamilyState(), full)
    assert not followed(fleet, home, lambda node: FamilyState(), lambda node, left: None).came  # it is
    never = lambda node, left: pytest.fail("nothing is held")  # noqa: E731
    for there in (FamilyState(moves=3), FamilyState(moves=4)):
        assert followed(fleet, home, lambda node: there, never).came  # noqa: B023
