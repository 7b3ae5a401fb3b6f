"""Which layers of which models are served: those that attend all positions, as Attend does. Other layers keep their own
attention and cache. A model that has no such layer, or that cannot be followed, is told at install, in one line."""

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from seine_kv.hf.attention import UNSUPPORTED, never_binds, probe, serves, text_config
from seine_kv.model import cache_name, sharing_layers

LAYER_TYPES = {
    "sliding_attention": "attends with a sliding window",
    "chunked_attention": "attends in chunks",
}
# Settings of a text model's config, and what a layer does where they are set.
TRAITS = {
    "kv_lora_rank": "attends by MLA, whose keys and values are one latent row",
    "index_topk": "attends natively sparse",
    "attention_chunk_size": "attends in chunks",
    "sliding_window": "attends with a sliding window",
    "alibi": "adds a bias to its logits",
}
HEADS = ("num_attention_heads", "num_key_value_heads", "head_dim")  # of a config, or of a layer's
KEYWORDS = {
    "position_bias": "adds a bias to its logits",
    "sliding_window": "attends with a sliding window",
}


class _Refused(ValueError):
    """What hf.install says of a model that cannot be served; not a ValueError of the model's own."""


def served_layers(model):
    """({layer that the index serves: the layer whose keys and values it attends, most often itself}, ascending; {another layer:
    what it does}). ValueError for a model whose attention is not what Attend computes, or that cannot be reached."""
    config, name = model.config.get_text_config(decoder=True), type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(f"{name} is an encoder-decoder; Seine serves causal language models")
    types = list(getattr(config, "layer_types", None) or ())
    for trait in ("kv_lora_rank", "index_topk"):
        value = getattr(of_layer(config, 0), trait, None)
        if value:
            raise _refused(model, 0, f"{TRAITS[trait]} ({trait} {value})")
    kinds = dict(enumerate(types)) or dict.fromkeys(range(config.num_hidden_layers), "full_attention")
    left = {
        number: f"{LAYER_TYPES.get(kind, 'is no full attention')} ({kind})"
        for number, kind in kinds.items()
        if kind != "full_attention"
    }
    for number in getattr(config, "cross_attention_layers", None) or ():
        raise _refused(model, number, "attends to images apart from the text (cross_attention_layers)")
    served = [number for number in kinds if number not in left]
    if not served:
        raise _refused(model, 0, left[0])
    for number in served:
        own = of_layer(config, number)
        for trait, reason in TRAITS.items():
            value = getattr(own, trait, None)
            windowed = trait in ("sliding_window", "attention_chunk_size")
            if value and not (types and windowed) and not (trait == "sliding_window" and never_binds(config, value)):
                raise _refused(model, number, f"{reason} ({trait} {value})")
        if not getattr(own, "num_attention_heads", None):
            raise _refused(model, number, "has no attention heads")
        for setting, have, want in zip(HEADS, heads_of(config, number), heads_of(config, served[0])):
            if have != want:
                raise _refused(model, number, f"has a {setting} of its own, {have}, and layer {served[0]} has {want}")
    if base_of(model) is model:
        raise ValueError(f"{name} has no base model to follow; give a model for causal language modelling")
    try:
        shared = sharing_layers(config)
    except ValueError:
        raise _refused(model, served[0], "attends another model's keys and values") from None
    return {number: shared.get(number, number) for number in served}, left


def heads_of(config, number):
    """HEADS of a layer that attends all positions, by the model's text config."""
    own = of_layer(config, number)
    q_heads = own.num_attention_heads
    kv_heads, wide = getattr(own, "num_key_value_heads", None), getattr(own, "head_dim", None)
    # As transformers before 5.2x states Gemma 4's.
    if getattr(config, "attention_k_eq_v", False):
        kv_heads = getattr(config, "num_global_key_value_heads", None) or kv_heads
    wide = getattr(config, "global_head_dim", None) or wide
    return q_heads, kv_heads or q_heads, wide or config.hidden_size // q_heads


def of_layer(config, number):
    """A text config with the settings of one layer, where transformers has these apart."""
    return config.per_layer_config[number] if getattr(config, "is_heterogeneous", False) else config


