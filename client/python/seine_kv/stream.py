"""The Decode stream by the native module: append, then retrieve or attend, in one call for a whole batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Optional

try:
    from seine_kv import _native as native
except ImportError as error:
    _HOW = "install the wheel of seine-kv, or call a server over grpcio: from seine_kv.grpc import Client"
    raise ImportError(f"seine_kv's native module cannot be loaded ({error}); {_HOW}", name="seine_kv._native") from None

from seine_kv import settings
from seine_kv.address import unavailable
from seine_kv.messages import Answer, Append, Attended, Attention, Item, SeineError, Step, error_of


class DecodeStream:
    """One message a layer and decode step for a whole batch. Use in a with statement, from one thread.

    timeout: seconds that a step may take, None: any. A step that takes longer ends the stream.
    """

    def __init__(self, connection: Any, timeout: Optional[float] = None, address: str = "") -> None:
        self._connection, self._timeout, self._address = connection, timeout, address
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

    def step(
        self,
        appends: Iterable[Append] = (),
        items: Iterable[Item] = (),
        attention: Optional[Attention] = None,
        *,
        on_error: str = "raise",
        **selector: Any,
    ) -> Step:
        """Applies the Appends, then retrieves for the Items, or attends with an Attention; returns a Step.

        For the selector see Client.retrieve_batch. on_error: "raise" makes a StepError of the first append or item that
        failed, whose `step` has what the others got, or of a step that was refused whole; "return" leaves errors in the
        Step, to be looked at one by one. Either way the stream goes on. A stream that breaks raises SeineError.
        """
        if on_error not in ("raise", "return"):
            raise ValueError(f"on_error: must be one of raise, return, not {on_error!r}")
        appends = [settings.checked_append(append) for append in appends]
        items = [settings.checked_item(item) for item in items]
        chosen = settings.selector_of(**selector)
        try:
            if self._stream is None:
                self._stream = self._connection.open_stream(self._timeout)
            errors, answers, attended, server_us, refused = self._stream.step(appends, items, chosen or None, attention)
        except native.NativeError as error:
            raise raised(error, self._address) from None
        step = Step(
            append_errors=[_error(one) for one in errors],
            answers=[_answer(one) for one in answers],
            server_us=server_us,
            error=_error(refused),
            attended=[_attended(one) for one in attended],
        )
        if on_error == "raise":
            step.raise_first(appends, items)
        return step


def raised(error: Any, address: str = "") -> SeineError:
    """What the native module raised, as callers know it; a server that is not there in a line of ours."""
    text, stated = str(error), error.field or error.reason
    if error.code == "UNAVAILABLE" and not stated and address:
        text = unavailable(address, text)
    return error_of(error.code, text, error.field, error.reason)


def _error(parts: Optional[tuple[str, str, str, str]]) -> Optional[SeineError]:
    return None if parts is None else error_of(*parts)


def _answer(fields: Mapping[str, Any]) -> Answer:
    return Answer(**{**fields, "error": _error(fields["error"])})


def _attended(fields: Mapping[str, Any]) -> Attended:
    selected = fields["selected"]
    return Attended(
        **{**fields, "error": _error(fields["error"]), "selected": None if selected is None else _answer(selected)}
    )
