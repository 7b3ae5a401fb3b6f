"""vLLM's CPU backend, which attends by Seine in the layers that can be served, and as it was in all others.

A layer that is served keeps its cache in vLLM's own blocks, but row by row: [blocks, block_size, KV heads, key and value].
vLLM's kernels have an order of their own there, so a layer is one or the other from its first token on: the metadata builder
decides, which vLLM makes before it has read a prompt.
"""

import json
import math
import weakref

import torch
from vllm.config import get_layers_from_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends import cpu_attn

from seine_kv import _native
from seine_vllm import settings
from seine_vllm.report import Report

logger = init_logger("vllm.seine")
HEAD_DIMS = (64, 80, 96, 128, 192, 256, 512)
MOST_QUERY_HEADS = 32  # of a KV head
WINDOW = 64  # tokens; a block is a whole number of them
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NEVER = 1 << 30  # a length that no text has
TURNED_BY_TRANSFORMERS = ("smollm3",)  # which vLLM runs by transformers' code, that pairs halves and makes no module of vLLM's


class SeineBackend(cpu_attn.CPUAttentionBackend):
    @staticmethod
    def get_impl_cls():
        return SeineImpl

    @staticmethod
    def get_builder_cls():
        return SeineBuilder


class SeineBuilder(cpu_attn.CPUAttentionMetadataBuilder):
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.shapes = choose_layers(vllm_config, layer_names, kv_cache_spec)

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        metadata = super().build(common_prefix_len, common_attn_metadata, fast_build)
        if self.shapes and (metadata.causal is not True or metadata.dynamic_causal is not None):
            raise NotImplementedError(
                "seine: some text is attended without a causal mask, which Seine does not do; VLLM_PLUGINS= serves it"
            )
        # Shape -> its PagedStep. Of every builder: a draft model's is made for its first layer, and serves them all.
        metadata.seine = {}
        return metadata


class Shape:
    """Layers that share one PagedAttention, which is made with the first of their caches."""

    every = weakref.WeakSet()  # of the process: all of an engine are there before its first cache

    def __init__(self, vllm_config, impl, block_size, numbers):
        self.every.add(self)
        self.vllm_config, self.impl, self.block_size = vllm_config, impl, block_size
        self.numbers = numbers  # layer's name -> its number among those that attend all
        self.attention = None

    def make(self, num_blocks):
        """ValueError or NativeError: the settings do not fit the model."""
        s, impl, model = settings.of_process(), self.impl, self.vllm_config.model_config
        return _native.PagedAttention(
            num_layers=len(self.numbers), num_q_heads=impl.num_heads, num_kv_heads=impl.num_kv_heads, head_dim=impl.head_size,
            num_blocks=num_blocks, block_size=self.block_size, max_tokens=model.max_model_len, scale=impl.scale,
            softcap=float(impl.logits_soft_cap), min_tokens=NEVER if s.mode == "exact" else s.min_kv, top_k=s.top_k, beta=s.beta,
            refine=s.refine, sink=s.sink, local=s.local, tail=bool(s.tail), gate=s.gate,
            prompt_mass=s.prompt_mass if s.prompt == "sparse" else 1.0, prompt_min=s.prompt_min,
            codes_bytes=math.ceil(s.codes_gib * 2**30 / self.layers_of_engine()), **self.ropes(),
        )  # fmt: skip

    def layers_of_engine(self):
        return sum(len(shape.numbers) for shape in self.every if shape.vllm_config is self.vllm_config)

    def ropes(self):
        """What a profile must know of how the layers turn."""
        profile, model = settings.of_process().profile, self.vllm_config.model_config.hf_text_config
        if not profile:
            return {}
        rope, others = ropes_of(model, self.numbers)
        return {"profile": profile, "rope": rope, "layer_ropes": others, "rope_style": rope_style_of(model, self.impl.head_size)}

    def attention_of(self, num_blocks):
        if self.attention is None:
            self.attention = self.make(num_blocks)
            if not self.attention.openmp:
                logger.warning("seine: no OpenMP is loaded for the whole process: Seine runs on threads of its own")
        return self.attention

    def layer(self, name, kv_cache):
        num_blocks, heads, size, width = kv_cache.shape
        if not kv_cache.is_contiguous():
            raise ValueError(f"seine: the cache of {name} is not dense, of strides {kv_cache.stride()}; VLLM_PLUGINS= serves it")
        rows = kv_cache.view(num_blocks, size, heads, width)  # the same memory, in another order
        first = self.attention is None
        made = self.attention_of(num_blocks).layer(self.numbers[name], rows)
        if first:
            most, codes = len(self.numbers) * made.most_bytes, self.attention.code_blocks
            logger.info(
                "seine: codes of %d layers take up to %.0f MiB beside vLLM's cache, of %d of its %d blocks",
                len(self.numbers), most / 2**20, codes, num_blocks,
            )  # fmt: skip
        return made

    def step(self, metadata):
        step = metadata.seine.get(self)
        if step is None:
            step = self.attention.step(metadata.query_start_loc, metadata.seq_lens, metadata.block_table)
            metadata.seine[self] = step
        return step


