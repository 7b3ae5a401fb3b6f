"""Tiny random models of transformers' own classes: refused at install, by layer and reason, or answered as without Seine."""

import copy
import json

import numpy as np
import pytest
import torch
from small_model import EVERYTHING, GEMMA4, assert_all_served, generate, make_gemma4, prompt
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM
from transformers import AutoModelForImageTextToText, DynamicCache
from transformers.masking_utils import sdpa_mask

import seine_kv
from seine_kv import hf, profile
from seine_kv.client import SeineError
from seine_kv.model import ATTENTION_NAME, CausalModel, InputError, ObservedAttention, cache_name, stated_rope
from seine_kv.tensor_file import read_tensors

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
OLD_NAMES = {"n_embd": 128, "n_layer": 2, "n_head": 2, "n_positions": 512, "rotary_dim": 32}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MLA = {
    "num_key_value_heads": 2,
    "kv_lora_rank": 32,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
}
SERVED = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": EXPERTS,
    "mixtral": EXPERTS,
    "mistral": {"sliding_window": None},
    "phi3": {"sliding_window": None},
    "olmo2": {},
    "granite": {},
    "cohere": {},
    "smollm3": {},
    "gpt2": OLD_NAMES,
    "gptj": OLD_NAMES,
    "gpt_neox": {},  # RoPE turns a part of each head, here and below
    "phi": {},
    "stablelm": {},
    "glm4": {},
    "nemotron": {},
    "phi3 of a window that never binds": {"sliding_window": 512},
    "mistral of a window that never binds": {"sliding_window": 512},
}
FULL, SLIDING = "full_attention", "sliding_attention"
# Tied embeddings would have a tiny model say one token for ever.
BOTH = {"sliding_window": 8, "layer_types": [SLIDING, FULL], "tie_word_embeddings": False}
LINEAR = {
    "layer_types": ["linear_attention", FULL],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 64, "mamba_d_state": 16, "mamba_n_groups": 1}
