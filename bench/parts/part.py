"""A part of `./dev bench`, a question that parts answer, and what commands of several modules name."""

from dataclasses import dataclass, field

DATA = "bench/data/smollm2-135m"
REAL = f"--trace {DATA}-kjv-8k.safetensors"
PROFILE = f"--profile {DATA}.profile.safetensors"


@dataclass(frozen=True)
class Part:
    """One table. `keys` tell its rows apart; `quiet`: its times want a machine that does nothing else; `minutes` on two cores."""

    title: str
    commands: tuple
    columns: list
    keys: tuple
    minutes: float
    quiet: bool = False
    asked: bool = False  # runs only where --only names it: it takes long, or fetches what it needs
    text: tuple = ()
    plot: dict = None  # as docs/tools/figures.py draws it
    rows: object = field(default=lambda measured: measured.get("rows") or measured.get("points") or [measured])


@dataclass(frozen=True)
class Question:
    """Parts that answer one question, as docs/benchmarks.md groups and sums them up. `short`: each {TABLE-ROW-COLUMN} is a figure."""

    title: str
    short: str
    parts: tuple


def one(command):
    return (command,)