class SeineImpl(cpu_attn.CPUAttentionBackendImpl):
    shape = None  # of a layer that is served
    seine = None  # its PagedLayer

    def of_cache(self, layer, kv_cache):
        if self.seine is None:
            self.seine = self.shape.layer(layer.layer_name, kv_cache)
            report.add(layer.layer_name, self)
            report.start()
        return self.seine

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping):
        if self.shape is None:
            super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)
        else:
            self.of_cache(layer, kv_cache).write(key, value, slot_mapping)

    def forward(
        self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None, output_block_scale=None
    ):
        if self.shape is None or attn_metadata is None:
            return super().forward(
                layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale
            )
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("seine: outputs are not quantised as they are attended")
        paged, step = self.of_cache(layer, kv_cache), self.shape.step(attn_metadata)
        tokens = attn_metadata.num_actual_tokens
        query, out = query[:tokens], output[:tokens]
        if query.dtype == torch.float32 and query.stride()[1:] == (query.shape[2], 1):
            paged.attend(step, query, out)
        else:
            floats = torch.empty(query.shape, dtype=torch.float32)
            paged.attend(step, query.to(torch.float32, memory_format=torch.contiguous_format).contiguous(), floats)
            out.copy_(floats)
        return output


report = Report()


def why_not(layer, model, block_size):
    """Why a layer keeps vLLM's attention; None: it is served."""
    impl = layer.impl
    if not isinstance(impl, SeineImpl):
        return "attends by another backend"
    if impl.attn_type != AttentionType.DECODER:
        return f"is of type {impl.attn_type}"
    if impl.sliding_window != -1:
        return f"attends a window of {impl.sliding_window} tokens"
    if impl.alibi_slopes is not None:
        return "weighs distances (ALiBi)"
    if impl.sinks is not None:
        return "has attention sinks"
    if impl.is_fp8_kv_cache:
        return f"caches in {impl.kv_cache_dtype}"
    if layer.kv_cache_torch_dtype not in DTYPES or layer.kv_cache_torch_dtype != model.dtype:
        return f"caches in {layer.kv_cache_torch_dtype}"
    if getattr(layer, "head_size_v", impl.head_size) != impl.head_size:
        return "has values of another size than keys"
    if impl.head_size not in HEAD_DIMS:
        return f"has heads of {impl.head_size}"
    if impl.num_queries_per_kv > MOST_QUERY_HEADS:
        return f"has {impl.num_queries_per_kv} query heads a KV head"
    if block_size % WINDOW != 0:
        return f"has blocks of {block_size} tokens, no multiple of {WINDOW}"
    return None


