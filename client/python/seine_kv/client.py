"""A client of Seine, numpy in and numpy out: in this process, or of a server.

    from seine_kv.client import Append, Client, Item

    with Client() as client:                                  # a server's, where SEINE_SERVER says or by default
        ...
    with Client.in_process() as client:                       # or without one: the index lives here
        client.create_index("llama", num_layers=32, num_q_heads=32, num_kv_heads=8, head_dim=128)
        chat = client.create_sequence("llama")
        client.append(chat, layer=0, position=0, keys=keys)   # keys [tokens, num_kv_heads, head_dim], post-RoPE
        answer = client.retrieve(chat, layer=0, queries=q)    # q [num_q_heads, head_dim], post-RoPE
        answer.set(0)                                         # positions of the first set, ascending
        with client.decode_stream() as stream:                # one call a layer and decode step, for a whole batch
            step = stream.step(appends=[Append(chat, 0, n, new_keys)], items=[Item(chat, 0, q)])

seine_kv.Index is shorter where one index is used. Everything goes through the native module: no protobuf, no grpcio.

Arrays are float32, float16 or bfloat16 (ml_dtypes), numpy's or torch's; keys and values must have the index's dtype.
Errors are SeineError with the server's text, the gRPC code's name, and the field of the request that is wrong; what
cannot be sent at all is a TypeError or ValueError. A call that fails has changed nothing, except CANCELLED,
DEADLINE_EXCEEDED, UNAVAILABLE and UNKNOWN, where nobody knows; appends may be repeated. A Client may be shared by
threads; a DecodeStream belongs to one. A child of fork can use nothing that its parent made: SeineError
FAILED_PRECONDITION, "made before fork". multiprocessing forks by default on Linux before Python 3.14: take spawn.

Settings are dicts of words and numbers, and come back in the same words from create_index, get_index and list_indexes;
there None stands for what is absent, and may be put in again.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Optional, Union

from seine_kv.address import Security, default_address, no_server, target_of
from seine_kv.arrays import as_array, is_torch, on_device
from seine_kv.calls import Calls, Settings
from seine_kv.messages import (
    Answer,
    Append,
    Attended,
    Attention,
    Evicted,
    Item,
    Retained,
    RetainedSets,
    SeineError,
    Sequence,
    SequenceInfo,
    Step,
    StepError,
)
from seine_kv.stream import DecodeStream, native, raised
from seine_kv.timeouts import LONGEST, seconds_of

if TYPE_CHECKING:
    from seine_kv.index import Index

__all__ = [
    "Answer",
    "Append",
    "Attended",
    "Attention",
    "Client",
    "DecodeStream",
    "Evicted",
    "Item",
    "Retained",
    "RetainedSets",
    "Security",
    "SeineError",
    "Sequence",
    "SequenceInfo",
    "Step",
    "StepError",
    "default_address",
]

IN_PROCESS = "in process"  # the address of what is in this process
_RETRY_SECONDS = 0.05  # between two attempts to reach a server that is starting


class Client(Calls):
    """Calls one server. `address`: unix:///path/to/socket, /path/to/socket or host:port; None: what the environment
    variable SEINE_SERVER says, else where seined listens by default. `timeout`: seconds for each call; None, inf and
    more than a century: any. `security`: TLS and a token; None: what the environment says (seine_kv.Security). A server
    that is not there is an error of the first call. Client.in_process() needs none."""

    timeout: Optional[float]
    _on_device = False  # whether tensors on a CUDA device are taken as they are

    def __init__(
        self, address: Optional[str] = None, timeout: Optional[float] = 60.0, security: Optional[Security] = None
    ) -> None:
        self.address, self.timeout = target_of(address) if address else default_address(), seconds_of(timeout)
        self._connection: Any = native.Connection.connect(
            self.address, self.timeout, **(security or Security()).resolved()
        )
        self._own = threading.local()  # each thread's stream

    @classmethod
    def in_process(
        cls,
        threads: int = 0,
        profiles: Union[str, os.PathLike[str], list[Union[str, os.PathLike[str]]], None] = None,
        memory_limit_bytes: int = 0,
        backend: str = "auto",
    ) -> Client:
        """A Client whose indexes live in this process, and end with the last of it, its streams and its indexes.

        threads: that answer a batch; 0: one for each processor that the process may use (affinity, quota). profiles: a folder of model profiles as of seined's
        --profiles, a file NAME.profile.safetensors, or a list of files. memory_limit_bytes: of codes and stores
        together, 0: none. backend: "auto", "cpu", "cuda" or "cuda:N", a device's ordinal. A package with CUDA warns where
        "auto" takes the CPU.
        """
        client = cls.__new__(cls)
        client.address, client.timeout, client._own = IN_PROCESS, None, threading.local()
        try:
            client._connection = native.Connection.in_process(threads, backend, memory_limit_bytes, profiles)
        except native.NativeError as error:
            raise raised(error) from None
        client._on_device = client._connection.device_copies() is not None
        if why := client._connection.why_cpu():
            warnings.warn(f"the index searches on the CPU, and not by CUDA: {why}", RuntimeWarning, stacklevel=2)
        return client

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; no call may follow. What is in process lives on while an open stream needs it."""
        self._connection, self._own = None, threading.local()

    def wait_until_ready(self, seconds: float) -> None:
        """Waits for a server that is starting; SeineError UNAVAILABLE if none answers in time."""
        seconds_given = seconds_of(seconds, "seconds", zero=True)
        end = time.monotonic() + (LONGEST if seconds_given is None else seconds_given)
        while True:
            try:
                left = max(_RETRY_SECONDS, end - time.monotonic())
                self._invoke("GetServerInfo", {}, timeout=left)
                return
            except SeineError as error:
                if error.code not in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
                    raise
            if time.monotonic() >= end:
                raise SeineError("UNAVAILABLE", no_server(self.address, f"none within {seconds} s")) from None
            time.sleep(_RETRY_SECONDS)

    def add_profile(self, path: Union[str, os.PathLike[str]]) -> str:
        """In process: a profile's file for indexes to come; returns its name, for codec's `profile`. SeineError
        INVALID_ARGUMENT: it is no profile; ALREADY_EXISTS: another file has that name; UNIMPLEMENTED: a server has its
        own."""
        try:
            return self._open().add_profile(path)
        except native.NativeError as error:
            raise raised(error, self.address) from None

    def index(self, name: str) -> Index:
        """The index of this name, as an Index. NOT_FOUND: there is none; create_index makes one."""
        from seine_kv.index import Index

        return Index.of(self, name)

    def decode_stream(self, timeout: Optional[float] = None) -> DecodeStream:
        """A DecodeStream: append, then retrieve or attend, in one call for a whole batch. timeout: seconds a step."""
        return DecodeStream(self._open(), timeout, self.address)

    def step(
        self,
        appends: Iterable[Append] = (),
        items: Iterable[Item] = (),
        attention: Optional[Attention] = None,
        *,
        on_error: str = "raise",
        **selector: Any,
    ) -> Step:
        """A step as DecodeStream.step has it, over a stream that the calling thread keeps. Where that had ended with
        its server, the step is sent once more over a new one: appends may be repeated."""
        appends, items = list(appends), list(items)
        kept = getattr(self._own, "stream", None)
        stream = self._own.stream = kept or self.decode_stream(self.timeout)
        try:
            return stream.step(appends, items, attention, on_error=on_error, **selector)
        except StepError:
            raise  # the stream goes on
        except SeineError as error:
            self._own.stream = None
            if kept is None or error.code not in ("UNAVAILABLE", "CANCELLED"):
                raise
        return self.step(appends, items, attention, on_error=on_error, **selector)

    def call(self, method: str, request: Settings = {}) -> dict[str, Any]:
        """Any method by its name ("GetIndex", "seine.v1.IndexService/GetIndex"), its messages as nested dicts.

        Enums are words ("per_q_head"), tensors arrays, bytes bytes; what is None is left out, and what is absent comes
        back as None. AppendStream takes one request; Decode is decode_stream. A wrong name or request is a ValueError
        or TypeError.
        """
        return self._invoke(method, request)

    def device_copies(self) -> Optional[tuple[int, int]]:
        """In process, where a CUDA device searches: bytes that calls have copied to it and to the host so far. Keys,
        values and queries may then lie on it, in tensors with DLPack. None: there is no such device."""
        return self._open().device_copies()

    # For Calls ------------------------------------------------------------------------------------------------------

    def _given(self, array: Any) -> Any:
        if not (self._on_device and on_device(array)):
            return as_array(array)
        return array.detach().contiguous() if is_torch(array) else array

    def _invoke(self, method: str, request: Settings, timeout: Optional[float] = None) -> dict[str, Any]:
        if not isinstance(method, str):
            raise TypeError(f"method: must be its name, a str, not a {type(method).__name__}")
        try:
            return self._open().call(method, request, self.timeout if timeout is None else timeout)
        except native.NativeError as error:
            raise raised(error, self.address) from None

    def _append(self, append: Append) -> tuple[int, Optional[Retained]]:
        to = append.sequence
        arrays = (append.keys, append.values, append.queries)
        try:
            tokens, retained = self._open().append(
                to.index, to.id, to.generation, append.layer, append.position, *arrays, append.report, self.timeout
            )
            return tokens, None if retained is None else Retained(**retained)
        except native.NativeError as error:
            raise raised(error, self.address) from None

    def _answers(self, items: list[Item], selector: Settings, attention: Optional[Attention]) -> list[Any]:
        # A step is the shortest way, and has errors item by item.
        step = self.step((), items, attention, on_error="return", **selector)
        if step.error is not None:
            raise step.error
        return step.answers if attention is None else step.attended

    def _open(self) -> Any:
        if self._connection is None:
            raise ValueError("this Client is closed")
        return self._connection
