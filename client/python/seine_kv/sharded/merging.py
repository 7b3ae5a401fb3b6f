"""Where the tokens of a sharded sequence lie, and one answer out of those of its shards. Needs numpy alone.

The rules are those of client/sharded/stripe_map.h and merge.h.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from seine_kv.messages import Answer, Attended


@dataclass(frozen=True)
class Stripe:
    """Runs of positions go round the shards; a shard counts what it holds from 0 on: its rows."""

    shards: int
    run: int

    def shard_of(self, position: Any) -> Any:
        return position // self.run % self.shards

    def row_of(self, position: Any) -> Any:
        return position // (self.run * self.shards) * self.run + position % self.run

    def position_of(self, shard: int, row: Any) -> Any:
        return (row // self.run * self.shards + shard) * self.run + row % self.run

    def rows_before(self, shard: int, position: int) -> int:
        """How many positions before this one a shard holds."""
        rounds, rest = divmod(position, self.run * self.shards)
        return rounds * self.run + min(max(rest - shard * self.run, 0), self.run)

    def runs_of(self, shard: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of [begin, end) that a shard holds, each within a run."""
        for run in range(begin // self.run, -(-end // self.run)):
            if run % self.shards == shard:
                yield max(begin, run * self.run), min(end, (run + 1) * self.run)

    def rows_of(self, shard: int, answer: Answer) -> np.ndarray:
        """A shard's part of each set as int32 rows, [sets, width], padded with -1."""
        sets = [answer.set(i) for i in range(len(answer.counts))]
        sets = [self.row_of(one[self.shard_of(one) == shard]) for one in sets]
        rows = np.full((len(sets), max(map(len, sets), default=0)), -1, np.int32)
        for row, one in zip(rows, sets):
            row[: len(one)] = one
        return rows


@dataclass(frozen=True)
class Whole:
    """What is known of the whole sequence's layer when it is asked."""

    num_tokens: int
    zone_begin: int
    zone_end: int  # equal: all is dense
    num_sets: int
    exact: bool

    @property
    def dense(self) -> bool:
        return self.zone_begin == self.zone_end

    @property
    def path(self) -> str:
        return "dense" if self.dense else "exact" if self.exact else "index"


@dataclass(frozen=True)
class Zones:
    """The zones of the whole sequence, as one node would have them."""

    sink: int
    local: int
    update_buffer: int
    dense_threshold: int

    def of(self, tokens: int, num_sets: int, exact: bool) -> Whole:
        beyond = max(tokens - self.sink - self.local, 0) if tokens >= self.dense_threshold else 0
        end = self.sink + beyond // self.update_buffer * self.update_buffer
        return Whole(tokens, self.sink, end, num_sets, exact)

    @staticmethod
    def shard_top_k(top_k: int, stripe: Stripe, whole: Whole) -> int:
        """What each shard is asked for: its share and half as much again."""
        held = [stripe.rows_before(s, whole.zone_end) > stripe.rows_before(s, whole.zone_begin) for s in range(stripe.shards)]
        shards = max(sum(held), 1)
        return min(top_k, -(-3 * top_k // (2 * shards)) + 8)


def merge_attended(parts: list[tuple[int, Attended]], whole: Whole) -> Attended:
    """Attention over what all shards attended, by their log-sum-exps, in double."""
    logs = np.stack([np.asarray(part.log_sum_exp, np.float64) for _, part in parts])  # [shards, heads]
    most = logs.max(axis=0)
    weights = np.exp(logs - np.where(np.isneginf(most), 0, most))  # all 0 over no token
    total = weights.sum(axis=0)
    sums = sum(weight[:, None] * part.output for weight, (_, part) in zip(weights, parts))
    with np.errstate(divide="ignore", invalid="ignore"):
        output = np.where(total[:, None] > 0, sums / total[:, None], 0)
        log_sum_exp = np.where(total > 0, most + np.log(total), -np.inf)
    return Attended(
        path=whole.path,
        num_tokens=whole.num_tokens,
        output=output.astype(np.float32),
        log_sum_exp=log_sum_exp.astype(np.float32),
        attended_tokens=sum(part.attended_tokens for _, part in parts),
        tail=any(part.tail for _, part in parts),
        codes_stale=any(part.codes_stale for _, part in parts),
    )


def merge_answers(parts: list[tuple[int, Answer]], stripe: Stripe, top_k: int, whole: Whole) -> Answer:
    """The best top_k of each set by score, in positions of the whole; of equal scores the lowest positions."""
    sets, scores = [], []
    for i in range(whole.num_sets):
        found = [] if whole.dense else [(shard, part) for shard, part in parts if part.path != "dense"]
        positions = [np.empty(0, np.int64), *(stripe.position_of(shard, part.set(i)) for shard, part in found)]
        values = [np.empty(0, np.float32), *(part.scores[i, : part.counts[i]] for _, part in found)]
        merged, weight = np.concatenate(positions), np.concatenate(values)
        best = np.lexsort((merged, -weight))[:top_k]
        best = best[np.argsort(merged[best])]
        sets.append(merged[best]), scores.append(weight[best])
    counts = np.array([len(one) for one in sets], np.int32)
    table = np.full((len(sets), counts.max(initial=0)), -1, np.int32)
    beside = np.zeros(table.shape, np.float32)
    for i, (one, value) in enumerate(zip(sets, scores)):
        table[i, : len(one)], beside[i, : len(one)] = one, value
    zone = whole.zone_end - whole.zone_begin
    return Answer(
        path=whole.path,
        num_tokens=whole.num_tokens,
        zone_begin=whole.num_tokens if whole.dense else whole.zone_begin,
        zone_end=whole.num_tokens if whole.dense else whole.zone_end,
        all_returned=bool((counts == zone).all()),
        positions=table,
        counts=counts,
        scores=beside,
        codes_stale=any(part.codes_stale for _, part in parts),
    )
