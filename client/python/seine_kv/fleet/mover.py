"""Moves families from server to server, by the program `seine`: what a shell does and what a fleet does is the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from seine_kv.address import Security
from seine_kv.fleet import server
from seine_kv.fleet.description import Node
from seine_kv.messages import SeineError


@dataclass(frozen=True)
class MovedFamily:
    """What became of one family. outcome: "moved", to `node`; "snapshotted": it serves on where it was, and `files` hold it
    as it was; "stays": no file holds it either; "lost": its server was started again meanwhile and has it no more. `why`
    says what kept it from moving."""

    index: str
    family: str
    outcome: str
    bytes: int  # in memory; what its sequences share counts in each
    file_bytes: int = 0  # written
    node: str = ""
    moves: int = 0  # how often it has moved
    pause_ms: float = 0.0  # in which it took no changes
    files: tuple[str, ...] = ()  # in the servers' snapshots.dir
    why: str = ""


class Mover:
    """security: of the calls; its token goes through the environment. seined: the server's program, beside which `seine`
    is looked for. FileNotFoundError where there is none."""

    def __init__(self, security: Optional[Security], seined: str = "") -> None:
        self._program, self._environment = program(seined), _environment(security or Security())

    def drain(self, source: Node, targets: Iterable[Node], bytes_per_second: float = 0.0) -> Iterator[MovedFamily]:
        """Empties a server, the largest family first; yields each once it is done. Whoever stops reading stops it after
        the family that it is at. SeineError of the calls that concern no single family."""
        words = [word for node in targets for word in ("--to", f"{node.name}={node.address}")]
        if bytes_per_second > 0:
            words += ["--bytes-per-second", str(max(1, int(bytes_per_second)))]
        for line in self._lines(["--server", source.address, "drain", "--each", *words], "draining"):
            if "outcome" in line:
                yield _moved_of(line)

    def migrate(self, source: Node, target: Node, index: str, family: str, held: int) -> MovedFamily:
        """Moves one family of `held` bytes. SeineError: it has not moved."""
        words = ["--server", source.address, "family", "migrate", "--to", target.address, "--name", target.name]
        answer = self._whole([*words, "--", index, family])  # whose name may begin with a dash
        return _moved_of({**answer, "outcome": "moved", "bytes": held, "file_bytes": answer["bytes"]})

    def _whole(self, words: list[str]) -> dict[str, Any]:
        # Not subprocess.run, which would kill it where this thread is interrupted: a family is half moved then.
        with subprocess.Popen([self._program, "-o", "json", *words], **self._how(), stdout=subprocess.PIPE) as process:
            answer, said = process.communicate()
        if process.returncode:
            raise _error(said)
        return json.loads(answer)

    def _lines(self, words: list[str], last: str) -> Iterator[dict[str, Any]]:
        """Lines of JSON, as they come; the last one has a field of that name. Where it does not come, the error."""
        with subprocess.Popen([self._program, "-o", "json", *words], **self._how(), stdout=subprocess.PIPE) as process:
            line: dict[str, Any] = {}
            try:
                for line in map(json.loads, process.stdout):  # type: ignore[arg-type]
                    yield line
            finally:
                process.terminate()  # it ends when it may
            if last not in line or line.get("stopped"):
                raise _error(process.stderr.read())  # type: ignore[union-attr]

    def _how(self) -> dict[str, Any]:
        # In a session of its own: Ctrl+C at a terminal is for this process.
        own = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
        return {**own, "env": self._environment}


def program(seined: str = "") -> str:
    """The seine to run: the environment's SEINE, the one beside the server's program, or PATH's. FileNotFoundError where
    there is none."""
    if os.environ.get("SEINE", ""):
        return os.environ["SEINE"]
    try:
        beside = str(Path(server.program(seined)).with_name("seine"))
    except FileNotFoundError:
        beside = ""
    found = beside if os.path.isfile(beside) else shutil.which("seine")
    if found is None:
        raise FileNotFoundError("seine: neither SEINE, nor the folder of seined, nor PATH has it; families move by it")
    return found


def _environment(security: Security) -> dict[str, str]:
    """This process's, with what the calls need and without what they do not."""
    stated = {f"SEINE_{name.upper()}": value for name, value in security.resolved().items()}
    kept = {name: value for name, value in os.environ.items() if name not in stated}
    return {**kept, **{name: value for name, value in stated.items() if value}}


def _moved_of(line: dict[str, Any]) -> MovedFamily:
    names = ("index", "family", "outcome", "bytes", "file_bytes", "node", "pause_ms", "why")
    known = {name: line[name] for name in names if name in line}
    return MovedFamily(**known, moves=int(line.get("generation", 0)), files=tuple(line["files"]))


def _error(said: str) -> SeineError:
    """What the program said on its last line."""
    try:
        error = json.loads(said.splitlines()[-1])["error"]
    except (ValueError, IndexError, KeyError):
        return SeineError("INTERNAL", f"seine: {said.strip() or 'ended without a word'}")
    return SeineError(error["code"], error["message"], error["field"] or "", error["reason"] or "")