SHARING = {**GEMMA4, "laurel_rank": 8, "altup_num_inputs": 2}
# The layers of full attention are served.
PARTLY = {
    "gemma3_text": BOTH,
    "gemma2": {**BOTH, "attn_logit_softcapping": 1.0, "query_pre_attn_scalar": 1},
    "vaultgemma": {**BOTH, "attn_logit_softcapping": None},
    "cohere2": BOTH,  # the other layer alone turns by RoPE
    "exaone4": BOTH,
    "olmo3": BOTH,
    "ministral": BOTH,
    "gpt_oss": {**EXPERTS, **BOTH},  # with sinks in both
    "qwen2": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "qwen3": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "llama4_text": {
        "num_local_experts": 2,
        "intermediate_size_mlp": 64,
        "attention_chunk_size": 8,
        "layer_types": ["chunked_attention", FULL],
        "no_rope_layers": [1, 0],
    },
    "lfm2": {"layer_types": ["conv", FULL]},
    "qwen3_next": {**EXPERTS, **LINEAR, "shared_expert_intermediate_size": 32},
    "qwen3_5_text": LINEAR,
    "granitemoehybrid": {**MAMBA, "layer_types": ["mamba", "attention"], "num_local_experts": 0, "shared_intermediate_size": 64},
    "jamba": {"num_experts": 2, "num_experts_per_tok": 1, "attn_layer_offset": 1, "attn_layer_period": 2, "mamba_d_state": 8},
    "nemotron_h": {"layers_block_type": ["mamba", "attention"], "mamba_num_heads": 4, "mamba_head_dim": 64, "ssm_state_size": 16, "n_groups": 1},
    "gemma4_text": SHARING,
    "gemma4_text whose keys are values": {**SHARING, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
    "gemma4_text that shares nothing": {**SHARING, "num_kv_shared_layers": 0},
    "gemma4_unified_text": SHARING,
    "gemma3n_text": SHARING,
}
# The model's layer that is served -> the index's. Most models have two layers, and the second is.
LAYERS = {
    "qwen2": {0: 0},
    "qwen3": {0: 0},
    "gemma4_text": {1: 0, 3: 1, 5: 1},  # layer 5 asks the sequence of layer 3
    "gemma4_unified_text": {1: 0, 3: 1, 5: 1},
    "gemma4_text whose keys are values": {1: 0, 3: 1, 5: 1},
    "gemma4_text that shares nothing": {1: 0, 3: 1, 5: 2},
    "gemma3n_text": {1: 0, 3: 1, 5: 1},
}
CROPS = ("gemma3_text", "gemma2", "vaultgemma", "cohere2", "exaone4", "olmo3", "ministral", "gpt_oss", "qwen2", "qwen3")
CROPS += ("gemma4_text", "gemma3n_text")
# model type, its settings, what the refusal says
REFUSED = [
    ("mistral", {"sliding_window": 8}, "layer 0 attends with a sliding window"),
    ("starcoder2", {"sliding_window": 8}, "layer 0 attends with a sliding window"),
    ("gemma3_text", {"layer_types": [SLIDING, SLIDING]}, "layer 0 attends with a sliding window"),
    ("falcon_h1", {**MAMBA, "mamba_d_ssm": 256}, "layer 0 is no full attention"),
    ("minimax", {**EXPERTS, "layer_types": ["linear_attention", FULL]}, "caches in MiniMaxCache"),
    ("doge", {}, "layer 0 masks or weighs the tokens before it"),
    ("deepseek_v2", MLA, "layer 0 attends by MLA"),
    ("deepseek_v3", MLA, "layer 0 attends by MLA"),
    ("minicpm3", MLA, "layer 0 attends by MLA"),
    ("mamba", {}, "layer 0 is no full attention"),
    ("rwkv", {"attention_hidden_size": 128}, "layer 0 has no attention heads"),
    ("bloom", OLD_NAMES, "no layer attends by transformers' attention interface"),
    ("opt", {"word_embed_proj_dim": 128, "ffn_dim": 64}, "does not call its base model"),
]
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
}
QWEN2_TOWER = {
    "depth": 2,
    "embed_dim": 32,
    "hidden_size": 128,
    "num_heads": 2,
    "mlp_ratio": 2,
    "patch_size": 4,
    "temporal_patch_size": 2,
}
GEMMA4_TOWER = {**TOWER, "num_key_value_heads": 2, "head_dim": 16, "pooling_kernel_size": 2}
MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]}
PICTURE = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(7))
# model type -> settings, what a picture of 16 x 16 is given as, tokens that it takes
WITH_TOWERS = {
    "smolvlm": (
        {"text_config": {**SHAPE, "model_type": "llama"}, "vision_config": TOWER, "scale_factor": 2, "pad_token_id": 0},
        {"pixel_values": PICTURE[None]},
        4,
    ),
    "llava": (
        {
            "text_config": {**SHAPE, "model_type": "llama"},
            "vision_config": {**TOWER, "model_type": "clip_vision_model"},
            "vision_feature_layer": -1,
        },
        {"pixel_values": PICTURE},
        16,
    ),
    "qwen2_vl": (
        {
            "text_config": {**SHAPE, "model_type": "qwen2_vl_text", "use_sliding_window": False, "rope_parameters": MROPE},
            "vision_config": QWEN2_TOWER,
            "video_token_id": 6,
            "vision_start_token_id": 7,
            "vision_end_token_id": 8,
        },
        {"pixel_values": PICTURE.reshape(16, 48).repeat(1, 2), "image_grid_thw": torch.tensor([[1, 4, 4]])},
        4,
    ),
    "gemma4": (  # the larger ones let a picture's tokens see each other
        {
            "text_config": {**GEMMA4, "model_type": "gemma4_text", "use_bidirectional_attention": "vision"},
            "vision_config": GEMMA4_TOWER,
            "video_token_id": 6,
            "audio_token_id": 9,
        },
        {"pixel_values": PICTURE.reshape(1, 16, 48), "image_position_ids": torch.cartesian_prod(*[torch.arange(4)] * 2)[None]},
        4,
    ),
}


