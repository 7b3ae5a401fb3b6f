"""The directory's table: which node holds a family. Plain Python that Ray's actor keeps; nothing here waits.

A family is lost when its node serves no more, or serves with a later generation: a process that was started again holds
nothing. Every placement gets a number of its own, the family's generation, which handles carry: what was made before a
loss does not name what was made after it. A family that moves keeps that number.

Families of two indexes are two, though their names be the same: each moves by itself, as servers have it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, MutableMapping
from dataclasses import asdict, dataclass, field
from typing import Optional

from seine_kv.fleet.description import Description, Node
from seine_kv.fleet.placement import choose
from seine_kv.fleet.route import Key, Process, Route


@dataclass
class _Family:
    node: str
    node_generation: int
    generation: int
    moves: int = 0
    members: list[str] = field(default_factory=list)  # ids of its sequences


class Table:
    """Nodes and families, with every change written to `store` before it counts. store: str to bytes."""

    def __init__(self, fleet: str, store: MutableMapping[str, bytes]) -> None:
        self._fleet, self._store = fleet, store
        self._nodes: dict[str, Node] = {}
        self._families: dict[Key, _Family] = {}
        self._loads: dict[tuple[str, int], int] = {}  # families by node and its generation, lost ones too
        self.epoch = 0  # of the nodes: grows with each change
        for key in sorted(store):
            kind, _, name = key.partition("/")
            if kind == "node":
                self._nodes[name] = Node(**json.loads(store[key]))
            elif kind == "family":
                index, _, family = name.partition(" ")  # an index's name has no space
                self._families[index, family] = _Family(**json.loads(store[key]))
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
        for key, entry in list(self._families.items()):
            if known and entry.node == name and entry.node_generation < known.generation:
                self._drop(key)
        self._set_node(Node(name, address, known.generation + 1 if known else 1, "lost"))
        return self._nodes[name].generation

    def drains(self, name: str) -> bool:
        """Whether a node is to drain once it serves."""
        return f"draining/{name}" in self._store

    def join(self, name: str, generation: int, drains: bool) -> bool:
        """It serves, and drains or not. Returns whether that is still right: else nothing changes, and it is to be
        started anew."""
        if drains != self.drains(name):
            return False
        self._change(name, generation, "draining" if drains else "up")
        return True

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
        for key in [key for key, entry in self._families.items() if entry.node == name]:
            self._drop(key)
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

    def locate(self, family: str, index: str) -> Optional[Route]:
        """Where it is or was; None if it was never placed, or all of its sequences were deleted."""
        entry = self._families.get((index, family))
        return None if entry is None else self._route((index, family), entry)

    def place(self, family: str, index: str, id: str, on: str = "", without: Collection[str] = ()) -> Route:
        """The node for a sequence to be: its family's, or a new one's. on: the node of a family that is new to the
        table. without: nodes that have refused it as a new one. ValueError where no node takes new families."""
        key = index, family
        entry = self._families.get(key)
        if entry is not None and self._alive(entry):
            self.add(family, index, id)
            return self._route(key, entry)
        taking = [node for node in self._nodes.values() if node.state == "up" and node.name not in without]
        name = on or choose(family, {node.name: self._held(node) for node in taking})
        if entry is not None:
            self._drop(key)
        self._last += 1
        self._store["last_generation"] = str(self._last).encode()
        placed = _Family(name, self._node(name).generation, self._last, members=[id])
        self._families[key] = placed
        self._count(placed, 1)
        self._save(key)
        return self._route(key, placed)

    def move(
        self, family: str, index: str, moves: int, left: Process, reached: Process, making: bool = False
    ) -> None:
        """A family has moved, for the so manieth time. reached: generation 0 where that node has lost it since. making:
        it is to be made anew where it had gone in an earlier life, and that server does not count those moves. What is
        known already, a family that is not, and one that was made again since, change nothing. ValueError: there is no
        such node."""
        entry = self._families.get((index, family))
        if reached[1]:
            self._node(reached[0])
        if entry is None or (entry.moves >= moves and not making) or (entry.node, entry.node_generation) != left:
            return
        self._count(entry, -1)
        entry.node, entry.node_generation = reached
        entry.moves = entry.moves if making else moves
        self._count(entry, 1)
        self._save((index, family))

    def held(self, name: str) -> list[Route]:
        """The families that a node holds."""
        routes = (self._route(key, entry) for key, entry in self._families.items() if entry.node == name)
        return [route for route in routes if not route.lost]

    def forget(self, routes: Iterable[Route]) -> None:
        """Families of which there is nothing, unless they have been placed or moved since."""
        for route in routes:
            if self.locate(route.family, route.index) == route:
                self._drop(route.key)

    def elsewhere(self, routes: Iterable[Route]) -> set[Key]:
        """Those families that have moved since and are served."""
        return {route.key for route in routes if self._has_moved(route)}

    def add(self, family: str, index: str, id: str) -> None:
        """A sequence of a family that is there."""
        entry = self._families.get((index, family))
        if entry is not None and id not in entry.members:
            entry.members.append(id)
            self._save((index, family))

    def remove_sequence(self, family: str, index: str, id: str) -> None:
        """The last one takes its family with it."""
        entry = self._families.get((index, family))
        if entry is not None and id in entry.members:
            entry.members.remove(id)
            self._save((index, family))

    def remove_index(self, index: str) -> None:
        """All sequences of an index."""
        for key in [key for key in self._families if key[0] == index]:
            self._drop(key)

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

    def _has_moved(self, route: Route) -> bool:
        entry = self._families.get(route.key)
        same = entry is not None and entry.generation == route.generation
        return same and entry.moves > route.moves and self._alive(entry)  # type: ignore[union-attr]

    def _route(self, key: Key, entry: _Family) -> Route:
        node = self._nodes.get(entry.node)
        address, lost = node.address if node else "", not self._alive(entry)
        return Route(key[1], key[0], entry.node, address, entry.node_generation, entry.generation, entry.moves, lost)

    def _save(self, key: Key) -> None:
        entry = self._families[key]
        if entry.members:
            self._store[_stored(key)] = json.dumps(asdict(entry)).encode()
        else:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        self._count(self._families.pop(key), -1)
        self._store.pop(_stored(key), None)

    def _count(self, entry: _Family, by: int) -> None:
        key = (entry.node, entry.node_generation)
        self._loads[key] = self._loads.get(key, 0) + by
        if not self._loads[key]:
            del self._loads[key]

    def _held(self, node: Node) -> int:
        return 0 if node.state == "lost" else self._loads.get((node.name, node.generation), 0)


def _stored(key: Key) -> str:
    """A family's name in the store."""
    return "family/{} {}".format(*key)
