"""A fleet under Ray, with several raylets on this machine: start, loss by kill -9, drain, growth, the directory's own
restart. One cluster for the whole file."""

import hashlib
import os
import signal
import subprocess
import time

import chaos
import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster
from servers import DIM, HEADS, SHAPE, TOKENS, expected, given_up, make, rows_of
from servers import rows  # noqa: F401 - a fixture

from seine_kv.address import Security
from seine_kv.fleet import Fleet, SequenceLost, actors, connect, family_of, mover
from seine_kv.messages import Attention, Item, SeineError, Sequence

SECONDS = 60.0  # for what takes one or two on a machine that has nothing else to do


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Three raylets, each a machine to Ray; their workers see what this process's environment says. What the head knows
    lies on disk."""
    os.environ |= {"RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0"}
    os.environ |= {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(tmp_path_factory.mktemp("head"))}
    usual = {"num_cpus": 2, "memory": 1 << 30, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**usual, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(**usual)
    ray.init(address=cluster.address, namespace="test", log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def fleet(cluster, tmp_path_factory):
    folder = tmp_path_factory.mktemp("nodes")
    flags = ["--log-level", "error", "--snapshots-dir", str(folder / "snapshots")]
    fleet = Fleet.start(3, "64MiB", name="t", listen=f"unix:{folder}", server_flags=flags, wait_seconds=SECONDS)
    yield fleet
    pids = [fleet.supervisor(node["name"])["seined"] for node in fleet.describe()["nodes"]]
    fleet.stop()
    until(lambda: not any(alive(pid) for pid in pids))
    with pytest.raises(ValueError):
        Fleet.connect("t")


@pytest.fixture
def client(fleet):
    until(lambda: all(node["state"] == "up" for node in fleet.describe()["nodes"]))
    with fleet.client(timeout=30) as client:
        yield client
        for index in client.list_indexes():
            client.delete_index(index["spec"]["name"])
    assert set(fleet.loads().values()) == {0}  # families went with their sequences


def alive(pid):
    try:
        os.kill(pid, 0)
        return True
    except ProcessLookupError:
        return False


def until(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.05)


def attend(client, made, queries):
    items = [Item(sequence, 0, queries) for sequence in made]
    return client.step((), items, Attention(tail=False), on_error="return", exact=True).attended


def test_each_server_is_on_a_machine_of_its_own(fleet, client, rows):
    nodes = fleet.describe()["nodes"]
    assert [node["name"] for node in nodes] == ["n0", "n1", "n2"]
    assert len({fleet.supervisor(node["name"])["ray_node"] for node in nodes}) == 3
    made = make(client, rows)
    assert max(fleet.loads().values()) <= 5 and sum(fleet.loads().values()) == 12
    queries = np.ones((HEADS, DIM), np.float32)
    for i, attended in enumerate(attend(client, made, queries)):
        np.testing.assert_allclose(attended.output, expected(rows, queries, i), atol=1e-4)
    assert client.server_info()["memory_limit_bytes"] == 3 * (64 << 20)
    with Fleet.connect("t").client() as other:
        assert list(map(other.node_of, made)) == list(map(client.node_of, made))


def test_a_process_outside_ray(fleet, client, rows, tmp_path):
    """It finds what is there, and what it makes is found by those inside."""
    fleet.write(tmp_path / "fleet.json")
    made = make(client, rows)
    with connect(tmp_path / "fleet.json", timeout=30) as outside:
        for sequence in made:
            assert outside.node_of(sequence) == client.node_of(sequence)
            assert outside.get_sequence(sequence).layer_tokens == [TOKENS, 0]
        own = outside.create_sequence("m", "outside")
        assert client.node_of(Sequence("m", "outside")) == outside.node_of(own)
        assert client.node_of(client.create_sequence("m", "outside/2")) == outside.node_of(own)


@pytest.mark.parametrize("victim", ["seined", "pid"])
def test_a_killed_node_is_lost_and_comes_back_empty(fleet, client, rows, victim):
    """kill -9 of a server or of its supervisor: whoever asks hears which families are gone, and goes on."""
    made = make(client, rows)
    queries = np.ones((HEADS, DIM), np.float32)
    node = client.node_of(made[0])
    hit = [sequence for sequence in made if client.node_of(sequence) == node]
    before = fleet.supervisor(node)
    os.kill(before[victim], signal.SIGKILL)
    until(lambda: not alive(before["seined"]))  # it does not outlive its supervisor
    answers = attend(client, made, queries)
    for i, (sequence, attended) in enumerate(zip(made, answers)):
        if sequence in hit:
            assert isinstance(attended.error, SequenceLost) and attended.error.node == node
        else:
            np.testing.assert_allclose(attended.output, expected(rows, queries, i), atol=1e-4)
    named = {family for attended in answers if attended.error for family in attended.error.families}
    assert named == {family_of(sequence.id) for sequence in hit}
    again = [client.create_sequence("m", sequence.id) for sequence in hit]
    for sequence, one in zip(hit, again):
        assert one.generation > sequence.generation
        client.append(one, 0, 0, *rows_of(rows, made.index(sequence)))
        with pytest.raises(SequenceLost):  # the old handle does not name the new one
            client.get_sequence(sequence)
    renewed = [again[hit.index(sequence)] if sequence in hit else sequence for sequence in made]
    for i, attended in enumerate(attend(client, renewed, queries)):
        np.testing.assert_allclose(attended.output, expected(rows, queries, i), atol=1e-4)
    until(lambda: fleet.describe()["nodes"][int(node[1:])]["state"] == "up")
    after = fleet.supervisor(node)
    assert after["generation"] == before["generation"] + 1 and after["address"] == before["address"]


def test_a_server_that_hangs_is_killed_and_started_again(fleet, client, rows):
    made = make(client, rows, 6)
    node = client.node_of(made[0])
    before = fleet.supervisor(node)
    os.kill(before["seined"], signal.SIGSTOP)
    until(lambda: not alive(before["seined"]))
    with pytest.raises(SequenceLost):
        client.get_sequence(made[0])


def test_the_directory_is_started_again_and_knows_what_it_knew(fleet, client, rows):
    made = make(client, rows)
    before = fleet.loads()
    directory = actors.actor(actors.directory_name("t"))
    ray.kill(directory, no_restart=False)
    later = client.create_sequence("m", "later")
    assert client.node_of(later) in {"n0", "n1", "n2"}
    client.delete_sequence(later)
    assert fleet.loads() == before
    with fleet.client() as other:
        assert list(map(other.node_of, made)) == list(map(client.node_of, made))


def test_decode_goes_on_while_the_head_is_away(cluster, fleet, client, rows):
    """kill -9 of Ray's control process: families that are there are served. One that is started again knows them."""
    made, before = make(client, rows), fleet.loads()
    queries = np.ones((HEADS, DIM), np.float32)
    with connect(fleet.describe(), timeout=30) as outside:
        cluster.head_node.kill_gcs_server()
        try:
            for i, attended in enumerate(attend(client, made, queries)):
                np.testing.assert_allclose(attended.output, expected(rows, queries, i), atol=1e-4)
            new = outside.create_sequence("m", "outside")  # who has not joined Ray asks the servers alone
        finally:
            cluster.head_node.start_gcs_server()
        assert client.node_of(Sequence("m", "outside")) == outside.node_of(new)
        later = client.create_sequence("m", "later")
        client.delete_sequence(later), client.delete_sequence(Sequence("m", "outside"))
    assert fleet.loads() == before
    with fleet.client() as other:
        assert list(map(other.node_of, made)) == list(map(client.node_of, made))


