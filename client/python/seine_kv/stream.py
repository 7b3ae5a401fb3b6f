"""The Decode stream by the native module: append, then retrieve or attend, in one call for a whole batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

try:
    from seine_kv import _native as native
except ImportError as error:
    _HOW = "install the wheel of seine-kv, or call a server over grpcio: from seine_kv.grpc import Client"
    raise ImportError(f"seine_kv's native module cannot be loaded ({error}); {_HOW}", name="seine_kv._native") from None

from seine_kv.address import unavailable
from seine_kv.calls import Steps
from seine_kv.messages import Answer, Append, Attended, Attention, Item, Retained, SeineError, Step, error_of
from seine_kv.timeouts import seconds_of


class DecodeStream(Steps):
    """One message a layer and decode step for a whole batch. Use in a with statement, from one thread.

    timeout: seconds that a step may take, None: any. A step that takes longer ends the stream.
    """

    def __init__(self, connection: Any, timeout: Optional[float] = None, address: str = "") -> None:
        self._connection, self._timeout, self._address = connection, seconds_of(timeout), address
        self._stream: Any = None  # opened by the first step, whose error it is where nobody answers

    def __enter__(self) -> DecodeStream:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self.close(cancel=kind is not None)

    @property
    def transport(self) -> str:
        """How steps travel: "in process", "stream" or "shared memory"; "" before the first."""
        return self._stream.transport if self._stream is not None else ""

    @property
    def fallback(self) -> str:
        """Why they do not travel through shared memory, where a server of this host was asked for it; else ""."""
        return self._stream.fallback if self._stream is not None else ""

    def close(self, cancel: bool = False) -> None:
        """Ends the stream; raises SeineError if the server ended it otherwise."""
        if self._stream is None:
            return
        try:
            self._stream.close(cancel)
        except native.NativeError as error:
            raise raised(error, self._address) from None

    def _answered(
        self, appends: list[Append], items: list[Item], attention: Optional[Attention], selector: dict[str, Any]
    ) -> Step:
        try:
            if self._stream is None:
                self._stream = self._connection.open_stream(self._timeout)
            errors, answers, attended, server_us, refused, retained = self._stream.step(
                appends, items, selector or None, attention
            )
        except native.NativeError as error:
            raise raised(error, self._address) from None
        return Step(
            append_errors=[_error(one) for one in errors],
            answers=[_answer(one) for one in answers],
            server_us=server_us,
            error=_error(refused),
            attended=[_attended(one, item) for one, item in zip(attended, items)],
            retained=[None if one is None else Retained(**one) for one in retained],
        )


def raised(error: Any, address: str = "") -> SeineError:
    """What the native module raised, as callers know it; a server that is not there in a line of ours."""
    text, stated = str(error), error.field or error.reason
    if error.code == "UNAVAILABLE" and not stated and address:
        text = unavailable(address, text)
    return error_of(error.code, text, error.field, error.reason, error.retry_delay)


def _error(parts: Optional[tuple[str, str, str, str, float]]) -> Optional[SeineError]:
    return None if parts is None else error_of(*parts)


def _answer(fields: Mapping[str, Any]) -> Answer:
    return Answer(**{**fields, "error": _error(fields["error"])})


def _attended(fields: Mapping[str, Any], item: Item) -> Attended:
    selected = fields["selected"]
    answer = Attended(
        **{**fields, "error": _error(fields["error"]), "selected": None if selected is None else _answer(selected)}
    )
    if answer.error is None and item.output is not None:
        answer.output, answer.log_sum_exp = item.output, item.log_sum_exp
    return answer
