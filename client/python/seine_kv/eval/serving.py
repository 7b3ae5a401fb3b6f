"""Time to the first token and tokens a second of several sequences at once, dense attention and Seine by turns."""

import statistics
import time

import torch

from seine_kv.eval.engine import through
from seine_kv.eval.speed import twin_of
from seine_kv.model import CHUNK_TOKENS, cache_name


class Batch:
    """Prompts that are read in chunks, then decoded greedily, each call timed. ids: [sequences, tokens]"""

    def __init__(self, model, ids):
        self.model, self.name, self.cache = model, cache_name(model), None
        self.chunks = list(ids.split(CHUNK_TOKENS, dim=1))
        self.read_seconds, self.times = 0.0, []

    def read(self):
        """Reads the next chunk of the prompts. False: there is none left."""
        if not self.chunks:
            return False
        self.read_seconds += self._forward(self.chunks.pop(0))
        return True

    def step(self):
        self.times.append(self._forward(self.token))

    def _forward(self, tokens):
        begun = time.perf_counter()
        with torch.inference_mode():
            out = self.model(tokens, **{self.name: self.cache}, use_cache=True, logits_to_keep=1)
        self.cache, self.token = out[self.name], out.logits[:, -1].argmax(-1, keepdim=True)
        return time.perf_counter() - begun


def measure(model, text_ids, lengths, batches, method, endpoint, tokens, progress):
    """Yields a dict a length and batch, by torch's attention and by Seine's: seconds from a prompt to its first token,
    of the step after it, and tokens a second of the whole batch (medians of later steps). The sequences of a batch are
    of other places of the text.

    text_ids: [1, tokens], at least the longest length."""
    dense_model = twin_of(model)
    cells = [(length, batch) for length in lengths for batch in batches]
    for n, (length, batch) in enumerate(cells):
        shift = max((text_ids.shape[1] - length) // batch, 1)
        ids = torch.cat([text_ids.roll(-shift * row, dims=1)[:, :length] for row in range(batch)])
        with through(model, method.of(length), endpoint):
            seine, dense = Batch(model, ids), Batch(dense_model, ids)
            while dense.read():
                seine.read()
            for _ in range(tokens + 1):  # the first hands on what is to be encoded: it is not among the medians
                dense.step()
                seine.step()
        row = {"length": length, "batch": batch}
        for name, one in (("dense", dense), ("seine", seine)):
            row[f"{name}_first_s"] = one.read_seconds
            row[f"{name}_second_s"] = one.times[0]
            row[f"{name}_tokens_per_s"] = batch / statistics.median(one.times[1:])
        del seine, dense
        progress(n + 1, len(cells))
        yield row
