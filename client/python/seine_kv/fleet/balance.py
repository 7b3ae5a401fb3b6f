"""Which families to move so that nodes hold about the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from seine_kv.fleet.placement import SHARE
from seine_kv.fleet.route import Key


@dataclass(frozen=True)
class Move:
    key: Key
    bytes: int
    source: str
    target: str


def plan(held: Mapping[str, Mapping[Key, int]], most_bytes: Optional[int] = None) -> list[Move]:
    """Moves after which no node holds more than 1.25 times the mean, where families are small enough for that: from the
    fullest node to the emptiest, the family that brings the two nearest to each other. Each moves once. held: bytes of each
    family that a node holds, by the node's name. most_bytes: of all that moves; None: no bound."""
    there = {node: dict(families) for node, families in held.items()}
    loads = {node: sum(families.values()) for node, families in there.items()}
    moves: list[Move] = []
    left = sum(loads.values()) if most_bytes is None else most_bytes
    while len(loads) > 1:
        source, target = max(sorted(loads), key=loads.__getitem__), min(sorted(loads), key=loads.__getitem__)
        gap = loads[source] - loads[target]
        narrow = {key: size for key, size in there[source].items() if 0 < size < gap and size <= left}
        if not _above_share(loads, source) or not narrow:
            return moves
        key = min(sorted(narrow), key=lambda one: (abs(gap - 2 * narrow[one]), narrow[one]))
        size = there[source].pop(key)  # counted at its new node, from which it does not move again
        loads[source], loads[target], left = loads[source] - size, loads[target] + size, left - size
        moves.append(Move(key, size, source, target))
    return moves


def _above_share(loads: Mapping[str, int], node: str) -> bool:
    numerator, denominator = SHARE
    return loads[node] * denominator * len(loads) > numerator * sum(loads.values())
