"""Where a client's families are: what it knows, what it asks the directory, and what a failed call says of a node."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional, Protocol, TypeVar

from seine_kv.fleet.description import Description, Node
from seine_kv.fleet.errors import SequenceLost
from seine_kv.fleet.nodes import NodeClients
from seine_kv.fleet.placement import family_of
from seine_kv.fleet.table import Route
from seine_kv.messages import SeineError, Sequence

SERVER_BITS = 32  # of a handle's generation: the server's own; above them is the family's
GONE = ("UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED")  # codes after which a node is looked at
FOLLOWED = ("MOVED", "MOVING")  # reasons after which the family is called again: nothing was changed
_Result = TypeVar("_Result")


class Directory(Protocol):
    """What a Router asks; Ray's directory (ray_directory.py) or a description (static_directory.py)."""

    def describe(self) -> Description: ...

    def place(self, family: str, index: str, id: str, known: Optional[Route]) -> Route:
        """The node for a sequence to be. known: where the client has the family. SeineError UNAVAILABLE where no node
        takes new families."""

    def locate(self, family: str, index: str, id: str) -> Optional[Route]: ...

    def suspect(self, route: Route) -> str:
        """Of a node that failed a call: "up", "lost", or "unknown" where it cannot be told yet."""

    def down(self, node: Node) -> bool:
        """Of a node that failed a call for every node: whether it is lost."""

    def restarted(self, route: Route) -> bool:
        """Of a node that does not know a sequence: whether it has been started again since."""

    def add(self, family: str, index: str, id: str) -> None: ...

    def remove_sequence(self, family: str, index: str, id: str) -> None: ...

    def remove_index(self, index: str) -> None: ...


@dataclass(frozen=True)
class _Loss:
    """Families that went at once, and the node that they went with."""

    families: tuple[str, ...]
    node: str


class Router:
    """Shared by the threads and streams of one FleetClient. patience: seconds in which what may be repeated is."""

    def __init__(self, directory: Directory, nodes: NodeClients, patience: float) -> None:
        self.directory, self.nodes, self.patience = directory, nodes, patience
        self._routes: dict[str, Route] = {}
        self._losses: dict[str, _Loss] = {}  # by family, of those that this client knew
        self._again: set[str] = set()  # of them, those that were made again
        self._moved: set[str] = set()  # families that have moved: their sequences have other generations now
        self._lock = threading.Lock()

    # Routes ---------------------------------------------------------------------------------------------------------

    def route(self, sequence: Sequence) -> Route:
        """Where the family of a handle is. SequenceLost, or NOT_FOUND where nobody knows it."""
        family, carried = family_of(sequence.id), sequence.generation >> SERVER_BITS
        route = self._routes.get(family)
        if route is None or carried > route.generation > 0:
            route = self._located(family, sequence)
        if 0 < carried < route.generation:
            raise self._loss_of(family)
        return route

    def place(self, family: str, index: str, id: str) -> Route:
        """The node for a sequence that is to be created."""
        route = self.directory.place(family, index, id, self._routes.get(family))
        self._learn(route)
        return route

    def known(self, family: str) -> Optional[Route]:
        return self._routes.get(family)

    def note(self, description: Description) -> None:
        """Forgets families of nodes that are gone or have been started again."""
        now = {node.name: node for node in description.nodes}
        for route in {(r.node, r.node_generation): r for r in list(self._routes.values())}.values():
            node = now.get(route.node)
            if node is None or node.state == "lost" or node.generation != route.node_generation:
                self.lost(route)

    def lost(self, route: Route) -> SequenceLost:
        """Forgets all families that a node held; the error that names them."""
        with self._lock:
            held = (route.node, route.node_generation)
            families = {f for f, r in self._routes.items() if (r.node, r.node_generation) == held}
            if families:
                loss = _Loss(tuple(sorted(families | {route.family})), route.node)
                self._losses.update(dict.fromkeys(loss.families, loss))
                self._again.difference_update(loss.families)
            for family in families:
                del self._routes[family]
        return self._loss_of(route.family, route.node)

    def _loss_of(self, family: str, node: str = "") -> SequenceLost:
        loss = self._losses.get(family) or _Loss((family,), node)
        return SequenceLost(loss.families, loss.node)

    def _located(self, family: str, sequence: Sequence) -> Route:
        route = self.directory.locate(family, sequence.index, sequence.id)
        if route is not None and not route.lost:
            self._learn(route)
            return route
        if route is not None or (family in self._losses and family not in self._again):
            raise self._loss_of(family, route.node if route else "")
        raise SeineError("NOT_FOUND", f"handle: not found: {sequence.id!r}", "handle", "NOT_FOUND")

    def _learn(self, route: Route) -> None:
        with self._lock:
            self._routes[route.family] = route
            if route.family in self._losses:
                self._again.add(route.family)

    # Calls ----------------------------------------------------------------------------------------------------------

    def run(self, sequence: Sequence, call: Callable[[Any, Sequence], _Result], repeat: bool) -> _Result:
        """Calls the node of a sequence: call(Client, handle of its own). repeat: the call may be sent again where it
        is not known what became of it."""
        clock, followed = Patience(self.patience), False
        while True:
            route = self.route(sequence)
            try:
                return call(self.nodes.at(route.address), self.own_handle(sequence))
            except SeineError as error:
                if error.reason == "MOVED" and not followed:
                    followed = True
                    self.moved(route.family)
                elif error.reason == "MOVING" and clock.wait():
                    continue  # nothing was changed, so every call may be sent again
                elif not (self.judge(route, error) and repeat and clock.wait()):
                    raise

    def moved(self, family: str) -> None:
        """A node says that the family has moved: it is looked for again."""
        with self._lock:
            self._routes.pop(family, None)
            self._moved.add(family)

    def forget(self, family: str) -> None:
        """Forgets where a family was to be created."""
        with self._lock:
            self._routes.pop(family, None)

    def own_handle(self, sequence: Sequence) -> Sequence:
        """A handle as its node has it. Of a family that has moved, the id alone counts: what was restored has other
        generations."""
        own = own_handle(sequence)
        return Sequence(own.index, own.id) if family_of(own.id) in self._moved else own

    def judge(self, route: Route, error: SeineError) -> bool:
        """What a node's error means: raises SequenceLost where the family is gone. True: the call may be repeated, if
        it is of that kind."""
        if error.code in GONE and error.reason != "MOVING":
            if self.directory.suspect(route) == "lost":
                raise self.lost(route) from None
            return error.code != "DEADLINE_EXCEEDED"
        if error.code == "NOT_FOUND" and (error.reason == "INDEX_NOT_FOUND" or error.field.endswith("handle")):
            if self.directory.restarted(route):
                raise self.lost(route) from None
        return False


class Patience:
    """Waits between attempts, longer each time, until `seconds` are over."""

    def __init__(self, seconds: float) -> None:
        self._end, self._delay = time.monotonic() + seconds, 0.02

    def wait(self) -> bool:
        """False: there is no time for another attempt."""
        if time.monotonic() + self._delay >= self._end:
            return False
        time.sleep(self._delay)
        self._delay = min(2 * self._delay, 1.0)
        return True


def own_handle(sequence: Sequence) -> Sequence:
    """A handle as its node has it."""
    return Sequence(sequence.index, sequence.id, sequence.generation & ((1 << SERVER_BITS) - 1))


def fleet_generation(route: Optional[Route], own: int) -> int:
    """A handle's generation as the fleet has it, from its node's."""
    return ((route.generation if route else 0) << SERVER_BITS) | own
