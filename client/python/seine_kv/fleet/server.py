"""One seined as a child of this process: started, asked for its health, ended with it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Optional

import grpc

from seine_kv.address import Security
from seine_kv.grpc.channel import channel

SERVING = b"\x08\x01"  # grpc.health.v1.HealthCheckResponse {status: SERVING}
_CHECK = "/grpc.health.v1.Health/Check"
_SERVICE = b"seine.v1.RetrievalService"  # one that drains serves it, and not the whole server
_QUESTION = b"\x0a" + bytes([len(_SERVICE)]) + _SERVICE  # grpc.health.v1.HealthCheckRequest {service}
_ASK_SECONDS = 2.0  # one question after its health
_MISSES = 5  # questions without an answer after which it is ended, to be started again


def program(path: str = "") -> str:
    """The seined to start: the one that is given, the environment's SEINED, the wheel's own, or PATH's.
    FileNotFoundError where there is none."""
    stated = path or os.environ.get("SEINED", "")
    if stated:
        return stated
    from seine_kv.bin import path_of

    try:
        return path_of("seined")
    except FileNotFoundError:
        found = shutil.which("seined")
        if found is None:
            raise FileNotFoundError("seined: neither this installation of seine-kv nor PATH has it") from None
        return found


def free_port(host: str) -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
        free.bind((host, 0))
        return int(free.getsockname()[1])


class Server:
    """A seined that listens at `address`. It is killed where this process ends by whatever means (Linux)."""

    def __init__(self, address: str, flags: list[str], seined: str = "", security: Optional[Security] = None) -> None:
        command = [program(seined), "--listen", address, *flags]
        # The kernel's own promise, set between fork and exec by util-linux.
        self._process = subprocess.Popen([*_dies_with_us(), *command], stdin=subprocess.DEVNULL)
        self.address = address
        self._channel = channel(address, (security or Security()).resolved(), _OPTIONS)
        self._check = self._channel.unary_unary(_CHECK)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_serving(self, seconds: float) -> None:
        """RuntimeError where it ends or does not serve in time."""
        end = time.monotonic() + seconds
        while not self.serves():
            code = self._process.poll()
            if code is not None:
                raise RuntimeError(f"seined at {self.address} ended with exit code {code}; its log says why")
            if time.monotonic() > end:
                raise RuntimeError(f"seined at {self.address} does not serve after {seconds} s")
            time.sleep(0.05)

    def serves(self) -> bool:
        """Whether its health service says SERVING of those families that it has."""
        try:
            return self._check(_QUESTION, timeout=_ASK_SECONDS) == SERVING
        except grpc.RpcError:
            return False

    def watch(self, ended: Callable[[], None]) -> None:
        """Calls `ended` from another thread once it has ended. One that is there and does not answer is killed."""
        threading.Thread(target=self._watched, args=(ended,), daemon=True, name="seine-watch").start()

    def _watched(self, ended: Callable[[], None]) -> None:
        misses = 0
        while True:
            try:
                self._process.wait(timeout=1.0)
                break
            except subprocess.TimeoutExpired:
                misses = 0 if self.serves() else misses + 1
                if misses >= _MISSES:
                    self.kill()
        ended()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()

    def stop(self, seconds: float) -> int:
        """Ends it as SIGTERM does, or, where that takes longer, kills it; returns its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


_OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 1000)]


def _dies_with_us() -> list[str]:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise FileNotFoundError("setpriv: util-linux is not installed; a server could outlive its supervisor")
    return [setpriv, "--pdeathsig", "KILL"]
