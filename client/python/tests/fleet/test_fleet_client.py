"""A FleetClient of three real servers, without Ray: every call, a node that is lost, one that comes back."""

import threading

import numpy as np
import pytest
from servers import DIM, HEADS, NAMES, SHAPE, TOKENS, Servers, expected, make, rows_of
from servers import client, own, rows  # noqa: F401 - fixtures

from seine_kv.fleet import SequenceLost, connect
from seine_kv.fleet.placement import family_of, ranked
from seine_kv.messages import Append, Attention, Item, SeineError, Sequence, StepError


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    servers = Servers(tmp_path_factory.mktemp("fleet"))
    yield servers
    for name in NAMES:
        servers.processes[name].terminate()
        assert servers.processes[name].wait(timeout=20) == 0


def raised(call, *arguments, **more):
    with pytest.raises(SeineError) as caught:
        call(*arguments, **more)
    return caught.value


def test_families_are_spread_and_found(client, rows, shared):
    made = make(client, rows)
    assert {client.node_of(sequence) for sequence in made} == set(NAMES)
    assert all(client.node_of(sequence) == ranked(sequence.id, NAMES)[0] for sequence in made)
    with connect(shared.fleet.as_dict()) as other:  # another process: it finds them
        assert [other.node_of(Sequence("m", sequence.id)) for sequence in made] == list(map(client.node_of, made))
        error = raised(other.node_of, Sequence("m", "never"))
        assert error.code == "NOT_FOUND" and not isinstance(error, SequenceLost)


def test_a_step_is_split_and_merged_in_order(client, rows):
    made = make(client, rows)
    queries = np.random.default_rng(8).standard_normal((len(made), HEADS, DIM)).astype(np.float32)
    order = np.random.default_rng(9).permutation(len(made))
    with client.decode_stream() as stream:
        appends = [Append(made[i], 0, TOKENS, *rows_of(rows, i, TOKENS + 1, TOKENS)) for i in order]
        items = [Item(made[i], 0, queries[i]) for i in order]
        step = stream.step(appends, items, Attention(tail=False), exact=True)
        assert step.append_errors == [None] * len(made) and step.answers == [] and step.server_us >= 0
        for i, attended in zip(order, step.attended):
            np.testing.assert_allclose(attended.output, expected(rows, queries[i], i, TOKENS + 1), atol=1e-4)
        assert stream.step(appends, (), None).append_errors == [None] * len(made)  # a replay is a no-op
        found = stream.step(items=items, top_k=5)
        assert [answer.num_tokens for answer in found.answers] == [TOKENS + 1] * len(made)
        assert stream.step().answers == []
        refused = stream.step(items=items, attention=Attention(scale=-1.0), on_error="return")
        assert refused.error.code == "INVALID_ARGUMENT" and refused.error.field.endswith("scale")


def test_an_items_error_has_its_number_in_the_whole_step(client, rows):
    made = make(client, rows)
    queries = np.ones((HEADS, DIM), np.float32)
    items = [Item(sequence, 0, queries) for sequence in made]
    items[7] = Item(made[7], 9, queries)
    items[9] = Item(Sequence("m", "never"), 0, queries)
    step = client.step((), items, on_error="return")
    assert [i for i, answer in enumerate(step.answers) if answer.error] == [7, 9]
    assert step.answers[7].error.field.startswith("items[7].") and "items[7]" in str(step.answers[7].error)
    assert step.answers[9].error.code == "NOT_FOUND"
    positions = [TOKENS + (5 if i == 3 else 0) for i in range(len(made))]
    appends = [Append(made[i], 0, positions[i], *rows_of(rows, i, TOKENS + 1, TOKENS)) for i in range(len(made))]
    step = client.step(appends, (), on_error="return")
    assert [error and error.code for error in step.append_errors] == [None] * 3 + ["OUT_OF_RANGE"] + [None] * 8
    with pytest.raises(StepError, match="append 3 "):
        client.step(appends)


def test_a_fork_stays_in_its_family(client, rows):
    first = make(client, rows, 6)[3]
    branch = client.fork(first, "chat-3/b/1", TOKENS - 10)
    assert client.node_of(branch) == client.node_of(first) and family_of(branch.id) == "chat-3"
    unnamed = client.fork(branch)
    assert unnamed.id.startswith("chat-3/") and client.get_sequence(unnamed).layer_tokens == [TOKENS - 10, 0]
    error = raised(client.fork, first, "other")
    assert (error.code, error.field) == ("INVALID_ARGUMENT", "new_id")
    sibling = client.create_sequence("m", "chat-3/own")
    assert client.node_of(sibling) == client.node_of(first)
    assert client.truncate(branch, 5).layer_tokens == [5, 0]
    client.delete_sequence(first)
    assert client.get_sequence(branch).layer_tokens == [5, 0]
    assert raised(client.get_sequence, first).code == "NOT_FOUND"


def test_a_branch_finds_its_family_though_its_root_is_gone(client, rows, shared):
    made = make(client, rows)
    for sequence in made:
        client.fork(sequence, f"{sequence.id}/a")
        client.delete_sequence(sequence)
    with connect(shared.fleet) as other:
        for sequence in made:
            assert other.node_of(other.create_sequence("m", f"{sequence.id}/b")) == client.node_of(sequence)


