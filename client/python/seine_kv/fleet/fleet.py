"""Fleet: starts, finds, grows and ends the servers of a Ray cluster."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Sequence as Many
from typing import Any, Optional, Union

try:
    import ray
except ImportError as error:
    raise ImportError(f"seine_kv.fleet needs Ray ({error}): pip install 'seine-kv[ray]'", name="ray") from None

from ray.util.placement_group import placement_group, remove_placement_group

from seine_kv.address import Security
from seine_kv.fleet import actors, description, start
from seine_kv.fleet.client import FleetClient
from seine_kv.fleet.nodes import NodeClients
from seine_kv.fleet.ray_directory import RayDirectory
from seine_kv.fleet.router import Patience

_RESTART_SECONDS = 30.0
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
            fleet._grow(nodes, PLACEMENTS[placement], wait_seconds)
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

    def scale(self, nodes: int, wait_seconds: float = 120.0) -> None:
        """Adds servers until there are `nodes`, each where Ray finds room. Families stay where they are; new ones
        choose among all. ValueError for fewer than there are: drain() and remove() take nodes out."""
        there = len(self._description().nodes)
        if nodes < there:
            raise ValueError(f"nodes: there are {there}; drain a node and remove it to have {nodes}")
        if nodes > there:
            self._grow(nodes - there, "SPREAD", wait_seconds)

    def drain(self, node: str, undo: bool = False) -> None:
        """New families go elsewhere; those that the node holds stay and are served. ValueError: there is no such
        node."""
        self._ask(self._directory.drain, node, undo)

    def remove(self, node: str, seconds: float = 10.0) -> None:
        """Ends a drained node's server, within `seconds` or by force. ValueError while it holds families that the
        directory knows."""
        self._ask(self._directory.remove, node)
        self._end(node, seconds)

    def supervisor(self, node: str) -> dict[str, Any]:
        """Of a node: pid of its supervisor, pid of its seined, generation, address, Ray's id of the machine."""
        return self._ask(actors.actor(actors.node_actor_name(self.name, node)).ready)

    def stop(self, seconds: float = 10.0) -> None:
        """Ends all servers, within `seconds` each or by force, and forgets the fleet."""
        for node in self._ask(self._directory.names):
            self._end(node, seconds)
        self._ask(self._directory.clear)
        ray.kill(self._directory, no_restart=True)
        for group in ray.util.placement_group_table().values():
            if group["name"].startswith(f"seine:{self.name}:") and group["state"] != "REMOVED":
                remove_placement_group(ray.util.get_placement_group(group["name"]))

    # ----------------------------------------------------------------------------------------------------------------

    def _description(self) -> description.Description:
        return self._ask(self._directory.describe)

    def _grow(self, count: int, strategy: str, wait_seconds: float) -> None:
        options = self._ask(self._directory.options)
        names = self._ask(self._directory.reserve, count)
        bundle = {"CPU": options["cpus"], "memory": options["memory"]}
        group = placement_group(
            [bundle] * count, strategy, name=f"seine:{self.name}:{names[0]}", lifetime="detached"
        )
        if not group.wait(wait_seconds):
            remove_placement_group(group)
            room = f"{count} times {options['cpus']} CPUs and {options['memory']} bytes of memory"
            raise RuntimeError(f"Ray has no room for {room} ({strategy}) within {wait_seconds} s; see ray status")
        supervisors = [start.start_supervisor(self.name, names[i], options, group, i) for i in range(count)]
        try:
            ray.get([supervisor.ready.remote() for supervisor in supervisors], timeout=wait_seconds)
        except ray.exceptions.RayError as error:
            for name in names:
                self._end(name, 0.0)
            remove_placement_group(group)
            raise RuntimeError(f"not all servers serve within {wait_seconds} s: {start.why(error)}") from None

    def _end(self, node: str, seconds: float) -> None:
        try:
            supervisor = actors.actor(actors.node_actor_name(self.name, node))
        except ValueError:
            return  # it has gone already
        try:
            if seconds > 0:
                ray.get(supervisor.stop.remote(seconds), timeout=seconds + 5)
        except ray.exceptions.RayError:
            pass  # its server ends with it
        ray.kill(supervisor, no_restart=True)

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