def build(kind, settings, auto=AutoModelForCausalLM):
    torch.manual_seed(3)
    kind = kind.split()[0]
    default = AutoConfig.for_model(kind)  # which of SHAPE's names it knows
    config = AutoConfig.for_model(kind, **{name: value for name, value in settings.items() if _knows(default, name)})
    config.get_text_config().initializer_range = 0.3  # no two tokens alike
    return auto.from_config(config).eval()


def _knows(config, name):
    if config.model_type.startswith("gemma4") and name in ("global_head_dim", "num_global_key_value_heads"):
        return True  # newer versions keep neither under its name
    try:
        return hasattr(config, name)
    except RuntimeError:  # each layer has its own
        return True


@pytest.mark.parametrize("kind", SERVED)
def test_a_model_of_full_attention_is_answered_as_without(kind):
    model, ids = build(kind, {**SHAPE, **SERVED[kind]}), prompt(1, 24)
    expected = generate(model, ids, max_new_tokens=40)
    seine = hf.install(model, dtype="float32", threads=1, **EVERYTHING)
    assert generate(model, ids, max_new_tokens=40).tolist() == expected.tolist()
    assert_all_served(seine)
    hf.uninstall(model)


@pytest.mark.parametrize("keep_cache", [False, True], ids=["index alone", "kept"])
@pytest.mark.parametrize("kind", PARTLY)
def test_layers_of_full_attention_are_served_beside_others(kind, keep_cache):
    model, ids = build(kind, {**SHAPE, **PARTLY[kind]}), prompt(1, 24)
    expected, layers = _chat(model, ids), LAYERS.get(kind, {1: 0})
    seine = hf.install(model, dtype="float32", threads=1, keep_cache=keep_cache, **EVERYTHING)
    assert seine.layers == layers and {*seine.layers, *seine.left} == set(range(model.config.num_hidden_layers))
    got = _chat(model, ids)
    assert got == expected
    assert_all_served(seine)
    assert seine.stats().prompts.torch_tokens == 0  # under caps and with sinks, too
    assert seine.stats().rows == len(layers) * 3 * 39  # of three answers the first token is the prompt's
    assert seine.stats().appended_tokens == len(set(layers.values())) * (24 + 2 * 10)  # of prompts, once a sequence
    hf.uninstall(model)


def _chat(model, ids):
    """Past every window: an answer, a second question behind it, and an answer of a copy of the first's cache."""
    cache, said = DynamicCache(config=model.config), []
    key = cache_name(model)
    out = generate(model, ids, max_new_tokens=40, **{key: cache})
    said.append(out[0].tolist())
    copied = copy.deepcopy(cache)
    for seed, held in ((5, cache), (6, copied)):
        question = torch.cat([out, prompt(1, 9, seed=seed)], dim=1)
        said.append(generate(model, question, max_new_tokens=40, **{key: held})[0].tolist())
    return said


@pytest.mark.parametrize("kind", CROPS)
def test_a_cache_of_both_kinds_is_cropped_and_handed_back(kind):
    """Within the window, for transformers crops no further."""
    model, plain = (build(kind, {**SHAPE, **PARTLY[kind], "sliding_window": 64}) for _ in range(2))
    seine, said = hf.install(model, dtype="float32", threads=1, **EVERYTHING), []
    for each in (model, plain):
        cache, answers = DynamicCache(config=each.config), []
        for turn, (kept, tokens) in enumerate([(0, 20), (11, 6), (4, 30), (24, 1)]):
            if cache.get_seq_length() > kept:
                cache.crop(kept - cache.get_seq_length())
            question = torch.cat([prompt(1, kept, seed=0), prompt(1, tokens, seed=turn)], dim=1)
            answers += generate(each, question, max_new_tokens=5, **{cache_name(each): cache})[0].tolist()
        if each is model:
            assert_all_served(seine)
            hf.uninstall(model)
        # Past the window too, and in torch again.
        answers += generate(each, prompt(1, 80, seed=9), max_new_tokens=5, **{cache_name(each): cache})[0].tolist()
        said.append(answers)
    assert said[0] == said[1]


