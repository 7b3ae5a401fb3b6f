"""The programs that a wheel of seine-kv brings: seined, the server, seine, the command line, and seine-bench.

The wheel's seine-bench is without FAISS, whose baselines it names as missing, and draws its plots as .svg.
"""

import os
import sys
from pathlib import Path


def path_of(program: str) -> str:
    """Where a program is. FileNotFoundError: this installation has none, as one without the native module."""
    path = Path(__file__).resolve().parent / program
    if not path.is_file():
        raise FileNotFoundError(
            f"{program}: this installation of seine-kv has no programs; install a wheel, or build Seine"
        )
    return str(path)


def _become(program: str) -> None:
    try:
        path = path_of(program)
    except FileNotFoundError as error:
        sys.exit(str(error))
    os.execv(path, [program, *sys.argv[1:]])


def seined() -> None:
    """The entry point of the server: this process becomes it."""
    _become("seined")


def seine() -> None:
    """The entry point of the command line."""
    _become("seine")


def seine_bench() -> None:
    """The entry point of the benchmarks."""
    _become("seine-bench")
