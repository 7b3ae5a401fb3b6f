"""What a server says of families that move: whether one takes changes, how often it has moved, where it has gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seine_kv.fleet.placement import family_of
from seine_kv.messages import SeineError


@dataclass(frozen=True)
class FamilyState:
    """moves: the generation of a family, which counts how often it has moved. node, address: of one that has gone;
    held: what that node held it in then."""

    state: str = "serving"  # "frozen": takes no changes; "moved": is elsewhere
    moves: int = 0
    node: str = ""
    address: str = ""
    held: tuple[str, ...] = ()

    def may_hold(self, left: FamilyState) -> bool:
        """Whether the node that says this may still hold some of a family that was given up to it. One of several parts may
        be there while others are not."""
        if not left.held or self.moves > left.moves:
            return False
        return self.moves < left.moves or len(left.held) > 1


def family_states(client: Any, index: str, family: str = "") -> dict[str, FamilyState]:
    """By name, the families of an index that are frozen, have moved, or have come by a move; or the one that is named.
    client: of the node. SeineError of the call; a server without the index knows of none."""
    try:
        answer = client._invoke("ListFamilyStates", {"index": index, "family": family})
    except SeineError as error:
        if error.code != "NOT_FOUND":
            raise
        return {}
    return {each["family"]: _state_of(each) for each in answer["families"]}


def has_come(state: FamilyState) -> bool:
    """Whether a server has a family that came by a move."""
    return state.state != "moved" and state.moves > 0


def holds(client: Any, index: str, family: str) -> bool:
    """Whether a server has sequences of a family, however they came. It lists the index. SeineError of the call; a server
    without the index has none."""
    try:
        return any(family_of(info.handle.id) == family for info in client.list_sequences(index))
    except SeineError as error:
        if error.code != "NOT_FOUND":
            raise
        return False


def claim(client: Any, index: str, left: FamilyState) -> None:
    """Brings a family up at the node that it was given up to, as whoever moves it does, unless they have died: client is of
    that node, left is what the old one says. Of several calls at once all have the same effect. Tries each part; where one
    was made anew there, has moved on, or is there or lost, who looks again will see. SeineError of the others."""
    failed = None
    for name in left.held:
        try:
            client._invoke("Restore", {"index": index, "base": name, "generation": left.moves})
        except SeineError as error:
            if error.code not in ("NOT_FOUND", "ALREADY_EXISTS") and error.reason != "STALE_GENERATION":
                failed = failed or error
    if failed is not None:
        raise failed


def _state_of(answer: dict[str, Any]) -> FamilyState:
    held = tuple(answer.get("held", ()))
    return FamilyState(answer["state"], int(answer["generation"]), answer["node"], answer["address"], held)