def _observed(kind, settings, monkeypatch):
    """A model whose attention is watched, as `python -m seine_kv.profile` has it."""
    monkeypatch.setattr("seine_kv.model.MAX_LOSS", 99)  # a random model guesses
    read = CausalModel.__new__(CausalModel)
    read.torch, read.name, read.attention, read.dtype = torch, "tiny", ObservedAttention(), torch.float32
    AttentionInterface.register(ATTENTION_NAME, read.attention)
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
    read.model = build(kind, settings)
    read.model.set_attn_implementation(ATTENTION_NAME)
    read.text_config = read.model.config
    read.rope = read.unstretched_rope = stated_rope(read.text_config)
    return read


# Families whose layers turn otherwise than Llama's -> settings, the part of a head that turns, elements that pair, those of the
# layers served that do not turn.
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.75,
    "short_factor": [1 + i / 48 for i in range(24)],
    "long_factor": [1 + i / 8 for i in range(24)],
    "original_max_position_embeddings": 1024,
}
TURNING = {
    "gemma3_text": (BOTH, 1, "half_split", []),
    "gemma3n_text": (SHARING, 1, "half_split", []),
    "gemma2": (PARTLY["gemma2"], 1, "half_split", []),
    "gpt_oss": (PARTLY["gpt_oss"], 1, "half_split", []),
    "gpt_neox": ({}, 0.25, "half_split", []),
    "stablelm": ({}, 0.25, "half_split", []),
    "phi": ({}, 0.5, "half_split", []),
    "phi3": ({"sliding_window": None, "rope_parameters": LONGROPE, "max_position_embeddings": 4096}, 0.75, "half_split", []),
    "glm4": ({}, 0.5, "interleaved", []),
    "gptj": (OLD_NAMES, 0.5, "interleaved", []),
    "nemotron": ({}, 0.5, "half_split", []),
    "qwen3_next": (PARTLY["qwen3_next"], 0.25, "half_split", []),
    "qwen3_5_text": (PARTLY["qwen3_5_text"], 0.25, "half_split", []),
    "gemma4_text": ({**SHARING, "global_head_dim": 256}, "proportional", "half_split", []),
    "smollm3": ({"num_hidden_layers": 4}, 1, "half_split", [3]),
    "llama4_text": (PARTLY["llama4_text"], 1, "half_split", [0]),
    "cohere2": (BOTH, 1, "half_split", [0]),
    "exaone4": (BOTH, 1, "half_split", [0]),
    "granitemoehybrid": (PARTLY["granitemoehybrid"], 1, "half_split", [0]),
}