def test_a_directory_that_fails_is_a_stated_error(fleet, client):
    """As one does whose head was started again and knows nothing."""

    @ray.remote(num_cpus=0)
    def fails():
        raise RuntimeError("it is another cluster now")

    with pytest.raises(SeineError, match="the fleet's directory does not answer: .*another cluster") as caught:
        client.router.directory._ask(fails)
    assert (caught.value.code, caught.value.reason) == ("UNAVAILABLE", "NO_DIRECTORY")


def right(client, made, rows, queries):
    """Whether every sequence answers as exact attention does."""
    for i, attended in enumerate(attend(client, made, queries)):
        np.testing.assert_allclose(attended.output, expected(rows, queries, i), atol=1e-4)
    return True


def test_a_node_is_drained_while_clients_decode(fleet, client, rows):
    """Its families move to the others, clients follow, and what is new goes elsewhere until it is taken back."""
    made, queries = make(client, rows), np.ones((HEADS, DIM), np.float32)
    node, told = client.node_of(made[0]), []
    hit = {sequence.id for sequence in made if client.node_of(sequence) == node}
    client.create_index("draft", **SHAPE)
    draft = client.create_sequence("draft", made[0].id)  # a family of its own, of the same name
    with fleet.client() as follower:
        assert right(follower, made, rows, queries)
        done = fleet.drain(node, progress=told.append)
        assert done == told and {one.outcome for one in done} == {"moved"} and hit <= {one.family for one in done}
        assert fleet.loads()[node] == 0 and client.node(node).call("GetServerInfo")["num_sequences"] == 0
        assert right(client, made, rows, queries) and right(follower, made, rows, queries)
        assert client.get_sequence(draft).layer_tokens == [0, 0]
    where = {one.family: one.node for one in done if one.index == "m"}
    assert all(client.node_of(sequence) == where[sequence.id] for sequence in made if sequence.id in hit)
    assert client.fork(made[0]).id.startswith(f"{made[0].id}/")
    fresh = [client.create_sequence("m", f"new-{i}") for i in range(12)]
    assert node not in {client.node_of(sequence) for sequence in fresh}
    fleet.undrain(node)
    more = [client.create_sequence("m", f"more-{i}") for i in range(12)]
    assert node in {client.node_of(sequence) for sequence in more}


