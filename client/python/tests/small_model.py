"""Small, randomly initialised models of the Llama architecture, and how tests decode with them. Needs torch and
transformers; without them a test fails rather than pass unseen."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from seine_kv import hf
from seine_kv.model import cache_name

VOCABULARY, PROMPT = 97, 150
ZONES = {"sink": 16, "local": 32, "update_buffer": 64, "dense_threshold": 64}
EVERYTHING = {"top_k": 4096, "zones": ZONES}  # k >= n: what Seine attends is all there is


def make_model(seed=0, **geometry):
    torch.manual_seed(seed)
    shape = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, **geometry}
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        max_position_embeddings=4096,
        initializer_range=0.3,  # far from uniform attention, and no two tokens alike
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
        **shape,
    )
    return LlamaForCausalLM(config).eval()


# Gemma 4's shape: heads of 512 in the layers of full attention, 1, 3 and 5, and of 64 in those that slide. The last two layers
# share the keys and values of the two before. Tied embeddings would have a tiny model say one token for ever.
GEMMA4 = {
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size": 128,
    "hidden_size_per_layer_input": 16,
    "intermediate_size": 64,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_kv_shared_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "global_head_dim": 512,
    "sliding_window": 8,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def make_gemma4(**settings):
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model("gemma4_text", **{**GEMMA4, **settings})).eval()


def prompt(rows=1, tokens=PROMPT, seed=1):
    return torch.randint(2, VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def decode(model, ids, steps, cache=None, **options):
    """Logits [steps, vocabulary] and tokens of greedy decoding after a prefill of `ids`, by hand."""
    logits, tokens = [], []
    with torch.inference_mode():
        for _ in range(steps):
            out = model(ids, **{cache_name(model): cache}, use_cache=True, **options)
            cache = out[cache_name(model)]
            logits.append(out.logits[0, -1])
            ids = logits[-1].argmax().reshape(1, 1)
            tokens.append(int(ids))
    return torch.stack(logits), tokens, cache


def generate(model, ids, **options):
    settings = {"max_new_tokens": 12, "do_sample": False, **options}
    settings.setdefault("attention_mask", torch.ones_like(ids))
    return model.generate(ids, **settings)


def assert_all_served(seine):
    stats = seine.stats()
    assert stats.rows > 0 and stats.dense_rows == 0, str(stats)


def tensors_held(cache):
    """What a cache holds itself."""
    return [value for layer in cache.layers for value in layer.__dict__.values() if isinstance(value, torch.Tensor)]


# Fixtures, which a module of tests imports by their names.


@pytest.fixture
def model():
    return make_model()


@pytest.fixture
def client(server):
    """Another client of the server that models are installed with."""
    return server


@pytest.fixture
def installed(model, client):
    """The model with everything attended through Seine."""
    seine = hf.install(model, client.address, **EVERYTHING)
    yield seine
    if model.config._attn_implementation == "seine":
        hf.uninstall(model)