@pytest.mark.parametrize("kind", TURNING)
def test_a_profile_is_of_the_layers_served_and_states_how_each_turns(tmp_path, monkeypatch, kind):
    settings, part, style, still = TURNING[kind]
    shape = {**SHAPE, "max_position_embeddings": 4096, **settings}
    read = _observed(kind, shape, monkeypatch)
    read.find_rope(prompt(1, 64))
    measurer, seen = profile.Measurer(read, 16), {}

    def keep(layer, position, query, key, value):
        measurer(layer, position, query, key, value)
        seen[layer] = query.transpose(0, 1).numpy().copy(), key.transpose(0, 1).numpy().copy()

    read.run(prompt(1, 1000), keep, lambda *_: None)
    file = tmp_path / f"{kind}.profile.safetensors"
    measurer.write(profile.parse_args(["--text", "t", "--out", str(file), "--licence", "none", "--fp32"]))
    tensors, metadata = read_tensors(file)
    # The second layer is the first of the index; layers that share the keys of others are none.
    numbers = sorted({int(name.split(".")[1]) for name in tensors})
    assert numbers == sorted({*range(4)} if kind == "smollm3" else {*LAYERS.get(kind, {1: 0}).values()} if kind in PARTLY else {0, 1})

    stated = json.loads(metadata["rope"])
    if still == numbers:
        assert stated == {"rope_type": "none"} and "layer_ropes" not in metadata
    else:
        assert metadata["rope_style"] == style
        others = [{"layers": still, "rope": {"rope_type": "none"}}] if still else []
        assert json.loads(metadata.get("layer_ropes", "[]")) == others
        assert part == (stated["rope_type"] if part == "proportional" else stated.get("partial_rotary_factor", 1))

    model = build(kind, shape)
    expected = _chat(model, prompt(1, 200))
    seine = hf.install(model, profile=file, dtype="float32", threads=1, **EVERYTHING)
    assert seine.spec["codec"]["name"] == "balanced" and seine.spec["geometry"]["rope"] is not None
    turning = [sum(w > 0 for w in seine.spec["geometry"]["rope"]["inv_freq"])] * len(numbers)
    for group in seine.spec["geometry"].get("layer_ropes") or []:
        for layer in group["layers"]:
            turning[layer] = sum(w > 0 for w in group["rope"]["inv_freq"])
    wide = seine.spec["geometry"]["head_dim"]
    whole = int(wide // 2 * (0.25 if part == "proportional" else part))
    assert turning == [0 if layer in still else whole for layer in numbers]
    assert _chat(model, prompt(1, 200)) == expected
    assert_all_served(seine)
    hf.uninstall(model)

    # Codes by the profile find no fewer of the best keys than those that need none, which take twice the bytes.
    recall = {name: _recall(seen, measurer.measured, by) for name, by in (("rsq", None), ("balanced", file))}
    assert recall["balanced"] >= recall["rsq"] - 0.01 and recall["balanced"] > 0.5, recall


def _recall(seen, layers, file):
    """The share of the exact best 50 keys that the codes find, of those seen in a text's last positions."""
    q, k = seen[layers[0]]
    shape = {"num_q_heads": q.shape[1], "num_kv_heads": k.shape[1], "head_dim": k.shape[2], "dtype": "float32"}
    zones = {"sink": 16, "local": 64, "update_buffer": 64, "dense_threshold": 128}
    found = []
    with seine_kv.Index(num_layers=len(layers), profile=file, kv_store="keys", zones=zones, threads=1, **shape) as index:
        chat = index.create_sequence()
        for number, layer in enumerate(layers):
            queries, keys = seen[layer]
            chat.append(number, keys)
            for row in range(len(queries) - 64, len(queries), 8):
                asked = {"top_k": 50, "scope": "per_q_head"}
                got, truth = (chat.retrieve(number, queries[row], exact=exact, rescore_k=100, **asked) for exact in (False, True))
                found += [np.isin(got.set(head), truth.set(head)).mean() for head in range(q.shape[1])]
    return float(np.mean(found))


def test_heads_of_512_have_the_balanced_code(tmp_path, monkeypatch):
    read = _observed("gemma4_text", SHARING, monkeypatch)
    read.find_rope(prompt(1, 64))
    measurer, file = profile.Measurer(read, 16), tmp_path / "wide.profile.safetensors"
    read.run(prompt(1, 400), measurer, lambda *_: None)
    measurer.write(profile.parse_args(["--text", "t", "--out", str(file), "--fp32"]))
    model = build("gemma4_text", SHARING)
    expected = _chat(model, prompt(1, 24))
    seine = hf.install(model, profile=file, dtype="float32", threads=1, **EVERYTHING)
    assert [seine.spec["codec"][key] for key in ("name", "coarse_bits", "total_bits")] == ["balanced", 0.5, 1]
    assert _chat(model, prompt(1, 24)) == expected
    assert_all_served(seine)
    hf.uninstall(model)


@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss"])
def test_caps_and_sinks_are_there_while_a_model_is_watched(monkeypatch, kind):
    read, ids = _observed(kind, {**SHAPE, **PARTLY[kind]}, monkeypatch), prompt(1, 40)
    plain = build(kind, {**SHAPE, **PARTLY[kind]})
    plain.set_attn_implementation("eager")
    if kind == "gpt_oss":
        for both in zip(read.model.model.layers, plain.model.layers):
            for layer in both:
                torch.nn.init.constant_(layer.self_attn.sinks, 2.0)
    with torch.inference_mode():
        first, expected = read.model(ids[:, :25], use_cache=True), plain(ids).logits
        rest = read.model(ids[:, 25:], **{cache_name(read.model): first[cache_name(read.model)]})
    torch.testing.assert_close(torch.cat([first.logits, rest.logits], dim=1), expected, rtol=0, atol=1e-3)


def test_a_layer_that_turns_otherwise_than_the_config_states_is_refused(monkeypatch):
    for kind, change in (("llama", {"rope_theta": 2e4}), ("gpt_neox", {"partial_rotary_factor": 0.5})):
        read = _observed(kind, SHAPE, monkeypatch)
        read.rope = {**read.rope, **change}
        with pytest.raises(InputError, match="^tiny: layer 0 turns otherwise than the config states: "):
            read.find_rope(prompt(1, 64))
    read = _observed("gemma3_text", {**SHAPE, **BOTH}, monkeypatch)
    read.rope = {"sliding_attention": read.rope}
    with pytest.raises(InputError, match="^tiny: RoPE is set by kinds of layers"):
        read.find_rope(prompt(1, 64))


def test_eviction_and_low_rank_take_the_layers_served():
    model, ids = build("gemma3_text", {**SHAPE, **BOTH}), prompt(1, 200)
    for settings in ({"evict": hf.Eviction(64, interval=16)}, {"low_rank": hf.LowRank()}):
        seine = hf.install(model, dtype="float32", threads=1, zones=None, top_k=64, **settings)
        generate(model, ids, max_new_tokens=40)
        assert_all_served(seine)
        assert seine.memory().tokens == 0 or seine.spec["geometry"]["num_layers"] == 1
        hf.uninstall(model)


@pytest.mark.parametrize("kind, frame", [("gpt_neox", "post_rope"), ("glm4", "pre_rope"), ("smollm3", "pre_rope")])
def test_low_rank_keys_lie_before_rope_where_it_can_be_undone(kind, frame):
    settings = {**SHAPE, **SERVED[kind], "num_hidden_layers": 4}
    model, ids = build(kind, settings), prompt(1, 400)
    seine = hf.install(model, dtype="float32", threads=1, top_k=4096, low_rank=hf.LowRank(key_rank=64, value_rank=64))
    assert seine.spec["subspace"]["frame"] == frame
    out = generate(model, ids, max_new_tokens=20)
    hf.uninstall(model)
    assert generate(model, ids, max_new_tokens=20).tolist() == out.tolist()  # of full rank: nothing is lost
    if frame == "post_rope":
        wanted = "subspace.frame: pre_rope: keys of which RoPE turns 16 of 64 coordinates go by post_rope alone"
        with pytest.raises(SeineError, match=wanted):
            hf.install(model, threads=1, low_rank=hf.LowRank(frame="pre_rope"))


@pytest.mark.parametrize("kind, settings, refused", REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_another_model_is_refused_at_install_and_left_as_it_was(kind, settings, refused):
    model, ids = build(kind, {**SHAPE, **settings}), prompt(1, 24)
    before, expected = model.config._attn_implementation, generate(model, ids, max_new_tokens=4)
    with pytest.raises(ValueError, match=f"^{type(model).__name__}:? {refused}") as error:
        hf.install(model, threads=1, **EVERYTHING)
    assert "\n" not in str(error.value) and model.config._attn_implementation == before
    assert generate(model, ids, max_new_tokens=4).tolist() == expected.tolist()


def test_a_model_that_cannot_be_run_is_refused_in_one_line(monkeypatch):
    model = build("llama", SHAPE)

    def broken(*_):
        raise ValueError("no adapter\nis loaded")

    monkeypatch.setattr(model.model.layers[1].mlp, "forward", broken)
    with pytest.raises(ValueError, match="^LlamaForCausalLM cannot be run on three tokens: ValueError: no adapter$"):
        hf.install(model, threads=1, **EVERYTHING)
    assert model.config._attn_implementation == "sdpa"


def test_layers_that_differ_in_heads_are_refused():
    model = build("llama", SHAPE)
    model.config = AutoConfig.for_model("llama", **SHAPE, per_layer_config={1: {"num_key_value_heads": 2}})
    wanted = "^LlamaForCausalLM: layer 1 has a num_key_value_heads of its own, 2, and layer 0 has 1; "
    with pytest.raises(ValueError, match=wanted):
        hf.install(model, threads=1, **EVERYTHING)


def test_sharing_that_the_config_does_not_state_is_refused():
    model = make_gemma4()
    model.config.num_kv_shared_layers = 0
    with pytest.raises(ValueError, match="^Gemma4ForCausalLM: layer 5 keeps no keys and values of its own; "):
        hf.install(model, threads=1)
    model = make_gemma4(num_hidden_layers=8, layer_types=[SLIDING, FULL] * 4, global_head_dim=64)
    model.config.layer_types = [SLIDING, FULL] * 2 + [SLIDING, SLIDING, SLIDING, FULL]
    with pytest.raises(ValueError, match="^Gemma4ForCausalLM: layer 7 attends other keys than those of layer 3; "):
        hf.install(model, threads=1)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("last", [1, 5])
def test_sharing_layers_that_are_asked_a_prompts_last_tokens_alone(last, gradients):
    """As transformers does where logits of the last tokens alone are wanted; without a mask."""
    model, ids = make_gemma4(), prompt(2, 24)
    with torch.inference_mode(not gradients):
        expected = model(ids).logits[:, -last:]
        seine = hf.install(model, dtype="float32", threads=1, **EVERYTHING)
        torch.testing.assert_close(model(ids, logits_to_keep=last).logits, expected, rtol=0, atol=1e-3)
    counts = seine.stats().prompts
    assert (counts.torch_tokens if gradients else counts.tokens) == 2 * (24 + 24 + last)
    assert counts.tokens * counts.torch_tokens == 0
    hf.uninstall(model)


def test_sparse_prompts_of_layers_that_share():
    model, ids = make_gemma4(sliding_window=64), prompt(1, 3000)
    with torch.inference_mode():
        expected = model(ids, logits_to_keep=1).logits
        seine = hf.install(model, dtype="float32", threads=1, prompt="sparse", prompt_mass=0.7, **EVERYTHING)
        error = (model(ids, logits_to_keep=1).logits - expected).norm() / expected.norm()
    counts = seine.stats().prompts
    assert counts.tokens == 2 * 3000 + 1 and counts.torch_tokens == 0
    assert counts.exact_blocks < counts.blocks == (2 * 24 + 1) * 4 and 1e-3 < error < 0.25
    hf.uninstall(model)


def test_a_draft_model_attends_what_gemma4s_layers_share():
    model, ids = make_gemma4(), prompt(1, 12).repeat(1, 2)
    text = {**GEMMA4, "model_type": "gemma4_text", "num_kv_shared_layers": 6}
    text |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    config = AutoConfig.for_model("gemma4_assistant", text_config=text, backbone_hidden_size=GEMMA4["hidden_size"])
    draft = AutoModelForCausalLM.from_config(config).eval()
    draft.generation_config.num_assistant_tokens = 4
    with pytest.raises(ValueError, match="^Gemma4AssistantForCausalLM: layer 1 attends another model's keys and values; "):
        hf.install(draft, threads=1)
    expected = generate(model, ids, max_new_tokens=40)
    seine = hf.install(model, dtype="float32", threads=1, **EVERYTHING)
    assert torch.equal(generate(model, ids, max_new_tokens=40, assistant_model=draft), expected)
    assert_all_served(seine)
    assert seine.stats().truncations > 0  # of guesses that were wrong
    hf.uninstall(model)


def test_what_layers_share_is_given_whole_where_it_is_asked_for():
    """As a draft model does; what layers share that slide, too."""
    model, ids = make_gemma4(), prompt(1, 24)
    wanted = {}
    for served in (False, True):
        if served:
            seine = hf.install(model, dtype="float32", threads=1, **EVERYTHING)
        cache, wanted[served] = None, []
        with torch.inference_mode():
            for part in (ids, ids[:, :1], ids[:, 1:5], ids[:, 5:6]):
                out = model(part, use_cache=True, return_shared_kv_states=True, **{cache_name(model): cache})
                cache = out[cache_name(model)]
                wanted[served].append({kind: tuple(rows.clone() for rows in both) for kind, both in out.shared_kv_states.items()})
    assert wanted[True][-1][FULL][0].shape == (1, 2, 30, 512)
    for got, expected in zip(wanted[True], wanted[False]):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)
    assert_all_served(seine)
    hf.uninstall(model)


@pytest.mark.parametrize("evict", [hf.Eviction(64, interval=16), hf.Eviction(64, scorer="snapkv", interval=16)], ids=["index", "call"])
def test_what_is_evicted_of_a_sequence_is_gone_for_all_layers_that_share_it(evict):
    model, ids = make_gemma4(), prompt(1, 200)
    seine = hf.install(model, dtype="float32", threads=1, evict=evict)
    cache = DynamicCache(config=model.config)
    generate(model, ids, max_new_tokens=40, **{cache_name(model): cache})
    assert_all_served(seine)
    stats, held = seine.stats(), [seine.retained(cache, layer) for layer in (1, 3, 5)]
    assert stats.rows == 3 * 39 and stats.evicted_tokens == sum(239 - len(head) for heads in held[:2] for head in heads) > 600
    assert all((one == other).all() for one, other in zip(held[1], held[2]))
    hf.uninstall(model)
    with pytest.raises(ValueError, match="^prefill: layer 5 attends what layer 3 holds, which a block has cut back by then$"):
        hf.install(model, threads=1, evict=evict, prefill="blocks")


@pytest.mark.parametrize("keep_cache", [False, True], ids=["index alone", "kept"])
@pytest.mark.parametrize("kind", WITH_TOWERS)
def test_a_vision_tower_attends_densely(kind, keep_cache):
    settings, picture, tokens = WITH_TOWERS[kind]
    model = build(kind, {**settings, "image_token_id": 5, "tie_word_embeddings": False}, AutoModelForImageTextToText)
    model.set_attn_implementation({"vision_config": "eager"})
    text = prompt(1, 20) % 80 + 10
    ids = torch.cat([text[:, :4], torch.tensor([[7] + [5] * tokens + [8]]), text[:, 4:]], dim=1)
    if kind in ("qwen2_vl", "gemma4"):
        picture = {**picture, "mm_token_type_ids": (ids == 5).long()}
    options = {"max_new_tokens": 20, "eos_token_id": None, "pad_token_id": 0, **picture}
    expected = generate(model, ids, **options)
    other = {**options, "pixel_values": 1 - 4 * picture["pixel_values"]}
    assert generate(model, ids, **other).tolist() != expected.tolist()  # what is seen matters
    seine = hf.install(model, dtype="float32", threads=1, keep_cache=keep_cache, **EVERYTHING)
    assert model.config.vision_config._attn_implementation == "eager"
    assert generate(model, ids, **options).tolist() == expected.tolist()
    assert_all_served(seine)
    hf.uninstall(model)
    assert model.config.vision_config._attn_implementation == "eager" and model.config._attn_implementation == "sdpa"
