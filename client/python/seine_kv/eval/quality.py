"""Perplexity, KL to dense and greedy agreement over a long text."""

import math

import torch

from seine_kv.eval.engine import Prompt, greedy, teacher_forced, through, token_counts
from seine_kv.model import cache_name


class Quality:
    """One text: its first tokens are read densely, or in blocks by a method that does; the last `decoded` are given one
    at a time, by every method."""

    def __init__(self, model, ids, decoded, free):
        self.model, self.free = model, free
        self.prompt = Prompt(model, ids[:, : -decoded - 1])
        self.inputs, self.targets = ids[0, -decoded - 1 : -1], ids[0, -decoded:]
        cache, _ = self.prompt.begin()
        with torch.inference_mode():
            logits = model(self.inputs[None], **{cache_name(model): cache}, use_cache=True).logits[0].float()
        self.dense_log_probabilities = logits.log_softmax(-1)
        self.dense_greedy = greedy(model, self.prompt, free) if free else []

    def dense(self):
        """What measure gives, of torch's own attention."""
        return {
            "perplexity": self._perplexity(self.dense_log_probabilities),
            "kl": 0.0,
            "agreement": 1.0,
            "greedy_tokens": self.free,
            "kv_bytes": 1.0,
            "held_tokens": self._mean_length(),
            "attended_tokens": self._mean_length(),
        }

    def measure(self, method, endpoint, progress):
        with through(self.model, method.of(self.prompt.ids.shape[1]), endpoint) as seine:
            log_probabilities = teacher_forced(self.model, self.prompt, self.inputs, progress).log_softmax(-1)
            stats, memory = seine.stats(), seine.memory()
            free = greedy(self.model, self.prompt, self.free) if self.free else []
        dense = self.dense_log_probabilities
        kl = (dense.exp() * (dense - log_probabilities)).sum(-1)
        same = dense.argmax(-1) == log_probabilities.argmax(-1)
        return {
            "perplexity": self._perplexity(log_probabilities),
            "kl": kl.mean().item(),
            "agreement": same.float().mean().item(),
            "greedy_tokens": common(free, self.dense_greedy),
            "kv_bytes": memory.share,
            **token_counts(method, stats, self._mean_length()),
        }

    def _mean_length(self):
        """Tokens of the text, the one that is given too, on average over the steps."""
        return self.prompt.ids.shape[1] + (len(self.inputs) + 1) / 2

    def _perplexity(self, log_probabilities):
        return math.exp(-log_probabilities.gather(1, self.targets[:, None]).mean().item())


def common(a, b):
    """How many first elements two lists share."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
