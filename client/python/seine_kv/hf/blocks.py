"""Prompts in blocks: each block attends what the index retains and itself, is appended, and the layer is cut back.

Block prompt processing, KeyDiff section 2.4, equation 6 (arXiv 2504.15364). With a budget of N and blocks of B tokens
no layer holds more than N + B tokens a head at any time, in the index or in torch. Positions stay the original ones.
"""

import functools
import inspect
from numbers import Integral

import torch

from seine_kv.hf.attention import current

# What a forward of a base model is given a token each, and along which axis.
PER_TOKEN = {"input_ids": 1, "inputs_embeds": 1, "token_type_ids": 1, "position_ids": -1, "cache_position": -1}


def block_size(prefill, block, evict):
    """Tokens of a block, as hf.install's arguments have them; None: prompts are attended densely. ValueError."""
    if prefill not in ("dense", "blocks"):
        raise ValueError(f"prefill: must be one of dense, blocks, not {prefill!r}")
    if prefill == "dense":
        if block is not None:
            raise ValueError("block: needs prefill='blocks'")
        return None
    if evict is None:
        raise ValueError("prefill: blocks need evict, whose budget is what they attend")
    if evict.interval < 2:
        raise ValueError(f"evict.interval: prompts in blocks need 2 tokens or more, not {evict.interval}")
    if block is None:
        return evict.interval
    if isinstance(block, bool) or not isinstance(block, Integral) or not 2 <= block <= evict.interval:
        raise ValueError(f"block: must be 2 to evict.interval, {evict.interval}, tokens, not {block!r}")
    return int(block)


def read_in_blocks(base, size):
    """Has a base model take what is longer than `size` tokens in blocks; returns what undoes it."""
    own = base.__dict__.get("forward")  # which others may have put in place of its class's
    base.forward = in_blocks(base.forward, size)

    def undo():
        del base.forward
        if own is not None:
            base.forward = own

    return undo


def in_blocks(forward, size):
    """`forward` of a base model that takes more than `size` tokens in blocks of so many, the last one shorter. Its
    answer has what `forward`'s has: hidden states of every token, which are all that torch keeps of earlier blocks."""
    signature = inspect.signature(forward)

    @functools.wraps(forward)
    def blocks(*args, **kwargs):
        given = dict(signature.bind(*args, **kwargs).arguments)
        given.update(given.pop("kwargs", {}))
        inputs = given.get("input_ids") if given.get("input_ids") is not None else given.get("inputs_embeds")
        if current.get() is None or inputs is None or inputs.shape[1] <= size:
            return forward(*args, **kwargs)
        _check(given)
        as_dict = given.pop("return_dict", None)
        tokens, outputs = inputs.shape[1], []
        for begin in range(0, tokens, size):
            block = _block(given, tokens, begin, min(begin + size, tokens))
            outputs.append(forward(**block, return_dict=True))
        joined = _joined(outputs)
        return joined.to_tuple() if as_dict is False else joined

    return blocks


def _check(given):
    """ValueError for a tensor that nobody knows how to cut into blocks."""
    for name, value in given.items():
        if isinstance(value, torch.Tensor) and name not in PER_TOKEN and name != "attention_mask":
            raise ValueError(f"{name}: a prompt in blocks cannot be given it; install with prefill='dense'")


def _block(given, tokens, begin, end):
    """The arguments of tokens [begin, end) of a prompt of so many tokens."""
    block = dict(given)
    for name, axis in PER_TOKEN.items():
        if given.get(name) is not None:
            block[name] = given[name].narrow(axis, begin, end - begin)
    mask = given.get("attention_mask")
    if mask is not None:
        block["attention_mask"] = mask[:, : mask.shape[1] - tokens + end]
    return block


def _joined(outputs):
    """One answer out of the blocks': the last one's, with the hidden states of all."""
    joined = outputs[-1]
    for name in list(joined.keys()):
        if name == "last_hidden_state":
            joined[name] = torch.cat([output[name] for output in outputs], dim=1)
        elif name == "hidden_states":
            layers = zip(*(output[name] for output in outputs))
            joined[name] = tuple(torch.cat(states, dim=1) for states in layers)
        elif name not in ("cache", "past_key_values"):
            raise ValueError(f"{name}: a prompt in blocks does not give it; install with prefill='dense'")
    return joined


def block_mask(counts, padding, past, new, group, device):
    """Which keys a block's queries attend: what is retained, and causally the block itself. True where they do.

    counts: tokens retained of [rows][KV heads]; padding: columns of each row; past: columns before the block.
    [rows, query heads, new, most retained + new], or of one row and head where all are alike.
    """
    most = max(max(row) for row in counts)
    causal = torch.ones(new, new, dtype=torch.bool, device=device).tril()
    if all(count == most for row in counts for count in row) and max(padding) <= past:
        return torch.cat([causal.new_ones(new, most), causal], dim=1)[None, None]
    held = torch.arange(most, device=device) < torch.tensor(counts, device=device)[:, :, None]
    held = held.repeat_interleave(group, dim=1)[:, :, None].expand(-1, -1, new, -1)
    real = torch.arange(past, past + new, device=device) >= torch.tensor(padding, device=device)[:, None]
    # A query at padding attends itself alone: what comes of it is never read, but must be no NaN.
    own = causal & real[:, None, None] | torch.eye(new, dtype=torch.bool, device=device)
    return torch.cat([held, own.expand(-1, held.shape[1], -1, -1)], dim=3)
