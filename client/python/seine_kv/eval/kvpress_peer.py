"""kvpress's own presses on the same tokens, run by a Python that has kvpress (its transformers is not ours).

    PYTHON -m seine_kv.eval.kvpress_peer < request.json > rows.json

`python -m seine_kv.eval --kvpress PYTHON` is what calls it. The request: {"model": {what add_model_arguments makes},
"ids": [prompt and targets], "decoded": n, "free": n, "budget": tokens kept, "interval": tokens between compressions,
"presses": [names]}. The answer: a row a press as Quality.measure makes them, KL against dense as this Python has it.

A press compresses the prompt to the budget in one go. While tokens are decoded it compresses again each `interval`
where kvpress's DecodingPress can (KeyDiff); SnapKV asks for more hidden states than that keeps, so what is decoded adds
to its budget, which `attended_tokens` shows.
"""

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from seine_kv.model import cache_name

PRESSES = ("keydiff", "snapkv")


def measure(python, request):
    """The rows of `request` by the command `python`, which needs kvpress, gguf and accelerate, not this package.
    RuntimeError: it failed; what it said is on stderr."""
    here = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    command = [*shlex.split(python), "-m", "seine_kv.eval.kvpress_peer"]
    environment = {**os.environ, "PYTHONPATH": path, "TQDM_DISABLE": "1"}
    try:
        done = subprocess.run(
            command, input=json.dumps(request), stdout=subprocess.PIPE, text=True, env=environment
        )
    except OSError as error:
        raise RuntimeError(f"--kvpress {python}: {error.strerror}") from None
    if done.returncode != 0:
        raise RuntimeError(f"--kvpress {python}: it ended with exit code {done.returncode}")
    return json.loads(done.stdout)


def make_press(name, prompt, budget, interval):
    """A press that leaves `budget` of `prompt` tokens."""
    import kvpress

    ratio = 1 - (budget + 0.5) / prompt  # kvpress cuts down to whole tokens
    if name == "snapkv":
        return kvpress.SnapKVPress(compression_ratio=ratio)
    again = kvpress.DecodingPress(kvpress.KeyDiffPress(), compression_interval=interval, target_size=budget)
    return kvpress.PrefillDecodingPress(kvpress.KeyDiffPress(compression_ratio=ratio), again)


class Run:
    """One model and one text."""

    def __init__(self, model, request):
        import torch

        self.torch, self.model, self.request = torch, model, request
        self.cache_name = cache_name(model)
        ids, decoded = torch.tensor([request["ids"]]), request["decoded"]
        self.prompt, self.inputs, self.targets = ids[:, : -decoded - 1], ids[0, -decoded - 1 : -1], ids[0, -decoded:]

    def rows(self, progress):
        """A row a press."""
        dense, _, _ = self._forced(None, "dense", progress)
        greedy = self._greedy(None)
        for name in self.request["presses"]:
            log_probabilities, attended, held = self._forced(name, f"kvpress: {name}", progress)
            alike = (a == b for a, b in zip(self._greedy(name), greedy))
            yield {
                "method": f"kvpress_{name}",
                "label": f"kvpress's {name}",
                "perplexity": math.exp(-log_probabilities.gather(1, self.targets[:, None]).mean().item()),
                "kl": (dense.exp() * (dense - log_probabilities)).sum(-1).mean().item(),
                "agreement": (dense.argmax(-1) == log_probabilities.argmax(-1)).float().mean().item(),
                "greedy_tokens": next((i for i, same in enumerate(alike) if not same), len(greedy)),
                "kv_bytes": held,
                "held_tokens": attended,  # all that a press leaves is attended
                "attended_tokens": attended,
            }

    @contextmanager
    def _begun(self, name):
        """(cache after the prompt, its last logits [1, 1, vocabulary]), with the press at work; name None: dense."""
        from transformers import DynamicCache

        if name is None:
            with self.torch.inference_mode():
                cache, logits = DynamicCache(), None
                for chunk in self.prompt.split(1024, dim=1):
                    logits = self.model(chunk, **{self.cache_name: cache}, use_cache=True, logits_to_keep=1).logits
                yield cache, logits
            return
        request = self.request
        press = make_press(name, self.prompt.shape[1], request["budget"], request["interval"])
        with self.torch.inference_mode(), press(self.model):
            cache = DynamicCache()
            logits = self.model(self.prompt, **{self.cache_name: cache}, use_cache=True, logits_to_keep=1).logits
            if cache.get_seq_length() != request["budget"]:
                raise RuntimeError(f"kvpress's {name} left {cache.get_seq_length()} tokens, not {request['budget']}")
            yield cache, logits

    def _step(self, cache, token, n):
        """Logits [vocabulary] after the n-th token behind the prompt, at its own position however few are held."""
        position = self.torch.tensor([[self.prompt.shape[1] + n]])
        out = self.model(token.reshape(1, 1), **{self.cache_name: cache}, position_ids=position, use_cache=True)
        return out.logits[0, -1].float()

    def _forced(self, name, label, progress):
        """(log-probabilities [decoded, vocabulary], mean tokens that a step attends, share of all tokens held at last)."""
        rows, attended = [], 0
        with self._begun(name) as (cache, _):
            for n, token in enumerate(self.inputs):
                attended += cache.get_seq_length() + 1
                rows.append(self._step(cache, token, n))
                progress(label, n + 1, len(self.inputs))
            held = cache.get_seq_length() / (self.prompt.shape[1] + len(self.inputs))
        return self.torch.stack(rows).log_softmax(-1), attended / len(self.inputs), held

    def _greedy(self, name):
        ids = []
        with self._begun(name) as (cache, logits):
            token = logits[0, -1].argmax()
            while len(ids) < self.request["free"]:
                ids.append(int(token))
                token = self._step(cache, token, len(ids) - 1).argmax()
        return ids


def report(label, done, total):
    """One line on stderr."""
    if sys.stderr.isatty() or done == total:
        line = f"{label}: {done} of {total}"
        print(line, file=sys.stderr, end="\n" if done == total else "\r", flush=True)


def main():
    """Reads a request, writes the rows."""
    try:
        import kvpress  # noqa: F401
    except ImportError as error:
        sys.exit(f"kvpress_peer: {error}; try: {sys.executable} -m pip install kvpress gguf")
    from seine_kv.model import CausalModel

    request = json.load(sys.stdin)
    loaded = CausalModel(argparse.Namespace(**request["model"]), len(request["ids"]))
    loaded.load(observed=False)
    json.dump(list(Run(loaded.model, request).rows(report)), sys.stdout)


if __name__ == "__main__":
    main()
