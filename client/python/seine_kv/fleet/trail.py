"""Where a family has gone, as the servers that it left say one after another."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional

from seine_kv.fleet.description import Description, Node
from seine_kv.fleet.families import FamilyState
from seine_kv.fleet.router import GONE
from seine_kv.messages import SeineError

_CLAIM_SECONDS = 1.0


@dataclass(frozen=True)
class Trail:
    """node: the last one that a family has reached. moves: how often it had moved then. there: what that node knows of it
    now; None where the node does not serve."""

    node: Node
    moves: int
    there: Optional[FamilyState]

    @property
    def came(self) -> bool:
        """Whether the node has a family that came so, or later."""
        return self.open and self.there.moves >= self.moves  # type: ignore[union-attr]

    @property
    def open(self) -> bool:
        """Whether the node serves and does not send callers on: it has the family, or may take one that is made anew."""
        return self.there is not None and self.there.state != "moved"


_Ask = Callable[[Node], Optional[FamilyState]]
_Claim = Callable[[Node, FamilyState], None]


def followed(fleet: Description, left: FamilyState, ask: _Ask, claim: _Claim, making: bool = False) -> Trail:
    """Follows a family from a node that has given it up. left: what that node says. ask: what another knows, None where it
    does not serve. claim: brings the family up where it went to, as families.claim does; for that node holds it and has it
    not, where its mover has died or is not yet so far. SeineError NOT_IN_FLEET: it has gone to no node of the fleet.
    UNAVAILABLE, reason MOVING: it is held, and the caller may not claim it. `making` it anew, one that does not serve is
    none that matters: nodes that were taken out of a fleet are remembered so."""
    while True:
        node = _node_of(fleet, left)
        if node is None:
            stranger = Node(left.node, left.address)
            if not making or ask(stranger) is not None:
                raise _elsewhere(left)
            return Trail(stranger, left.moves, None)
        there = _arrived(node, left, ask, claim)
        if there is None or there.state != "moved" or there.moves <= left.moves:
            return Trail(node, left.moves, there)
        left = there


def _arrived(node: Node, left: FamilyState, ask: _Ask, claim: _Claim) -> Optional[FamilyState]:
    """What a node knows of a family that was given up to it, and that is claimed there first if need be. Who may not claim
    it waits for another."""
    end, wait = time.monotonic() + _CLAIM_SECONDS, 0.01
    while True:
        there = ask(node)
        if there is None or not there.may_hold(left):
            return there
        try:
            claim(node, left)
            return ask(node)
        except SeineError as error:
            refused, there = error.code == "PERMISSION_DENIED", ask(node)
            if there is None or (refused and there.moves == left.moves):
                return there
            if not refused and error.code not in GONE:
                raise
        if time.monotonic() + wait > end:
            text = f"handle: the family waits at {left.node} for a caller who may bring it up; try again"
            raise SeineError("UNAVAILABLE", text, "handle", "MOVING")
        time.sleep(wait)
        wait *= 2


def _node_of(fleet: Description, left: FamilyState) -> Optional[Node]:
    """The node that a family has gone to, by the name or the address that whoever moved it gave."""
    return next((node for node in fleet.nodes if left.node == node.name or left.address == node.address), None)


def _elsewhere(left: FamilyState) -> SeineError:
    text = f"handle: the family has moved to {left.node} at {left.address}, which is no node of this fleet"
    return SeineError("FAILED_PRECONDITION", text, "handle", "NOT_IN_FLEET")
