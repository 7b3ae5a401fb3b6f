"""Fleet: starts, finds, grows and ends the servers of a Ray cluster."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Sequence as Many
from typing import Any, Optional, Union

try:
    import ray
except ImportError as error:
    raise ImportError(f"seine_kv.fleet needs Ray ({error}): pip install 'seine-kv[ray]'", name="ray") from None

from seine_kv.address import Security
from seine_kv.fleet import actors, description, start
from seine_kv.fleet.client import FleetClient
from seine_kv.fleet.mover import MovedFamily, Mover
from seine_kv.fleet.nodes import NodeClients
from seine_kv.fleet.ray_directory import RayDirectory
from seine_kv.fleet.relocation import Progress, Relocation
from seine_kv.fleet.router import Patience

_RESTART_SECONDS = 30.0
_CALL_SECONDS = 60.0  # of one call of a drain
PLACEMENTS = {"SPREAD": "STRICT_SPREAD", "PACK": "PACK"}


class Fleet:
    """The servers of one name in the Ray cluster that this process has joined. start() makes them, connect() finds
    them; they live until stop(), whoever has made them. May be shared by threads.

    The server's settings are the same on every node, and so are the paths of its files.
    """

    def __init__(self, name: str, security: Optional[Security] = None) -> None:
        self.name, self._security = name, security
        self._directory = actors.actor(actors.directory_name(name))

    @classmethod
    def start(
        cls,
        nodes: int,
        memory_per_node: Union[int, str],
        placement: str = "SPREAD",
        cpus_per_node: float = 1,
        name: str = "seine",
        listen: str = "",
        server_flags: Many[str] = (),
        security: Optional[Security] = None,
        seined: str = "",
        max_restarts: int = -1,
        wait_seconds: float = 120.0,
    ) -> Fleet:
        """Starts `nodes` servers and waits until they serve. Ray is joined where it has not been: ray.init().

        memory_per_node: "8GiB" or bytes, of seined's --memory-limit and of what Ray sets aside. cpus_per_node: that Ray
        sets aside, and seined's --threads. placement: "SPREAD", each on a machine of its own, or "PACK", on as few as
        may be. listen: "tcp", a port of each machine's address; "unix:/FOLDER", sockets in a folder that is there; "":
        unix:/tmp/seine-NAME-UID where the cluster is one machine, else tcp, for which seined wants TLS and credentials.
        server_flags: more of seined's. security: the default of client(); its TLS files serve those who ask after the
        servers' health. seined: the program; "": SEINED, the wheel's own, or PATH's. max_restarts: of each supervisor, with
        -1 without end.

        ValueError names an argument. RuntimeError: not all of them serve in time; none is left.
        """
        if not isinstance(nodes, int) or nodes < 1:
            raise ValueError(f"nodes: must be at least 1, not {nodes!r}")
        if placement not in PLACEMENTS:
            raise ValueError(f"placement: must be one of {', '.join(PLACEMENTS)}, not {placement!r}")
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,40}", name):
            raise ValueError(f"name: letters, digits, '.', '_' and '-', at most 40, not {name!r}")
        memory = start.bytes_of(memory_per_node)
        if not ray.is_initialized():
            ray.init(namespace=actors.NAMESPACE)
        options = {
            "run": uuid.uuid4().hex,
            "memory": memory,
            "cpus": cpus_per_node,
            "listen": listen or start.usual_listen(name),
            "flags": ["--memory-limit", str(memory), "--threads", str(max(1, int(cpus_per_node))), *server_flags],
            "seined": os.path.abspath(seined) if seined else "",
            "security": start.without_token(security or Security()),
            "max_restarts": max_restarts,
        }
        try:
            start.start_directory(name, options)
        except ValueError as error:
            raise ValueError(f"name: there is a fleet {name!r} already; Fleet.connect finds it") from error
        fleet = cls(name, security)
        try:
            start.grow(name, fleet._ask(fleet._directory.reserve, nodes), options, PLACEMENTS[placement], wait_seconds)
        except BaseException:
            fleet.stop(0.0)
            raise
        return fleet

    @classmethod
    def connect(cls, name: str = "seine", security: Optional[Security] = None) -> Fleet:
        """The fleet of a name that is there. ValueError where there is none."""
        if not ray.is_initialized():
            ray.init(address="auto", namespace=actors.NAMESPACE)
        return cls(name, security)

    def describe(self) -> dict[str, Any]:
        """The nodes and where they listen, as JSON has it: what connect() and `seine fleet` take."""
        return self._description().as_dict()

    def write(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes describe() into a file, which is replaced as a whole."""
        description.write(self._description(), path)

    def loads(self) -> dict[str, int]:
        """Families that each node holds, as the directory has it."""
        return self._ask(self._directory.loads)

    def client(
        self, timeout: float = 60.0, security: Optional[Security] = None, patience: float = 10.0
    ) -> FleetClient:
        """A FleetClient that asks this fleet's directory. timeout: seconds a call; patience: seconds in which what may
        be repeated is, where a node does not answer; security: of the calls, else the Fleet's own."""
        nodes = NodeClients(security or self._security, timeout)
        directory = RayDirectory(self._directory, nodes)
        client = FleetClient(directory, nodes, timeout, patience, directory.close)
        directory.watch(client.router.note)
        return client

    def scale(
        self, nodes: int, wait_seconds: float = 120.0, bytes_per_second: float = 0.0, progress: Optional[Progress] = None
    ) -> None:
        """Adds or takes out servers until there are `nodes`. New ones start where Ray finds room, within wait_seconds; new
        families choose among all, and those that are there stay until rebalance(). Fewer: those that drain already go
        first, then the youngest; each is drained, as drain() does with the last two arguments, and removed.

        ValueError: nodes is below 1. RuntimeError: not all new ones serve in time, or families stay on a node that was to
        go; that one still drains, and undrain() keeps it. SeineError as of drain().
        """
        if not isinstance(nodes, int) or nodes < 1:
            raise ValueError(f"nodes: must be at least 1, not {nodes!r}")
        there = self._description().nodes
        options = self._ask(self._directory.options)
        for node in self._ask(self._directory.reserve, max(0, nodes - len(there))):
            start.grow(self.name, [node], options, "SPREAD", wait_seconds)  # its place can be given back by itself
        leaving = [node.name for node in sorted(there, key=_leaves_first)[: max(0, len(there) - nodes)]]
        for node in leaving:  # none of them is a target of another
            self._ask(self._directory.drain, node)
        for node in leaving:
            done = self.drain(node, bytes_per_second, progress)
            stay = [one for one in done if one.outcome in ("snapshotted", "stays")]
            if stay:
                raise RuntimeError(f"nodes: {len(stay)} families stay on {node}, the first because: {stay[0].why}")
            self.remove(node)

    def drain(
        self, node: str, bytes_per_second: float = 0.0, progress: Optional[Progress] = None
    ) -> list[MovedFamily]:
        """Empties a node: it takes no new families, and those that it holds move to the others, the largest first, as
        `seine drain` moves them. Clients follow. A family that no node has room for serves on here, and is written to a
        snapshot. Where a server is started again meanwhile, the drain goes on with what is there, and says which families
        are lost. Returns what became of each. A second drain goes on where the first has ended.

        bytes_per_second: of snapshots written, on average; 0: no bound. progress: is called with each family, in this
        thread. The servers need the same --snapshots-dir, and this process has to reach all of them, with the role
        admin.

        ValueError: there is no such node. FileNotFoundError: there is no program `seine` here. SeineError: UNAVAILABLE
        where the node stays away, or the directory's answer is missing; others of the calls before the first family moves. The node
        drains all the same, also after a restart, until undrain().
        """
        self._ask(self._directory.drain, node)
        return self._relocate(lambda relocation: relocation.drain(node, bytes_per_second), progress)

    def undrain(self, node: str) -> None:
        """The node takes new families again; what has moved stays where it is. ValueError: there is no such node.
        SeineError: its server does not answer, and may drain on."""
        self._ask(self._directory.undrain, node)
        there = self._description().node(node)
        if there.state != "lost":  # a server that is started again asks the directory whether it drains
            with self.client() as client:
                client.node(node).call("SetDraining", {"draining": False})

    def rebalance(
        self, most_bytes: Optional[int] = None, bytes_per_second: float = 0.0, progress: Optional[Progress] = None
    ) -> list[MovedFamily]:
        """Moves families from the fullest nodes to the emptiest, until none that takes families holds more than 1.25 times
        the mean of their bytes in memory, or no family is small enough for that. Returns what became of each: "moved",
        "stays" with what prevented it, or "lost" with its node. most_bytes: in memory, of all that move; None: no bound. The rest, and errors, as
        of drain()."""
        return self._relocate(lambda relocation: relocation.rebalance(most_bytes, bytes_per_second), progress)

    def remove(self, node: str, seconds: float = 10.0) -> None:
        """Ends a drained node's server, within `seconds` or by force, and gives its place back to Ray where it was added
        by itself. ValueError while it takes new families, or holds some that the directory knows."""
        self._ask(self._directory.remove, node)
        start.end(self.name, node, seconds)
        start.give_back(self.name, node)

    def supervisor(self, node: str) -> dict[str, Any]:
        """Of a node: pid of its supervisor, pid of its seined, generation, address, Ray's id of the machine."""
        return self._ask(actors.actor(actors.node_actor_name(self.name, node)).ready)

    def stop(self, seconds: float = 10.0) -> None:
        """Ends all servers, within `seconds` each or by force, and forgets the fleet."""
        for node in self._ask(self._directory.names):
            start.end(self.name, node, seconds)
        self._ask(self._directory.clear)
        ray.kill(self._directory, no_restart=True)
        start.give_back(self.name)

    # ----------------------------------------------------------------------------------------------------------------

    def _relocate(
        self, work: Callable[[Relocation], list[MovedFamily]], progress: Optional[Progress]
    ) -> list[MovedFamily]:
        mover = Mover(self._security, self._ask(self._directory.options)["seined"])
        nodes = NodeClients(self._security, _CALL_SECONDS)
        try:
            return work(Relocation(self._ask, self._directory, nodes, mover, progress))
        finally:
            nodes.close()

    def _description(self) -> description.Description:
        return self._ask(self._directory.describe)

    def _ask(self, method: Any, *arguments: Any) -> Any:
        clock = Patience(_RESTART_SECONDS)
        while True:
            try:
                return ray.get(method.remote(*arguments), timeout=_RESTART_SECONDS)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, ValueError):
                    raise ValueError(str(error.cause)) from None
                raise
            except ray.exceptions.ActorUnavailableError:
                if not clock.wait():  # Ray is starting it again
                    raise


def _leaves_first(node: description.Node) -> tuple[bool, int]:
    """Whether it takes families, and its number: the youngest has the highest."""
    return node.state != "draining", -int(node.name[1:])
