"""What a fleet's client raises besides what its servers say."""

from __future__ import annotations

from collections.abc import Iterable

from seine_kv.messages import SeineError


class SequenceLost(SeineError):
    """Families that a node held and that are gone with it: NOT_FOUND, reason SEQUENCE_LOST. create_sequence makes them
    anew, on another node, and their tokens are to be appended again.

    families: those of this client that the node held, sorted; the one that was called is among them. node: its name.
    """

    def __init__(self, families: Iterable[str], node: str) -> None:
        self.families, self.node = tuple(sorted(set(families))), node
        few, more = self.families[:8], len(self.families) - 8
        names = ", ".join(few) + (f" and {more} more" if more > 0 else "")
        what = "family" if len(self.families) == 1 else "families"
        text = f"handle: lost with {f'node {node}' if node else 'its node'}: {what} {names}; create the sequences again and append their tokens"
        super().__init__("NOT_FOUND", text, "handle", "SEQUENCE_LOST")

    def __reduce__(self) -> tuple[type, tuple[tuple[str, ...], str]]:
        return SequenceLost, (self.families, self.node)


def settled(error: SeineError, family: str) -> SeineError:
    """What a caller gets where no time is left to follow a family: UNAVAILABLE in place of MOVED, which asks the client to
    go on. Other errors stay."""
    if error.reason != "MOVED":
        return error
    text = f"handle: the family {family} moves from node to node; try again"
    return SeineError("UNAVAILABLE", text, "handle", "MOVING")
