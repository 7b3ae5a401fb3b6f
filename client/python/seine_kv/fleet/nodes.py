"""The clients of a fleet's nodes, one an address, made when they are first called."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional, TypeVar

from seine_kv.address import Security
from seine_kv.messages import SeineError
from seine_kv.timeouts import seconds_of

QUICK_SECONDS = 3.0
_Result = TypeVar("_Result")


def client_class() -> Any:
    """seine_kv.client's, or seine_kv.grpc's where there is no native module."""
    try:
        from seine_kv.client import Client
    except ImportError:
        from seine_kv.grpc import Client  # type: ignore[assignment]
    return Client


class NodeClients:
    """May be shared by threads."""

    def __init__(self, security: Optional[Security], timeout: float) -> None:
        self._security, self._timeout = security, seconds_of(timeout)
        self._clients: dict[tuple[str, Optional[float]], Any] = {}  # by address and timeout
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max_workers=32, thread_name_prefix="seine-fleet")
        self._closed = False

    def at(self, address: str) -> Any:
        """The Client of an address."""
        return self._made(address, self._timeout)

    def quick(self, address: str) -> Any:
        """One that soon gives up: for questions whether a node is there, and what it has."""
        return self._made(address, min(QUICK_SECONDS, self._timeout or QUICK_SECONDS))

    def _made(self, address: str, timeout: Optional[float]) -> Any:
        with self._lock:
            if self._closed:
                raise ValueError("this client of a fleet is closed")
            if (address, timeout) not in self._clients:
                self._clients[address, timeout] = client_class()(address, timeout, security=self._security)
            return self._clients[address, timeout]

    def answers(self, address: str) -> bool:
        """Whether a server serves there."""
        return self._info(address) is not None

    def takes_families(self, address: str) -> bool:
        """Whether a server serves there and takes new families: it does not drain."""
        info = self._info(address)
        return info is not None and not info.get("draining", False)

    def _info(self, address: str) -> Optional[Mapping[str, Any]]:
        """What a server says of itself: nothing where it refuses to. None where none answers."""
        try:
            return self.quick(address)._invoke("GetServerInfo", {})
        except SeineError as error:
            return None if error.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED") else {}

    def all(self, calls: Mapping[str, Callable[[], _Result]]) -> dict[str, Any]:
        """Runs all of them at once, the first in this thread; by name the result or the SeineError."""

        def caught(call: Callable[[], _Result]) -> Any:
            try:
                return call()
            except SeineError as error:
                return error

        names = list(calls)
        others = {name: self._pool.submit(caught, calls[name]) for name in names[1:]}
        done = {name: caught(calls[name]) for name in names[:1]}
        return done | {name: future.result() for name, future in others.items()}

    def close(self) -> None:
        with self._lock:
            self._closed, clients = True, list(self._clients.values())
            self._clients.clear()
        self._pool.shutdown()
        for client in clients:
            client.close()
