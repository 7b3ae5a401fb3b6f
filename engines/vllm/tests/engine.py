"""One vLLM in this process, that attends by itself or through Seine: by turns, over the same blocks of its cache."""

import os

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"  # what is found goes to stdout

import contextlib
import sys

import numpy as np
from models import ROOT, TEXTS
from vllm import LLM, SamplingParams

RANDOM_WORDS = 64  # ids of a text for a model without a tokenizer: so few that what is guessed from a text is found in it


def end(code):
    """vLLM's own end waits for threads."""
    sys.stdout.flush()
    os._exit(code)


class Engine:
    def __init__(self, model, **settings):
        self.words = (model / "tokenizer.json").exists()
        settings = {"enforce_eager": True, "max_model_len": 8192, "disable_log_stats": True, **settings}
        self.llm = LLM(str(model), skip_tokenizer_init=not self.words, **settings)
        self.engine = self.llm.llm_engine
        layers = self.engine.vllm_config.compilation_config.static_forward_context.values()
        self.layers = [layer for layer in layers if hasattr(layer, "impl")]
        self.impls = [layer.impl for layer in self.layers]
        self.shapes = [getattr(impl, "shape", None) for impl in self.impls]
        if not any(self.shapes):
            raise SystemExit("no layer is served: is seine-vllm installed beside vLLM? Its log says why")
        self.served = [impl for impl, shape in zip(self.impls, self.shapes) if shape is not None]
        self._text, self._ids = {}, 0

    def tokens(self, count, first=0, texts=TEXTS):
        """Of a real text, from a place on; random where the model has no tokenizer."""
        if texts not in self._text:
            if self.words:
                self._text[texts] = self.llm.get_tokenizer().encode("\n".join((ROOT / name).read_text() for name in texts))
            else:
                self._text[texts] = np.random.default_rng(len(texts)).integers(1, RANDOM_WORDS, 20011).tolist()
        text = self._text[texts]
        return [text[(first + i) % len(text)] for i in range(count)]

    def seine(self, on):
        """Who attends from now on. The cache is forgotten, for each has an order of its own in it."""
        for impl, shape in zip(self.impls, self.shapes):
            impl.shape = shape if on else None
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("some text is still being decoded")

    @contextlib.contextmanager
    def wrong_keys(self):
        """The first layer that Seine serves is told every key but the first of a step as its neighbour's."""
        impl = self.served[0]
        own = impl.do_kv_cache_update
        impl.do_kv_cache_update = lambda layer, key, *rest: own(layer, key.roll(1, 0).contiguous(), *rest)
        try:
            yield
        finally:
            del impl.do_kv_cache_update

    def counts(self):
        from seine_vllm.backend import report

        return report.counts()

    def params(self, max_tokens, **sampling):
        return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=self.words, **sampling)

    @property
    def last_id(self):
        """Of the text that was added last."""
        return self._ids - 1

    def add(self, prompt, params):
        self.engine.add_request(str(self._ids), {"prompt_token_ids": prompt}, params)
        self._ids += 1

    def generate(self, prompts, max_tokens, **sampling):
        outputs = self.llm.generate([{"prompt_token_ids": p} for p in prompts], self.params(max_tokens, **sampling), use_tqdm=False)
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
                    self.add(prompt, self.params(max_tokens, logprobs=2))
                    added += 1
                elif rest[0] < added:
                    self.engine.abort_request([str(first + rest[0])])
            for output in self.engine.step():
                outputs[int(output.request_id.split("-")[0]) - first] = output.outputs[0]
            if not waiting and not self.engine.has_unfinished_requests():
                return outputs
        raise RuntimeError("the schedule does not end")
