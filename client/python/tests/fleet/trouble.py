"""Kills, drains and adds servers of a fleet while others decode on it."""

import os
import random
import signal
import sys
import threading
import time


KINDS = ("kills", "server_kills", "supervisor_kills", "drains", "undrains", "added")  # kills: of both kinds


class Trouble(threading.Thread):
    """Does to a fleet what its users fear, one thing every few seconds, until stop()."""

    def __init__(self, fleet, seed, pause, grow_to):
        super().__init__(daemon=True, name="trouble")
        self._grow_to = grow_to
        self._fleet, self._random, self._pause, self._over = fleet, random.Random(seed), pause, threading.Event()
        self.counts = dict.fromkeys(KINDS, 0)
        self.error, self._drained = None, ""

    def run(self):
        plan = [self._kill_server, self._drain, self._kill_server, self._add, self._kill_supervisor, self._undrain]
        step = 0
        while not self._over.wait(self._pause):
            try:
                plan[step % len(plan)]()
            except Exception as error:  # a fleet that cannot be told what to do is a finding
                self.error = error
                return
            step += 1

    def stop(self):
        self._over.set()
        self.join()
        if self.error is not None:
            raise self.error

    def _up(self):
        return [node["name"] for node in self._fleet.describe()["nodes"] if node["state"] == "up"]

    def _kill(self, which):
        up = self._up()
        if len(up) < 2:
            return  # the last one is to go on
        node = self._random.choice(up)
        os.kill(self._fleet.supervisor(node)[which], signal.SIGKILL)
        self.counts["kills"] += 1
        self.counts["server_kills" if which == "seined" else "supervisor_kills"] += 1
        print(f"trouble: kill -9 of {node}'s {'seined' if which == 'seined' else 'supervisor'}", file=sys.stderr)

    def _kill_server(self):
        self._kill("seined")

    def _kill_supervisor(self):
        self._kill("pid")

    def _drain(self):
        up = self._up()
        if len(up) < 2:
            return
        self._drained = self._random.choice(up)
        self._fleet.drain(self._drained)
        self.counts["drains"] += 1
        print(f"trouble: {self._drained} is drained", file=sys.stderr)

    def _undrain(self):
        if self._drained:
            self._fleet.drain(self._drained, undo=True)
            self.counts["undrains"] += 1

    def _add(self):
        if self._grow_to and not self.counts["added"]:
            self._fleet.scale(self._grow_to)
            self.counts["added"] += 1
            print("trouble: a node is added", file=sys.stderr)


def all_up(fleet, seconds=120.0):
    end = time.monotonic() + seconds
    while any(node["state"] == "lost" for node in fleet.describe()["nodes"]):
        if time.monotonic() > end:
            raise TimeoutError("a node that was killed has not come back")
        time.sleep(0.1)
