"""The Decode stream: append, then retrieve or attend, in one round trip for a whole batch."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Optional

import grpc

from seine.v1 import retrieval_service_pb2
from seine_kv.calls import Steps
from seine_kv.forked import MadeHere, keep
from seine_kv.grpc import wire
from seine_kv.messages import Append, Attention, Item, SeineError, Step
from seine_kv.timeouts import seconds_of


class DecodeStream(Steps):
    """One message a layer and decode step for a whole batch. Use in a with statement, from one thread.

    timeout: seconds that a step may take, None: any. A longer step ends the stream, within a quarter of that.
    """

    def __init__(self, method: Callable[..., Any], timeout: Optional[float] = None, address: str = "") -> None:
        timeout = seconds_of(timeout)
        self._made = MadeHere()
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._call = method(iter(self._requests.get, None))
        self._steps, self._address = 0, address
        self._timeout, self._late = timeout, False
        self._begun: Optional[float] = None  # of the step that is under way, monotonic
        self._closed = threading.Event()
        if timeout is not None:
            threading.Thread(target=self._watch, args=(timeout,), daemon=True).start()

    def __enter__(self) -> DecodeStream:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self.close(cancel=kind is not None)

    def close(self, cancel: bool = False) -> None:
        """Ends the stream; raises SeineError if the server ended it otherwise."""
        if not self._made.here():
            return keep(self._call)
        self._closed.set()
        self._requests.put(None)
        if cancel:
            self._call.cancel()
            return
        try:
            for _ in self._call:
                pass
        except grpc.RpcError as error:
            raise wire.error_of_call(error, self._address) from None

    def _answered(
        self, appends: list[Append], items: list[Item], attention: Optional[Attention], selector: dict[str, Any]
    ) -> Step:
        self._made.check()
        request = retrieval_service_pb2.DecodeRequest(
            step=self._steps + 1,
            appends=map(wire.append_item, appends),
            items=map(wire.retrieve_item, items),
            selector=wire.selector_of(selector),
            attention=None if attention is None else wire.attention_of(attention),
        )
        self._steps += 1
        response = self._exchange(request)
        return Step(
            append_errors=[wire.error_of(status) for status in response.append_status],
            answers=[wire.answer_of(answer) for answer in response.answers],
            server_us=response.server_us,
            error=wire.error_of(response.status),
            attended=[wire.attended_of(answer) for answer in response.attended],
            retained=[wire.retained_of(retained) for retained in response.retained],
        )

    def _exchange(self, request: Any) -> Any:
        self._begun = time.monotonic()
        self._requests.put(request)
        try:
            return next(self._call)
        except StopIteration:
            raise SeineError("UNAVAILABLE", f"the server at {self._address} has ended the stream") from None
        except grpc.RpcError as error:
            if self._late:
                raise SeineError("DEADLINE_EXCEEDED", f"no answer within {self._timeout} s") from None
            raise wire.error_of_call(error, self._address) from None
        finally:
            self._begun = None

    def _watch(self, timeout: float) -> None:
        # Messages of a stream have no deadlines of their own: gRPC knows that of a whole call only.
        while not self._closed.wait(timeout / 4):
            begun = self._begun
            if begun is not None and time.monotonic() - begun > timeout:
                self._late = True
                self._call.cancel()
                return
