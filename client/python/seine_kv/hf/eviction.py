"""Eviction of a model's sequences: by the index as tokens are appended, or by calls where a scorer looks at queries."""

from dataclasses import dataclass, field
from typing import Optional, Union

import torch

QUERY_SCORERS = ("snapkv", "tova", "h2o", "expected_attention")
ALL_DENSE = 2**31 - 1  # a dense_threshold that no sequence reaches: everything retained is attended


@dataclass
class Eviction:
    """Cuts every layer back to a budget; attention is then over what is retained: all of it, but where zones are given or
    keys and values low-rank, for then it is searched.

    scorer, budget (in tokens), keep: as of Client.evict. A scorer that needs no queries becomes a setting of the index,
    which then never holds more than budget + interval tokens a head; any other is called after each block of a prompt
    and then every `interval` tokens, with the last `queries` positions' queries: an index could keep these itself, but not
    those of a cache that was filled before install, or of one that a new server is sent again. Snapkv waits there until
    its query_window's have been seen. A sequence no longer than that window, or than the budget, loses nothing. Prompts
    are attended densely all the same, but with hf.install's prefill="blocks": there every scorer is called after each
    block, and the next one attends what it has left.
    """

    budget: Union[int, dict]
    scorer: Union[str, dict] = "keydiff"
    keep: Optional[dict] = field(default_factory=lambda: {"sinks": 4})
    interval: int = 128
    queries: int = 64

    def __post_init__(self):
        if not isinstance(self.budget, dict):
            self.budget = {"tokens": self.budget}
        if not self.budget.get("tokens", 0) > 0:
            raise ValueError(f"evict.budget: must be tokens a head, above 0, not {self.budget}")
        if not isinstance(self.scorer, str) and self.scorer.get("accumulate"):
            needs = "adds up what the index attends from a sequence's first token on, and prompts are attended outside of it"
            raise ValueError(f"evict.scorer: accumulate {needs}")
        if self.by_call and self.queries < self.query_window:
            raise ValueError(f"evict.queries: {self.queries}, but {self.name} needs {self.query_window}")

    @property
    def name(self):
        return self.scorer if isinstance(self.scorer, str) else self.scorer["name"]

    @property
    def query_window(self):
        """Last positions that the scorer needs the queries of, where there are as many."""
        if self.name != "snapkv":
            return 1
        return 64 if isinstance(self.scorer, str) else self.scorer.get("query_window", 64)

    @property
    def by_call(self):
        return self.name in QUERY_SCORERS

    def index_settings(self):
        """For Client.create_index's `eviction`; None where calls do it."""
        if self.by_call:
            return None
        return {"scorer": self.scorer, "budget": self.budget, "keep": self.keep, "interval": self.interval}


class QueryWindow:
    """The last positions' queries of one layer, up to column `end`. [rows, query heads, at most `size`, head_dim]"""

    def __init__(self, size):
        self.size, self.queries, self.end = size, None, 0

    def add(self, queries, end):
        """Queries of the columns before `end`. Those of columns that were cropped meanwhile go, and of columns beyond a gap."""
        begin = end - queries.shape[2]
        if self.queries is not None and 0 < begin <= self.end:
            left = self.queries[:, :, : max(0, self.queries.shape[2] - (self.end - begin))]
            queries = torch.cat([left, queries], dim=2)
        self.queries, self.end = queries[:, :, -self.size :].clone(), end

    def row(self, row, tokens):
        """The last queries of a row that has `tokens` tokens. [positions, query heads, head_dim]"""
        last = min(tokens, self.queries.shape[2])
        return self.queries[row, :, -last:].transpose(0, 1)

    def select(self, rows):
        window = QueryWindow(self.size)
        window.queries, window.end = None if self.queries is None else self.queries[rows], self.end
        return window
