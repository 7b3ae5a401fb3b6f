"""Where a client's families are: what it knows, what it asks the directory, and what a failed call says of a node."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Optional, Protocol, TypeVar

from seine_kv.fleet.description import Description, Node
from seine_kv.fleet.errors import SequenceLost, settled
from seine_kv.fleet.nodes import NodeClients
from seine_kv.fleet.placement import family_of
from seine_kv.fleet.route import Key, Route
from seine_kv.messages import SeineError, Sequence

SERVER_BITS = 32  # of a handle's generation: the server's own; above them is the family's
GONE = ("UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED")  # codes after which a node is looked at
FIRST_SECONDS = 0.02  # between the first two attempts
FOLLOWED = ("MOVED", "MOVING")  # reasons after which the family is called again: nothing was changed
_Result = TypeVar("_Result")


class Directory(Protocol):
    """What a Router asks; Ray's directory (ray_directory.py) or a description (static_directory.py)."""

    def describe(self) -> Description: ...

    def place(self, family: str, index: str, id: str, known: Optional[Route], without: Collection[str] = ()) -> Route:
        """The node for a sequence to be. known: where the client has the family. without: nodes that have refused it as a
        new one. SeineError UNAVAILABLE, reason NO_NODE: no other node takes new families."""

    def locate(self, family: str, index: str, id: str) -> Optional[Route]: ...

    def suspect(self, route: Route) -> str:
        """Of a node that failed a call: "up", "lost", or "unknown" where it cannot be told yet."""

    def down(self, node: Node) -> bool:
        """Of a node that failed a call for every node: whether it is lost."""

    def restarted(self, route: Route) -> bool:
        """Of a node that does not know a sequence: whether it has been started again since."""

    def moved(self, route: Route, making: bool = False) -> None:
        """A node says that a family has moved. making: it was to be made there, so where it went takes it, even if it is
        lost there. SeineError NOT_IN_FLEET: to no node of the fleet."""

    def elsewhere(self, routes: Collection[Route]) -> set[Key]:
        """Of families whose node is gone: those that had moved before and are served."""

    def add(self, family: str, index: str, id: str) -> None: ...

    def remove_sequence(self, family: str, index: str, id: str) -> None: ...

    def remove_index(self, index: str) -> None: ...


@dataclass(frozen=True)
class _Loss:
    """Families that went at once, and the node that they went with."""

    families: tuple[str, ...]  # their names
    node: str


