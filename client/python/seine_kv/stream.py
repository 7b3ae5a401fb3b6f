"""The Decode stream: append, then retrieve or attend, in one round trip for a whole batch."""

import queue
import threading
import time

import grpc

from seine.v1 import retrieval_service_pb2
from seine_kv import wire
from seine_kv.messages import SeineError, Step


class DecodeStream:
    """One message a layer and decode step for a whole batch. Use in a with statement, from one thread.

    timeout: seconds that a step may take, None: any. A step that takes longer ends the stream, within a quarter of that.
    """

    def __init__(self, method, timeout=None):
        self._requests = queue.SimpleQueue()
        self._call = method(iter(self._requests.get, None))
        self._steps = 0
        self._timeout, self._begun, self._late = timeout, None, False
        self._closed = threading.Event()
        if timeout is not None:
            threading.Thread(target=self._watch, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.close(cancel=kind is not None)

    def close(self, cancel=False):
        """Ends the stream; raises SeineError if the server ended it otherwise."""
        self._closed.set()
        self._requests.put(None)
        if cancel:
            self._call.cancel()
            return
        try:
            for _ in self._call:
                pass
        except grpc.RpcError as error:
            raise wire.error_of_call(error) from None

    def step(self, appends=(), items=(), attention=None, **selector):
        """Applies the Appends, then retrieves for the Items, or attends with an Attention; returns a Step.

        For the selector see Client.retrieve_batch.
        """
        self._steps += 1
        request = retrieval_service_pb2.DecodeRequest(
            step=self._steps,
            appends=map(wire.append_item, appends),
            items=map(wire.retrieve_item, items),
            selector=wire.selector_of(**selector),
            attention=None if attention is None else wire.attention_of(attention),
        )
        response = self._exchange(request)
        return Step(
            append_errors=[wire.error_of(status) for status in response.append_status],
            answers=[wire.answer_of(answer) for answer in response.answers],
            server_us=response.server_us,
            error=wire.error_of(response.status),
            attended=[wire.attended_of(answer) for answer in response.attended],
        )

    def _exchange(self, request):
        self._begun = time.monotonic()
        self._requests.put(request)
        try:
            return next(self._call)
        except StopIteration:
            raise SeineError("UNAVAILABLE", "the server has ended the stream") from None
        except grpc.RpcError as error:
            if self._late:
                raise SeineError("DEADLINE_EXCEEDED", f"no answer within {self._timeout} s") from None
            raise wire.error_of_call(error) from None
        finally:
            self._begun = None

    def _watch(self):
        # Messages of a stream have no deadlines of their own: gRPC knows that of a whole call only.
        while not self._closed.wait(self._timeout / 4):
            begun = self._begun
            if begun is not None and time.monotonic() - begun > self._timeout:
                self._late = True
                self._call.cancel()
                return
