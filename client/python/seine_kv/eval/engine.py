"""A model with and without Seine: prompts read once, then decoded by every method from copies of the same cache; or
read by the method itself, where that does not attend them as torch does."""

import copy
from contextlib import contextmanager

import torch

from seine_kv import hf
from seine_kv.messages import SeineError
from seine_kv.model import CHUNK_TOKENS, cache_name

# Tokens of a prompt that each method reads for itself, so that scorers see queries. They are attended densely, as the
# rest.
LAST = 64


def prefill(model, ids, cache=None):
    """Reads ids [1, tokens] densely, in chunks; returns the cache."""
    name = cache_name(model)
    with torch.inference_mode():
        for chunk in ids.split(CHUNK_TOKENS, dim=1):
            cache = model(chunk, **{name: cache}, use_cache=True, logits_to_keep=1)[name]
    return cache


def reads_prompts(seine):
    """Whether an Installation attends prompts otherwise than torch, so that it must read them itself. None: without Seine."""
    return seine is not None and (seine.block is not None or seine.prompts.sparse)


class Prompt:
    """A prompt, read once but for its last tokens; by what reads prompts itself whole, each time. ids: [1, tokens]"""

    def __init__(self, model, ids):
        self.model, self.ids = model, ids
        self._cache = prefill(model, ids[:, :-LAST])

    def begin(self, model=None):
        """(cache after the whole prompt, its last logits [vocabulary]), by whatever the model's attention is now. model: one
        of the same weights in its place."""
        model = model or self.model
        name, whole = cache_name(model), reads_prompts(hf.installed(model))
        cache, ids = (None, self.ids) if whole else (copy.deepcopy(self._cache), self.ids[:, -LAST:])
        with torch.inference_mode():
            out = model(ids, **{name: cache}, use_cache=True, logits_to_keep=1)
        return out[name], out.logits[0, -1].float()


class NotServed(RuntimeError):
    """Seine did not answer every step of a method's measure, so its figures would be torch's in part."""


FAILURES = (NotServed, SeineError)  # of one method, after which the others can still be measured


@contextmanager
def through(model, method, endpoint):
    """The Installation of a method, for a while; endpoint None: in this process. Every row must have been attended by Seine: a fallback is an error."""
    if method.share is not None:
        raise ValueError(f"{method.key}: its budget is a share of a prompt, which Method.of states")
    if method.scheduled:
        raise ValueError(f"{method.key}: its candidates follow from a prompt's length, as Method.of states")
    seine = hf.install(model, endpoint, timeout=60.0, gate=False, **method.settings)  # what the method itself gives
    try:
        yield seine
        stats = seine.stats()
        if stats.dense_rows:
            raise NotServed(f"{stats.dense_rows} rows were attended by torch: {dict(stats.dense_reasons)}")
    finally:
        hf.uninstall(model)


def token_counts(method, stats, tokens):
    """Tokens that a head holds, and of these attends, on average over the steps of `stats`: of a text whose steps had
    `tokens` on average. Retrieval holds all of them; what an eviction has left is attended, all of it."""
    attended = stats.mean_attended_tokens
    return {"held_tokens": attended if "evict" in method.settings else tokens, "attended_tokens": attended}


def teacher_forced(model, prompt, ids, progress=None):
    """Logits [tokens, vocabulary] after each of ids [tokens], given one at a time after the prompt."""
    cache, _ = prompt.begin()
    rows, name = [], cache_name(model)
    with torch.inference_mode():
        for position, token in enumerate(ids):
            rows.append(model(token.reshape(1, 1), **{name: cache}, use_cache=True).logits[0, -1].float())
            if progress is not None:
                progress(position + 1, len(ids))
    return torch.stack(rows)


def greedy(model, prompt, tokens):
    """The ids of greedy decoding after the prompt. [tokens]"""
    cache, logits = prompt.begin()
    ids, name = [int(logits.argmax())], cache_name(model)
    with torch.inference_mode():
        while len(ids) < tokens:
            out = model(torch.tensor([[ids[-1]]]), **{name: cache}, use_cache=True)
            ids.append(int(out.logits[0, -1].argmax()))
    return ids
