"""The directory of a process that has not joined Ray: a description, and the servers themselves.

A family's node is found by asking them. Where several have it, as after a move that was not ended, or a restore by hand,
the one of the newest generation counts. A new family goes to the first node by rendezvous hashing that serves and takes new
families; loads are not known here. Two processes outside Ray choose the same node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Optional

from seine_kv.fleet.description import Description, Node
from seine_kv.fleet.families import FamilyState, family_states, has_come, holds
from seine_kv.fleet.nodes import NodeClients
from seine_kv.fleet.placement import ranked
from seine_kv.fleet.route import Key, Route
from seine_kv.messages import SeineError


class StaticDirectory:
    def __init__(self, description: Description, nodes: NodeClients) -> None:
        self._description, self._nodes = description, nodes

    def describe(self) -> Description:
        return self._description

    def place(self, family: str, index: str, id: str, known: Optional[Route]) -> Route:
        if known is not None:
            return known
        there = self.holder(family, index, id)
        if there is not None:
            return self._route(family, index, there)
        by_name = {node.name: node for node in self._description.nodes if node.state == "up"}
        for name in ranked(family, by_name):
            if self._nodes.takes_families(by_name[name].address):
                return self._route(family, index, by_name[name])
        text = f"no node of the fleet {self._description.fleet} serves and takes new families"
        raise SeineError("UNAVAILABLE", text, "", "NO_NODE")

    def locate(self, family: str, index: str, id: str) -> Optional[Route]:
        found, silent = self._asked(_has(index, id), index, family)
        if found is not None:
            return self._route(family, index, found)
        if silent is not None:
            raise silent  # it may have it
        return None

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
        tests = [_has(index, id)]
        if id != family:
            tests += [_has(index, family), lambda client: holds(client, index, family)]
        asked = (self._asked(test, index, family)[0] for test in tests)
        return next((node for node in asked if node is not None), None)

    def _asked(
        self, test: Callable[[Any], bool], index: str, family: str
    ) -> tuple[Optional[Node], Optional[SeineError]]:
        """The node that passes, and the error of one that did not answer. A node that does not know the index does not
        pass, nor one that the family has left."""
        nodes = [node for node in self._description.nodes if node.state != "lost"]
        answers = self._each(nodes, test)
        having = [node for node in nodes if answers[node.name] is True]
        errors = [answer for answer in answers.values() if isinstance(answer, SeineError) and answer.code != "NOT_FOUND"]
        found = having[0] if len(having) == 1 else self._newest(having, index, family)
        return found, errors[0] if errors else None

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
