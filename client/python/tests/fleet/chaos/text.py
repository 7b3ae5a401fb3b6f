"""What one sequence is known to hold, and which errors a caller is told to expect."""

import sys

import numpy as np

HEADS, KV_HEADS, DIM, PROMPT, MOST = 2, 1, 64, 64, 512
STATED = ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")  # besides SequenceLost: to be tried again
TOLERANCE = 1e-3


class Text:
    """Belongs to the decoder or to the mender, never to both. made: when its sequence was created, by the clock."""

    def __init__(self, number, seed):
        self.number, self.round = number, 0
        generator = np.random.default_rng((seed, number))
        self.keys, self.values = generator.standard_normal((2, MOST, KV_HEADS, DIM), np.float32)
        self.queries = generator.standard_normal((HEADS, DIM)).astype(np.float32)
        self.tokens, self.sequence, self.node, self.made = 0, None, "", 0.0

    @property
    def id(self):
        return f"chat-{self.number}.{self.round}/main"

    def rows(self, begin, end):
        return self.keys[begin:end], self.values[begin:end]

    def agrees(self, attended):
        """Whether an answer is exact attention over all tokens."""
        return np.abs(attended.output - self.expected(self.tokens)).max() < TOLERANCE

    def expected(self, tokens):
        logits = self.keys[:tokens, 0].astype(np.float64) @ self.queries.T.astype(np.float64) / np.sqrt(DIM)
        weights = np.exp(logits - logits.max(axis=0))
        return (weights / weights.sum(axis=0)).T @ self.values[:tokens, 0]

    def renew(self):
        """A text that is full makes room for another, of another family."""
        self.round, self.tokens, self.sequence, self.node = self.round + 1, 0, None, ""


def count_failure(counts, error):
    """Counts an error as lost, as unstated, or as one that is to be tried again."""
    from seine_kv.fleet import SequenceLost

    if isinstance(error, SequenceLost):
        counts["lost"] += 1
    elif error.code not in STATED:
        counts["unstated_errors"] += 1
        print(f"unstated: {error.code} {error.reason}: {error}", file=sys.stderr)
