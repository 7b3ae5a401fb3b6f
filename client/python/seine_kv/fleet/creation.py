"""One sequence that a fleet's client creates: on its family's node, or on whichever node takes the family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

from seine_kv.fleet.errors import settled
from seine_kv.fleet.placement import family_of
from seine_kv.fleet.route import Route
from seine_kv.fleet.router import GONE, Patience, Router
from seine_kv.messages import SeineError

Asked = Callable[[str, dict[str, Any]], dict[str, Any]]  # FleetClient's: the answer or SeineError of every node


class _Again(Exception):
    """The sequence may be asked for again. error: what the caller gets where no time is left. waits: a moment first."""

    def __init__(self, error: SeineError, waits: bool = True) -> None:
        self.error, self.waits = error, waits


class Creation:
    """Asks one node after another within the router's patience. What a family has left does not take it back, and what
    drains takes none: each is asked once while others are left."""

    def __init__(self, router: Router, asked: Asked, index: str, id: str) -> None:
        self._router, self._asked, self._index, self._id = router, asked, index, id
        self._clock = Patience(router.patience)
        self._refused: set[str] = set()  # names of nodes

    def run(self) -> dict[str, Any]:
        """The answer of the node that has made it. SeineError: what an answer says, UNAVAILABLE where none comes in time."""
        while True:
            try:
                return self._once()
            except _Again as again:
                if again.waits and not self._clock.wait(again.error.retry_delay):
                    raise again.error from None

    def _once(self) -> dict[str, Any]:
        route = self._placed()
        try:
            return self._node(route)._invoke("CreateSequence", {"index": self._index, "id": self._id})
        except SeineError as error:
            if error.reason == "MOVED":
                raise self._sent_on(route, error) from None
            if error.reason == "DRAINING":
                self._withdraw()
                self._router.forget(route)
                raise self._refused_by(route, error) from None
            if error.reason == "MOVING":
                raise _Again(error) from None
            self._judge(route, error)
            raise

    def _placed(self) -> Route:
        try:
            return self._router.place(family_of(self._id), self._index, self._id, self._refused)
        except SeineError as error:
            if error.reason != "NO_NODE" or not self._refused:
                raise
            self._refused.clear()  # one may take it by then, or another may serve again
            raise _Again(error) from None

    def _sent_on(self, route: Route, error: SeineError) -> _Again:
        """A node has given the family up. What it went to may not answer yet."""
        try:
            self._router.moved(route, making=True)
        except SeineError as failure:
            if failure.code not in GONE:
                raise
            return _Again(failure)
        return self._refused_by(route, settled(error, route.family))

    def _refused_by(self, route: Route, error: SeineError) -> _Again:
        """The next node is asked at once, unless it is the same again."""
        again = _Again(error, waits=route.node in self._refused)
        self._refused.add(route.node)
        return again

    def _judge(self, route: Route, error: SeineError) -> None:
        """Raises _Again where the node is gone, and with it what it may have made, or where it lacked the index."""
        try:
            self._router.judge(route, error)
        except SeineError as gone:
            raise _Again(error if error.code in GONE else settled(gone, route.family)) from None
        if error.reason == "INDEX_NOT_FOUND":
            failure = self._copy_index(route, error)
            if failure is None:
                self._clock.wait()  # time is no reason to give up: the node has the index now
                raise _Again(error, waits=False) from None
            self._withdraw()
            raise failure
        if error.code not in (*GONE, "ALREADY_EXISTS"):
            self._withdraw()

    def _copy_index(self, to: Route, error: SeineError) -> Optional[SeineError]:
        """Makes an index on a node that lacks it, as one that was started again does, from a node that has it. Returns
        what prevents it: `error` where no node has it, or the error of a node that does not answer and may have it."""
        for answer in self._asked("GetIndex", {"name": self._index}).values():
            if not isinstance(answer, SeineError):
                try:
                    self._node(to)._invoke("CreateIndex", {"spec": answer["index"]["spec"]})
                except SeineError as refused:
                    return None if refused.code == "ALREADY_EXISTS" else refused
                return None
            if answer.code in GONE:
                error = answer
        return error

    def _withdraw(self) -> None:
        """The directory is not to wait for what was not made."""
        self._router.directory.remove_sequence(family_of(self._id), self._index, self._id)

    def _node(self, route: Route) -> Any:
        return self._router.nodes.at(route.address)
