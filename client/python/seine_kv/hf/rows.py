"""One row of a cache's batch: a sequence of the index, and what of it the server has been sent."""

from dataclasses import dataclass, field
from typing import Optional

from seine_kv.client import SeineError, Sequence

# What says that the server's sequence is not the row's: it is gone, or holds other tokens. Any other code of an item is
# its own failure, to be tried again with the next token.
LOST = ("NOT_FOUND", "FAILED_PRECONDITION", "OUT_OF_RANGE", "ALREADY_EXISTS")
# What says that the server cannot be used, for now. Any other code of a whole step is a mistake of the settings, and
# raised.
DOWN = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN", "INTERNAL", "RESOURCE_EXHAUSTED")


@dataclass
class Row:
    """One sequence of `owner`'s index. `sent`: tokens of each layer that the server holds, the padding not counted."""

    owner: object
    sent: list
    padding: int = 0
    sequence: Optional[Sequence] = None
    evicted_at: dict = field(default_factory=dict)  # layer -> tokens at its last eviction by call
    retained: dict = field(default_factory=dict)  # layer -> RetainedSets, where tokens are evicted

    def forget(self):
        """Gives the sequence up; all is sent again to a new one."""
        self.owner.bury(self.sequence)
        self.sequence, self.sent, self.evicted_at, self.retained = None, [0] * len(self.sent), {}, {}

    def truncate(self, layer, tokens):
        """Cuts the sequence off behind `tokens`, if that layer holds more. SeineError: the server's."""
        if self.sent[layer] <= tokens:
            return
        self.owner.client.truncate(self.sequence, tokens)
        self.sent = [min(sent, tokens) for sent in self.sent]
        self.evicted_at = {layer: min(at, tokens) for layer, at in self.evicted_at.items()}
        for sets in self.retained.values():
            sets.truncate(tokens)
        self.owner.counts.truncations += 1

    def cut(self, columns):
        """Forgets all tokens from column `columns` of the cache on, its padding among them. SeineError where the cache is
        the index alone; else what cannot be cut off is sent again."""
        tokens = columns - self.padding
        self.padding = min(self.padding, columns)
        if tokens <= 0 or not self.owner.available():
            self.owner.counts.rebuilt_sequences += int(tokens > 0 and self.sequence is not None)
            self.forget()
            return
        try:
            for layer in range(len(self.sent)):
                self.truncate(layer, tokens)
        except SeineError as error:
            if not self.owner.keeps_cache:
                raise
            if error.code in DOWN:
                self.owner.failed(error)
            self.forget()
            self.owner.counts.rebuilt_sequences += 1

    def fork(self):
        """A Row with a sequence of its own that holds the same; an empty one, to be sent again, where that fails."""
        fork = Row(self.owner, [0] * len(self.sent), self.padding)
        if self.sequence is None or not self.owner.available():
            return fork
        try:
            fork.sequence = self.owner.client.fork(self.sequence)
        except SeineError as error:
            if not self.owner.keeps_cache:
                raise
            if error.code in DOWN:
                self.owner.failed(error)
            return fork
        fork.sent, fork.evicted_at = list(self.sent), dict(self.evicted_at)
        fork.retained = {layer: sets.copy() for layer, sets in self.retained.items()}
        self.owner.counts.forks += 1
        return fork
