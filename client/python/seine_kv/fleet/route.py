"""Where a family is, as directories and clients tell each other."""

from __future__ import annotations

from dataclasses import dataclass

Key = tuple[str, str]  # of a family: its index and its name
Process = tuple[str, int]  # one server: its node's name, and the generation of that


@dataclass(frozen=True)
class Route:
    """Where a family is. generation: the placement's own; 0 where no directory counts them. moves: how often it has moved,
    as the directory knows."""

    family: str
    index: str
    node: str
    address: str
    node_generation: int
    generation: int = 0
    moves: int = 0
    lost: bool = False

    @property
    def key(self) -> Key:
        return self.index, self.family
