"""What fork() leaves of a client: nothing that works. Its threads are the parent's, and its connection too."""

from __future__ import annotations

import os
from typing import Any

from seine_kv.messages import SeineError

_KEPT: list[Any] = []  # of a parent's: their end would wait for threads that a child does not have


class MadeHere:
    """The process that something was made in."""

    def __init__(self) -> None:
        self.process = os.getpid()

    def here(self) -> bool:
        return self.process == os.getpid()

    def check(self) -> None:
        """SeineError FAILED_PRECONDITION in a child of fork."""
        if not self.here():
            raise SeineError(
                "FAILED_PRECONDITION",
                f"made before fork: this belongs to process {self.process}, and process {os.getpid()} is its child; "
                "start processes that use Seine by spawn, and make what they use in them",
            )


def keep(made: Any) -> None:
    """Never ends what a parent has made."""
    _KEPT.append(made)
