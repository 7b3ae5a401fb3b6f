"""The directory of a process that has not joined Ray: a description, and the servers themselves.

A family's node is found by asking them. A new family goes to the first node by rendezvous hashing that serves and takes
new families; loads are not known here. Two processes outside Ray choose the same node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

from seine_kv.fleet.description import Description, Node
from seine_kv.fleet.nodes import NodeClients
from seine_kv.fleet.placement import family_of, ranked
from seine_kv.fleet.table import Route
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
            return self._route(family, there)
        by_name = {node.name: node for node in self._description.nodes if node.state == "up"}
        for name in ranked(family, by_name):
            if self._nodes.takes_families(by_name[name].address):
                return self._route(family, by_name[name])
        text = f"no node of the fleet {self._description.fleet} serves and takes new families"
        raise SeineError("UNAVAILABLE", text, "", "NO_NODE")

    def locate(self, family: str, index: str, id: str) -> Optional[Route]:
        found, silent = self._asked(_has(index, id))
        if found is not None:
            return self._route(family, found)
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

    # Nobody keeps a list.

    def add(self, family: str, index: str, id: str) -> None: ...

    def remove_sequence(self, family: str, index: str, id: str) -> None: ...

    def remove_index(self, index: str) -> None: ...

    # ----------------------------------------------------------------------------------------------------------------

    def _route(self, family: str, node: Node) -> Route:
        """Its node's generation is the server's own name: after a restart another."""
        return Route(family, node.name, node.address, self._instance_of(node.address))

    def _instance_of(self, address: str) -> int:
        """Of the process that serves there; 0 where none answers."""
        try:
            info = self._nodes.quick(address)._invoke("GetServerInfo", {})
            return int(info.get("instance") or "0", 16)
        except SeineError:
            return 0

    def holder(self, family: str, index: str, id: str) -> Optional[Node]:
        """The node that has the sequence, its family's first, or another of its family."""
        found = self._with_id(index, id)
        if found is None and id != family:
            found = self._with_id(index, family) or self._with_family(index, family)
        return found

    def _with_id(self, index: str, id: str) -> Optional[Node]:
        return self._asked(_has(index, id))[0]

    def _with_family(self, index: str, family: str) -> Optional[Node]:
        def holds(client: Any) -> bool:
            return any(family_of(info.handle.id) == family for info in client.list_sequences(index))

        return self._asked(holds)[0]

    def _asked(self, test: Callable[[Any], bool]) -> tuple[Optional[Node], Optional[SeineError]]:
        """The first node that passes, and the error of one that did not answer. A node that does not know the index
        does not pass."""

        def ask(address: str) -> Callable[[], bool]:
            return lambda: test(self._nodes.quick(address))

        nodes = {node.name: node for node in self._description.nodes if node.state != "lost"}
        answers = self._nodes.all({name: ask(node.address) for name, node in nodes.items()})
        found = next((nodes[name] for name in sorted(answers) if answers[name] is True), None)
        errors = [answer for answer in answers.values() if isinstance(answer, SeineError) and answer.code != "NOT_FOUND"]
        return found, errors[0] if errors else None


def _has(index: str, id: str) -> Callable[[Any], bool]:
    request = {"handle": {"index": index, "id": id, "generation": 0}}
    return lambda client: client._invoke("GetSequence", request) is not None
