"""A Decode stream to every node that a step concerns: the step is split by node, sent at once, and merged in order."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Optional

import numpy as np

from seine_kv.calls import Steps
from seine_kv.fleet.errors import settled
from seine_kv.fleet.router import FOLLOWED, Patience, Router, key_of
from seine_kv.fleet.route import Key, Route
from seine_kv.messages import Answer, Append, Attended, Attention, Item, SeineError, Step


@dataclass
class _Part:
    """What one node gets of a step, with each one's place in the whole."""

    address: str
    routes: dict[Key, Route] = field(default_factory=dict)  # of its families
    appends: list[tuple[int, Append]] = field(default_factory=list)
    items: list[tuple[int, Item]] = field(default_factory=list)

    def asked(self) -> Iterator[tuple[str, int, Route]]:
        """Of each append and item: its kind, its place in the whole, and its family's route."""
        for kind, all_of_it in (("appends", self.appends), ("items", self.items)):
            for i, one in all_of_it:  # type: ignore[attr-defined]
                yield kind, i, self.routes[key_of(one.sequence)]


class FleetStream(Steps):
    """One step a layer and decode step for a whole batch, whichever nodes its sequences are on. Use in a with
    statement, from one thread.

    A node that fails is an error of its own items, and the others are answered: step() raises a StepError, as it does
    for a server's item, whose `step` has the rest. The error is SequenceLost where the families have gone with it. A
    stream that breaks is opened again, and the step sent once more: appends may be repeated. What a family that moves
    was asked is asked again where it has gone, or when it takes changes again.
    """

    def __init__(self, router: Router, timeout: Optional[float] = None) -> None:
        self._router, self._timeout = router, timeout
        self._streams: dict[str, Any] = {}  # by address

    def __enter__(self) -> FleetStream:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self.close(cancel=kind is not None)

    def close(self, cancel: bool = False) -> None:
        """Ends the streams; raises the first SeineError of a server that ended one otherwise."""
        errors = [error for error in (_closed(stream, cancel) for stream in self._streams.values()) if error]
        self._streams.clear()
        if errors:
            raise errors[0]

    def _answered(
        self, appends: list[Append], items: list[Item], attention: Optional[Attention], selector: dict[str, Any]
    ) -> Step:
        clock, followed = Patience(self._router.patience), False
        step = self._once(appends, items, attention, selector, clock)
        while errors := _moving(step, appends, items):
            moved = [key for key, error in errors.items() if error.reason == "MOVED"]
            asked = max(error.retry_delay for error in errors.values())
            if (followed or not moved) and not clock.wait(asked):
                for key in moved:
                    _fail(step, settled(errors[key], key[1]), _places(appends, items, {key}))
                break
            followed = followed or bool(moved)
            for key, error in self._not_found(moved).items():
                del errors[key]
                _fail(step, error, _places(appends, items, {key}))
            # All that the family was asked: items that were answered beside a refused append lack its tokens.
            places = _places(appends, items, errors)
            parts = [appends[i] for i in places[0]], [items[i] for i in places[1]]
            _put(step, self._once(*parts, attention, selector, clock), places)
        return step

    def _not_found(self, moved: list[Key]) -> dict[Key, SeineError]:
        """Looks for families that have moved; the errors of those for which that fails."""
        errors: dict[Key, SeineError] = {}
        for key in moved:
            route = self._router.known_by(key)
            try:
                if route is not None:
                    self._router.moved(route)
            except SeineError as error:
                errors[key] = error
        return errors

    def _once(
        self,
        appends: list[Append],
        items: list[Item],
        attention: Optional[Attention],
        selector: dict[str, Any],
        clock: Patience,
    ) -> Step:
        whole = _Whole(len(appends), len(items), attention is not None)
        parts: dict[str, _Part] = {}
        for kind, asked in (("appends", appends), ("items", items)):
            for i, one in enumerate(asked):  # type: ignore[var-annotated, arg-type]
                try:
                    route = self._router.route(one.sequence)
                except SeineError as error:
                    whole.fail(kind, i, error)
                    continue
                part = parts.setdefault(route.node, _Part(route.address))
                part.routes[route.key] = route
                getattr(part, kind).append((i, replace(one, sequence=self._router.own_handle(one.sequence))))

        def send(part: _Part) -> Callable[[], Step]:
            return lambda: self._sent(part, attention, selector, clock.anew())

        steps = self._router.nodes.all({name: send(part) for name, part in parts.items()})
        refused = [step.error for step in steps.values() if not isinstance(step, SeineError)]
        if refused and len(refused) == len(steps) and all(refused) and not whole.failed:
            return Step([], [], 0, error=refused[0])  # as a server refuses: the request is wrong whoever gets it
        for name, part in parts.items():
            step = steps[name]
            if isinstance(step, SeineError) and step.reason in ("SEQUENCE_LOST", "MOVED"):
                self._gone(whole, part)
            else:
                whole.take(part, step)
        self._judge(whole, parts)
        return whole.step

    def _sent(
        self, part: _Part, attention: Optional[Attention], selector: dict[str, Any], clock: Patience
    ) -> Step:
        """One node's Step, over its stream or a new one. SeineError where it does not answer."""
        address = part.address
        appends, items = [one for _, one in part.appends], [one for _, one in part.items]
        while True:
            try:
                stream = self._streams.get(address)
                if stream is None:
                    stream = self._router.nodes.at(address).decode_stream(self._timeout)
                    self._streams[address] = stream
                return stream._answered(appends, items, attention, selector)
            except SeineError as error:
                broken = self._streams.pop(address, None)
                if broken is not None:
                    _closed(broken, True)
                if not (self._router.judge(next(iter(part.routes.values())), error) and clock.wait(error.retry_delay)):
                    raise

    def _gone(self, whole: _Whole, part: _Part) -> None:
        """A node has gone: each family of its part is lost, or had moved before."""
        for kind, i, route in part.asked():
            whole.fail(kind, i, self._router.fate(route))

    def _judge(self, whole: _Whole, parts: dict[str, _Part]) -> None:
        """Items that a node does not know, because it has been started again, are lost, or had moved before."""
        for part in parts.values():
            for kind, i, route in part.asked():
                error = whole.error(kind, i)
                if error is None or error.code != "NOT_FOUND" or error.reason == "SEQUENCE_LOST":
                    continue
                try:
                    self._router.judge(route, error)
                except SeineError as gone:
                    whole.fail(kind, i, gone)


