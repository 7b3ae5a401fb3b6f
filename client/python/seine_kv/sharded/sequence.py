"""A sharded sequence (seine_kv.sharded) as one object."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional

import numpy as np
from numpy.typing import ArrayLike

from seine_kv import settings
from seine_kv.arrays import as_array
from seine_kv.calls import Calls
from seine_kv.messages import Answer, Attended, Attention, Item, SeineError, Sequence
from seine_kv.sharded.merging import Stripe, Zones, merge_answers, merge_attended
from seine_kv.sharded.shards import WINDOW, check, id_of, index_of, of_shard

_ZONES = {"sink": 128, "local": 512, "update_buffer": 512, "dense_threshold": 2048}  # of an index, unless it is told


class ShardedSequence:
    """Keys and values of one text on several servers; create and open make one."""

    def __init__(self, shards: list[Calls], stripe: Stripe, zones: Zones, top_k: int, heads: tuple[int, int]) -> None:
        self.shards, self.stripe, self.zones = shards, stripe, zones
        self._top_k, self._heads = top_k, heads
        self.full_top_k = False  # ask each shard for all top_k, in place of its share
        self.choose_first = False  # choose the whole's best top_k, then attend these: two round trips
        self.handles: list[Sequence] = []
        self._tokens: list[int] = []  # of each layer, held by all shards without a gap
        self._ends: list[int] = []  # some shard may hold tokens up to here
        self._pool = ThreadPoolExecutor(len(shards), "seine-shard")

    # Made and found -------------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls, shards: Iterable[Calls], name: str, id: str = "", *, run: int = 4096, **spec: Any
    ) -> ShardedSequence:
        """Creates the indexes that are missing and the sequence on every shard. spec: what Client.create_index takes for
        the whole, on one node. Shard 0 gets an index of this name, the others one of its name and ".rest", which has no
        sink. run: positions of a run, a multiple of 64. On a failure no sequence is left behind."""
        out = cls._prepared(list(shards), name, run, spec)
        for shard, client in enumerate(out.shards):
            index, given = index_of(name, shard), id_of(out.handles[0].id if shard else id, shard)
            try:
                out.handles.append(of_shard(shard, client.create_sequence, index, given))
            except SeineError as error:
                raise out._taken_back(error) from None
        return out

    @classmethod
    def open(cls, shards: Iterable[Calls], name: str, id: str, *, run: int = 4096, **spec: Any) -> ShardedSequence:
        """Takes one up that is there; the arguments must be those that it was created with. NOT_FOUND."""
        out = cls._prepared(list(shards), name, run, spec)
        out.handles = [Sequence(index_of(name, shard), id_of(id, shard)) for shard in range(len(out.shards))]
        out.sync()
        return out

    @classmethod
    def _prepared(cls, shards: list[Calls], name: str, run: int, spec: dict[str, Any]) -> ShardedSequence:
        given = {**_ZONES, **{key: value for key, value in (spec.get("zones") or {}).items() if value is not None}}
        zones = Zones(**given)
        check(shards, run, zones, spec)
        made: dict[str, Any] = {}
        for shard, client in enumerate(shards):
            own = {"sink": 0 if shard else zones.sink, "local": 0, "update_buffer": WINDOW, "dense_threshold": 0}
            asked = {**spec, "zones": own, "exist_ok": True}
            made = of_shard(shard, client.create_index, index_of(name, shard), **asked)["spec"]
        shape = made["geometry"]
        heads = (shape["num_q_heads"], shape["num_kv_heads"])
        out = cls(shards, Stripe(len(shards), run), zones, made["retrieval"]["top_k"], heads)
        out._tokens, out._ends = [0] * shape["num_layers"], [0] * shape["num_layers"]
        return out

    # What it holds --------------------------------------------------------------------------------------------------

    def __enter__(self) -> ShardedSequence:
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()

    def __len__(self) -> int:
        return max(self._tokens)

    def __bool__(self) -> bool:
        return True

    @property
    def id(self) -> str:
        """Its name in shard 0's index; shard s has it with "." and s."""
        return self.handles[0].id

    @property
    def tokens(self) -> list[int]:
        """Tokens of each layer that all shards hold without a gap, as far as this object knows. [num_layers]"""
        return list(self._tokens)

    def sync(self) -> None:
        """Asks every shard what it holds: needed where others append, or after a failed append."""
        infos = self._everywhere(lambda shard: self.shards[shard].get_sequence(self.handles[shard]))
        self.handles = [info.handle for info in infos]
        for layer in range(len(self._tokens)):
            rows = [info.layer_tokens[layer] for info in infos]
            self._tokens[layer] = min(self.stripe.position_of(shard, count) for shard, count in enumerate(rows))
            ends = [self.stripe.position_of(shard, count - 1) + 1 for shard, count in enumerate(rows) if count]
            self._ends[layer] = max([self._tokens[layer], *ends])

    def append(
        self, layer: int, keys: ArrayLike, values: Optional[ArrayLike] = None, position: Optional[int] = None
    ) -> int:
        """Appends tokens of one layer, to all shards concerned at once; returns how many the layer has now.

        As Sequence.append. A failure may leave some tokens on some shards: the same call again sets it right, and until
        then questions to the layer are FAILED_PRECONDITION.
        """
        self._check_layer(layer)
        keys = as_array(keys)
        arrays = (keys,) if values is None else (keys, as_array(values))
        position = self._tokens[layer] if position is None else settings.integer(position, "position")
        end = position + len(keys)
        if position > self._tokens[layer]:
            held = self._tokens[layer]
            raise SeineError("OUT_OF_RANGE", f"position: {position} leaves a gap: layer {layer} holds {held}", "position")

        def send(shard: int) -> None:
            for begin, stop in self.stripe.runs_of(shard, position, end):
                part = (array[begin - position : stop - position] for array in arrays)
                self.shards[shard].append(self.handles[shard], layer, self.stripe.row_of(begin), *part)

        self._ends[layer] = max(self._ends[layer], end)
        try:
            self._everywhere(send)
        except SeineError as error:
            text = f"{error}; append again from position {position}"
            raise SeineError(error.code, text, error.field, error.reason, error.retry_delay) from None
        self._tokens[layer] = max(self._tokens[layer], end)
        return self._tokens[layer]

    def retrieve(self, layer: int, queries: ArrayLike, **selector: Any) -> Answer:
        """The tokens of the whole that matter to `queries`, as Sequence.retrieve. The scope is "per_q_head" unless told
        otherwise; "per_kv_head" needs gqa_reduce "max" or "mean", whose scores compare between shards. Not mass_p."""
        with_scores = selector.pop("with_scores", False)
        answer = self._chosen(layer, queries, selector)
        if not with_scores:
            answer.scores = None
        return answer

    def attend(
        self,
        layer: int,
        queries: ArrayLike,
        tail: Optional[bool] = None,
        scale: float = 0.0,
        softcap: float = 0.0,
        **selector: Any,
    ) -> tuple[np.ndarray, np.ndarray]:
        """(output [num_q_heads, head_dim], log_sum_exp [num_q_heads]), as Sequence.attend, of the whole.

        exact=True answers what one node would, to rounding, in two round trips: the whole's top_k is chosen first. So it
        is by the index where choose_first is set. Else each shard attends its share of top_k.
        """
        attended = self.attended(layer, queries, Attention(tail, scale, softcap=softcap), **selector)
        return attended.output, attended.log_sum_exp

    def attended(self, layer: int, queries: ArrayLike, attention: Attention = Attention(), **selector: Any) -> Attended:
        """The same as an Attended, with counts."""
        exact, own_sets = bool(selector.get("exact")), selector.get("scope") != "per_kv_head"
        attention = Attention(attention.tail, attention.scale, softcap=attention.softcap)
        if not exact and not self.choose_first:
            parts = self._asked(layer, queries, selector, attention)
            return merge_attended(parts, self._whole(layer, selector))
        chosen = self._chosen(layer, queries, selector)
        if attention.tail is None:  # what is usual where a set was searched, for the shards search no more
            attention = Attention(own_sets and not exact, attention.scale, softcap=attention.softcap)
        rows = [self.stripe.rows_of(shard, chosen) for shard in range(len(self.shards))]
        return merge_attended(self._asked(layer, queries, selector, attention, rows), self._whole(layer, selector))

    def gather(
        self, layer: int, kv_head: int, positions: ArrayLike, keys: bool = True, values: bool = False
    ) -> tuple[Optional[np.ndarray], Optional[np.ndarray]]:
        """Stored rows of one KV head, as Sequence.gather."""
        self._check_layer(layer)
        positions = np.asarray(positions, np.int64)
        if positions.size and not 0 <= positions.min() <= positions.max() < self._tokens[layer]:
            raise SeineError("OUT_OF_RANGE", f"positions: not all in the layer's {self._tokens[layer]}", "positions")
        shards = self.stripe.shard_of(positions)
        out: list[Optional[np.ndarray]] = [None, None]
        for shard in np.unique(shards):
            place, client = np.flatnonzero(shards == shard), self.shards[shard]
            rows = self.stripe.row_of(positions[place])
            found = of_shard(shard, client.gather, self.handles[shard], layer, kv_head, rows, keys, values)
            for i, part in enumerate(found):
                if part is not None:
                    whole = out[i] = np.empty((len(positions), part.shape[1]), part.dtype) if out[i] is None else out[i]
                    whole[place] = part
        return out[0], out[1]

    # What becomes of it ---------------------------------------------------------------------------------------------

    def fork(self, position: Optional[int] = None, id: str = "") -> ShardedSequence:
        """A copy of the tokens before `position` (None: of all). On a failure no fork is left behind."""
        for layer in range(len(self._tokens)):
            self._check_whole(layer)
        end = len(self) if position is None else position
        fork = ShardedSequence(self.shards, self.stripe, self.zones, self._top_k, self._heads)
        fork._tokens = [min(held, end) for held in self._tokens]
        fork._ends = list(fork._tokens)
        fork.full_top_k, fork.choose_first = self.full_top_k, self.choose_first
        for shard, client in enumerate(self.shards):
            given = id_of(fork.handles[0].id if shard else id, shard)
            rows = self.stripe.rows_before(shard, end)
            try:
                fork.handles.append(of_shard(shard, client.fork, self.handles[shard], given, rows))
            except SeineError as error:
                raise fork._taken_back(error) from None
        return fork

    def truncate(self, position: int) -> None:
        """Drops the tokens at and after `position`, in every layer. After a failure the same call again sets it right;
        until then questions are FAILED_PRECONDITION."""
        if not 0 <= position <= len(self):
            raise SeineError("OUT_OF_RANGE", f"position: {position} is not in the {len(self)} tokens", "position")
        self._tokens = [min(held, position) for held in self._tokens]
        cut = self.stripe.rows_before
        self._everywhere(lambda shard: self.shards[shard].truncate(self.handles[shard], cut(shard, position)))
        self._ends = list(self._tokens)

    def delete(self) -> None:
        """Deletes it on every shard, and goes on where one fails; the same call again deletes what is left."""

        def drop(shard: int) -> None:
            try:
                self.shards[shard].delete_sequence(self.handles[shard])
            except SeineError as error:
                if error.code != "NOT_FOUND":
                    raise

        self._everywhere(drop)

    # How it is done -------------------------------------------------------------------------------------------------

    def _everywhere(self, work: Callable[[int], Any]) -> list[Any]:
        """work(shard) for every shard at once; the first failure once all have ended."""
        futures = [self._pool.submit(of_shard, shard, work, shard) for shard in range(len(self.shards))]
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error
        return [future.result() for future in futures]

    def _asked(
        self, layer: int, queries: ArrayLike, selector: dict[str, Any], attention: Optional[Attention], rows: Any = None
    ) -> list[tuple[int, Any]]:
        """(shard, answer) of every shard that holds tokens. rows: to attend, in place of a search, by shard."""
        self._check_question(layer, selector)
        array, whole = as_array(queries), self._whole(layer, selector)
        if array.ndim != 2:
            text = "queries: must be [num_q_heads, head_dim]: no shard knows a prompt's positions"
            raise SeineError("INVALID_ARGUMENT", text, "queries")
        top_k = self.zones.shard_top_k(selector.get("top_k") or self._top_k, self.stripe, whole)
        if self.full_top_k or self.choose_first or selector.get("exact"):
            top_k = selector.get("top_k") or self._top_k
        asked = {"scope": "per_q_head", **selector, "top_k": top_k, "with_scores": attention is None}

        def ask(shard: int) -> Any:
            if shard and not self.stripe.rows_before(shard, whole.num_tokens):
                return None
            dense_from = 0 if whole.dense else self.stripe.rows_before(shard, whole.zone_end)
            item = Item(self.handles[shard], layer, array, dense_from, None if rows is None else rows[shard])
            client = self.shards[shard]
            if attention is None:
                answer: Any = client.retrieve_batch([item], **asked)[0]
            else:
                answer = client.attend_batch([item], attention, **asked)[0]
            if answer.error is not None:
                raise answer.error
            return answer

        return [(shard, answer) for shard, answer in enumerate(self._everywhere(ask)) if answer is not None]

    def _chosen(self, layer: int, queries: ArrayLike, selector: dict[str, Any]) -> Answer:
        parts = self._asked(layer, queries, selector, None)
        return merge_answers(parts, self.stripe, selector.get("top_k") or self._top_k, self._whole(layer, selector))

    def _whole(self, layer: int, selector: dict[str, Any]) -> Any:
        sets = self._heads[selector.get("scope") == "per_kv_head"]
        return self.zones.of(self._tokens[layer], sets, bool(selector.get("exact")))

    def _check_layer(self, layer: int) -> None:
        if not 0 <= settings.integer(layer, "layer") < len(self._tokens):
            raise SeineError("INVALID_ARGUMENT", f"layer: {layer} is not in [0, {len(self._tokens)})", "layer")

    def _check_whole(self, layer: int) -> None:
        held = self._tokens[layer]
        if self._ends[layer] > held:
            text = f"layer {layer} has gaps: append again from position {held}, or truncate to it"
            raise SeineError("FAILED_PRECONDITION", text)

    def _check_question(self, layer: int, selector: dict[str, Any]) -> None:
        self._check_layer(layer)
        self._check_whole(layer)
        if selector.get("mass_p") is not None:
            text = "selector.mass_p: shares of a shard's mass are none of the whole's"
            raise SeineError("INVALID_ARGUMENT", text, "selector.mass_p")
        if selector.get("scope") == "per_kv_head" and selector.get("gqa_reduce") not in ("max", "mean"):
            text = "selector.gqa_reduce: must be max or mean: other scores of different shards do not compare"
            raise SeineError("INVALID_ARGUMENT", text, "selector.gqa_reduce")

    def _taken_back(self, error: SeineError) -> SeineError:
        """The error, after what was made before it is gone."""
        text = str(error)
        for shard, handle in enumerate(self.handles):
            try:
                self.shards[shard].delete_sequence(handle)
            except SeineError:
                text += f"; {handle.id} stays on shard {shard}"
        return SeineError(error.code, text, error.field, error.reason, error.retry_delay)
