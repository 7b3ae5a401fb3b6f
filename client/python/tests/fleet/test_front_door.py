"""deploy/haproxy and deploy/envoy before real servers: a family stays where it is, through drain and loss.

HAPROXY and ENVOY name the programs. SEINE_FRONT_DOOR_CALLS says how many calls (500); 10,000 is its soak."""

import os
import random
import re
import socket
import subprocess
import time
from pathlib import Path

import grpc
import pytest
from conftest import client_class, start
from servers import SHAPE

from seine.v1 import sequence_service_pb2 as pb
from seine.v1 import sequence_service_pb2_grpc as stubs
from seine_kv.fleet.placement import family_of
from seine_kv.fleet.server import free_port

DEPLOY = Path(__file__).resolve().parents[4] / "deploy"
CALLS = int(os.environ.get("SEINE_FRONT_DOOR_CALLS", "500"))
FAMILIES = 30
NODE = "x-seine-node"
SECONDS = 60.0  # for what takes one or two


def until(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.05)


class Door:
    """Three servers on loopback and a proxy before them, with the committed configuration at other addresses."""

    def __init__(self, folder):
        self.nodes, self.servers, self.folder = {}, {}, folder
        self.addresses = [f"127.0.0.1:{free_port('127.0.0.1')}" for _ in range(3)]
        self.proxy = self.channel = None

    def open(self):
        for node in range(3):
            self.start(node)
        self.address = f"127.0.0.1:{free_port('127.0.0.1')}"
        self.proxy = subprocess.Popen(self.command(), stderr=open(self.folder / "proxy.log", "wb"))
        self.channel = grpc.insecure_channel(self.address, [("grpc.enable_http_proxy", 0)])
        self.stub = stubs.SequenceServiceStub(self.channel)
        until(lambda: self.answers())

    def start(self, node):
        self.servers[node] = start(None, address=self.addresses[node])
        with self.client(node) as client:
            client.wait_until_ready(SECONDS)
            client.create_index("m", **SHAPE)

    def client(self, node):
        return client_class("grpc")(self.addresses[node], 20.0)

    def configuration(self, name, changes):
        text = (DEPLOY / name).read_text()
        for old, new in changes:
            assert len(re.findall(old, text)) == 1, old
            text = re.sub(old, new, text)
        path = self.folder / Path(name).name
        path.write_text(text)
        return str(path)

    def answers(self):
        """Whether every server is up and reached."""
        assert self.proxy.poll() is None, (self.folder / "proxy.log").read_text()
        try:
            self.nodes.clear()
            for i in range(FAMILIES):
                self.call("ListSequences", pb.ListSequencesRequest(index="m"), f"any-{i}")
            return self.all_up() and self.all_reached()
        except (grpc.RpcError, OSError):
            return False

    def call(self, method, request, family):
        metadata = [("x-seine-family", family)]
        if family in self.nodes:
            metadata.append((NODE, self.nodes[family]))
        response, call = getattr(self.stub, method).with_call(request, metadata=metadata, timeout=20)
        told = dict(call.initial_metadata()).get(NODE)
        if told:  # of Envoy alone; HAProxy keeps a table
            self.nodes[family] = told
        return response

    def create(self, id):
        return self.call("CreateSequence", pb.CreateSequenceRequest(index="m", id=id), family_of(id))

    def get(self, id):
        return self.call("GetSequence", pb.GetSequenceRequest(handle={"index": "m", "id": id}), family_of(id))

    def code_of(self, id):
        try:
            self.get(id)
            return "OK"
        except grpc.RpcError as error:
            return error.code().name

    def held(self):
        """Families of each server that serves."""
        found = {}
        for node, process in self.servers.items():
            if process.poll() is None:
                with self.client(node) as client:
                    found[node] = {family_of(info.handle.id) for info in client.list_sequences("m")}
        return found

    def close(self):
        if self.channel is not None:
            self.channel.close()
        for process in [*self.servers.values(), *filter(None, [self.proxy])]:
            process.kill()
            process.wait(20)


class HAProxy(Door):
    def command(self):
        changes = [("127.0.0.1:7070", self.address), ("stats socket /run/haproxy/seine.sock", f"stats socket {self.admin}")]
        changes += [(f"10.0.0.1{i}:7070", address) for i, address in enumerate(self.addresses)]
        return [os.environ["HAPROXY"], "-db", "-f", self.configuration("haproxy/haproxy.cfg", changes)]

    @property
    def admin(self):
        return self.folder / "admin.sock"

    def ask(self, command):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(self.admin))
            peer.sendall(f"{command}\n".encode())
            return b"".join(iter(lambda: peer.recv(65536), b"")).decode()

    def states(self):
        rows = [row.split(",") for row in self.ask("show stat").splitlines()]
        return {row[1]: row[17] for row in rows if len(row) > 17 and row[0] == "seine" and row[1] != "BACKEND"}

    def all_up(self):
        return list(self.states().values()) == ["UP"] * 3

    def all_reached(self):
        return True  # what it says of a server holds for the next call

    def sees_down(self, node):
        return self.states()[f"n{node}"].startswith("DOWN")

    def drain(self, node):
        assert self.ask(f"set server seine/n{node} state drain").strip() == ""


