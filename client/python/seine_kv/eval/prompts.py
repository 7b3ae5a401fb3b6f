"""Prompts read by torch, exactly by Seine's kernel, and over chosen keys: seconds to the first token, and what follows."""

import math
import time

import torch

from seine_kv import hf
from seine_kv.model import CHUNK_TOKENS, cache_name

SHARES = (0.85, 0.9, 0.96)


def ways(shares):
    """(label, settings of hf.install) of each way; None: without Seine."""
    yield "torch", None
    yield "exact", {"prompt": "exact"}
    for share in shares:
        yield f"sparse, {share:g}", {"prompt": "sparse", "prompt_mass": share}


def measure(model, ids, decoded, shares, profile, endpoint, progress):
    """One dict a way. The last `decoded` of ids [1, tokens] are given behind the prompt and attended by torch, whole, so
    that what differs comes from the prompt. kl: from the predictions behind "exact"."""
    prompt, inputs, targets = ids[:, : -decoded - 1], ids[:, -decoded - 1 : -1], ids[0, -decoded:]
    rows, predictions, every = [], {}, list(ways(shares))
    for n, (label, settings) in enumerate(every):
        seine = None
        if settings is not None:
            seine = hf.install(model, endpoint, timeout=60.0, profile=profile, keep_cache=True, gate=False, **settings)
        try:
            begun, cache = time.perf_counter(), read(model, prompt)
            row = {"prompt": label, "tokens": prompt.shape[1], "first_token_s": time.perf_counter() - begun}
            counts = seine.stats().prompts if seine else None
        finally:
            if seine:
                hf.uninstall(model)
        row["attention_s"] = counts.seconds if counts else None
        row["taken"] = counts.runs_taken / max(1, counts.runs_seen) if counts else 1.0
        with torch.inference_mode():
            logits = model(inputs, **{cache_name(model): cache}, use_cache=True).logits[0].float()
        predictions[label] = logits.log_softmax(-1)
        row["perplexity"] = math.exp(-predictions[label].gather(1, targets[:, None]).mean().item())
        rows.append(row)
        progress(n + 1, len(every))
    exact = predictions["exact"]
    for row in rows:
        row["kl"] = (exact.exp() * (exact - predictions[row["prompt"]])).sum(-1).mean().item()
    return rows


def read(model, ids):
    """The cache after a prompt, read in parts by whatever the model's attention is now."""
    cache, name = None, cache_name(model)
    with torch.inference_mode():
        for part in ids.split(CHUNK_TOKENS, dim=1):
            cache = model(part, **{name: cache}, use_cache=True, logits_to_keep=1)[name]
    return cache
