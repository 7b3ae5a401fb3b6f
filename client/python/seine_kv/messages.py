"""What goes into a call of Seine and what comes out of it; nothing here knows how it travels.

Arrays are numpy's: float32, float16 or bfloat16 (ml_dtypes) where they go in. In process, where a CUDA device searches,
keys, values and queries may be tensors on it (Client.device_copies).
"""

from __future__ import annotations

import re
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np


class SeineError(Exception):
    """What the index, the server or gRPC said. `code` is a gRPC code's name such as "NOT_FOUND"; `field` and `reason`
    may be "". retry_delay: seconds that the server asks to wait before the call is made again; 0.0: it does not say."""

    def __init__(self, code: str, message: str, field: str = "", reason: str = "", retry_delay: float = 0.0) -> None:
        super().__init__(message)
        self.code, self.field, self.reason, self.retry_delay = code, field, reason, retry_delay


def error_of(code: str, message: str, field: str = "", reason: str = "", retry_delay: float = 0.0) -> SeineError:
    """A SeineError in the words that callers use: dtypes are not those of the wire's enum."""
    text = re.sub(r"\bD_TYPE_([A-Z0-9]+)\b", lambda dtype: dtype[1].lower(), message)
    return SeineError(code, text, field, reason, retry_delay)


class StepError(SeineError):
    """Something of a decode step failed: code, field and reason are the first failure's. `step` is the whole Step: what
    did not fail has been applied and answered."""

    def __init__(
        self, code: str, message: str, field: str, reason: str, step: Step, retry_delay: float = 0.0
    ) -> None:
        super().__init__(code, message, field, reason, retry_delay)
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
    on_disk: bool = False  # written out while idle; the next call on it brings it back


@dataclass
class Snapshot:
    """What was written to a file, or restored from it."""

    bytes: int  # of the file
    sequences: list[SequenceInfo]  # in the file's order


@dataclass
class Append:
    """Tokens of one layer: keys (and values, where the index stores them) [tokens, num_kv_heads, head_dim]."""

    sequence: Sequence
    layer: int
    position: int  # of the first token
    keys: np.ndarray
    values: Optional[np.ndarray] = None
    queries: Optional[np.ndarray] = None  # of the last tokens, [n, num_q_heads, head_dim], where eviction looks at them
    retained: Optional[RetainedSets] = None  # of this layer: brought up to date by the answer

    @property
    def report(self) -> Optional[str]:
        """What the answer is to report of the retained positions. TypeError where retained is no RetainedSets."""
        return wanted_of(self.retained)


@dataclass
class Item:
    """One (sequence, layer) to retrieve for: queries [num_q_heads, head_dim].

    To attend alone they may be a prompt's, [tokens, num_q_heads, head_dim], of the layer's last tokens. Each sees what
    the layer holds up to its own token, without a search or tail; then without dense_from and positions.
    dense_from: tokens at and after this position are dense, besides those that are by the index's zones. What is
    searched ends a multiple of 64 keys after the sink.
    positions: to attend alone, in place of a search: int32 [sets, width], each row ascending positions of the zone,
    padded with -1.
    output, log_sum_exp: to attend alone, in this process, with float32 queries on the CUDA device that searches: tensors
    there with DLPack, float32 [num_q_heads, head_dim] and [num_q_heads], contiguous. They take the answer, whose own
    are these two.
    """

    sequence: Sequence
    layer: int
    queries: np.ndarray
    dense_from: Optional[int] = None
    positions: Optional[np.ndarray] = None
    output: Optional[Any] = None
    log_sum_exp: Optional[Any] = None


@dataclass
class Answer:
    """What one item got. Tokens [0, zone_begin) and [zone_end, num_tokens) are visible besides the sets; where `path`
    is "dense" all are, and the sets are empty; "exact": by exact scores; "gate": of attend, every token, for the layer's
    codes lose too much. A set belongs to a KV head or a query head, as `scope` says."""

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
    codes_stale: bool = False  # the codes are made for other positions than the layer has: recall may be lower
    # float32 [sets] under mass_p: the estimated softmax mass of the zone that each set holds.
    masses: Optional[np.ndarray] = None
    capped: bool = False  # under mass_p: its cap ended some set before the mass reached p

    @property
    def codes_outgrown(self) -> bool:
        """The name that codes_stale had."""
        return self.codes_stale

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
    prompt_mass: float = 1.0  # of a prompt's queries: the share of its attention that a token keeps; 1: exact
    softcap: float = 0.0  # of the logits: softcap tanh(logit / softcap), as Gemma 2 has it; 0: none


@dataclass
class Attended:
    """Attention's output for one Item, mergeable with other tokens' by log_sum_exp."""

    path: str  # as of Answer
    num_tokens: int
    output: Optional[np.ndarray]  # float32 [num_q_heads, head_dim], a prompt's [tokens, num_q_heads, head_dim]
    log_sum_exp: Optional[np.ndarray]  # float32 [num_q_heads], natural, of the scaled logits; [tokens, num_q_heads]
    attended_tokens: int  # of all query heads (and a prompt's tokens) together; the tail's not counted
    tail: bool  # whether it was counted in
    selected: Optional[Answer] = None
    error: Optional[SeineError] = None  # this item's own failure; output and log_sum_exp are then None
    codes_stale: bool = False  # as Answer's

    @property
    def codes_outgrown(self) -> bool:
        """The name that codes_stale had."""
        return self.codes_stale


