"""Kills, drains and adds servers of a fleet while others decode on it; kills machines and Ray's head where it may."""

import itertools
import os
import random
import signal
import sys
import threading
import time

from chaos.text import count_failure

from seine_kv.messages import SeineError

KINDS = ("server", "supervisor", "raylet", "head")
COUNTS = ("kills", *(f"{kind}_kills" for kind in KINDS), "drains", "undrains", "added", "moved")  # kills: of all kinds
HEAD_SECONDS = 3.0  # that the head is away


class Trouble:
    """Does to a fleet what its users fear, one thing every few seconds. Of one thread, the main one: a machine is its
    child, and ends with it."""

    def __init__(self, fleet, service, seed, pause, grow_to, machines):
        self._fleet, self._service, self._machines, self._grow_to = fleet, service, machines, grow_to
        self._random, self._pause = random.Random(seed), pause
        self.counts, self.errors = dict.fromkeys(COUNTS, 0), dict.fromkeys(("lost", "unstated_errors"), 0)
        self._drained, self._thread_error = "", None

    def make(self, seconds):
        """For so long, and until there was a kill."""
        plan = [self._kill_server, self._drain, self._kill_server, self._add, self._kill_supervisor, self._undrain]
        plan += [self._kill_in_drain]
        if self._machines:
            plan += [self._kill_raylet, self._kill_head]
        end = time.monotonic() + seconds
        for act in itertools.cycle(plan):
            if time.monotonic() > end and self.counts["kills"]:
                return
            time.sleep(self._pause)
            act()

    def _up(self):
        return [node["name"] for node in self._fleet.describe()["nodes"] if node["state"] == "up"]

    def _victim(self):
        """A node, and what Fleet.supervisor says of it; none where it is the last one, which is to go on."""
        up = self._up()
        if len(up) < 2:
            return None, {}
        node = self._random.choice(up)
        return node, self._fleet.supervisor(node)

    def _killing(self, kind, node=""):
        """Notes a kill that follows."""
        self._service.killed(kind, node)
        self.counts["kills"] += 1
        self.counts[f"{kind}_kills"] += 1
        print(f"trouble: kill -9 of {f'the {kind} of {node}' if node else f'the {kind}'}", file=sys.stderr)

    def _kill_process(self, kind, which):
        node, there = self._victim()
        if node is not None:
            self._killing(kind, node)
            os.kill(there[which], signal.SIGKILL)

    def _kill_server(self):
        self._kill_process("server", "seined")

    def _kill_supervisor(self):
        self._kill_process("supervisor", "pid")

    def _kill_raylet(self):
        """A machine goes, another comes in its place, and the server is started there once Ray has noticed."""
        node, there = self._victim()
        if node is not None:
            self._killing("raylet", node)
            self._machines.kill_raylet(there["ray_node"])
            self._machines.add()
            until(lambda: self._fleet.supervisor(node)["generation"] > there["generation"])

    def _kill_head(self):
        self._killing("head")
        self._machines.kill_head()
        time.sleep(HEAD_SECONDS)
        self._machines.start_head()

    def _drain(self):
        up = self._up()
        if len(up) < 2:
            return
        self._drained = self._random.choice(up)
        self._relocate(self._fleet.drain, self._drained)
        self.counts["drains"] += 1
        print(f"trouble: {self._drained} is drained", file=sys.stderr)

    def _undrain(self):
        if self._drained:
            self._relocate(self._fleet.undrain, self._drained)
            self.counts["undrains"] += 1

    def _kill_in_drain(self):
        """The node that is drained ends in the middle, or one that families move to."""
        up = self._up()
        if len(up) < 3:
            return
        node, victim = self._random.choice(up), self._random.choice(up)
        there = self._fleet.supervisor(victim)
        drain = threading.Thread(target=self._relocate, args=(self._fleet.drain, node), name="drain")
        drain.start()
        time.sleep(self._random.uniform(0.0, 0.5))
        self._killing("server", victim)
        os.kill(there["seined"], signal.SIGKILL)
        drain.join()
        if self._thread_error is not None:
            raise self._thread_error
        self.counts["drains"] += 1
        self._relocate(self._fleet.undrain, node)
        self.counts["undrains"] += 1

    def _relocate(self, call, *arguments):
        """Drains, undrains or rebalances. What moves families meets what is killed: its errors count as a client's do."""
        try:
            done = call(*arguments) or []
            self.counts["moved"] += sum(one.outcome == "moved" for one in done)
        except SeineError as error:
            count_failure(self.errors, error)
        except Exception as error:  # what it may not raise is a finding
            self._thread_error = error
            raise

    def _add(self):
        if self._grow_to and not self.counts["added"]:
            if self._machines:
                self._machines.add()
            self._fleet.scale(self._grow_to)
            self.counts["added"] += 1
            self._relocate(self._fleet.rebalance)
            print("trouble: a node is added", file=sys.stderr)


def until(condition, seconds=120.0, missing=lambda: "what was killed"):
    """TimeoutError where a condition does not hold in time. What Ray cannot say yet is asked again."""
    import ray

    end = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except ray.exceptions.RayError:
            pass
        if time.monotonic() > end:
            raise TimeoutError(f"not back within {seconds} s: {missing()}")
        time.sleep(0.1)


def all_up(fleet, client):
    """Waits until every server answers: one that was killed a moment ago is not known to be lost yet."""

    def missing():
        nodes = fleet.describe()["nodes"]
        return [node for node in nodes if node["state"] == "lost" or not _answers(client, node["name"])]

    until(lambda: not missing(), missing=missing)


def _answers(client, name):
    try:
        client.node(name).call("GetServerInfo")
        return True
    except SeineError:
        return False
