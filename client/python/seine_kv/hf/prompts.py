"""Attention of prompts in the host's memory: exact, or over what a prompt's blocks choose.

Sparse, some tokens of a block of 128 attend all, and each query head takes the runs of 8 keys that promise the block's
tokens the share `mass` of what they see, beside the first and the last keys. A head that needs more than half of the runs
attends all, as short prompts do. (docs/prompts.md; index/prompt/prompt_attention.h)
"""

import math
import time
from collections import Counter
from dataclasses import dataclass, field

import torch

from seine_kv import _native

WAYS = ("exact", "sparse", "torch")
MASS = 0.96  # KL .002 to .007 behind 7,936 tokens (docs/prompts.md)


@dataclass
class PromptStats:
    """Counts since install; a token of a prompt counts once a layer and row."""

    tokens: int = 0  # attended by Seine
    seconds: float = 0.0  # in this
    runs_seen: int = 0  # of 8 keys, once for each block and query head that sees some of them
    runs_taken: int = 0  # of these, attended
    blocks: int = 0  # times query heads
    exact_blocks: int = 0  # attended whole: short ones, and those that needed too many runs
    torch_tokens: int = 0  # attended by torch instead
    torch_reasons: Counter = field(default_factory=Counter)  # the same by reason

    def lines(self):
        if self.tokens:
            share = f"over {self.runs_taken / max(1, self.runs_seen):.0%} of the keys they see"
            yield f"{self.tokens:,} tokens of prompts attended by Seine in {self.seconds:.2f} s, {share}"
        if self.torch_tokens:
            reasons = ", ".join(f"{why} {count:,}" for why, count in self.torch_reasons.most_common())
            yield f"{self.torch_tokens:,} tokens of prompts attended by torch ({reasons})"


class Prompts:
    """How an installation's prompts are attended. One thread at a time."""

    def __init__(self, way, mass, threads):
        if way not in WAYS:
            raise ValueError(f"prompt: must be one of {', '.join(WAYS)}, not {way!r}")
        if mass is not None and way != "sparse":
            raise ValueError("prompt_mass: needs prompt='sparse'")
        if mass is not None and not 0 < mass < 1:
            raise ValueError(f"prompt_mass: must be above 0 and below 1, not {mass}")
        self._way, self._mass = way, 1.0 if way == "exact" else mass or MASS
        self._threads, self._native = threads, None
        self._key, self._mask = None, None  # the mask as torch had it, and as the kernel has it
        self.stats = PromptStats()

    @property
    def sparse(self):
        return self._way == "sparse"

    def forget(self):
        """Lets the last mask go, as a forward ends."""
        self._key, self._mask = None, None

    def attend(self, query, key, value, mask, scale, causal=True, dropout=0.0, sinks=None, softcap=0.0):
        """Attention's output [rows, tokens, query heads, head_dim] in the query's dtype; None: torch must do it, which is
        counted. query: [rows, query heads, tokens, head_dim]; key, value: [rows, KV heads, places, head_dim]; mask: bool
        [rows or 1, query heads or 1, tokens, places], True where a token sees a place, the same for all query heads of a KV
        head; None: where `causal`, as tokens of the last places see, else all see all. scale: None, 1 / sqrt(head_dim).
        sinks: a logit a query head that counts in the softmax's sum alone. softcap: of the logits; 0: none."""
        tokens = query.shape[0] * query.shape[2]
        why = self._obstacle(query, key, value, mask, causal, dropout)
        if why is not None:
            self.stats.torch_tokens += tokens
            self.stats.torch_reasons[why] += tokens
            return None
        begun = time.perf_counter()
        if self._native is None:
            self._native = _native.PromptAttention(self._threads)
        with torch.no_grad():
            seen = self._seen(query, key, mask)
            rows = (query.float().contiguous(), key.contiguous(), value.contiguous())
            scale = 1 / math.sqrt(query.shape[3]) if scale is None else scale
            output, log_sum_exp, counts = self._native.attend(seen, *rows, scale, self._mass, softcap=softcap)
            output = torch.from_numpy(output)
            if sinks is not None:
                output *= torch.sigmoid(torch.from_numpy(log_sum_exp) - sinks.float())[..., None]
            output = output.to(query.dtype)
        self.stats.tokens += tokens
        self.stats.runs_seen += counts["seen"]
        self.stats.runs_taken += counts["taken"]
        self.stats.blocks += counts["blocks"]
        self.stats.exact_blocks += counts["exact_blocks"]
        self.stats.seconds += time.perf_counter() - begun
        return output

    def _obstacle(self, query, key, value, mask, causal, dropout):
        """Why the kernel cannot attend; None: it can."""
        if self._way == "torch":
            return "as installed"
        if any(rows.device.type != "cpu" for rows in (query, key, value)):
            return "on a device"
        if torch.is_grad_enabled() and any(rows.requires_grad for rows in (query, key, value)):
            return "gradients"
        if dropout:
            return "dropout"
        if query.shape[3] % 16 != 0 or query.shape[3] > 512 or value.shape[3] != query.shape[3]:
            return "head_dim"
        if key.dtype not in (torch.float32, torch.float16, torch.bfloat16) or value.dtype != key.dtype:
            return "dtype"
        if mask is None:
            return None if causal else "no mask"
        return None if mask.dtype == torch.bool and mask.dim() == 4 else "a mask that weighs"

    def _seen(self, query, key, mask):
        """The kernel's mask, of the same one as the last layer's if it was the same."""
        group, tokens, places = query.shape[1] // key.shape[1], query.shape[2], key.shape[2]
        same = mask is None and self._key == (tokens, places) or mask is not None and self._key is mask
        if same and (self._mask.tokens, self._mask.places) == (tokens, places):
            return self._mask
        if mask is None:
            self._mask, self._key = self._native.mask(tokens, places, group), (tokens, places)
            return self._mask
        seen = mask[..., :places]
        seen = seen[:1] if seen.stride(0) == 0 else seen
        seen = seen[:, :1] if seen.stride(1) == 0 or seen.shape[1] == 1 else seen[:, ::group]
        self._mask = self._native.mask(tokens, places, group, seen.contiguous().view(torch.uint8).numpy())
        self._key = mask
        return self._mask