@dataclass
class Evicted:
    """What an eviction kept of a layer."""

    kept: list[np.ndarray]  # one int32 array of positions a KV head, ascending
    tokens_evicted: int  # of all heads together
    bytes_freed: int  # 0 in a dry run
    retained: Optional[Retained] = None  # where a RetainedSets was to be brought up to date


@dataclass
class Retained:
    """A report on the positions that the KV heads of a layer retain: what a call dropped, or what they are now."""

    report: str  # "dropped" or "kept"
    evictions_before: int  # of the layer, since its first token: up to the call
    evictions: int  # the same with those of the call
    num_tokens: int  # the layer's length
    counts: Optional[np.ndarray]  # int32 [num_kv_heads] tokens retained; None: there was no memory to report the rest
    dropped: list[np.ndarray]  # one int32 array a KV head, ascending; none where nothing was dropped
    kept: list[np.ndarray]  # one int32 array a KV head, ascending


class RetainedSets:
    """The positions that each KV head of one layer of a sequence retains, followed from answers alone.

        retained = client.retained(chat, layer)                  # or RetainedSets(num_kv_heads), of an empty sequence
        client.append(chat, layer, position, keys, values, retained=retained)
        retained.heads[0], retained.dropped                      # what head 0 retains; what the append took out

    For an engine that holds keys and values itself, and frees the rows of what is evicted. evict and Append take it,
    too. Where an answer is lost, the next one says so: in_step is False, and the one after sets it right. A fork begins with
    copy(), truncated where the fork is. One thread at a time.
    """

    def __init__(self, num_kv_heads: int) -> None:
        self.heads = [np.empty(0, np.int32) for _ in range(num_kv_heads)]  # of each KV head, ascending
        self.dropped: list[np.ndarray] = []  # by the last answer, its own tokens counted in; empty: nothing
        self.num_tokens = 0  # the layer's length, as of the last answer
        self.evictions = 0  # of the layer
        self.in_step = True

    @property
    def wanted(self) -> str:
        """What the next answer is to report: "kept" once one was missed, else "dropped"."""
        return "dropped" if self.in_step else "kept"

    def update(self, report: Optional[Retained]) -> bool:
        """Takes an answer's report. False: one before it was missed, or somebody else has truncated the sequence; the
        sets stay as they were until a report of "kept" comes."""
        self.dropped = []
        after = None if report is None else self._after(report)
        self.in_step = after is not None
        if report is None or after is None:
            return False
        heads, dropped = after
        if any(len(head) for head in dropped):
            self.dropped = dropped
        self.heads, self.num_tokens, self.evictions = heads, report.num_tokens, report.evictions
        return True

    def _after(self, report: Retained) -> Optional[tuple[list[np.ndarray], list[np.ndarray]]]:
        """The sets with the report, and what they lose by it; None where it does not follow on them."""
        if report.counts is None or len(report.counts) != len(self.heads):
            return None
        added = np.arange(self.num_tokens, report.num_tokens, dtype=np.int32)
        heads = [np.concatenate([head, added]) if len(added) else head for head in self.heads]
        if report.report == "kept":
            return list(report.kept), [np.setdiff1d(*pair, True) for pair in zip(heads, report.kept)]
        if not self.in_step or report.evictions_before != self.evictions or report.num_tokens < self.num_tokens:
            return None
        dropped = report.dropped or [head[:0] for head in heads]
        left = [np.setdiff1d(*pair, True) if len(pair[1]) else pair[0] for pair in zip(heads, dropped)]
        if any(len(head) != count for head, count in zip(left, report.counts)):
            return None
        return left, dropped

    def truncate(self, position: int) -> None:
        """Follows a truncation of the sequence."""
        self.heads = [head[: np.searchsorted(head, position)] for head in self.heads]
        self.num_tokens = min(self.num_tokens, max(0, position))

    def copy(self) -> RetainedSets:
        """One of a fork's. The arrays are shared, for none is written."""
        copy = RetainedSets(0)
        copy.__dict__.update(self.__dict__)
        return copy


def wanted_of(retained: Optional[RetainedSets]) -> Optional[str]:
    """What an answer is to report for a RetainedSets; None without one. TypeError for anything else."""
    if retained is None:
        return None
    if not isinstance(retained, RetainedSets):
        raise TypeError(f"retained: must be a RetainedSets, as Client.retained returns it, not {retained!r}")
    return retained.wanted


@dataclass
class Step:
    """Answer to one decode step."""

    append_errors: list[Optional[SeineError]]  # one an append: None or SeineError
    answers: list[Answer]  # one Answer an item; none in a step with attention
    server_us: int
    error: Optional[SeineError] = None  # the whole step was refused
    attended: list[Attended] = field(default_factory=list)  # one Attended an item, in a step with attention
    # One an append, where any has a RetainedSets; None of one that has not, or failed.
    retained: list[Optional[Retained]] = field(default_factory=list)

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
            raise StepError(error.code, f"{what}: {error}{more}", error.field, error.reason, self, error.retry_delay)
