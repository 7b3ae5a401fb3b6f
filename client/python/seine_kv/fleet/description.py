"""What a fleet is to those who call it: its nodes and their addresses, as JSON that every client reads.

    {"fleet": "seine", "version": 1, "nodes": [{"name": "n0", "address": "10.0.0.7:7070", "generation": 1, "state": "up"}]}

`seine fleet status` reads the same file. It holds no secret: TLS files and tokens are the client's (seine_kv.Security).
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Union

from seine_kv.address import target_of

VERSION = 1
STATES = ("up", "draining", "lost")


@dataclass(frozen=True)
class Node:
    """One server. generation: how often it was started; what an earlier one held is gone."""

    name: str
    address: str  # unix:///path or host:port
    generation: int = 1
    state: str = "up"  # "draining": takes no new families; "lost": does not serve


@dataclass(frozen=True)
class Description:
    fleet: str
    nodes: tuple[Node, ...]  # by name

    def as_dict(self) -> dict[str, Any]:
        return {"fleet": self.fleet, "version": VERSION, "nodes": [asdict(node) for node in self.nodes]}

    def node(self, name: str) -> Node:
        """ValueError if there is none of this name."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise ValueError(f"node: the fleet {self.fleet} has no {name!r}; it has {', '.join(n.name for n in self.nodes)}")


def description_of(value: Mapping[str, Any]) -> Description:
    """Of what json.load returned. ValueError names what is wrong."""
    if not isinstance(value, Mapping) or value.get("version") != VERSION:
        raise ValueError(f"version: a fleet's description of version {VERSION} is expected")
    nodes = value.get("nodes")
    if not isinstance(value.get("fleet"), str) or not isinstance(nodes, list) or not nodes:
        raise ValueError("nodes: a description has the name of a fleet and at least one node")
    read = tuple(sorted((_node_of(node, f"nodes[{i}]") for i, node in enumerate(nodes)), key=lambda node: node.name))
    if len({node.name for node in read}) != len(read):
        raise ValueError("nodes: two have the same name")
    return Description(value["fleet"], read)


def _node_of(value: Any, where: str) -> Node:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: must be an object")
    name, generation, state = value.get("name"), value.get("generation", 1), value.get("state", "up")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where}.name: is missing")
    if not isinstance(generation, int) or generation < 1:
        raise ValueError(f"{where}.generation: must be at least 1, not {generation!r}")
    if state not in STATES:
        raise ValueError(f"{where}.state: must be one of {', '.join(STATES)}, not {state!r}")
    address = value.get("address")
    if not isinstance(address, str):
        raise ValueError(f"{where}.address: is missing")
    return Node(name, target_of(address, f"{where}.address"), generation, state)


def read(source: Union[str, os.PathLike[str], Mapping[str, Any], Description]) -> Description:
    """A description out of a file, or of what it holds. OSError, or ValueError that names file and field."""
    if isinstance(source, Description):
        return source
    if isinstance(source, Mapping):
        return description_of(source)
    try:
        with open(source, encoding="utf-8") as file:
            return description_of(json.load(file))
    except ValueError as error:
        raise ValueError(f"{os.fspath(source)}: {error}") from None


def write(description: Description, path: Union[str, os.PathLike[str]]) -> None:
    """Replaces the file as a whole: a reader sees the old one or the new one."""
    folder = os.path.dirname(os.path.abspath(path))
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".fleet-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(description.as_dict(), file, indent=1)
            file.write("\n")
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