class Router:
    """Shared by the threads and streams of one FleetClient. patience: seconds in which what may be repeated is."""

    def __init__(self, directory: Directory, nodes: NodeClients, patience: float) -> None:
        self.directory, self.nodes, self.patience = directory, nodes, patience
        self._routes: dict[Key, Route] = {}
        self._losses: dict[Key, _Loss] = {}  # of families that this client knew
        self._again: set[Key] = set()  # of them, those that were made again
        self._moved: set[Key] = set()  # families that have moved: their sequences have other generations now
        self._lock = threading.Lock()

    # Routes ---------------------------------------------------------------------------------------------------------

    def route(self, sequence: Sequence) -> Route:
        """Where the family of a handle is. SequenceLost, or NOT_FOUND where nobody knows it."""
        key, carried = key_of(sequence), sequence.generation >> SERVER_BITS
        route = self._routes.get(key)
        if route is None or carried > route.generation > 0:
            route = self._located(key, sequence)
        if 0 < carried < route.generation:
            raise self._loss_of(key)
        return route

    def place(self, family: str, index: str, id: str, without: Collection[str] = ()) -> Route:
        """The node for a sequence that is to be created."""
        route = self.directory.place(family, index, id, self._routes.get((index, family)), without)
        self._learn(route)
        return route

    def known(self, sequence: Sequence) -> Optional[Route]:
        """Where the client last knew its family to be."""
        return self.known_by(key_of(sequence))

    def known_by(self, key: Key) -> Optional[Route]:
        return self._routes.get(key)

    def note(self, description: Description) -> None:
        """Forgets families of nodes that are gone or have been started again."""
        now = {node.name: node for node in description.nodes}
        for route in {(r.node, r.node_generation): r for r in list(self._routes.values())}.values():
            node = now.get(route.node)
            if node is None or node.state == "lost" or node.generation != route.node_generation:
                self.lost(route)

    def lost(self, route: Route) -> SeineError:
        """Forgets all families that a node held. Returns the error of this one: SequenceLost, which names those that went
        with the node, or MOVED where it had moved before."""
        with self._lock:
            gone = (route.node, route.node_generation)
            held = {key: r for key, r in self._routes.items() if (r.node, r.node_generation) == gone}
        moved = self.directory.elsewhere([route, *held.values()])
        with self._lock:
            families = held.keys() - moved
            if families:
                names = {family for _, family in families | ({route.key} - moved)}
                self._losses.update(dict.fromkeys(families, _Loss(tuple(sorted(names)), route.node)))
                self._again.difference_update(families)
            for key in [key for key in held if self._routes.get(key) is held[key]]:
                del self._routes[key]
            self._moved |= moved
        return self.fate(route)

    def fate(self, route: Route) -> SeineError:
        """The error of a family of a node that is gone, once lost() has looked."""
        if route.key in self._moved and (route.key not in self._losses or route.key in self._again):
            return SeineError("FAILED_PRECONDITION", f"handle: {route.family} has moved", "handle", "MOVED")
        return self._loss_of(route.key, route.node)

    def _loss_of(self, key: Key, node: str = "") -> SequenceLost:
        loss = self._losses.get(key) or _Loss((key[1],), node)
        return SequenceLost(loss.families, loss.node)

    def _located(self, key: Key, sequence: Sequence) -> Route:
        route = self.directory.locate(key[1], sequence.index, sequence.id)
        if route is not None and not route.lost:
            self._learn(route)
            return route
        if route is not None or (key in self._losses and key not in self._again):
            raise self._loss_of(key, route.node if route else "")
        raise SeineError("NOT_FOUND", f"handle: not found: {sequence.id!r}", "handle", "NOT_FOUND")

    def _learn(self, route: Route) -> None:
        with self._lock:
            self._routes[route.key] = route
            if route.key in self._losses:
                self._again.add(route.key)

    # Calls ----------------------------------------------------------------------------------------------------------

    def run(self, sequence: Sequence, call: Callable[[Any, Sequence], _Result], repeat: bool) -> _Result:
        """Calls the node of a sequence: call(Client, handle of its own). repeat: the call may be sent again where it
        is not known what became of it. A family that moves is followed, whatever the call: nothing was changed."""
        clock, followed = Patience(self.patience), False
        while True:
            route = self.route(sequence)
            try:
                return call(self.nodes.at(route.address), self.own_handle(sequence))
            except SeineError as error:
                last = self._after(route, error, repeat)
                first, followed = error.reason == "MOVED" and not followed, followed or error.reason == "MOVED"
                if not first and not clock.wait(error.retry_delay):
                    raise last from None

    def _after(self, route: Route, error: SeineError, repeat: bool) -> SeineError:
        """What a call that failed raises where no time is left to send it again: to the same node, or where the family has
        gone. Raises at once where it may not be sent again."""
        if error.reason == "MOVED":
            self.moved(route)
        if error.reason in FOLLOWED:
            return settled(error, route.family)
        try:
            again = self.judge(route, error) and repeat
        except SeineError as gone:
            if gone.reason != "MOVED":
                raise
            again = repeat or error.code == "NOT_FOUND"  # which has changed nothing
            error = settled(gone, route.family) if error.code == "NOT_FOUND" else error
        if not again:
            raise error
        return error

    def moved(self, route: Route, making: bool = False) -> None:
        """A node says that a family has moved: it is looked for again. making: it was to be made there. SeineError of the
        directory."""
        self.directory.moved(route, making)
        with self._lock:
            self._moved.add(route.key)
        self.forget(route)

    def forget(self, route: Route) -> None:
        """Forgets where a family was, or was to be created."""
        with self._lock:
            if self._routes.get(route.key) == route:
                del self._routes[route.key]

    def own_handle(self, sequence: Sequence) -> Sequence:
        """A handle as its node has it. Of a family that has moved, the id alone counts: what was restored has other
        generations."""
        own, route = own_handle(sequence), self.known(sequence)
        moved = key_of(sequence) in self._moved or (route is not None and route.moves > 0)
        return Sequence(own.index, own.id) if moved else own

    def judge(self, route: Route, error: SeineError) -> bool:
        """What a node's error means: raises lost()'s error where the node has the family no more. True: the call may be
        repeated, if it is of that kind."""
        if error.code in GONE and error.reason != "MOVING":
            if self.directory.suspect(route) == "lost":
                raise self.lost(route) from None
            return error.code != "DEADLINE_EXCEEDED"
        if error.code == "NOT_FOUND" and (error.reason == "INDEX_NOT_FOUND" or error.field.endswith("handle")):
            if self.directory.restarted(route):
                raise self.lost(route) from None
        return False


class Patience:
    """Waits between attempts until `seconds` are over: as long as a server asks for, or longer each time."""

    def __init__(self, seconds: float) -> None:
        self._end, self._delay = time.monotonic() + seconds, FIRST_SECONDS

    def anew(self) -> Patience:
        """One of the same end, for attempts at something else: its waits are short again."""
        other = Patience(0.0)
        other._end = self._end
        return other

    def wait(self, asked: float = 0.0) -> bool:
        """False: there is no time for another attempt. asked: an error's retry_delay."""
        delay = asked or self._delay
        if time.monotonic() + delay >= self._end:
            return False
        time.sleep(delay)
        if not asked:
            self._delay = min(2 * self._delay, 1.0)
        return True


def key_of(sequence: Sequence) -> Key:
    """The family of a sequence."""
    return sequence.index, family_of(sequence.id)


def own_handle(sequence: Sequence) -> Sequence:
    """A handle as its node has it."""
    return Sequence(sequence.index, sequence.id, sequence.generation & ((1 << SERVER_BITS) - 1))


def fleet_generation(route: Optional[Route], own: int) -> int:
    """A handle's generation as the fleet has it, from its node's."""
    return ((route.generation if route else 0) << SERVER_BITS) | own
