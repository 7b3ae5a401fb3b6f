"""What goes into a call of Seine and what comes out of it; nothing here knows how it travels.

Arrays are numpy's: float32, float16 or bfloat16 (ml_dtypes) where they go in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np


class SeineError(Exception):
    """What the index, the server or gRPC said. `code` is a gRPC code's name such as "NOT_FOUND"; `field` and `reason`
    may be ""."""

    def __init__(self, code: str, message: str, field: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.code, self.field, self.reason = code, field, reason


def error_of(code: str, message: str, field: str = "", reason: str = "") -> SeineError:
    """A SeineError in the words that callers use: dtypes are not those of the wire's enum."""
    return SeineError(code, re.sub(r"\bD_TYPE_([A-Z0-9]+)\b", lambda dtype: dtype[1].lower(), message), field, reason)


class StepError(SeineError):
    """Something of a decode step failed: code, field and reason are the first failure's. `step` is the whole Step: what
    did not fail has been applied and answered."""

    def __init__(self, code: str, message: str, field: str, reason: str, step: Step) -> None:
        super().__init__(code, message, field, reason)
        self.step = step


@dataclass(frozen=True)
class Sequence:
    """Names a sequence. Generation 0 means any; a stale one is FAILED_PRECONDITION."""

    index: str
    id: str
    generation: int = 0


@dataclass(frozen=True)
class SequenceInfo:
    handle: Sequence
    layer_tokens: list[int]  # tokens each layer holds
    code_bytes: int
    store_bytes: int


@dataclass
class Append:
    """Tokens of one layer: keys (and values, where the index stores them) [tokens, num_kv_heads, head_dim]."""

    sequence: Sequence
    layer: int
    position: int  # of the first token
    keys: np.ndarray
    values: Optional[np.ndarray] = None
    queries: Optional[np.ndarray] = None  # of the last tokens, [n, num_q_heads, head_dim], where eviction looks at them


@dataclass
class Item:
    """One (sequence, layer) to retrieve for: queries [num_q_heads, head_dim]."""

    sequence: Sequence
    layer: int
    queries: np.ndarray


@dataclass
class Answer:
    """What one item got. Tokens [0, zone_begin) and [zone_end, num_tokens) are visible besides the sets; where `path`
    is "dense" all are, and the sets are empty. A set belongs to a KV head or a query head, as `scope` says."""

    path: str
    num_tokens: int
    zone_begin: int
    zone_end: int
    all_returned: bool  # top_k covers the whole zone
    positions: np.ndarray  # int32 [sets, top_k], rows ascending, padded with -1
    counts: np.ndarray  # int32 [sets]
    scores: Optional[np.ndarray]  # float32 beside positions, with with_scores
    # One array a KV head once tokens of the layer were evicted: what is visible besides its sets, not the ranges.
    dense_positions: list[np.ndarray] = field(default_factory=list)
    error: Optional[SeineError] = None  # this item's own failure; the rest is then empty
    codes_outgrown: bool = False  # the codes are made for other positions than the layer has: recall may be lower
    # float32 [sets] under mass_p: the estimated softmax mass of the zone that each set holds.
    masses: Optional[np.ndarray] = None
    capped: bool = False  # under mass_p: its cap ended some set before the mass reached p

    def set(self, i: int) -> np.ndarray:
        """Positions of set i, ascending."""
        return self.positions[i, : self.counts[i]]

    def visible(self, i: int) -> np.ndarray:
        """All positions that the head of set i is to attend to, ascending: its set and what is dense."""
        if self.dense_positions:
            dense = self.dense_positions[i * len(self.dense_positions) // len(self.counts)]
        else:
            dense = np.r_[0 : self.zone_begin, self.zone_end : self.num_tokens]
        return np.union1d(dense, self.set(i)).astype(np.int32)


@dataclass(frozen=True)
class Attention:
    """That items are attended, not only retrieved for."""

    tail: Optional[bool] = None  # windows' means for what is not selected; None: where scope is per query head
    scale: float = 0.0  # of the logits; 0: the index's, 1 / sqrt(head_dim) unless it states another
    with_positions: bool = False  # Attended.selected


@dataclass
class Attended:
    """Attention's output for one Item, mergeable with other tokens' by log_sum_exp."""

    path: str  # as of Answer
    num_tokens: int
    output: Optional[np.ndarray]  # float32 [num_q_heads, head_dim]
    log_sum_exp: Optional[np.ndarray]  # float32 [num_q_heads], natural, of the scaled logits
    attended_tokens: int  # of all query heads together; the tail's not counted
    tail: bool  # whether it was counted in
    selected: Optional[Answer] = None
    error: Optional[SeineError] = None  # this item's own failure; output and log_sum_exp are then None
    codes_outgrown: bool = False  # as Answer's


@dataclass
class Evicted:
    """What an eviction kept of a layer."""

    kept: list[np.ndarray]  # one int32 array of positions a KV head, ascending
    tokens_evicted: int  # of all heads together
    bytes_freed: int  # 0 in a dry run


@dataclass
class Step:
    """Answer to one decode step."""

    append_errors: list[Optional[SeineError]]  # one an append: None or SeineError
    answers: list[Answer]  # one Answer an item; none in a step with attention
    server_us: int
    error: Optional[SeineError] = None  # the whole step was refused
    attended: list[Attended] = field(default_factory=list)  # one Attended an item, in a step with attention

    def raise_first(self, appends: Many[Append], items: Many[Item]) -> None:
        """StepError of what failed, if anything did; an append's failure before those of items, which may follow from
        it. appends, items: those that the step was asked for."""
        failed = [("the step", self.error)] if self.error is not None else []
        answers: Many[Any] = self.attended or self.answers
        pairs: list[tuple[str, Many[Any], list[Optional[SeineError]]]] = [
            ("append", appends, self.append_errors),
            ("item", items, [answer.error for answer in answers]),
        ]
        for what, asked, errors in pairs:
            for i, (one, error) in enumerate(zip(asked, errors)):
                if error is not None:
                    failed.append((f"{what} {i} ({one.sequence.index}/{one.sequence.id}, layer {one.layer})", error))
        if failed:
            what, error = failed[0]
            more = f" (and {len(failed) - 1} more failed; see .step)" if len(failed) > 1 else ""
            raise StepError(error.code, f"{what}: {error}{more}", error.field, error.reason, self)
