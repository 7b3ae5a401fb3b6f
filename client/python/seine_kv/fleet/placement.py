"""Which node a family goes to: rendezvous hashing with bounded loads. The C++ client computes the same.

Each node has a score for a family, the first 8 bytes (big endian) of SHA-256 over the family's name, a zero byte and the
node's name. The family goes to the node of the highest score (Thaler and Ravishankar 1998: a node that comes or goes moves
no other node's families), unless that holds more than 1.25 times its share of families: then to the next by score (Mirrokni,
Thorup and Zadimoghaddam, arXiv 1608.01350).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

SHARE = (5, 4)  # of the mean number of families that a node may hold: 5/4, in integers to be the same everywhere


def family_of(id: str) -> str:
    """The family of a sequence's id: what stands before its first '/', or all of it."""
    return id.partition("/")[0]


def score(family: str, node: str) -> int:
    """Of a node for a family: higher is better. In [0, 2^64)."""
    return int.from_bytes(hashlib.sha256(f"{family}\0{node}".encode()).digest()[:8], "big")


def ranked(family: str, nodes: Iterable[str]) -> list[str]:
    """Nodes by falling score; equal scores by name."""
    return sorted(nodes, key=lambda node: (-score(family, node), node))


def choose(family: str, loads: Mapping[str, int]) -> str:
    """The node for a new family. loads: families that each node holds, of those that take new ones. ValueError if there
    is none."""
    if not loads:
        raise ValueError("loads: there is no node that takes new families")
    numerator, denominator = SHARE
    bound = -(-(sum(loads.values()) + 1) * numerator // (denominator * len(loads)))  # rounded up: one node is below it
    return next(node for node in ranked(family, loads) if loads[node] < bound)
