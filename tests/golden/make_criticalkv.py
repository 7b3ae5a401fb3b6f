"""Makes the goldens of CriticalKV that tests/index/scorers/kvpress_test.cc compares with: retained sets of NVIDIA
kvpress 0.5.5, by CriticalKVPress and CriticalAdaKVPress over other presses.

    /tmp/kvpress/bin/python tests/golden/make_criticalkv.py tests/golden/criticalkv.safetensors 1

make_kvpress.py says how to make that environment, and makes the layer. Without W_O a weight is |v|_1, which kvpress
gives where its projection is the identity.
"""

import sys

import torch
from kvpress import (
    CriticalAdaKVPress,
    CriticalKVPress,
    ExpectedAttentionPress,
    KeyDiffPress,
    KnormPress,
    ObservedAttentionPress,
    SnapKVPress,
)
from make_kvpress import GROUP, KV_HEADS, RATIOS, TOKENS, attention, kept_by, make_layer, project, write

FIRST_STAGES = (0.5, 0.0, 0.75)
WINDOW = 8  # of snapkv, whose tokens tie with the best other one: sets are left out whose first stage cuts among them


def check_cut(scores, count, name):
    """A cut between scores that rounding could swap would be no golden."""
    ordered = scores.sort(dim=-1, descending=True).values
    for head in ordered[0]:
        if not head[count - 1] - head[count] > 1e-5 * head[count].abs():
            raise SystemExit(f"{name}: a stage cuts between scores that rounding could swap; take another seed")


def mask_of(layer):
    mask = torch.ones(KV_HEADS, TOKENS, dtype=torch.uint8)
    _, heads, positions = layer.masked_key_indices
    mask[heads, positions] = 0
    return mask


def plain_norms(values, module):
    return values.abs().sum(dim=-1)


def main(path, seed):
    layer, hidden = make_layer(seed)
    projected = CriticalKVPress.vwl1norm
    with torch.no_grad():
        queries, keys, values, embeddings = project(layer, hidden)
        values[:, :, ::7] *= 3  # tokens whose values matter more than their keys tell
        values = values.half().float()
        kwargs = {"position_embeddings": embeddings}
        weights = attention(queries, keys)
        presses = {
            "snapkv": SnapKVPress(window_size=WINDOW),
            "h2o": ObservedAttentionPress(),
            "expected_attention": ExpectedAttentionPress(use_vnorm=False),
            "knorm": KnormPress(),
            "keydiff": KeyDiffPress(),
        }
        output = layer.o_proj.weight  # [hidden, q_heads * dim]
        tensors = {
            "queries": queries[0].transpose(0, 1).contiguous(),
            "keys": keys[0].half(),
            "values": values[0].half(),
            "inv_freq": layer.rotary_emb.inv_freq,
            "output_projection": output.detach().contiguous(),
        }
        for kind, norms in (("projected", projected), ("norm", plain_norms)):
            CriticalKVPress.vwl1norm = staticmethod(norms)
            tensors[f"weights.{kind}"] = norms(values, layer)[0]
            for name, press in presses.items():
                seen = weights if name == "h2o" else None
                for ratio in RATIOS:
                    for first in FIRST_STAGES:
                        critical = CriticalKVPress(press, first_stage_ratio=first)
                        critical.compression_ratio = ratio
                        raw = press.score(layer, hidden, keys, values, seen, kwargs)
                        count = int(TOKENS * (1 - ratio) * first)
                        if name == "snapkv" and count <= WINDOW + 1:
                            continue
                        if count > 0:
                            check_cut(raw, count, f"{name} at {ratio}")
                        scores = critical.score(layer, hidden, keys, values, seen, kwargs).float()
                        kept = kept_by(scores, ratio, f"{kind} {name}")
                        tensors[f"{kind}.{name}.{ratio}.{first}"] = kept.to(torch.int32)
            for name in ("h2o", "knorm"):
                for ratio in RATIOS:
                    press = presses[name]
                    press.compression_ratio = ratio
                    CriticalAdaKVPress(press).compress(layer, hidden, keys, values, weights, kwargs)
                    tensors[f"{kind}.adakv.{name}.{ratio}"] = mask_of(layer)
    write(path, tensors, "tests/golden/make_criticalkv.py")


if __name__ == "__main__":
    assert GROUP > 1
    main(sys.argv[1], int(sys.argv[2]))
