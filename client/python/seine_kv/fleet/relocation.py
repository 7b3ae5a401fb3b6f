"""What Fleet.drain and Fleet.rebalance do: families move by the mover, and the directory hears of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Optional

from seine_kv.fleet import balance
from seine_kv.fleet.description import Node
from seine_kv.fleet.mover import MovedFamily, Mover
from seine_kv.fleet.nodes import NodeClients
from seine_kv.fleet.placement import family_of
from seine_kv.fleet.ray_directory import RayDirectory
from seine_kv.fleet.route import Key
from seine_kv.messages import SeineError, SequenceInfo

Progress = Callable[[MovedFamily], None]


class Relocation:
    """One drain or rebalancing. ask: asks the directory's actor, as Fleet does."""

    def __init__(
        self, ask: Callable[..., Any], directory: Any, nodes: NodeClients, mover: Mover, progress: Optional[Progress]
    ) -> None:
        self._ask, self._directory, self._nodes, self._mover = ask, directory, nodes, mover
        self._progress = progress or (lambda _: None)

    def drain(self, name: str, bytes_per_second: float) -> list[MovedFamily]:
        source = self._ask(self._directory.describe).node(name)
        targets = [node for node in self._taking() if node.name != name]
        self._share_indexes(source, targets)
        done = self._told((name, one) for one in self._mover.drain(source, targets, bytes_per_second))
        self._forget_what_is_not_there(name, {(o.index, o.family) for o in done if o.outcome in ("snapshotted", "stays")})
        return done

    def rebalance(self, most_bytes: Optional[int], bytes_per_second: float) -> list[MovedFamily]:
        nodes = {node.name: node for node in self._taking()}
        moves = balance.plan({name: self._held(node) for name, node in nodes.items()}, most_bytes)
        for source in {move.source for move in moves}:
            self._share_indexes(nodes[source], [nodes[move.target] for move in moves if move.source == source])
        moved = ((move.source, self._moved(nodes, move)) for move in moves)
        return self._told(self._paced(moved, bytes_per_second))

    def _told(self, families: Iterable[tuple[str, MovedFamily]]) -> list[MovedFamily]:
        """Tells the directory and the caller of each, which left a node. A node that is started again while a family comes
        to it has lost it: so what counts are the generations from before the move."""
        done, before = [], self._ask(self._directory.describe)
        for source, one in families:
            if one.outcome == "moved":
                left, reached = ((node, before.node(node).generation) for node in (source, one.node))
                self._ask(self._directory.move, one.family, one.index, one.moves, left, reached)
                self._delete_if_made_again(one)
            self._progress(one)
            done.append(one)
            before = self._ask(self._directory.describe)
        return done

    def _delete_if_made_again(self, one: MovedFamily) -> None:
        """A node that ended while a family left it took the family with it, to its clients. Where one has made it again
        elsewhere, the copy that was under way is nobody's."""
        now = self._ask(self._directory.locate, one.family, one.index)
        if now is None or now.lost or now.node == one.node or now.moves >= one.moves:
            return
        client = self._nodes.at(self._ask(self._directory.describe).node(one.node).address)
        try:
            for info in client.list_sequences(one.index):
                if family_of(info.handle.id) == one.family:
                    client.delete_sequence(info.handle)
        except SeineError as error:
            if error.code != "NOT_FOUND":  # that server was started again, and has no copy
                raise

    def _moved(self, nodes: dict[str, Node], move: balance.Move) -> MovedFamily:
        index, family = move.key
        try:
            return self._mover.migrate(nodes[move.source], nodes[move.target], index, family, move.bytes)
        except SeineError as error:
            now = self._ask(self._directory.locate, family, index)
            lost = now is not None and now.lost and now.node == move.source
            return MovedFamily(index, family, "lost" if lost else "stays", move.bytes, why=str(error))

    def _paced(
        self, families: Iterable[tuple[str, MovedFamily]], bytes_per_second: float
    ) -> Iterator[tuple[str, MovedFamily]]:
        begin, written = time.monotonic(), 0
        for source, one in families:
            yield source, one
            written += one.file_bytes
            if bytes_per_second > 0:
                time.sleep(max(0.0, begin + written / bytes_per_second - time.monotonic()))

    def _taking(self) -> list[Node]:
        """The nodes that take families and answer."""
        nodes = self._ask(self._directory.describe).nodes
        return [node for node in nodes if node.state == "up" and self._nodes.takes_families(node.address)]

    def _share_indexes(self, source: Node, targets: Iterable[Node]) -> None:
        """Makes the source's indexes on targets that lack them, as those that were started again do."""
        for index in self._nodes.at(source.address)._invoke("ListIndexes", {})["indexes"]:
            for address in {node.address for node in targets}:
                try:
                    self._nodes.at(address)._invoke("CreateIndex", {"spec": index["spec"]})
                except SeineError as error:
                    if error.code != "ALREADY_EXISTS":
                        raise

    def _held(self, node: Node) -> dict[Key, int]:
        """Bytes of each family that a node holds."""
        client, held = self._nodes.at(node.address), dict[Key, int]()
        for index in client._invoke("ListIndexes", {})["indexes"]:
            for info in _sequences(client, index["spec"]["name"]):
                key = info.handle.index, family_of(info.handle.id)
                held[key] = held.get(key, 0) + info.code_bytes + info.store_bytes
        return held

    def _forget_what_is_not_there(self, name: str, left: set[Key]) -> None:
        """Families of the directory's that the emptied node has not: somebody else moved them, or they were never made."""
        lookup = RayDirectory(self._directory, self._nodes)
        for route in self._ask(self._directory.held, name):
            try:
                if route.key not in left:
                    lookup.moved(route)
            except SeineError:  # where it has gone is not known yet: the next client that is told MOVED will ask
                left = left | {route.key}
        gone = [route for route in self._ask(self._directory.held, name) if route.key not in left]
        self._ask(self._directory.forget, gone)


def _sequences(client: Any, index: str) -> list[SequenceInfo]:
    """Of an index; none where the server has been started again, and lacks it."""
    try:
        return client.list_sequences(index)
    except SeineError as error:
        if error.code != "NOT_FOUND":
            raise
        return []
