"""Tiny random models of transformers' own classes: refused at install, by layer and reason, or answered as without Seine."""

import pytest
import torch
from small_model import EVERYTHING, generate, prompt
from transformers import AutoConfig, AutoModelForCausalLM

from seine_kv import hf

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 64,
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
# model type, its settings, what the refusal says; None: it is served.
MODELS = [
    ("llama", {}, None),
    ("qwen2", {}, None),
    ("qwen3", {}, None),
    ("phi3", {"sliding_window": None, "hidden_size": 128}, None),
    ("phi3", {"sliding_window": 512, "hidden_size": 128}, "sliding window"),
    ("mistral", {"sliding_window": None}, None),
    ("mistral", {"sliding_window": 8}, "sliding window"),
    ("starcoder2", {"sliding_window": 8, "hidden_size": 128}, "sliding window"),
    ("gemma2", {}, "sliding window|soft cap"),
    ("gemma3_text", {}, "sliding window"),
    ("gpt_oss", {"num_local_experts": 2, "num_experts_per_tok": 1}, "sliding window|sinks"),
]


def build(kind, settings):
    torch.manual_seed(3)
    config = AutoConfig.for_model(kind, **{**SHAPE, **settings})
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("kind, settings, refused", MODELS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_model_is_refused_at_install_or_answered_as_without(kind, settings, refused):
    model, ids = build(kind, settings), prompt(1, 24)
    if refused is not None:
        with pytest.raises(ValueError, match=rf"layer \d+ .*({refused})") as error:
            hf.install(model, threads=1, **EVERYTHING)
        assert "\n" not in str(error.value) and model.config._attn_implementation != "seine"
        generate(model, ids, max_new_tokens=4)  # as it was
        return
    expected = generate(model, ids, max_new_tokens=40)
    seine = hf.install(model, dtype="float32", threads=1, **EVERYTHING)
    assert generate(model, ids, max_new_tokens=40).tolist() == expected.tolist()
    assert seine.stats().rows > 0 and seine.stats().dense_rows == 0
    hf.uninstall(model)
