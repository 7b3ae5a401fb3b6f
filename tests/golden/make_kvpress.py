"""Makes the goldens that tests/index/scorers/kvpress_test.cc compares with: retained sets of NVIDIA kvpress 0.5.5.

    python3 -m venv /tmp/kvpress && /tmp/kvpress/bin/pip install kvpress==0.5.5 "transformers<5.3"
    /tmp/kvpress/bin/python tests/golden/make_kvpress.py tests/golden/kvpress.safetensors 1

An attention layer with random weights (fixed seed) over random hidden states with outliers gives queries, keys and values;
kvpress scores them, and what it keeps is stored beside them. Keys and values are rounded to fp16 before kvpress sees them.
A set whose cut lies between scores closer than 1e-5 of their size would depend on rounding; the script refuses those (take
another seed), but for StreamingLLM, whose scores are all ties and whose cut is by position.
"""

import json
import struct
import sys
from types import SimpleNamespace

import numpy as np
import torch
from kvpress import (
    AdaKVPress,
    BlockPress,
    ExpectedAttentionPress,
    KeyDiffPress,
    KnormPress,
    ObservedAttentionPress,
    PyramidKVPress,
    QFilterPress,
    SnapKVPress,
    StreamingLLMPress,
    TOVAPress,
)
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding, apply_rotary_pos_emb

TOKENS, KV_HEADS, GROUP, DIM, HIDDEN = 160, 2, 2, 64, 96
RATIOS = (0.5, 0.75, 0.9)
PYRAMID_LAYERS = 4
BLOCKS = (8, 16)  # tokens


def make_layer(seed):
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        num_attention_heads=KV_HEADS * GROUP,
        num_key_value_heads=KV_HEADS,
        head_dim=DIM,
        num_hidden_layers=1,
        max_position_embeddings=4096,
        attn_implementation="sdpa",
    )
    layer = LlamaAttention(config, layer_idx=0).eval()
    layer.rotary_emb = LlamaRotaryEmbedding(config)
    hidden = torch.randn(1, TOKENS, HIDDEN) + 0.8 * torch.randn(1, 1, HIDDEN)
    hidden[:, ::17] *= 2.5
    for weights in (layer.q_proj, layer.k_proj, layer.v_proj):
        weights.weight.data = torch.randn_like(weights.weight) * 0.16
    return layer, hidden


def project(layer, hidden):
    def heads(weights, count):
        return weights(hidden).view(1, TOKENS, count, DIM).transpose(1, 2)

    queries, keys, values = heads(layer.q_proj, KV_HEADS * GROUP), heads(layer.k_proj, KV_HEADS), heads(layer.v_proj, KV_HEADS)
    embeddings = layer.rotary_emb(values, torch.arange(TOKENS)[None])
    queries, keys = apply_rotary_pos_emb(queries, keys, *embeddings)
    return queries, keys.half().float(), values.half().float(), embeddings


def attention(queries, keys):
    logits = queries @ keys.repeat_interleave(GROUP, dim=1).transpose(2, 3) / DIM**0.5
    mask = torch.full((TOKENS, TOKENS), float("-inf")).triu(1)
    return torch.softmax(logits + mask, dim=-1, dtype=torch.float32)


def kept_by(scores, ratio, name):
    """Ascending positions that a head keeps: kvpress' ScorerPress.compress, sorted."""
    count = int(TOKENS * (1 - ratio))
    ordered = scores.sort(dim=-1, descending=True).values
    gap = ordered[..., count - 1] - ordered[..., count]
    size = ordered[..., count].abs()
    if name != "streaming_llm" and not bool((gap > 1e-5 * size).all()):
        raise SystemExit(f"{name} at {ratio}: the cut lies between scores that rounding could swap; take another seed")
    return scores.topk(count, dim=-1).indices.sort(dim=-1).values[0]


def adaptive(press, layer, hidden, keys, values, kwargs, ratio):
    """A mask [heads, tokens] of what AdaKV keeps."""
    press.compression_ratio = ratio
    AdaKVPress(press).compress(layer, hidden, keys, values, None, kwargs)
    mask = torch.ones(KV_HEADS, TOKENS, dtype=torch.uint8)
    _, heads, positions = layer.masked_key_indices
    mask[heads, positions] = 0
    return mask


def block_sets(tensors, layer, hidden, keys, kwargs):
    """Ascending positions that BlockPress leaves of the tokens, by presses that look at keys alone."""
    positions = torch.arange(TOKENS, dtype=torch.float32)[:, None].expand(1, KV_HEADS, TOKENS, DIM)
    for name, press in (("keydiff", KeyDiffPress()), ("knorm", KnormPress())):
        for ratio in RATIOS:
            press.compression_ratio, score = ratio, press.score

            def checked(*given, count=int(TOKENS * (1 - ratio)), score=score, name=name):
                scores = score(*given)
                ordered = scores.sort(dim=-1, descending=True).values
                if not bool((ordered[..., count - 1] - ordered[..., count] > 1e-5 * ordered[..., count].abs()).all()):
                    raise SystemExit(f"{name} in blocks: a cut lies between scores that rounding could swap; take another seed")
                return scores

            press.score = checked
            for size in BLOCKS:
                _, kept = BlockPress(press, block_size=size).compress(layer, hidden, keys, positions, None, kwargs)
                tensors[f"block.{name}.{ratio}.{size}"] = kept[0, :, :, 0].sort(dim=-1).values.to(torch.int32)
            press.score = score


