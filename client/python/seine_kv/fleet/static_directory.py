"""The directory of a process that has not joined Ray: a description, and the servers themselves.

A family's node is found by asking them. Where several have it, as after a move that was not ended, or a restore by hand,
the one of the newest generation counts. Where none has it and one has given it up, the node that it went to may still hold
it, and brings it up then; or it is lost there.
A new family goes to the first node by rendezvous hashing that serves and takes new families; one that is made anew goes
where it had moved, for the node that it left takes it no more. Loads are not known here. Two processes outside Ray choose
the same node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Optional

from seine_kv.fleet.description import Description, Node
from seine_kv.fleet.errors import settled
from seine_kv.fleet.families import FamilyState, claim, family_states, has_come, holds
from seine_kv.fleet.nodes import NodeClients
from seine_kv.fleet.placement import ranked
from seine_kv.fleet.route import Key, Route
from seine_kv.fleet.trail import Trail, followed
from seine_kv.messages import SeineError


class StaticDirectory:
    def __init__(self, description: Description, nodes: NodeClients) -> None:
        self._description, self._nodes = description, nodes

    def describe(self) -> Description:
        return self._description

    def place(self, family: str, index: str, id: str, known: Optional[Route], without: Collection[str] = ()) -> Route:
        if known is not None:
            return known
        there, trail = self._found(family, index, id)
        if there is not None:
            return self._route(family, index, there)
        by_name = {node.name: node for node in self._description.nodes if node.state == "up"}
        first = trail.node.name if trail and trail.open else ""
        for name in sorted(ranked(family, by_name), key=lambda name: name != first):
            if name not in without and self._nodes.takes_families(by_name[name].address):
                return self._route(family, index, by_name[name])
        text = f"no node of the fleet {self._description.fleet} serves and takes the family {family}"
        raise SeineError("UNAVAILABLE", text, "", "NO_NODE")

    def locate(self, family: str, index: str, id: str) -> Optional[Route]:
        found, errors = self._asked(_has(index, id), index, family)
        if found is not None:
            return self._route(family, index, found)
        trail = self._trail(errors, index, family)
        route = None if trail is None else self._reached(trail, index, family)
        silent = [error for error in errors if error.reason != "MOVED"]
        if silent and (route is None or route.lost):
            raise silent[0]  # that node may have it
        if errors and route is None:
            raise settled(errors[0], family)  # it came back meanwhile
        return route

    def suspect(self, route: Route) -> str:
        if not self._nodes.answers(route.address):
            return "unknown"  # it may have been started again, or may serve others
        return "lost" if self.restarted(route) else "up"

    def down(self, node: Node) -> bool:
        return False  # who has not joined Ray cannot tell

    def restarted(self, route: Route) -> bool:
        return self._instance_of(route.address) not in (0, route.node_generation)

    def moved(self, route: Route, making: bool = False) -> None: ...  # the nodes are asked where it is

    def elsewhere(self, routes: Collection[Route]) -> set[Key]:
        """Those that have come to another node by a move. What was made anew has not."""
        came: set[Key] = set()
        for index in {route.index for route in routes}:
            for states in self._states(self._description.nodes, index).values():
                came |= {(index, family) for family, state in states.items() if has_come(state)}
        return came & {route.key for route in routes}

    # Nobody keeps a list.

    def add(self, family: str, index: str, id: str) -> None: ...

    def remove_sequence(self, family: str, index: str, id: str) -> None: ...

    def remove_index(self, index: str) -> None: ...

    # ----------------------------------------------------------------------------------------------------------------

    def _route(self, family: str, index: str, node: Node) -> Route:
        """Its node's generation is the server's own name: after a restart another."""
        return Route(family, index, node.name, node.address, self._instance_of(node.address))

    def _instance_of(self, address: str) -> int:
        """Of the process that serves there; 0 where none answers."""
        try:
            info = self._nodes.quick(address)._invoke("GetServerInfo", {})
            return int(info.get("instance") or "0", 16)
        except SeineError:
            return 0

    def holder(self, family: str, index: str, id: str) -> Optional[Node]:
        """The node that has the sequence, its family's first, or another of its family."""
        return self._found(family, index, id)[0]

    def _found(self, family: str, index: str, id: str) -> tuple[Optional[Node], Optional[Trail]]:
        """holder()'s node; or where the family has gone, as a node says that has given it up."""
        tests = [_has(index, id)]
        if id != family:
            tests += [_has(index, family), lambda client: holds(client, index, family)]
        errors: list[SeineError] = []
        for test in tests:
            found, more = self._asked(test, index, family)
            if found is not None:
                return found, None
            errors += more
        trail = self._trail(errors, index, family, making=True)
        came = trail is not None and trail.open and holds(self._nodes.quick(trail.node.address), index, family)
        return (trail.node, trail) if trail and came else (None, trail)

    def _asked(self, test: Callable[[Any], bool], index: str, family: str) -> tuple[Optional[Node], list[SeineError]]:
        """The node that passes, and the errors of those that did not answer, or that the family has left. A node that does
        not know the index does not pass."""
        nodes = [node for node in self._description.nodes if node.state != "lost"]
        answers = self._each(nodes, test)
        having = [node for node in nodes if answers[node.name] is True]
        errors = [answer for answer in answers.values() if isinstance(answer, SeineError) and answer.code != "NOT_FOUND"]
        found = having[0] if len(having) == 1 else self._newest(having, index, family)
        return found, errors

    def _trail(
        self, errors: Collection[SeineError], index: str, family: str, making: bool = False
    ) -> Optional[Trail]:
        """Where the family has gone, if one of these errors says that it has left. SeineError as of followed()."""
        if all(error.reason != "MOVED" for error in errors):
            return None
        nodes = [node for node in self._description.nodes if node.state != "lost"]
        states = self._states(nodes, index, family).values()
        left = [known[family] for known in states if family in known and known[family].state == "moved"]
        if not left:
            return None
        newest = max(left, key=lambda state: state.moves)
        return followed(
            self._description,
            newest,
            lambda node: self._there(node, index, family),
            lambda node, left: claim(self._nodes.quick(node.address), index, left),
            making,
        )

    def _there(self, node: Node, index: str, family: str) -> Optional[FamilyState]:
        """What a node knows of a family; None where it does not answer."""
        try:
            return family_states(self._nodes.quick(node.address), index, family).get(family, FamilyState())
        except SeineError:
            return None

    def _reached(self, trail: Trail, index: str, family: str) -> Route:
        """The family at the node that it has reached, or lost with it. It may have come only after that node was asked.
        SeineError UNAVAILABLE: the node does not answer, and may have it."""
        if trail.there is None:
            text = f"handle: the family {family} has moved to {trail.node.name}, which does not answer"
            raise SeineError("UNAVAILABLE", text, "handle", "NO_NODE")
        there = self._route(family, index, trail.node)
        lost = not (trail.open and holds(self._nodes.quick(trail.node.address), index, family))
        return replace(there, lost=lost)

    def _newest(self, nodes: Collection[Node], index: str, family: str) -> Optional[Node]:
        """Of nodes that have copies of a family, the one of the newest generation that takes changes. Where none does, the
        family moves, and its old node will tell where it is."""
        states = {name: found.get(family, FamilyState()) for name, found in self._states(nodes, index, family).items()}
        there = sorted((node for node in nodes if node.name in states), key=lambda node: states[node.name].moves)
        serving = [node for node in there if states[node.name].state == "serving"]
        return serving[-1] if serving else next(iter(there), None)

    def _states(self, nodes: Collection[Node], index: str, family: str = "") -> dict[str, dict[str, FamilyState]]:
        """What each node that answers knows of families, by its name."""
        answers = self._each(nodes, lambda client: family_states(client, index, family))
        return {name: answer for name, answer in answers.items() if not isinstance(answer, SeineError)}

    def _each(self, nodes: Collection[Node], ask: Callable[[Any], Any]) -> dict[str, Any]:
        """The answer, or the SeineError, of each node by its name, all asked at once."""

        def of(address: str) -> Callable[[], Any]:
            return lambda: ask(self._nodes.quick(address))

        return self._nodes.all({node.name: of(node.address) for node in nodes})


def _has(index: str, id: str) -> Callable[[Any], bool]:
    request = {"handle": {"index": index, "id": id, "generation": 0}}
    return lambda client: client._invoke("GetSequence", request) is not None
