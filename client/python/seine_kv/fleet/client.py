"""A client of a fleet: the calls of seine_kv.Client, each sent to the node that has the family."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Optional, Union

from seine_kv import settings
from seine_kv.address import Security
from seine_kv.calls import Calls, Settings
from seine_kv.fleet import description
from seine_kv.fleet.creation import Creation
from seine_kv.fleet.merge import WHOLE
from seine_kv.fleet.nodes import NodeClients
from seine_kv.fleet.placement import family_of
from seine_kv.fleet.router import GONE, Directory, Router, fleet_generation
from seine_kv.fleet.static_directory import StaticDirectory
from seine_kv.fleet.stream import FleetStream
from seine_kv.messages import Append, Attention, Item, Retained, SeineError, Sequence, Step
from seine_kv.timeouts import seconds_of

if TYPE_CHECKING:
    from seine_kv.index import Index

# What may be sent again where nobody knows whether it was applied: it changes nothing, or the same twice.
_REPEATABLE = frozenset(
    "GetSequence DescribeHead DescribeStep Retrieve Attend Gather Append Score Diagnose GetBasis LoadBasis "
    "Reconstruct".split()
)


def connect(
    source: Union[str, os.PathLike[str], Mapping[str, Any], description.Description],
    timeout: float = 60.0,
    security: Optional[Security] = None,
    patience: float = 10.0,
) -> FleetClient:
    """A FleetClient of a fleet's description, a file or what is in one, without Ray. New families go by rendezvous
    hashing alone; a node that does not serve is UNAVAILABLE until it serves again or create_sequence chooses another."""
    nodes = NodeClients(security, timeout)
    return FleetClient(StaticDirectory(description.read(source), nodes), nodes, timeout, patience)


class FleetClient(Calls):
    """Calls many servers as one; Fleet.client() and connect() make it. May be shared by threads.

    A sequence without an id gets one of its own. CreateIndex, DeleteIndex and lists go to every node. What changes
    nothing, and appends, are repeated for `patience` seconds where a node does not answer; SequenceLost says that it has
    gone with what it held. Other calls raise UNAVAILABLE then, as Client does.
    """

    def __init__(
        self,
        directory: Directory,
        nodes: NodeClients,
        timeout: float,
        patience: float,
        closing: Callable[[], None] = lambda: None,
    ) -> None:
        self.timeout = seconds_of(timeout)
        self._nodes, self._closing = nodes, closing
        self.router = Router(directory, nodes, patience)
        self._own = threading.local()  # each thread's stream

    def __enter__(self) -> FleetClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections; no call may follow."""
        self._closing()
        self._own = threading.local()
        self._nodes.close()

    def describe(self) -> dict[str, Any]:
        """The fleet's nodes, as Fleet.describe returns them."""
        return self.router.directory.describe().as_dict()

    def node(self, name: str) -> Any:
        """The Client of one node, for what is about a server: its metrics, its profiles."""
        return self._nodes.at(self.router.directory.describe().node(name).address)

    def node_of(self, sequence: Sequence) -> str:
        """The name of the node that has a sequence's family."""
        return self.router.route(sequence).node

    def index(self, name: str) -> Index:
        """The index of this name, as an Index. NOT_FOUND: there is none; create_index makes one."""
        from seine_kv.index import Index

        return Index.of(self, name)  # type: ignore[arg-type]

    def decode_stream(self, timeout: Optional[float] = None) -> FleetStream:
        """A FleetStream: each step goes to the nodes that it concerns, at once. timeout: seconds a step."""
        return FleetStream(self.router, timeout)

    def step(
        self,
        appends: Iterable[Append] = (),
        items: Iterable[Item] = (),
        attention: Optional[Attention] = None,
        *,
        on_error: str = "raise",
        **selector: Any,
    ) -> Step:
        """A step as FleetStream.step has it, over a stream that the calling thread keeps."""
        stream = getattr(self._own, "stream", None)
        if stream is None:
            stream = self._own.stream = self.decode_stream(self.timeout)
        return stream.step(appends, items, attention, on_error=on_error, **selector)

    def call(self, method: str, request: Settings = {}) -> dict[str, Any]:
        """Any method that names one sequence, or that lists, by its name. ValueError for others: node(name).call has
        them."""
        return self._invoke(method, request)

    # For Calls ------------------------------------------------------------------------------------------------------

    def _invoke(self, method: str, request: Settings) -> dict[str, Any]:
        name = method.rpartition("/")[2]
        if name in WHOLE:
            return WHOLE[name](self, request)
        own = {"CreateSequence": self._create, "ForkSequence": self._fork, "DeleteSequence": self._delete}
        if name in own:
            return own[name](request)
        if not isinstance(request.get("handle"), Mapping):
            raise ValueError(f"method: {method} names no sequence that a node could be found by; use node(name).call")
        return self._sent(name, request, "handle", name in _REPEATABLE or bool(request.get("dry_run")))

    def _append(self, append: Append) -> tuple[int, Optional[Retained]]:
        def send(client: Any, handle: Sequence) -> tuple[int, Optional[Retained]]:
            sent = Append(handle, append.layer, append.position, append.keys, append.values, append.queries)
            sent.retained = append.retained
            return client._append(sent)

        return self.router.run(append.sequence, send, True)

    def _answers(self, items: list[Item], selector: Settings, attention: Optional[Attention]) -> list[Any]:
        step = self.step((), items, attention, on_error="return", **selector)
        if step.error is not None:
            raise step.error
        return step.answers if attention is None else step.attended

    # One sequence ---------------------------------------------------------------------------------------------------

    def _sent(self, name: str, request: Settings, key: str, repeat: bool) -> dict[str, Any]:
        sequence = settings.sequence_of({"generation": 0, **request[key]})

        def send(client: Any, handle: Sequence) -> dict[str, Any]:
            return client._invoke(name, {**request, key: settings.handle_of(handle)})

        return self._outward(self.router.run(sequence, send, repeat))

    def _create(self, request: Settings) -> dict[str, Any]:
        id = request.get("id") or uuid.uuid4().hex
        return self._outward(Creation(self.router, self._asked, request["index"], id).run())

    def _fork(self, request: Settings) -> dict[str, Any]:
        source = request["source"]
        family, new_id = family_of(source["id"]), request.get("new_id") or ""
        if not new_id:
            new_id = f"{family}/{uuid.uuid4().hex}"
        elif family_of(new_id) != family:
            text = f"new_id: a fork stays in its family: expected {family}/..., not {new_id!r}"
            raise SeineError("INVALID_ARGUMENT", text, "new_id", "OTHER_FAMILY")
        answer = self._sent("ForkSequence", {**request, "new_id": new_id}, "source", False)
        self.router.directory.add(family, source["index"], new_id)
        return answer

    def _delete(self, request: Settings) -> dict[str, Any]:
        handle = request["handle"]
        try:
            answer = self._sent("DeleteSequence", request, "handle", False)
        except SeineError as error:
            if error.code == "NOT_FOUND":
                self.router.directory.remove_sequence(family_of(handle["id"]), handle["index"], handle["id"])
            raise
        self.router.directory.remove_sequence(family_of(handle["id"]), handle["index"], handle["id"])
        return answer

    def _outward(self, answer: dict[str, Any]) -> dict[str, Any]:
        """An answer with its handle's generation as the fleet has it."""
        held = answer if "handle" in answer else answer.get("sequence")
        if isinstance(held, dict) and isinstance(held.get("handle"), dict):
            handle = held["handle"]
            route = self.router.known(Sequence(handle["index"], handle["id"]))
            handle["generation"] = fleet_generation(route, int(handle["generation"]))
        return answer

    # Every node -----------------------------------------------------------------------------------------------------

    def each(self, method: str, request: Settings, missing: bool = False) -> dict[str, Any]:
        """The answer of every node that serves, by name; missing: NOT_FOUND is an answer. SeineError of a node that
        should serve and does not."""

        answers = self._asked(method, request)
        for name, answer in list(answers.items()):
            if isinstance(answer, SeineError) and not (missing and answer.code == "NOT_FOUND"):
                node = self.router.directory.describe().node(name)
                if answer.code not in GONE or not self.router.directory.down(node):
                    raise answer
                del answers[name]
        return answers

    def _asked(self, method: str, request: Settings) -> dict[str, Any]:
        """The answer, or the SeineError, of every node that is not known to be lost, by name."""

        def send(address: str) -> Callable[[], Any]:
            return lambda: self._asked_once(address, method, request)

        nodes = [node for node in self.router.directory.describe().nodes if node.state != "lost"]
        return self._nodes.all({node.name: send(node.address) for node in nodes})

    def _asked_once(self, address: str, method: str, request: Settings) -> Any:
        """The answer of one node. A read that met the connection to a server's former process is asked for again."""
        try:
            return self._nodes.at(address)._invoke(method, request)
        except SeineError as error:
            if error.code != "UNAVAILABLE" or not method.startswith(("Get", "List")):
                raise
        return self._nodes.at(address)._invoke(method, request)