def test_a_family_that_the_shell_moves_is_followed(fleet, client, rows):
    """The directory hears of it from the first client that is told MOVED, and others from the directory."""
    made, queries = make(client, rows, 6), np.ones((HEADS, DIM), np.float32)
    nodes = {node["name"]: node["address"] for node in fleet.describe()["nodes"]}
    source = client.node_of(made[0])
    target = next(name for name in nodes if name != source)
    for name in (target, source, target):
        here = client.node_of(made[0])
        words = ["--server", nodes[here], "family", "migrate", "m", made[0].id, "--to", nodes[name]]  # and no --name
        subprocess.run([mover.program(), *words], check=True, capture_output=True)
        if name == source:
            with fleet.client() as late:  # which asks the directory, and is told of the first move alone
                assert right(late, made, rows, queries)
        assert right(client, made, rows, queries) and client.node_of(made[0]) == name


def test_a_family_whose_mover_was_killed_is_brought_up_by_who_is_sent_on(fleet, client, rows):
    """The old node has given it up, and the new one holds it: before a client asks, nobody has it."""
    made, queries = make(client, rows, 1), np.ones((HEADS, DIM), np.float32)
    nodes = {node["name"]: node["address"] for node in fleet.describe()["nodes"]}
    source = client.node_of(made[0])
    target = next(name for name in nodes if name != source)
    given_up(client, made[0], target, nodes[target])
    assert right(client, made, rows, queries) and client.node_of(made[0]) == target
    with fleet.client() as late:
        assert right(late, made, rows, queries) and late.node_of(made[0]) == target


def test_what_had_moved_is_not_lost_with_its_old_node(fleet, client, rows):
    made, queries = make(client, rows), np.ones((HEADS, DIM), np.float32)
    node = client.node_of(made[0])
    with fleet.client() as follower:
        assert right(follower, made, rows, queries)
        fleet.drain(node)
        os.kill(fleet.supervisor(node)["seined"], signal.SIGKILL)
        assert right(follower, made, rows, queries)
    until(lambda: fleet.describe()["nodes"][int(node[1:])]["state"] == "draining")  # it stays so over a restart
    with connect(fleet.describe(), timeout=30) as outside:  # which asks the server itself
        assert outside.node(node).call("GetServerInfo")["draining"]
        fleet.undrain(node)
        assert not outside.node(node).call("GetServerInfo")["draining"]


def test_a_node_that_families_came_to_is_lost(fleet, client, rows):
    """A client that is told MOVED by the old node finds out that the new one has lost the family."""
    made = make(client, rows, 1)
    with fleet.client() as follower:
        source = follower.node_of(made[0])
        (one,) = fleet.drain(source)
        target = one.node
        before = fleet.supervisor(target)["generation"]
        os.kill(fleet.supervisor(target)["seined"], signal.SIGKILL)
        until(lambda: fleet.describe()["nodes"][int(target[1:])]["generation"] > before)
        with pytest.raises(SequenceLost):
            follower.get_sequence(made[0])
    fleet.undrain(source)


def test_a_third_node_takes_a_family_while_the_one_that_it_went_to_starts(fleet, client, rows):
    """The node that it left takes it no more. Whoever makes it anew is not sent to and fro until the other serves."""
    made = make(client, rows, 1)
    source = client.node_of(made[0])
    (one,) = fleet.drain(source)
    fleet.undrain(source)
    before = fleet.supervisor(one.node)
    ray.get(fleet._directory.leave.remote(one.node, before["generation"]))
    again = client.create_sequence("m", made[0].id)
    assert client.node_of(again) not in (source, one.node)
    with pytest.raises(SequenceLost):
        client.get_sequence(made[0])
    os.kill(before["seined"], signal.SIGKILL)
    until(lambda: fleet.describe()["nodes"][int(one.node[1:])]["state"] == "up")


def test_what_no_node_takes_is_snapshotted_and_stays(fleet, client, rows):
    made, queries = make(client, rows, 3), np.ones((HEADS, DIM), np.float32)
    node = client.node_of(made[0])
    for other in {"n0", "n1", "n2"} - {node}:
        client.node(other).create_sequence("m", made[0].id)  # the id is taken there
    done = {one.family: one for one in fleet.drain(node)}
    assert done[made[0].id].outcome == "snapshotted" and done[made[0].id].files and "n" in done[made[0].id].why
    with pytest.raises(ValueError, match="still holds 1 families"):
        fleet.remove(node)
    assert right(client, made, rows, queries) and client.node_of(made[0]) == node
    fleet.undrain(node)


