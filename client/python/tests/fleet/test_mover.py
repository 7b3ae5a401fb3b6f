"""The mover between plain servers: what it yields, what it raises, and what whoever stops it leaves."""

import pytest
from servers import NAMES, SHAPE, make
from servers import own, rows  # noqa: F401 - fixtures

from seine_kv.address import Security
from seine_kv.fleet import connect, mover
from seine_kv.fleet.mover import Mover
from seine_kv.messages import SeineError


@pytest.fixture
def client(own):
    with connect(own.fleet, timeout=20) as client:
        yield client


def held(client, name):
    return {info.handle.id for info in client.node(name).list_sequences("m")}


def test_a_server_is_emptied_family_by_family(client, own, rows):
    make(client, rows)
    before, others = held(client, "n0"), [own.fleet.node(name) for name in ("n1", "n2")]
    moved = list(Mover(None).drain(own.fleet.node("n0"), others, 1e9))
    assert {one.family for one in moved} == before and held(client, "n0") == set()
    for one in moved:
        assert (one.index, one.outcome, one.moves) == ("m", "moved", 1) and one.family in held(client, one.node)
        assert one.bytes > 0 and one.file_bytes > 0 and one.pause_ms > 0 and len(one.files) == 2 and not one.why


def test_whoever_stops_reading_stops_it_between_two_families(client, own, rows):
    """None is frozen, none is at two nodes, and a second drain goes on."""
    make(client, rows)
    before, nodes = held(client, "n0"), [own.fleet.node(name) for name in NAMES]
    lines = Mover(None).drain(nodes[0], nodes[1:], bytes_per_second=1)  # which it would wait for, for hours
    first = next(lines)
    lines.close()
    assert held(client, "n0") == before - {first.family}
    assert client.node("n0").call("ListFamilyStates", {"index": "m", "family": ""})["families"][0]["state"] == "moved"
    assert {one.family for one in Mover(None).drain(nodes[0], nodes[1:])} == before - {first.family}
    assert held(client, "n0") == set()


def test_one_family_moves(client, own, rows):
    made = make(client, rows, 1)
    source = client.node_of(made[0])
    target = next(name for name in NAMES if name != source)
    one = Mover(None).migrate(own.fleet.node(source), own.fleet.node(target), "m", "chat-0", 7)
    assert (one.family, one.outcome, one.node, one.bytes, one.moves) == ("chat-0", "moved", target, 7, 1)
    with pytest.raises(SeineError) as caught:
        Mover(None).migrate(own.fleet.node(source), own.fleet.node(target), "m", "chat-0", 7)
    assert (caught.value.code, caught.value.reason) == ("FAILED_PRECONDITION", "MOVED")


def test_what_stays_says_why(client, own, rows):
    client.create_index("m", kv_store="keys_values", **SHAPE)
    for name in ("n0", "n1"):
        client.node(name).create_sequence("m", "taken")
    (one,) = Mover(None).drain(own.fleet.node("n0"), [own.fleet.node("n1")])
    assert one.outcome == "snapshotted" and "taken" in one.why and one.files and not one.node


def test_what_is_lost_says_so_and_the_others_go_on(client, own, rows):
    """The server is started again after the first family: its others are lost, and no call's error is raised."""
    made = make(client, rows, 4)
    for sequence in made:
        client.delete_sequence(sequence)
        client.node("n0").create_sequence("m", sequence.id)
    source, target = own.fleet.node("n0"), own.fleet.node("n1")
    alike = Mover(None).migrate(source, target, "m", made[0].id, 0)
    lines = Mover(None).drain(source, [target], bytes_per_second=alike.file_bytes)  # a second between two that move
    first = next(lines)
    own.restart("n0")
    done = [first, *lines]
    assert sorted(one.family for one in done) == [sequence.id for sequence in made[1:]]
    outcomes = [one.outcome for one in done]
    assert outcomes[0] == "moved" and outcomes[-1] == "lost" and set(outcomes) <= {"moved", "lost"}
    assert all("started again" in one.why for one in done if one.outcome == "lost")
    assert client.node("n0").call("GetServerInfo")["draining"]


def test_errors_are_those_of_the_calls(own):
    node = own.fleet.node("n0")
    with pytest.raises(SeineError) as caught:
        list(Mover(None).drain(node, [node]))
    assert caught.value.code == "INVALID_ARGUMENT" and "n0" in str(caught.value)
    own.kill("n0")
    with pytest.raises(SeineError) as caught:
        list(Mover(None).drain(node, []))
    assert caught.value.code == "UNAVAILABLE"


def test_the_token_goes_through_the_environment(monkeypatch):
    monkeypatch.setenv("SEINE_TOKEN_FILE", "/other")
    made = mover._environment(Security(token="secret"))
    assert made["SEINE_TOKEN"] == "secret" and "SEINE_TOKEN_FILE" not in made


def test_where_the_program_is(monkeypatch, tmp_path):
    monkeypatch.delenv("SEINE", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError, match="seine: neither SEINE"):
        mover.program(str(tmp_path / "seined"))
    (tmp_path / "seine").touch()
    assert mover.program(str(tmp_path / "seined")) == str(tmp_path / "seine")
    monkeypatch.setenv("SEINE", "/elsewhere/seine")
    assert mover.program() == "/elsewhere/seine"
