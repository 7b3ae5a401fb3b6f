"""A client of a Seine server over grpcio: the calls of seine_kv.calls by generated stubs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Optional, Union

import grpc

from seine.v1 import retrieval_service_pb2, retrieval_service_pb2_grpc
from seine_kv.address import Security, default_address, no_server, target_of, why_not_trusted
from seine_kv.calls import Calls, Settings
from seine_kv.forked import MadeHere, keep
from seine_kv.grpc import methods, settings, wire
from seine_kv.grpc.channel import channel
from seine_kv.grpc.stream import DecodeStream
from seine_kv.messages import Append, Attention, Item, Retained, SeineError
from seine_kv.timeouts import seconds_of


class Client(Calls):
    """Calls one server. `address`: unix:///path/to/socket, /path/to/socket or host:port; None: what the environment
    variable SEINE_SERVER says, else where seined listens by default. `timeout`: seconds for each call; None, inf and
    more than a century: any. `security`: TLS and a token; None: what the environment says (seine_kv.Security). May be
    shared by threads, and not with a child of fork: there every call is SeineError FAILED_PRECONDITION, "made before
    fork"."""

    def __init__(
        self,
        address: Optional[str] = None,
        timeout: Optional[float] = 60.0,
        max_message_bytes: int = 64 << 20,
        security: Optional[Security] = None,
    ) -> None:
        self.address, self.timeout = target_of(address) if address else default_address(), seconds_of(timeout)
        if why := why_not_trusted(self.address):
            raise SeineError("FAILED_PRECONDITION", why)
        options = [
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", -1),  # the server's limit counts, and it says so itself
            ("grpc.enable_http_proxy", 0),
            # A server that is started anew is found at once, not after gRPC's two minutes.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2000),
        ]
        self._made = MadeHere()
        self._channel = channel(self.address, (security or Security()).resolved(), options)
        self._retrieval = retrieval_service_pb2_grpc.RetrievalServiceStub(self._channel)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; no call may follow."""
        if self._made.here():
            self._channel.close()
        else:
            keep(self._channel)

    def wait_until_ready(self, seconds: float) -> None:
        """Waits for a server that is starting; SeineError UNAVAILABLE if none answers in time."""
        self._made.check()
        try:
            grpc.channel_ready_future(self._channel).result(timeout=seconds_of(seconds, "seconds", zero=True))
        except grpc.FutureTimeoutError:
            raise SeineError("UNAVAILABLE", no_server(self.address, f"none within {seconds} s")) from None

    def decode_stream(self, timeout: Optional[float] = None) -> DecodeStream:
        """A DecodeStream: append, then retrieve or attend, in one round trip for a batch. timeout: seconds a step."""
        self._made.check()
        return DecodeStream(self._retrieval.Decode, timeout, self.address)

    def call(
        self, method: str, request: Union[Settings, Iterable[Settings]] = {}
    ) -> Union[dict[str, Any], Iterator[dict[str, Any]]]:
        """Any method of the server by its name ("Retrieve", "seine.v1.RetrievalService/Retrieve"), its messages as
        dicts in protobuf's JSON form: bytes are base64, 64-bit numbers strings. A stream of requests is an iterable of
        dicts, a stream of answers an iterator over them, which has no timeout. A wrong name or request is a
        ValueError."""
        found = methods.find(method)
        run = self._method(found)
        if not found.streams_requests or isinstance(request, Mapping):
            message = methods.message_of(found, request)
            sent: Any = iter([message]) if found.streams_requests else message
        else:
            sent = iter([methods.message_of(found, one) for one in request])  # all of them, before the first leaves
        if not found.streams_responses:
            return methods.dict_of(self._call(run, sent))
        self._made.check()
        return self._streamed(run(sent))

    # For Calls ------------------------------------------------------------------------------------------------------

    def _invoke(self, method: str, request: Settings) -> dict[str, Any]:
        found = methods.find(method)
        message = found.request()
        settings.fill(message, request, "")
        return settings.to_dict(self._call(self._method(found), message))

    def _append(self, append: Append) -> tuple[int, Optional[Retained]]:
        pieces = (retrieval_service_pb2.AppendStreamRequest(item=piece) for piece in wire.pieces(append))
        totals = self._call(self._retrieval.AppendStream, pieces)
        reports = [wire.retained_of(one.retained) for one in totals.retained]
        return totals.tokens, reports[-1] if reports else None

    def _answers(self, items: list[Item], selector: Settings, attention: Optional[Attention]) -> list[Any]:
        asked = {"items": map(wire.retrieve_item, items), "selector": wire.selector_of(selector)}
        if attention is None:
            retrieve = retrieval_service_pb2.RetrieveRequest(**asked)
            return [wire.answer_of(answer) for answer in self._call(self._retrieval.Retrieve, retrieve).answers]
        attend = retrieval_service_pb2.AttendRequest(attention=wire.attention_of(attention), **asked)
        return [wire.attended_of(answer) for answer in self._call(self._retrieval.Attend, attend).answers]

    # Calls ----------------------------------------------------------------------------------------------------------

    def _method(self, found: methods.Method) -> Callable[..., Any]:
        kind = f"{'stream' if found.streams_requests else 'unary'}_{'stream' if found.streams_responses else 'unary'}"
        make = getattr(self._channel, kind)
        return make(f"/{found.name}", found.request.SerializeToString, found.response.FromString)

    def _streamed(self, answers: Iterable[Any]) -> Iterator[dict[str, Any]]:
        try:
            for answer in answers:
                yield methods.dict_of(answer)
        except grpc.RpcError as error:
            raise wire.error_of_call(error, self.address) from None

    def _call(self, method: Callable[..., Any], request: Any) -> Any:
        self._made.check()
        try:
            return method(request, timeout=self.timeout)
        except grpc.RpcError as error:
            raise wire.error_of_call(error, self.address) from None
