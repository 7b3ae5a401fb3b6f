"""The directory's table: which node holds a family. Plain Python that Ray's actor keeps; nothing here waits.

A family is lost when its node serves no more, or serves with a later generation: a process that was started again holds
nothing. Every placement gets a number of its own, the family's generation, which handles carry: what was made before a
loss does not name what was made after it.
"""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from dataclasses import asdict, dataclass, field
from typing import Optional

from seine_kv.fleet.description import Description, Node
from seine_kv.fleet.placement import choose


@dataclass(frozen=True)
class Route:
    """Where a family is. generation: the placement's own; 0 where no directory counts them."""

    family: str
    node: str
    address: str
    node_generation: int
    generation: int = 0
    lost: bool = False


@dataclass
class _Family:
    node: str
    node_generation: int
    generation: int
    members: list[str] = field(default_factory=list)  # of its sequences: index, a space, id


class Table:
    """Nodes and families, with every change written to `store` before it counts. store: str to bytes."""

    def __init__(self, fleet: str, store: MutableMapping[str, bytes]) -> None:
        self._fleet, self._store = fleet, store
        self._nodes: dict[str, Node] = {}
        self._families: dict[str, _Family] = {}
        self._loads: dict[tuple[str, int], int] = {}  # families by node and its generation, lost ones too
        self.epoch = 0  # of the nodes: grows with each change
        for key in sorted(store):
            kind, _, name = key.partition("/")
            if kind == "node":
                self._nodes[name] = Node(**json.loads(store[key]))
            elif kind == "family":
                self._families[name] = _Family(**json.loads(store[key]))
        self._last = int(store.get("last_generation", b"0"))
        for family in self._families.values():
            self._count(family, 1)

    # Nodes ----------------------------------------------------------------------------------------------------------

    def reserve(self, count: int) -> list[str]:
        """Names for so many new nodes; no two calls get the same."""
        first = int(self._store.get("next_node", b"0"))
        self._store["next_node"] = str(first + count).encode()
        names = [f"n{i}" for i in range(first, first + count)]
        for name in names:
            self._store[f"reserved/{name}"] = b""
        return names

    def names(self) -> list[str]:
        """Of the nodes that were reserved, whether or not they have joined, and not removed."""
        return [key.partition("/")[2] for key in sorted(self._store) if key.startswith("reserved/")]

    def begin(self, name: str, address: str) -> int:
        """A server is about to start, empty; returns its generation. Families of the last one are lost, and those of
        earlier ones forgotten."""
        known = self._nodes.get(name)
        for family, entry in list(self._families.items()):
            if known and entry.node == name and entry.node_generation < known.generation:
                self._drop(family)
        self._set_node(Node(name, address, known.generation + 1 if known else 1, "lost"))
        return self._nodes[name].generation

    def join(self, name: str, generation: int) -> None:
        """It serves."""
        self._change(name, generation, "draining" if f"draining/{name}" in self._store else "up")

    def leave(self, name: str, generation: int) -> None:
        """That server serves no more. One of another generation is not meant."""
        self._change(name, generation, "lost")

    def drain(self, name: str) -> None:
        """New families go elsewhere, also after a restart. ValueError for a node that is not there."""
        node = self._node(name)
        self._store[f"draining/{name}"] = b""
        if node.state == "up":
            self._set_state(node, "draining")

    def undrain(self, name: str) -> None:
        node = self._node(name)
        self._store.pop(f"draining/{name}", None)
        if node.state == "draining":
            self._set_state(node, "up")

    def remove(self, name: str) -> None:
        """Forgets a node. ValueError while it takes or holds families."""
        node = self._node(name)
        if node.state == "up":
            raise ValueError(f"node: {name} takes new families; drain it first")
        if self._held(node):
            raise ValueError(f"node: {name} still holds {self._held(node)} families")
        for family in [family for family, entry in self._families.items() if entry.node == name]:
            self._drop(family)
        del self._nodes[name], self._store[f"node/{name}"]
        for key in ("reserved", "draining"):
            self._store.pop(f"{key}/{name}", None)
        self.epoch += 1

    def node(self, name: str) -> Optional[Node]:
        return self._nodes.get(name)

    def describe(self) -> Description:
        return Description(self._fleet, tuple(self._nodes[name] for name in sorted(self._nodes)))

    def loads(self) -> dict[str, int]:
        """Families that each node holds."""
        return {name: self._held(self._nodes[name]) for name in sorted(self._nodes)}

    # Families -------------------------------------------------------------------------------------------------------

    def locate(self, family: str) -> Optional[Route]:
        """Where it is or was; None if it was never placed, or all of its sequences were deleted."""
        entry = self._families.get(family)
        return None if entry is None else self._route(family, entry)

    def place(self, family: str, index: str, id: str, on: str = "") -> Route:
        """The node for a sequence to be: its family's, or a new one's. on: the node of a family that is new to the
        table. ValueError where no node takes new families."""
        entry = self._families.get(family)
        if entry is not None and self._alive(entry):
            self.add(family, index, id)
            return self._route(family, entry)
        name = on or choose(family, {node.name: self._held(node) for node in self._nodes.values() if node.state == "up"})
        if entry is not None:
            self._drop(family)
        self._last += 1
        self._store["last_generation"] = str(self._last).encode()
        placed = _Family(name, self._node(name).generation, self._last, [f"{index} {id}"])
        self._families[family] = placed
        self._count(placed, 1)
        self._save(family)
        return self._route(family, placed)

    def add(self, family: str, index: str, id: str) -> None:
        """A sequence of a family that is there."""
        entry, member = self._families.get(family), f"{index} {id}"
        if entry is not None and member not in entry.members:
            entry.members.append(member)
            self._save(family)

    def remove_sequence(self, family: str, index: str, id: str) -> None:
        """The last one takes its family with it."""
        entry, member = self._families.get(family), f"{index} {id}"
        if entry is not None and member in entry.members:
            entry.members.remove(member)
            self._save(family)

    def remove_index(self, index: str) -> None:
        """All sequences of an index."""
        for family, entry in list(self._families.items()):
            left = [member for member in entry.members if member.partition(" ")[0] != index]
            if len(left) != len(entry.members):
                entry.members = left
                self._save(family)

    # ----------------------------------------------------------------------------------------------------------------

    def _node(self, name: str) -> Node:
        if name not in self._nodes:
            raise ValueError(f"node: there is no {name!r}; there are {', '.join(sorted(self._nodes)) or 'none'}")
        return self._nodes[name]

    def _change(self, name: str, generation: int, state: str) -> None:
        node = self._nodes.get(name)
        if node is not None and node.generation == generation:
            self._set_state(node, state)

    def _set_state(self, node: Node, state: str) -> None:
        if node.state != state:
            self._set_node(Node(node.name, node.address, node.generation, state))

    def _set_node(self, node: Node) -> None:
        self._store[f"node/{node.name}"] = json.dumps(asdict(node)).encode()
        self._nodes[node.name] = node
        self.epoch += 1

    def _alive(self, entry: _Family) -> bool:
        node = self._nodes.get(entry.node)
        return node is not None and node.state != "lost" and node.generation == entry.node_generation

    def _route(self, family: str, entry: _Family) -> Route:
        node = self._nodes.get(entry.node)
        address = node.address if node else ""
        return Route(family, entry.node, address, entry.node_generation, entry.generation, not self._alive(entry))

    def _save(self, family: str) -> None:
        entry = self._families[family]
        if entry.members:
            self._store[f"family/{family}"] = json.dumps(asdict(entry)).encode()
        else:
            self._drop(family)

    def _drop(self, family: str) -> None:
        self._count(self._families.pop(family), -1)
        self._store.pop(f"family/{family}", None)

    def _count(self, entry: _Family, by: int) -> None:
        key = (entry.node, entry.node_generation)
        self._loads[key] = self._loads.get(key, 0) + by
        if not self._loads[key]:
            del self._loads[key]

    def _held(self, node: Node) -> int:
        return 0 if node.state == "lost" else self._loads.get((node.name, node.generation), 0)