def test_grown_rebalanced_and_shrunk(fleet, client, rows):
    made, queries = make(client, rows), np.ones((HEADS, DIM), np.float32)
    fleet.scale(4, wait_seconds=SECONDS)
    assert fleet.loads()["n3"] == 0 and sum(fleet.loads().values()) == 12  # families stay where they are
    small = fleet.rebalance(most_bytes=1)
    assert small == [] and fleet.loads()["n3"] == 0
    done = fleet.rebalance()
    assert done and {one.outcome for one in done} == {"moved"} and max(fleet.loads().values()) <= 4
    assert fleet.loads()["n3"] > 0 and right(client, made, rows, queries)
    assert fleet.rebalance() == []
    pid = fleet.supervisor("n3")["seined"]
    fleet.scale(3)
    until(lambda: not alive(pid))
    assert [node["name"] for node in fleet.describe()["nodes"]] == ["n0", "n1", "n2"]
    assert right(client, made, rows, queries)
    with pytest.raises(ValueError, match="at least 1"):
        fleet.scale(0)
    with pytest.raises(ValueError, match="drain it first"):
        fleet.remove("n0")


def test_every_answer_is_right_while_servers_are_killed(fleet, client):
    counts = chaos.run(fleet, 12, 4.0, seed=5, pause=1.0, grow=False)
    assert counts["wrong"] == counts["unstated_errors"] == 0 and counts["kills"] > 0 < counts["answers"]
    for node in fleet.describe()["nodes"]:
        fleet.undrain(node["name"])


def test_what_cannot_be_is_said(fleet, tmp_path):
    for change, says in [
        ({"nodes": 0}, "nodes"),
        ({"memory_per_node": "8 GB"}, "memory_per_node"),
        ({"placement": "ANY"}, "placement"),
        ({"name": "a/b"}, "name"),
        ({"name": "t"}, "there is a fleet 't' already"),
    ]:
        with pytest.raises(ValueError, match=says):
            Fleet.start(**{"nodes": 1, "memory_per_node": "64MiB", "name": "u", **change})
    with pytest.raises(RuntimeError, match="room"):
        Fleet.start(9, "64MiB", name="u", wait_seconds=1.0)
    with pytest.raises(RuntimeError, match="exit code"):
        Fleet.start(1, "64MiB", name="u", listen=f"unix:{tmp_path}", server_flags=["--none"], wait_seconds=SECONDS)
    with pytest.raises(ValueError):
        Fleet.connect("u")  # nothing is left of either


def certificates(folder, host):
    """ca.pem, and server.pem and .key of it for a host's address."""

    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ca")
    (folder / "san").write_text(f"subjectAltName=IP:{host}\n")
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=server")
    authority = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1"]
    openssl("x509", "-req", "-in", "server.csr", *authority, "-extfile", "san", "-out", "server.pem")


def test_tls_and_a_token_go_through(cluster, tmp_path):
    """Over TCP, as in a cluster of many machines; a server that is started again has the port that it had."""
    certificates(tmp_path, ray.util.get_node_ip_address())
    digest = hashlib.sha256(b"secret").hexdigest()
    (tmp_path / "tokens.yaml").write_text(f"- {{sha256: {digest}, tenant: acme, role: admin}}\n")
    flags = ["--log-level", "error", "--auth-tokens-file", str(tmp_path / "tokens.yaml")]
    flags += ["--tls-cert", str(tmp_path / "server.pem"), "--tls-key", str(tmp_path / "server.key")]
    trusted = Security(tls_ca=tmp_path / "ca.pem", token="secret")
    fleet = Fleet.start(1, "64MiB", name="v", listen="tcp", server_flags=flags, security=trusted, wait_seconds=SECONDS)
    try:
        with fleet.client() as client:
            client.create_index("m", **SHAPE)
            assert client.create_sequence("m", "x").id == "x"
            before = fleet.supervisor("n0")
            os.kill(before["seined"], signal.SIGKILL)
            with pytest.raises(SequenceLost):
                client.get_sequence(Sequence("m", "x"))
            until(lambda: fleet.describe()["nodes"][0]["state"] == "up")
            assert fleet.supervisor("n0")["address"] == before["address"] and client.list_indexes() == []
        with fleet.client(security=Security(tls_ca=tmp_path / "ca.pem", token="wrong")) as client:
            with pytest.raises(SeineError) as caught:
                client.list_indexes()
        assert caught.value.code == "UNAUTHENTICATED"
    finally:
        fleet.stop()
