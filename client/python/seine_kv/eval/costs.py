"""How long a run of the tasks will take, from a few tokens read and decoded now. Right to a factor of two or so."""

import time

import torch

from seine_kv.eval.engine import LAST
from seine_kv.model import cache_name

PROBE_TOKENS, PROBE_STEPS = 256, 4  # of the measurement
APPENDED = 0.1  # what a token costs an index, in tokens that the model reads: of a small model on two cores
STEP = 1.5  # what a step through an index costs, in steps without a context: the same


class Costs:
    """Seconds. ids: a list of PROBE_TOKENS or more; rows: the size of a batch of questions."""

    def __init__(self, model, ids, rows):
        name, ids = cache_name(model), torch.tensor([ids[:PROBE_TOKENS]], device=model.device)
        with torch.inference_mode():
            begun = time.perf_counter()
            cache = model(ids, use_cache=True, logits_to_keep=1)[name]
            self.token = (time.perf_counter() - begun) / ids.shape[1]
            cache.batch_repeat_interleave(rows)
            step = ids[:, -1:].expand(rows, 1)
            begun = time.perf_counter()
            for _ in range(PROBE_STEPS):
                model(step, **{name: cache}, use_cache=True, logits_to_keep=1)
            self.step = (time.perf_counter() - begun) / PROBE_STEPS
        self.rows = rows
        # Attention over x tokens costs what the weights do where x is their number over twice the queries' elements.
        config = model.config.get_text_config()
        self.even = sum(p.numel() for p in model.parameters()) / (2 * config.num_hidden_layers * config.hidden_size)

    def reading(self, length):
        """The time of a prompt that is read densely."""
        return self.token * length * (1 + length / (2 * self.even))

    def document(self, length, methods, steps):
        """The time of a document and its questions, through dense attention and so many methods. `steps`: the tokens
        that are given one at a time."""
        asked = self.token * self.rows * LAST * (1 + length / self.even)
        one = asked + APPENDED * self.token * length + STEP * steps * self.step
        return self.reading(length) + asked + methods * one

    def batches(self, length, batches, tokens):
        """The time of prompts read and `tokens` decoded by dense attention and by Seine, at each size of a batch."""
        dense = self.step / self.rows * (1 + length / self.even)
        return sum(2 * batch * self.reading(length) + tokens * batch * (dense + STEP * self.step) for batch in batches)


def about(seconds):
    return f"about {seconds:.0f} s" if seconds < 90 else f"about {seconds / 60:.0f} minutes"
