"""vLLM on a CPU attends through Seine: its entry point in vllm.general_plugins. docs/vllm.md says what it does.

Nothing is imported of vLLM before vLLM asks, and nothing is patched: the backend CPU_ATTN is registered as a class of ours,
which is vLLM's own with two methods more. Where vLLM is not as that class needs it, nothing is registered.
"""

import inspect
import logging

VERSION = "0.32.0"  # of vLLM, that this was tried with
BACKEND = "seine_vllm.backend.SeineBackend"
# Methods of vLLM's backend that are called and overridden: class -> method -> its parameters.
WANTED = {
    "CPUAttentionBackend": {"get_impl_cls": [], "get_builder_cls": [], "get_name": []},
    "CPUAttentionMetadataBuilder": {
        "__init__": ["self", "kv_cache_spec", "layer_names", "vllm_config", "device"],
        "build": ["self", "common_prefix_len", "common_attn_metadata", "fast_build"],
    },
    "CPUAttentionBackendImpl": {
        "forward": [
            "self", "layer", "query", "key", "value", "kv_cache", "attn_metadata", "output", "output_scale", "output_block_scale",
        ],
        "do_kv_cache_update": ["self", "layer", "key", "value", "kv_cache", "slot_mapping"],
    },
}  # fmt: skip
FIELDS = ("num_actual_tokens", "query_start_loc", "seq_lens", "block_table", "slot_mapping", "causal", "dynamic_causal")

log = logging.getLogger("vllm.seine")


def what_differs(module):
    """What of vLLM's backend, the module, is not as this plug-in needs it; None: nothing."""
    for name, methods in WANTED.items():
        owner = getattr(module, name, None)
        if owner is None:
            return f"{name} is missing"
        for method, parameters in methods.items():
            found = getattr(owner, method, None)
            if found is None:
                return f"{name}.{method} is missing"
            if list(inspect.signature(found).parameters) != parameters:
                return f"{name}.{method} takes other arguments"
    if getattr(module.CPUAttentionBackend, "forward_includes_kv_cache_update", True):
        return "CPUAttentionBackend writes keys as it attends"
    fields = getattr(getattr(module, "CPUAttentionMetadata", None), "__dataclass_fields__", {})
    lacking = [field for field in FIELDS if field not in fields]
    return f"CPUAttentionMetadata.{lacking[0]} is missing" if lacking else None


def register():
    """vLLM calls it in each of its processes."""
    try:
        import vllm
        from vllm.platforms import current_platform
        from vllm.v1.attention.backends import cpu_attn
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        if not current_platform.is_cpu():
            log.warning("seine: nothing is done, for vLLM does not run on a CPU here")
            return
        differs = what_differs(cpu_attn)
        version = getattr(vllm, "__version__", "unknown")
        backend = AttentionBackendEnum.CPU_ATTN
    except (ImportError, AttributeError) as error:
        log.warning("seine: vLLM attends by itself, for it is not as of %s: %s", VERSION, error)
        return
    if differs is not None:
        log.warning("seine: vLLM %s attends by itself, for it is not as of %s: %s", version, VERSION, differs)
        return
    try:
        from seine_vllm import settings

        settings.of_process()
        import seine_kv._native  # noqa: F401
    except (ImportError, ValueError) as error:
        log.warning("seine: vLLM attends by itself: %s", error)
        return
    register_backend(backend, BACKEND)
    if not version.startswith(VERSION):
        log.warning("seine: was tried with vLLM %s, and this is %s", VERSION, version)
