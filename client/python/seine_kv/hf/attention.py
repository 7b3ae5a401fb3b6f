"""The attention function and the mask that transformers knows as "seine".

One function serves every model: which batch of sequences a call belongs to follows from the forward that is running. A
call outside any, as without a cache, is torch's own attention.
"""

import sys
from contextvars import ContextVar

import torch

NAME = "seine"
probe = ContextVar("seine_probe", default=None)  # told of each call instead, while a model is looked at; models._Look
current = ContextVar("seine_batch", default=None)  # the Batch of the forward that is running
# Arguments that change what attention computes, and that Attend does not know; s_aux, sinks, is a factor behind it.
UNSUPPORTED = ("position_bias", "sliding_window")
OF_THE_MODEL = ("softcap", "s_aux", "position_bias")  # that torch's own attention does not know either


def text_config(model):
    """The config of the layers that decode: the model's own, or the part of it that is about text."""
    return model.config.get_text_config(decoder=True)


def implementations(config, name=None):
    """What transformers' set_attn_implementation takes: the attention of a config and its parts, as they are; or `name`, and
    as it is where a part, such as a vision tower's, is not about text."""
    text, parts = config.get_text_config(decoder=True), {"": name or config._attn_implementation}
    for part in getattr(config, "sub_configs", {}):
        own = getattr(config, part, None)
        if own is not None:
            about_text = own is text or own.get_text_config(decoder=True) is text
            parts[part] = name if name and about_text else own._attn_implementation
    return parts


def serves(module, text):
    """Whether a module's calls are the text model's, whose config is `text`. Those of a vision or audio tower are torch's:
    they have another config, or no layer of the cache."""
    return getattr(module, "layer_idx", None) is not None and isinstance(getattr(module, "config", None), type(text))


def register():
    """Registers both. Without a mask under the same name transformers builds none: prompts would see their future."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, seine_attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def seine_attention_forward(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **kwargs):
    """query [rows, query heads, n, head_dim]; key, value [rows, KV heads, cached + n, head_dim], after RoPE, or of the
    last token alone where n is 1 and the index holds the others, or of a block where prompts are read in blocks.

    Returns (output [rows, n, query heads, head_dim], None).
    """
    def attend(queries, keys, values, mask):
        return plain_attention(module, queries, keys, values, mask, dropout=dropout, scaling=scaling, **kwargs)

    def attend_prompt(queries, keys, values, mask):
        causal = kwargs.get("is_causal") in (None, True) and getattr(module, "is_causal", True)
        output = batch.owner.prompts.attend(queries, keys, values, mask, scaling, causal, dropout, sinks, softcap)
        return attend(queries, keys, values, mask) if output is None else output

    def dense(rows=slice(None)):
        mask = attention_mask
        if mask is not None and mask.shape[0] > 1:
            mask = mask[rows]
        return attend(query[rows], key[rows], value[rows], mask)

    if probe.get() is not None:
        probe.get()(module, query, key, value, attention_mask, kwargs)
        return dense(), None
    batch = current.get()
    if batch is None or not serves(module, batch.owner.text) or module.layer_idx not in batch.owner.layers:
        return dense(), None
    layer, sinks = module.layer_idx, kwargs.get("s_aux")
    number = batch.owner.layers[layer]
    softcap = kwargs.get("softcap") or 0.0
    for name in UNSUPPORTED:
        if kwargs.get(name) is not None and not (name == "sliding_window" and never_binds(batch.owner.text, kwargs[name])):
            raise ValueError(f"{type(module).__name__} attends with {name}, which Seine does not know")
    if layer in batch.owner.sources:
        batch.reads_prompt = query.shape[2] > 1  # of layers that share, transformers may ask a prompt's last token alone
    if batch.reads_prompt and batch.owner.block is not None:
        return batch.block(number, query, key, value, scaling, attend_prompt), None
    if batch.reads_prompt:
        if layer in batch.owner.sources:
            batch.prefill(number, query, key, value, scaling)
        return attend_prompt(query, key, value, attention_mask), None
    return batch.step(layer, query, key, value, (scaling or 0.0, softcap), dense, sinks), None


def never_binds(text, window):
    """Whether a sliding window is as long as the longest context."""
    return window is not None and window >= getattr(text, "max_position_embeddings", float("inf"))


def plain_attention(module, query, key, value, mask, scaling=None, dropout=0.0, **kwargs):
    """Attention as without Seine, [rows, n, query heads, head_dim]: torch's own, or the model's where torch's knows less.
    Without a mask the queries are of the last places: torch's own takes them for the first."""
    tokens, places = query.shape[2], key.shape[2]
    of_torch = all(kwargs.get(name) is None for name in OF_THE_MODEL)
    causal = kwargs.get("is_causal") in (None, True) and getattr(module, "is_causal", True)
    if mask is None and tokens > 1 and (not of_torch or causal and tokens < places):
        mask = torch.ones(tokens, places, dtype=torch.bool, device=query.device).tril(places - tokens)[None, None]
    if of_torch:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(module, query, key, value, mask, dropout=dropout, scaling=scaling, **kwargs)[0]
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None:
        raise ValueError(f"{type(module).__name__} has no attention of its own that knows its sinks or cap")
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill_(~mask, torch.finfo(query.dtype).min)
    return eager(module, query, key, value, mask, scaling=scaling, dropout=dropout, **kwargs)[0]