def base_of(model):
    """The model without its head, whose forwards are followed; the model itself: it has none."""
    base = getattr(model, "base_model", model)
    return getattr(model, "model", model) if base is model else base  # Llama 4 names another one's


class _Look:
    """Looks at every call of attention while a model is run without Seine. ValueError naming the layer and the reason."""

    def __init__(self, model, geometry, served):
        self.model, self.geometry, self.served, self.text = model, geometry, served, text_config(model)
        self.called = {}  # layer -> the keys of its last call
        self.followed = False  # whether the model has called its base model

    def __call__(self, module, query, key, value, mask, kwargs):
        if not serves(module, self.text) or module.layer_idx not in self.served:
            return
        model, number = self.model, module.layer_idx
        for name in UNSUPPORTED:
            given = kwargs.get(name)
            if given is not None and not (name == "sliding_window" and never_binds(self.text, given)):
                raise _refused(model, number, f"{KEYWORDS[name]} ({name})")
        _check_shapes(model, number, query, key, value, self.geometry)
        if mask is not None and query.shape[2] == 1:
            attended = mask if mask.dtype == torch.bool else mask == 0
            if not attended.all():
                raise _refused(model, number, "masks or weighs the tokens before it")
        if number in self.called and query.shape[2] > 1:
            raise _refused(model, number, "is attended more than once a token")
        self.called[number] = key
        source = self.served[number]
        if source != number and not torch.equal(key, self.called[source].to(key.device)):
            raise _refused(model, number, f"attends other keys than those of layer {source}")


def check_calls(model, geometry, served):
    """Runs three tokens without Seine and looks at every call of attention in the layers served. ValueError naming the layer
    and the reason.

    geometry: num_q_heads, num_kv_heads and head_dim of the index. served: as served_layers has it.
    """
    look, name = _Look(model, geometry, served), type(model).__name__
    token = probe.set(look)
    try:
        with torch.no_grad():
            ids = torch.ones(1, 2, dtype=torch.long, device=model.get_input_embeddings().weight.device)
            out, key = model(input_ids=ids, use_cache=True), cache_name(model)
            _check_cache(model, out.get(key), set(served.values()))
            model(input_ids=ids[:, :1], use_cache=True, **{key: out[key]})
    except _Refused:
        raise
    except Exception as error:
        first = str(error).partition("\n")[0]
        raise ValueError(f"{name} cannot be run on three tokens: {type(error).__name__}: {first}") from error
    finally:
        probe.reset(token)
    if not look.followed:
        raise ValueError(f"{name} does not call its base model, {type(base_of(model)).__name__}, where Seine follows forwards")
    for number in sorted(set(served) - set(look.called)):
        raise _refused(model, number, "does not attend by transformers' attention interface")


def _check_cache(model, cache, served):
    """What a forward gives must be a cache that grows a token at a time in every layer of `served`."""
    if type(cache) is not DynamicCache:
        kind = "gives no cache" if cache is None else f"caches in {type(cache).__name__}"
        raise _Refused(f"{type(model).__name__} {kind}; Seine needs a DynamicCache")
    for number in served:
        layer = cache.layers[number]
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):  # a window that binds was found before
            raise _refused(model, number, f"caches in a {type(layer).__name__}")
        if layer.get_seq_length() == 0:
            raise _refused(model, number, "keeps no keys and values of its own")


def _check_shapes(model, number, query, key, value, geometry):
    heads, shared, wide = (geometry[name] for name in ("num_q_heads", "num_kv_heads", "head_dim"))
    for name, rows, count in (("queries", query, heads), ("keys", key, shared), ("values", value, shared)):
        if (rows.shape[1], rows.shape[3]) != (count, wide):
            have = f"{rows.shape[1]} heads of {rows.shape[3]}"
            raise _refused(model, number, f"has {name} of {have}, where the config says {count} of {wide}")


def _refused(model, number, reason):
    return _Refused(f"{type(model).__name__}: layer {number} {reason}; Seine serves layers of full attention")