def choose_layers(vllm_config, layer_names, spec):
    """Ties the layers of a cache group to Shapes, and says once which are left to vLLM and why. Returns the shapes."""
    every = get_layers_from_vllm_config(vllm_config, Attention)
    shared = {layer.kv_sharing_target_layer_name: name for name, layer in every.items() if layer.kv_sharing_target_layer_name}
    block_size, model = spec.block_size, vllm_config.model_config
    shapes, left = {}, {}
    for name in layer_names:
        layer = every.get(name)
        if layer is None:
            continue
        if vllm_config.kv_transfer_config is not None:
            why = "sends its cache elsewhere (a KV connector)"
        elif getattr(vllm_config.cache_config, "mamba_cache_mode", None) == "align":
            why = "has blocks that vLLM copies"
        elif getattr(spec, "page_size_padded", None) is not None:
            why = "has blocks that are padded"
        elif getattr(model, "is_mm_prefix_lm", False):
            why = "attends images without a causal mask"
        elif layer.kv_sharing_target_layer_name is not None:
            why = f"attends the keys of {layer.kv_sharing_target_layer_name}"
        elif name in shared:
            why = f"shares its keys with {shared[name]}"
        else:
            why = why_not(layer, model, block_size)
        if why is not None:
            layer.impl.shape = None
            left.setdefault(why, []).append(name)
            continue
        impl = layer.impl
        key = (impl.num_heads, impl.num_kv_heads, impl.head_size, impl.scale, impl.logits_soft_cap, of_draft(name, model))
        shape = shapes.setdefault(key, Shape(vllm_config, impl, block_size, {}))
        shape.numbers[name] = len(shape.numbers)
        impl.shape, impl.seine = shape, None
    for key, shape in list(shapes.items()):
        try:
            shape.make(num_blocks=1)  # what does not fit is said now, and not with the first prompt
        except (ValueError, _native.NativeError) as error:
            del shapes[key]
            left.setdefault(f"Seine cannot serve: {error}", []).extend(shape.numbers)
            for name in shape.numbers:
                every[name].impl.shape = None
    served = [name for shape in shapes.values() for name in shape.numbers]
    if served:
        logger.info_once("seine: %d layers attend through Seine, the first of them %s", len(served), served[0])
    for why, names in left.items():
        logger.warning_once("seine: vLLM attends by itself in %d layers, such as %s, which %s", len(names), names[0], why)
    return list(shapes.values())


def ropes_of(config, names):
    """RoPE of most of these layers, and of those that turn otherwise or not at all, as the native module reads it. Config: the model's."""
    stated, kinds = getattr(config, "rope_parameters", None) or {}, getattr(config, "layer_types", None)
    turns = getattr(config, "no_rope_layers", None)  # 0: of a layer that does not turn
    layers = {}  # JSON of a RoPE -> numbers among the layers of these names
    for at, name in enumerate(names):
        rope = stated
        if turns or "rope_type" not in stated:
            number = number_of(name)
            if "rope_type" not in stated:  # one of each kind of layers
                rope = stated.get(kinds[number]) if kinds else None
            if turns and not turns[number]:
                rope = {"rope_type": "none"}
        if not rope or "rope_type" not in rope:
            raise ValueError("SEINE_PROFILE needs a model whose config states the RoPE of each layer")
        layers.setdefault(json.dumps(rope, sort_keys=True), []).append(at)
    most = max(layers, key=lambda rope: (json.loads(rope)["rope_type"] != "none", len(layers[rope])))
    others = [{"layers": numbers, "rope": json.loads(rope)} for rope, numbers in layers.items() if rope != most]
    return most, json.dumps(others) if others else ""


def numbers_in(name):
    return [int(part) for part in name.split(".") if part.isdigit()]


def of_draft(name, model):
    """Whether a layer is not the model's own but of what guesses for it, of which its profile says nothing."""
    numbers = numbers_in(name)
    return name.startswith("draft_model.") or (len(numbers) == 1 and numbers[0] >= getattr(model.hf_text_config, "num_hidden_layers", math.inf))


def number_of(name):
    """A layer's place in the model, of a name such as model.layers.3.self_attn.attn."""
    numbers = numbers_in(name)
    if len(numbers) != 1:
        raise ValueError(f"SEINE_PROFILE needs layers that say their number, and not {name}")
    return numbers[0]


def rope_style_of(config, head_dim):
    """Which elements the model's RoPE pairs, as vLLM's modules of it have it, all made by now."""
    made = getattr(rotary_embedding, "_ROPE_DICT", {}).values()
    # Phi-3's module alone does not say so: it refuses all but halves.
    halves = {getattr(rope, "is_neox_style", True) for rope in made if rope.head_size == head_dim}
    if not halves and getattr(config, "model_type", None) in TURNED_BY_TRANSFORMERS:
        return "half_split"
    if len(halves) != 1:
        raise ValueError("SEINE_PROFILE needs a model whose RoPE is known to pair halves, or neighbours, in all layers")
    return "half_split" if halves.pop() else "interleaved"
