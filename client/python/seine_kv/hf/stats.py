"""What an installation has done, counted."""

from collections import Counter
from dataclasses import dataclass, field

from seine_kv.hf.gate import GateStats
from seine_kv.hf.prompts import PromptStats


@dataclass
class Stats:
    """Counts since install. A "row" is one sequence's part of a decode step in one layer: what Seine attends or not."""

    steps: int = 0  # Decode-stream steps: one a layer and token, for the whole batch
    rows: int = 0  # attended by Seine
    paths: Counter = field(
        default_factory=Counter
    )  # of these, by the answer's path: "index", "dense" (all visible), "exact", "gate"
    attended_tokens: float = 0.0  # summed over these; each the mean of its query heads
    tail_rows: int = 0  # of these, with a tail
    dense_rows: int = 0  # attended by torch instead, for want of an answer
    dense_reasons: Counter = field(default_factory=Counter)  # the same by error code
    blocks: int = 0  # of prompts that were read in blocks: a block once a layer
    block_tokens: int = 0  # the most that a KV head had at once while a block was attended: retained and its own
    prompts: PromptStats = field(default_factory=PromptStats)
    gate: GateStats = field(default_factory=GateStats)
    appended_tokens: int = 0  # a token once a layer; of prompts, and of what was sent again
    rebuilt_sequences: int = 0  # that the server had lost, or held differently
    forks: int = 0
    truncations: int = 0
    evicted_tokens: int = 0  # by the index and by calls; each once a KV head
    append_seconds: float = 0.0  # waiting for appends of prompts
    step_seconds: float = 0.0  # waiting for steps
    server_seconds: float = 0.0  # of these, in the index

    @property
    def mean_attended_tokens(self):
        """Tokens that a query head attended, on average; the tail's not counted."""
        return self.attended_tokens / self.rows if self.rows else 0.0

    def count_block(self, counts, new):
        """Notes a block of `new` tokens beside `counts`, what is retained of [rows][KV heads]."""
        self.blocks += 1
        self.block_tokens = max(self.block_tokens, max(map(max, counts)) + new)

    def __str__(self):
        lines = [
            f"{self.rows:,} rows attended by Seine in {self.steps:,} steps, {self.mean_attended_tokens:.0f} tokens each, "
            f"{self.step_seconds:.2f} s of which {self.server_seconds:.2f} s in the index",
            f"{self.appended_tokens:,} tokens appended in {self.append_seconds:.2f} s; {self.forks:,} forks, "
            f"{self.truncations:,} truncations, {self.evicted_tokens:,} tokens evicted",
        ]
        lines.extend(self.prompts.lines())
        lines.extend(self.gate.lines())
        if self.blocks:
            most = f"at most {self.block_tokens:,} tokens a head at once"
            lines.append(f"{self.blocks:,} blocks of prompts, a layer each, {most}")
        if self.dense_rows:
            reasons = ", ".join(f"{code} {count:,}" for code, count in self.dense_reasons.most_common())
            lines.append(f"{self.dense_rows:,} rows attended by torch instead ({reasons}), "
                         f"{self.rebuilt_sequences:,} sequences sent again")  # fmt: skip
        return "\n".join(lines)