class Envoy(Door):
    def command(self):
        self.port = free_port("127.0.0.1")
        own = r"address: 127\.0\.0\.1, port_value: {}"
        changes = [(own.format(7070), f"address: 127.0.0.1, port_value: {self.address.rpartition(':')[2]}")]
        changes += [(own.format(9901), f"address: 127.0.0.1, port_value: {self.port}")]
        for i, address in enumerate(self.addresses):
            port = address.rpartition(":")[2]
            changes += [(rf"address: 10\.0\.0\.1{i}, port_value: 7070", f"address: 127.0.0.1, port_value: {port}")]
        path = self.configuration("envoy/fleet.yaml", changes)
        return [os.environ["ENVOY"], "-c", path, "--concurrency", "1", "--log-level", "warning", "--base-id-path",
                str(self.folder / "base"), "--use-dynamic-base-id"]  # fmt: skip

    def clusters(self, what):
        with socket.create_connection(("127.0.0.1", self.port)) as peer:
            peer.sendall(b"GET /clusters HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            text = b"".join(iter(lambda: peer.recv(65536), b"")).decode()
        return dict(re.findall(rf"seine::([\d.:]+)::{what}::(\S+)", text))

    def all_up(self):
        return list(self.clusters("health_flags").values()) == ["healthy"] * 3

    def all_reached(self):
        return "0" not in self.clusters("rq_total").values()  # its workers hear of a server later than /clusters

    def sees_down(self, node):
        return "healthy" != self.clusters("health_flags")[self.addresses[node]]


@pytest.fixture(params=[HAProxy, Envoy], ids=["haproxy", "envoy"])
def door(request, tmp_path):
    made = request.param(tmp_path)
    try:
        made.open()
        yield made
    finally:
        made.close()


def test_a_family_stays_where_it_is(door):
    families = [f"chat-{i}" for i in range(FAMILIES)]
    for family in families:
        door.create(f"{family}/main")
    before = door.held()
    assert min(map(len, before.values())) > 0 and sum(map(len, before.values())) == FAMILIES
    chance = random.Random(1)
    for i in range(CALLS):  # a call at another server would be NOT_FOUND
        family = chance.choice(families)
        if i % 50 == 7:
            door.create(f"{family}/{i}")
        assert door.get(f"{family}/main").sequence.handle.id == f"{family}/main"
    assert door.held() == before


def test_a_lost_node_takes_its_own_families_alone(door):
    families = [f"chat-{i}" for i in range(FAMILIES)]
    for family in families:
        door.create(family)
    before = door.held()
    door.servers[1].kill()
    door.servers[1].wait(20)
    until(lambda: door.sees_down(1))
    wanted = {family: "NOT_FOUND" if family in before[1] else "OK" for family in families}
    until(lambda: {family: door.code_of(family) for family in families} == wanted)
    for family in before[1]:
        door.create(family)
    assert {door.code_of(family) for family in families} == {"OK"}
    door.start(1)
    until(door.all_up)
    assert {door.code_of(family) for family in families} == {"OK"}  # what was made again stays where it is
    assert not door.held()[1]


def test_a_server_that_ends_by_sigterm_is_left_before_it_refuses(door):
    """Those of other families never fail meanwhile."""
    families = [f"chat-{i}" for i in range(FAMILIES)]
    for family in families:
        door.create(family)
    kept = set(families) - door.held()[2]
    door.servers[2].terminate()
    while door.servers[2].poll() is None:
        assert {door.code_of(family) for family in kept} == {"OK"}
    until(lambda: door.sees_down(2))
    wanted = {family: "OK" if family in kept else "NOT_FOUND" for family in families}
    until(lambda: {family: door.code_of(family) for family in families} == wanted)


@pytest.mark.parametrize("door", [HAProxy], ids=["haproxy"], indirect=True)
def test_a_drained_server_keeps_what_it_has_and_gets_no_more(door):
    families = [f"chat-{i}" for i in range(FAMILIES)]
    for family in families:
        door.create(family)
    before = door.held()
    door.drain(0)
    for i in range(FAMILIES):
        door.create(f"new-{i}")
    assert door.held()[0] == before[0]
    assert {door.code_of(family) for family in families} == {"OK"}
    door.create(f"{sorted(before[0])[0]}/branch")
    assert door.held()[0] == before[0]
