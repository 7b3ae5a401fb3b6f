"""The two kinds of Ray actor that make a fleet: its directory, and a supervisor for each server.

Both are named and detached: they outlive whoever started them, and Ray starts them again where they end. The directory's
table lives in the cluster's own store (GCS), so a directory that is started again knows what it knew. A supervisor that is
started again starts an empty server and says so to the directory, whose generations then tell what is lost.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable, Iterator, MutableMapping
from typing import Any, Optional

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError
from ray.experimental import internal_kv

from seine_kv.address import Security
from seine_kv.fleet.description import Description
from seine_kv.fleet.server import Server, free_port
from seine_kv.fleet.route import Key, Process, Route
from seine_kv.fleet.table import Table

NAMESPACE = "seine"
START_SECONDS = 60.0
_SUSPECT_SECONDS = 1.0  # a supervisor after its server: a step waits for the answer
_LEAVE_SECONDS = 4.0
_WATCH_SECONDS = 20.0  # a watcher's question stays open


def directory_name(fleet: str) -> str:
    return f"seine-fleet:{fleet}"


def node_actor_name(fleet: str, node: str) -> str:
    return f"seine-node:{fleet}:{node}"


def actor(name: str) -> Any:
    """A handle to a named actor. ValueError where there is none."""
    return ray.get_actor(name, namespace=NAMESPACE)


class ClusterStore(MutableMapping[str, bytes]):
    """Keys of one fleet in GCS. run: tells it from an earlier one of the same name."""

    def __init__(self, fleet: str, run: str) -> None:
        self._space = f"seine-fleet.{fleet}.{run}".encode()  # Ray splits at a colon

    def __getitem__(self, key: str) -> bytes:
        value = internal_kv._internal_kv_get(key.encode(), namespace=self._space)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: str, value: bytes) -> None:
        internal_kv._internal_kv_put(key.encode(), value, overwrite=True, namespace=self._space)

    def __delitem__(self, key: str) -> None:
        internal_kv._internal_kv_del(key.encode(), namespace=self._space)

    def __iter__(self) -> Iterator[str]:
        return (key.decode() for key in internal_kv._internal_kv_list(b"", namespace=self._space))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def clear(self) -> None:
        for key in list(self):
            del self[key]


class Directory:
    """The table as an actor. Its methods run in one event loop; none waits between reading and writing the table."""

    def __init__(self, fleet: str, options: dict[str, Any]) -> None:
        self._store = ClusterStore(fleet, options["run"])
        self._fleet, self._options, self._table = fleet, options, Table(fleet, self._store)
        self._changed = asyncio.Event()

    async def options(self) -> dict[str, Any]:
        """What every server of the fleet is started with."""
        return self._options

    async def reserve(self, count: int) -> list[str]:
        """Names for so many new nodes; no two calls get the same."""
        return self._table.reserve(count)

    async def names(self) -> list[str]:
        """Of all nodes that were ever reserved and not removed."""
        return self._table.names()

    async def begin(self, name: str, address: str) -> int:
        generation = self._table.begin(name, address)
        self._wake()
        return generation

    async def drains(self, name: str) -> bool:
        return self._table.drains(name)

    async def join(self, name: str, generation: int, drains: bool) -> bool:
        joined = self._table.join(name, generation, drains)
        self._wake()
        return joined

    async def leave(self, name: str, generation: int) -> None:
        self._table.leave(name, generation)
        self._wake()

    async def address_of(self, name: str) -> str:
        """Where a node listened last; "" for a new one."""
        node = self._table.node(name)
        return node.address if node else ""

    async def drain(self, name: str) -> None:
        self._table.drain(name)
        self._wake()

    async def undrain(self, name: str) -> None:
        self._table.undrain(name)
        self._wake()

    async def remove(self, name: str) -> None:
        self._table.remove(name)
        self._wake()

    async def describe(self) -> Description:
        return self._table.describe()

    async def loads(self) -> dict[str, int]:
        return self._table.loads()

    async def clear(self) -> None:
        """Forgets the fleet, in the cluster's store too."""
        self._store.clear()

    async def watch(self, epoch: int) -> tuple[int, Description]:
        """The nodes, once they are not those of `epoch` any more, or after a while."""
        if epoch == self._table.epoch:
            try:
                await asyncio.wait_for(self._changed.wait(), _WATCH_SECONDS)
            except asyncio.TimeoutError:
                pass
        return self._table.epoch, self._table.describe()

    async def place(self, family: str, index: str, id: str, on: str, without: Collection[str]) -> Route:
        return self._table.place(family, index, id, on, without)

    async def locate(self, family: str, index: str) -> Optional[Route]:
        return self._table.locate(family, index)

    async def move(
        self, family: str, index: str, moves: int, left: Process, reached: Process, making: bool = False
    ) -> None:
        self._table.move(family, index, moves, left, reached, making)

    async def held(self, name: str) -> list[Route]:
        return self._table.held(name)

    async def forget(self, routes: Iterable[Route]) -> None:
        self._table.forget(routes)

    async def elsewhere(self, routes: Iterable[Route]) -> set[Key]:
        return self._table.elsewhere(routes)

    async def add(self, family: str, index: str, id: str) -> None:
        self._table.add(family, index, id)

    async def remove_sequence(self, family: str, index: str, id: str) -> None:
        self._table.remove_sequence(family, index, id)

    async def remove_index(self, index: str) -> None:
        self._table.remove_index(index)

    async def suspect(self, name: str, generation: int) -> str:
        """Asks a node's supervisor after its server: "up", "lost", or "unknown" where Ray cannot tell yet."""
        if not self._serves(name, generation):
            return "lost"
        try:
            supervisor = actor(node_actor_name(self._fleet, name))
            serves = await asyncio.wait_for(supervisor.serves.remote(generation), _SUSPECT_SECONDS)
        except (ActorDiedError, ValueError):  # Ray has given it up, and its server died with it
            self._table.leave(name, generation)
            self._wake()
            return "lost"
        except (ActorUnavailableError, GetTimeoutError, RayError, asyncio.TimeoutError):
            serves = None
        if not self._serves(name, generation):
            return "lost"
        return "up" if serves else "unknown"

    def _serves(self, name: str, generation: int) -> bool:
        node = self._table.node(name)
        return node is not None and node.generation == generation and node.state != "lost"

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Supervisor:
    """Keeps one seined. Where that ends, this process ends too, and Ray starts both again."""

    def __init__(self, fleet: str, node: str, listen: str, flags: list[str], seined: str, security: Security) -> None:
        self._node, self._directory = node, actor(directory_name(fleet))
        address, self._stopping = self._address(listen), False
        self._generation: int = ray.get(self._directory.begin.remote(node, address), timeout=START_SECONDS)
        while not self._joined(address, flags, seined, security):
            self._server.stop(0.0)
        self._server.watch(self._ended)

    def serves(self, generation: int) -> bool:
        return generation == self._generation and self._server.serves()

    def ready(self) -> dict[str, Any]:
        """Where it is and what it runs."""
        own = {"pid": os.getpid(), "seined": self._server.pid, "generation": self._generation}
        return {**own, "address": self._server.address, "ray_node": ray.get_runtime_context().get_node_id()}

    def stop(self, seconds: float) -> int:
        """Ends the server; returns its exit code. The actor is to be killed afterwards."""
        self._stopping = True
        return self._server.stop(seconds)

    def _joined(self, address: str, flags: list[str], seined: str, security: Security) -> bool:
        """Starts a server that drains where the directory says so: who has not joined Ray asks it alone. False: the
        directory says otherwise by now."""
        drains: bool = ray.get(self._directory.drains.remote(self._node), timeout=START_SECONDS)
        self._server = Server(address, [*flags, *(["--draining"] if drains else [])], seined, security)
        self._server.wait_until_serving(START_SECONDS)
        return ray.get(self._directory.join.remote(self._node, self._generation, drains), timeout=START_SECONDS)

    def _address(self, listen: str) -> str:
        """The last one, so that clients outside Ray find the node again; on another machine, a new one."""
        if listen.startswith("unix:"):
            return listen
        host = ray.util.get_node_ip_address() if listen == "tcp" else listen
        last: str = ray.get(self._directory.address_of.remote(self._node), timeout=START_SECONDS)
        if last.rpartition(":")[0] == host:
            return last
        return f"{host}:{free_port(host)}"

    def _ended(self) -> None:
        if self._stopping:
            return
        try:
            ray.get(self._directory.leave.remote(self._node, self._generation), timeout=_LEAVE_SECONDS)
        except RayError:
            pass  # whoever asks will hear it from the next generation
        os._exit(1)
