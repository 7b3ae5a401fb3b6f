"""The directory as a client that has joined Ray asks it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any, Optional

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from seine_kv.fleet.description import Description, Node
from seine_kv.fleet.families import FamilyState, claim, family_states, holds
from seine_kv.fleet.nodes import NodeClients
from seine_kv.fleet.router import GONE, Patience
from seine_kv.fleet.start import why
from seine_kv.fleet.static_directory import StaticDirectory
from seine_kv.fleet.route import Key, Route
from seine_kv.fleet.trail import followed
from seine_kv.messages import SeineError

_ASK_SECONDS = 10.0
_SUSPECT_SECONDS = 2.0  # the directory waits for the node's supervisor, one second
_WATCH_SECONDS = 40.0  # the actor's own, and more
_RESTART_SECONDS = 30.0  # a directory that has ended is started again by Ray


class RayDirectory:
    def __init__(self, actor: Any, nodes: NodeClients) -> None:
        self._actor, self._nodes = actor, nodes
        self._closed = threading.Event()

    def describe(self) -> Description:
        return self._ask(self._actor.describe)

    def place(self, family: str, index: str, id: str, known: Optional[Route], without: Collection[str] = ()) -> Route:
        on = ""
        if self._ask(self._actor.locate, family, index) is None:  # a process outside Ray may have made it
            holder = StaticDirectory(self.describe(), self._nodes).holder(family, index, id)
            on = holder.name if holder else ""
        return self._ask(self._actor.place, family, index, id, on, list(without))

    def locate(self, family: str, index: str, id: str) -> Optional[Route]:
        route = self._ask(self._actor.locate, family, index)
        if route is not None:
            return route
        found = StaticDirectory(self.describe(), self._nodes).locate(family, index, id)
        if found is None or found.lost:
            return found
        return self._ask(self._actor.place, family, index, id, found.node, [])

    def suspect(self, route: Route) -> str:
        """A step waits for the answer, so a directory that does not give it soon is not asked again."""
        try:
            return ray.get(self._actor.suspect.remote(route.node, route.node_generation), timeout=_SUSPECT_SECONDS)
        except RayError:
            return "unknown"

    def down(self, node: Node) -> bool:
        return self._ask(self._actor.suspect, node.name, node.generation) == "lost"

    def restarted(self, route: Route) -> bool:
        """Whether the directory knows the family to be lost, made again, or elsewhere."""
        now = self._ask(self._actor.locate, route.family, route.index)
        if now is None:  # it forgets what was lost two starts ago
            there = {(node.name, node.generation) for node in self.describe().nodes}
            return (route.node, route.node_generation) not in there
        return now.lost or (now.generation, now.moves) != (route.generation, route.moves)

    def moved(self, route: Route, making: bool = False) -> None:
        """Tells the directory, as whoever moved the family may have done already. A server that was started again knows
        nothing of a family that came to it: that is lost, or, `making`, made anew there. For the server that it left
        takes it no more. Where the other does not serve, it is lost either way, and any node but the first may take it."""
        if self.restarted(route):
            return  # it knows
        left = self._state(self._nodes.quick(route.address), route)
        if left.state != "moved":
            return  # it has come back
        bring = lambda node, left: claim(self._nodes.quick(node.address), route.index, left)  # noqa: E731
        trail = followed(self.describe(), left, lambda node: self._there(node, route), bring, making)
        found = trail.came or (trail.open and holds(self._nodes.quick(trail.node.address), *route.key))
        anew = making and not found and trail.open
        reached = trail.node.name, trail.node.generation if found or anew else 0
        process = route.node, route.node_generation
        self._ask(self._actor.move, route.family, route.index, trail.moves, process, reached, anew)

    def elsewhere(self, routes: Collection[Route]) -> set[Key]:
        return self._ask(self._actor.elsewhere, list(routes))

    def add(self, family: str, index: str, id: str) -> None:
        self._ask(self._actor.add, family, index, id)

    def remove_sequence(self, family: str, index: str, id: str) -> None:
        self._ask(self._actor.remove_sequence, family, index, id)

    def remove_index(self, index: str) -> None:
        self._ask(self._actor.remove_index, index)

    def _there(self, node: Node, route: Route) -> Optional[FamilyState]:
        """What a node knows of a family; None where it is lost. SeineError of one that does not answer."""
        if node.state == "lost":
            return None
        try:
            return self._state(self._nodes.quick(node.address), route)
        except SeineError as error:
            if error.code not in GONE or not self.down(node):
                raise
            return None

    def _state(self, client: Any, route: Route) -> FamilyState:
        return family_states(client, route.index, route.family).get(route.family, FamilyState())

    def watch(self, note: Callable[[Description], None]) -> None:
        """Calls `note` from another thread whenever the nodes have changed, until close()."""
        threading.Thread(target=self._watched, args=(note,), daemon=True, name="seine-fleet-watch").start()

    def close(self) -> None:
        self._closed.set()

    def _watched(self, note: Callable[[Description], None]) -> None:
        epoch = -1
        while not self._closed.is_set():
            try:
                epoch, description = ray.get(self._actor.watch.remote(epoch), timeout=_WATCH_SECONDS)
            except RayError:
                self._closed.wait(1.0)
                continue
            except (Exception, SystemExit):  # Ray has been shut down
                return
            try:
                if not self._closed.is_set():
                    note(description)
            except SeineError:  # the directory does not answer
                epoch = -1

    def _ask(self, method: Any, *arguments: Any) -> Any:
        clock = Patience(_RESTART_SECONDS)
        while True:
            try:
                return ray.get(method.remote(*arguments), timeout=_ASK_SECONDS)
            except RayTaskError as error:
                if isinstance(error.cause, ValueError):
                    raise SeineError("UNAVAILABLE", str(error.cause), "", "NO_NODE") from None
                raise _silent(error) from None  # it cannot reach the head, or not the one that it knew
            except RayActorError as error:
                if not clock.wait():
                    raise _silent(error) from None
            except RayError as error:
                raise _silent(error) from None


def _silent(error: RayError) -> SeineError:
    return SeineError("UNAVAILABLE", f"the fleet's directory does not answer: {why(error)}", "", "NO_DIRECTORY")