def test_lists_and_counts_are_the_fleets(client, rows):
    made = make(client, rows)
    infos = client.list_sequences("m")
    assert [info.handle.id for info in infos] == sorted(sequence.id for sequence in made)
    assert client.get_index("m")["num_sequences"] == len(made) == client.server_info()["num_sequences"]
    client.create_index("other", **SHAPE)
    assert [index["spec"]["name"] for index in client.list_indexes()] == ["m", "other"]
    held = [client.node(name).get_index("m")["store_bytes"] for name in NAMES]
    assert min(held) > 0 and client.get_index("m")["store_bytes"] == sum(held)
    assert client.index("m").create_sequence().tokens == [0, 0]
    assert client.call("GetSequence", {"handle": {"index": "m", "id": "chat-1"}})["sequence"]["layer_tokens"]
    with pytest.raises(ValueError, match="GetMetrics"):
        client.call("GetMetrics")


def test_an_index_is_made_on_every_node_or_on_none(client):
    client.node("n2").create_index("part", **{**SHAPE, "num_layers": 1})
    client.create_index("part", **{**SHAPE, "num_layers": 1})  # what was missing
    assert {name: len(client.node(name).list_indexes()) for name in NAMES} == dict.fromkeys(NAMES, 1)
    assert raised(client.create_index, "part", **SHAPE).code == "ALREADY_EXISTS"
    assert raised(client.create_index, "wrong", **SHAPE, retrieval={"top_k": -1}).code == "INVALID_ARGUMENT"
    assert [index["spec"]["name"] for index in client.list_indexes()] == ["part"]
    client.delete_index("part")
    assert raised(client.get_index, "part").code == "NOT_FOUND"


def test_a_node_that_is_lost(own, rows):
    """Its items fail and say so, the others are answered, and what is made again goes on."""
    with connect(own.fleet, timeout=20, patience=0.3) as client:
        made = make(client, rows)
        victim = client.node_of(made[0])
        hit = [sequence for sequence in made if client.node_of(sequence) == victim]
        queries = np.ones((HEADS, DIM), np.float32)
        items = [Item(sequence, 0, queries) for sequence in made]

        def step():
            return client.step((), items, Attention(tail=False), on_error="return", exact=True).attended

        assert not any(attended.error for attended in step())
        own.kill(victim)
        for i, (sequence, attended) in enumerate(zip(made, step())):
            if sequence in hit:  # whether it is gone for good cannot be told yet
                assert attended.error.code == "UNAVAILABLE" and attended.output is None
            else:
                np.testing.assert_allclose(attended.output, expected(rows, queries, i), atol=1e-4)
        assert raised(client.get_sequence, Sequence("m", "elsewhere")).code == "UNAVAILABLE"  # it may have it
        fresh = [client.create_sequence("m", f"new-{i}") for i in range(12)]
        assert victim not in {client.node_of(sequence) for sequence in fresh}
        own.restart(victim)
        lost = [attended.error for attended in step() if attended.error]
        assert len(lost) == len(hit) and all(isinstance(error, SequenceLost) for error in lost)
        assert {family for error in lost for family in error.families} == {sequence.id for sequence in hit}
        assert all(error.node == victim for error in lost)
        with pytest.raises(SequenceLost):
            client.append(hit[0], 0, TOKENS, *rows_of(rows, 0, TOKENS + 1, TOKENS))
        for sequence in hit:  # on a node that has lost its index, too
            client.append(client.create_sequence("m", sequence.id), 0, 0, *rows_of(rows, made.index(sequence)))
        for i, attended in enumerate(step()):
            np.testing.assert_allclose(attended.output, expected(rows, queries, i), atol=1e-4)
        assert client.get_index("m")["num_sequences"] == 24


def test_a_call_outlasts_a_restart_of_a_server_that_holds_nothing_of_it(own, rows):
    """UNAVAILABLE is repeated where that is safe, and answered once the node is back."""
    with connect(own.fleet, timeout=20, patience=20) as client:
        victim = client.node_of(make(client, rows, 1)[0])
        own.kill(victim)
        thread = threading.Timer(0.3, own.restart, [victim])
        thread.start()
        error = raised(client.get_sequence, Sequence("m", "chat-0"))
        thread.join()
        assert isinstance(error, SequenceLost) and error.families == ("chat-0",)


def test_an_index_goes_to_a_node_that_lacks_it(own, rows):
    """However little patience there is. Where nobody can tell whether there is one, the error says so."""
    with connect(own.fleet, timeout=20, patience=0.0) as client:
        make(client, rows, 1)
        own.restart("n1")
        made = [client.create_sequence("m", f"new-{i}") for i in range(12)]
        assert "n1" in map(client.node_of, made)
        own.restart("n0")
        own.kill("n1"), own.kill("n2")
        assert raised(client.create_sequence, "m", "later").code == "UNAVAILABLE"
        assert raised(client.create_sequence, "none", "later").code == "UNAVAILABLE"


def test_a_list_is_asked_for_again_where_a_connection_broke(client, rows, monkeypatch):
    make(client, rows, count=1)
    node = client._nodes.at(client.router.directory.describe().nodes[0].address)
    asked, invoke = [], node._invoke

    def broken_once(method, request, *more):
        asked.append(method)
        if len(asked) == 1:
            raise SeineError("UNAVAILABLE", "lost the server: Broken pipe")
        return invoke(method, request, *more)

    monkeypatch.setattr(node, "_invoke", broken_once)
    assert [index["spec"]["name"] for index in client.list_indexes()] == ["m"]
    assert asked == ["ListIndexes", "ListIndexes"]
    monkeypatch.undo()


def test_without_nodes_that_serve(own):
    with connect(own.fleet, timeout=5, patience=0.1) as client:
        client.create_index("m", **SHAPE)
        for name in NAMES:
            own.kill(name)
        for call in (lambda: client.create_sequence("m", "x"), client.list_indexes, client.server_info):
            assert raised(call).code == "UNAVAILABLE"