def place(layer, num_layers):
    """What PyramidKV looks at of a layer's module."""
    return SimpleNamespace(layer_idx=layer, config=SimpleNamespace(num_hidden_layers=num_layers))


def pyramid_budgets():
    """Rows of (prompt, tokens, percent, window, beta, layers, layer, kept): a mean budget in tokens, or the percent that
    goes where tokens is 0. A budget in tokens is for kvpress the share of the prompt that it leaves out."""
    rows = []
    for prompt in (1, 10, 65, 160, 1200, 2100, 32768):
        sizes = [(0, percent) for percent in (25, 50, 90)] + [(tokens, 0) for tokens in (64, 1000) if tokens < prompt]
        for tokens, percent in sizes:
            for window in (0, 8, 64):
                for beta in (4, 20):
                    press = PyramidKVPress(window_size=window, beta=beta)
                    press.compression_ratio = 1 - tokens / prompt if tokens else percent / 100
                    for layers in (2, 5):
                        for layer in range(layers):
                            kept = press.get_layer_budget(place(layer, layers), prompt)
                            rows.append([prompt, tokens, percent, window, beta, layers, layer, kept])
    return torch.tensor(rows, dtype=torch.int32)


def pyramid_sets(tensors, layer, hidden, keys, values, kwargs):
    """Ascending positions that PyramidKV keeps of the tokens in each of PYRAMID_LAYERS layers."""
    press = PyramidKVPress(window_size=8)
    scores = press.score(layer, hidden, keys, values, None, kwargs).float()
    for ratio in RATIOS:
        press.compression_ratio = ratio
        for index in range(PYRAMID_LAYERS):
            count = press.get_layer_budget(place(index, PYRAMID_LAYERS), TOKENS)
            kept = scores.topk(count, dim=-1).indices.sort(dim=-1).values[0]
            tensors[f"pyramidkv.{ratio}.{index}"] = kept.to(torch.int32)


def main(path, seed):
    layer, hidden = make_layer(seed)
    with torch.no_grad():
        queries, keys, values, embeddings = project(layer, hidden)
        filters = torch.nn.functional.normalize(torch.randn(1, KV_HEADS, DIM), dim=-1)
        kwargs = {"position_embeddings": embeddings}
        q_filter = QFilterPress()
        q_filter.q_filters = filters
        presses = {
            "knorm": KnormPress(),
            "keydiff": KeyDiffPress(),
            "qfilters": q_filter,
            "streaming_llm": StreamingLLMPress(),
            "snapkv": SnapKVPress(window_size=8),
            "tova": TOVAPress(),
            "h2o": ObservedAttentionPress(),
            "expected_attention": ExpectedAttentionPress(),
        }
        tensors = {
            "queries": queries[0].transpose(0, 1).contiguous(),  # [tokens, q_heads, dim]
            "keys": keys[0].half(),  # [kv_heads, tokens, dim]
            "values": values[0].half(),
            "filters": -filters[0],  # in the scorer's own sign
            "inv_freq": layer.rotary_emb.inv_freq,
        }
        weights = attention(queries, keys)
        for name, press in presses.items():
            for ratio in RATIOS:
                press.compression_ratio = ratio
                seen = weights if name == "h2o" else None
                scores = press.score(layer, hidden, keys, values, seen, kwargs).float()
                tensors[f"{name}.{ratio}"] = kept_by(scores, ratio, name).to(torch.int32)
        for name in ("knorm", "keydiff", "snapkv"):
            for ratio in RATIOS:
                mask = adaptive(presses[name], layer, hidden, keys, values, kwargs, ratio)
                tensors[f"adakv.{name}.{ratio}"] = mask
        block_sets(tensors, layer, hidden, keys, kwargs)
        pyramid_sets(tensors, layer, hidden, keys, values, kwargs)
        tensors["pyramid"] = pyramid_budgets()
    write(path, tensors)


def write(path, tensors, made_by="tests/golden/make_kvpress.py"):
    """safetensors: header length, JSON header, bytes."""
    names = {torch.float32: "F32", torch.float16: "F16", torch.int32: "I32", torch.uint8: "U8"}
    header, data = {"__metadata__": {"made_by": f"{made_by}, kvpress 0.5.5"}}, b""
    for name, tensor in tensors.items():
        raw = np.ascontiguousarray(tensor.numpy()).tobytes()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