class _Whole:
    """A step's answers in the order in which they were asked for."""

    def __init__(self, appends: int, items: int, attends: bool) -> None:
        self._attends, self.failed = attends, False
        self._answers: list[Any] = [None] * items
        self.step = Step([None] * appends, [], 0, retained=[None] * appends)
        if attends:
            self.step.attended = self._answers
        else:
            self.step.answers = self._answers

    def error(self, kind: str, i: int) -> Optional[SeineError]:
        return self.step.append_errors[i] if kind == "appends" else self._answers[i].error

    def fail(self, kind: str, i: int, error: SeineError) -> None:
        self.failed = True
        if kind == "appends":
            self.step.append_errors[i] = error
        else:
            self._answers[i] = _no_attention(error) if self._attends else _no_answer(error)

    def take(self, part: _Part, step: Any) -> None:
        """A node's Step, or the SeineError that it failed with."""
        error = step if isinstance(step, SeineError) else step.error
        if error is not None:
            for kind, asked in (("appends", part.appends), ("items", part.items)):
                for i, _ in asked:  # type: ignore[attr-defined]
                    self.fail(kind, i, error)
            return
        self.step.server_us = max(self.step.server_us, step.server_us)
        for j, ((i, _), failure) in enumerate(zip(part.appends, step.append_errors)):
            self.step.append_errors[i] = _renumbered(failure, f"appends[{j}]", f"appends[{i}]")
        for (i, _), report in zip(part.appends, step.retained):
            self.step.retained[i] = report
        for j, ((i, _), answer) in enumerate(zip(part.items, step.attended if self._attends else step.answers)):
            answer.error = _renumbered(answer.error, f"items[{j}]", f"items[{i}]")
            self._answers[i] = answer


def _moving(step: Step, appends: list[Append], items: list[Item]) -> dict[Key, SeineError]:
    """The families of a step that a node refused because they move or have moved, each with the error."""
    if step.error is not None:
        return {}
    answers = step.attended or step.answers
    errors = [*step.append_errors, *(answer.error for answer in answers)]
    asked = [*appends, *items]
    return {key_of(one.sequence): error for one, error in zip(asked, errors) if error and error.reason in FOLLOWED}


def _put(step: Step, again: Step, places: list[list[int]]) -> None:
    """Puts the answers of a part of a step, which was sent again, in their places of the whole."""
    answers, newer = step.attended or step.answers, again.attended or again.answers
    for j, i in enumerate(places[0]):
        error = again.error or again.append_errors[j]
        step.append_errors[i] = _renumbered(error, f"appends[{j}]", f"appends[{i}]")
        step.retained[i] = None if again.error else again.retained[j]
    for j, i in enumerate(places[1]):
        if again.error:
            answers[i].error = again.error
        else:
            newer[j].error = _renumbered(newer[j].error, f"items[{j}]", f"items[{i}]")
            answers[i] = newer[j]
    step.server_us += again.server_us


def _places(appends: list[Append], items: list[Item], keys: Container[Key]) -> list[list[int]]:
    """Where a step asks of these families: places of appends, and of items."""
    return [[i for i, one in enumerate(asked) if key_of(one.sequence) in keys] for asked in (appends, items)]  # type: ignore[arg-type]


def _fail(step: Step, error: SeineError, places: list[list[int]]) -> None:
    """Gives appends and items of a step an error, in place of the one that they had."""
    answers = step.attended or step.answers
    for i in places[0]:
        step.append_errors[i] = error
    for i in places[1]:
        answers[i].error = error


def _no_answer(error: SeineError) -> Answer:
    return Answer("unknown", 0, 0, 0, False, np.empty((0, 0), np.int32), np.empty(0, np.int32), None, error=error)


def _no_attention(error: SeineError) -> Attended:
    return Attended("unknown", 0, None, None, 0, False, error=error)


def _renumbered(error: Optional[SeineError], at_node: str, in_step: str) -> Optional[SeineError]:
    """An item's error, with its number in the whole step. An error that names no item stays what it is: SequenceLost."""
    if error is None or at_node == in_step or not error.field.startswith(at_node):
        return error
    text, path = str(error).replace(at_node, in_step, 1), error.field.replace(at_node, in_step, 1)
    return SeineError(error.code, text, path, error.reason, error.retry_delay)


def _closed(stream: Any, cancel: bool) -> Optional[SeineError]:
    try:
        stream.close(cancel)
        return None
    except SeineError as error:
        return error
