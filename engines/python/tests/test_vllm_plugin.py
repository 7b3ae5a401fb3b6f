"""The plug-in for vLLM without vLLM: what of it must be as the plug-in needs it, and what the environment says."""

import dataclasses
import importlib
import json
import logging
import math
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
from conftest import PROFILES

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "vllm"))

import seine_vllm
from seine_vllm.settings import Settings


def backend():
    """A module like vLLM's CPU backend, of which nothing can be called."""

    class CPUAttentionBackend:
        forward_includes_kv_cache_update = False

        @staticmethod
        def get_name(): ...
        @staticmethod
        def get_impl_cls(): ...
        @staticmethod
        def get_builder_cls(): ...

    class CPUAttentionMetadataBuilder:
        def __init__(self, kv_cache_spec, layer_names, vllm_config, device): ...
        def build(self, common_prefix_len, common_attn_metadata, fast_build=False): ...

    class CPUAttentionBackendImpl:
        def forward(
            self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None, output_block_scale=None
        ): ...
        def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping): ...

    fields = [(name, object) for name in seine_vllm.FIELDS]
    module = types.SimpleNamespace(CPUAttentionMetadata=dataclasses.make_dataclass("CPUAttentionMetadata", fields))
    for made in (CPUAttentionBackend, CPUAttentionMetadataBuilder, CPUAttentionBackendImpl):
        setattr(module, made.__name__, made)
    return module


@pytest.fixture
def vllm(monkeypatch):
    """Modules in the place of vLLM's; registered is what the plug-in has registered."""
    made = types.SimpleNamespace(registered=[], backend=backend(), on_cpu=True)
    modules = {
        "vllm": {"__version__": seine_vllm.VERSION},
        "vllm.platforms": {"current_platform": types.SimpleNamespace(is_cpu=lambda: made.on_cpu)},
        "vllm.v1": {},
        "vllm.v1.attention": {},
        "vllm.v1.attention.backends": {"cpu_attn": made.backend},
        "vllm.v1.attention.backends.registry": {
            "AttentionBackendEnum": types.SimpleNamespace(CPU_ATTN="cpu"),
            "register_backend": lambda backend, path: made.registered.append((backend, path)),
        },
    }
    for name, attributes in modules.items():
        module = types.ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    made.module = sys.modules["vllm"]
    from seine_vllm import settings

    settings.of_process.cache_clear()
    return made


def test_it_is_registered_where_all_is_as_expected(vllm, caplog):
    seine_vllm.register()
    assert vllm.registered == [("cpu", seine_vllm.BACKEND)] and not caplog.records
    vllm.module.__version__ = "0.33.0"
    seine_vllm.register()
    assert len(vllm.registered) == 2 and "this is 0.33.0" in caplog.text


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        (lambda m: delattr(m, "CPUAttentionBackendImpl"), "CPUAttentionBackendImpl is missing"),
        (lambda m: delattr(m.CPUAttentionBackend, "get_builder_cls"), "CPUAttentionBackend.get_builder_cls is missing"),
        (lambda m: setattr(m.CPUAttentionMetadataBuilder, "build", lambda self, metadata: None), "build takes other arguments"),
        (lambda m: setattr(m.CPUAttentionBackend, "forward_includes_kv_cache_update", True), "CPUAttentionBackend writes keys as it attends"),
        (lambda m: m.CPUAttentionMetadata.__dataclass_fields__.pop("block_table"), "CPUAttentionMetadata.block_table is missing"),
    ],
)
def test_a_vllm_that_differs_attends_by_itself_with_one_warning(vllm, caplog, change, warning):
    change(vllm.backend)
    seine_vllm.register()
    assert vllm.registered == [] and len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.WARNING and warning in caplog.text and "attends by itself" in caplog.text


def test_no_cpu_no_backend_and_wrong_settings_are_one_warning_each(vllm, caplog, monkeypatch):
    vllm.on_cpu = False
    seine_vllm.register()
    vllm.on_cpu = True
    monkeypatch.setenv("SEINE_TOP_K", "many")
    seine_vllm.register()
    monkeypatch.delenv("SEINE_TOP_K")
    del sys.modules["vllm.v1.attention.backends.registry"].register_backend
    seine_vllm.register()
    assert vllm.registered == [] and len(caplog.records) == 3
    assert "does not run on a CPU" in caplog.messages[0] and "SEINE_TOP_K=many is no number" in caplog.messages[1]
    assert "register_backend" in caplog.messages[2]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("SEINE_MIN_KV", "12", r"SEINE_MIN_KV=12 is not in \[256"),
        ("SEINE_GATE", "1.5", r"SEINE_GATE=1.5 is not in \[0, 1\]"),
        ("SEINE_SINK", "-1", "SEINE_SINK=-1 is not in"),
        ("SEINE_CODES_GIB", "-1", "SEINE_CODES_GIB=-1 is not in"),
        ("SEINE_BETA", "x", "SEINE_BETA=x is no number"),
        ("SEINE_PROMPT", "off", "SEINE_PROMPT=off is none of exact, sparse"),
        ("SEINE_MODE", "plain", "SEINE_MODE=plain is none of codes, exact"),
    ],
)
def test_settings_out_of_range_are_named(name, text, message):
    with pytest.raises(ValueError, match=message):
        Settings.of({name: text})


def lines_of_a_worker(tmp_path, **environment):
    """Log of a process of multiprocessing, as vLLM has its worker: it runs no atexit."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("")
    (tmp_path / "vllm" / "logger.py").write_text("import logging\ndef init_logger(name):\n    return logging.getLogger(name)\n")
    (tmp_path / "worker.py").write_text(WORKER)
    path = os.pathsep.join([str(tmp_path), *(p for p in sys.path if p)])
    done = subprocess.run(
        [sys.executable, str(tmp_path / "worker.py")], capture_output=True, text=True, timeout=30,
        env={**os.environ, "PYTHONPATH": path, "SEINE_LOG_EVERY": "0.2", **environment},
    )  # fmt: skip
    return [line for line in done.stderr.splitlines() if "seine: " in line]


def test_the_log_has_counts_in_workers_and_at_their_end(tmp_path):
    lines = lines_of_a_worker(tmp_path)
    assert len(lines) == 3, lines
    assert "the gate: l.1 attends exactly from now on, for its codes lose 0.200 of attention" in lines[0]
    assert "answers: 8 by codes, 2 exact (short), 0 exact (gate), 6 declined" in lines[1] and "declined 6: a reason" in lines[1]
    assert "answers: 10 by codes" in lines[2]


def test_the_log_goes_on_where_metrics_are_refused(tmp_path):
    lines = lines_of_a_worker(tmp_path, PROMETHEUS_MULTIPROC_DIR=str(tmp_path / "gone"))
    assert len(lines) == 4, lines
    assert "answers: 8 by codes" in lines[1] and "answers: 10 by codes" in lines[3]
    assert "counts are in the log alone from now on" in lines[2] and "gone" in lines[2]


WORKER = """
import logging, multiprocessing, time

def work():
    logging.basicConfig(level=logging.INFO)
    from seine_vllm.report import Report
    class Layer:
        coded = 4
        def __init__(self, lost): self.lost = lost
        def counts(self):
            numbers = dict.fromkeys(("gated", "prompt_tokens", "prompt_runs_seen", "prompt_runs_taken", "encoded_keys",
                                     "changed_windows", "found_windows", "decode_us", "prompt_us", "encode_us", "bytes", "gate_checks", "gate_lost"), 0)
            return {**numbers, "coded": self.coded, "exact": 1, "declined": {"a reason": 3}, "gate_exact": self.lost > 0,
                    "gate_lost_then": self.lost}
    class Impl:
        def __init__(self, lost): self.seine = Layer(lost)
    global impls  # as vLLM holds its layers
    report, impls = Report(), [Impl(0.0), Impl(0.2)]
    for number, impl in enumerate(impls):
        report.add(f"l.{number}", impl)
        report.start()
    time.sleep(0.7)  # a line comes once, for nothing changes
    Layer.coded = 5

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work)
    process.start()
    process.join()
"""


def test_settings_are_read():
    read = Settings.of({"SEINE_TOP_K": "7", "SEINE_GATE": "0.1", "SEINE_PROMPT": "sparse", "SEINE_PROFILE": "x", "HOME": "y"})
    assert read == Settings(top_k=7, gate=0.1, prompt="sparse", profile="x") and type(read.top_k) is int
    assert Settings.of({}) == Settings()


class Log(list):
    def info_once(self, text, *args):
        self.append(text % args)

    warning_once = info_once


@pytest.fixture
def served(vllm, monkeypatch):
    """SmolLM2's layers as vLLM has them, and the plug-in's backend over modules in the place of vLLM's."""
    import torch

    log, halves = Log(), types.SimpleNamespace(head_size=64, is_neox_style=True)
    ropes = {"vision": types.SimpleNamespace(head_size=80, is_neox_style=False), "text": halves}
    modules = {
        "vllm.config": {"get_layers_from_vllm_config": lambda config, kind: config.layers},
        "vllm.logger": {"init_logger": lambda name: log},
        "vllm.model_executor": {},
        "vllm.model_executor.layers": {"rotary_embedding": types.SimpleNamespace(_ROPE_DICT=ropes)},
        "vllm.model_executor.layers.attention": {"Attention": object},
        "vllm.v1.attention.backend": {"AttentionType": types.SimpleNamespace(DECODER="decoder")},
    }
    for name, attributes in modules.items():
        module = types.ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("SEINE_PROFILE", str(PROFILES / "smollm2-135m.profile.safetensors"))
    backend = importlib.import_module("seine_vllm.backend")

    def layer():
        impl = backend.SeineImpl()
        vars(impl).update(
            attn_type="decoder", sliding_window=-1, alibi_slopes=None, sinks=None, is_fp8_kv_cache=False, head_size=64,
            num_heads=9, num_kv_heads=3, num_queries_per_kv=3, scale=0.125, logits_soft_cap=0,
        )  # fmt: skip
        return types.SimpleNamespace(impl=impl, kv_sharing_target_layer_name=None, kv_cache_torch_dtype=torch.float32)

    text = types.SimpleNamespace(rope_parameters={"rope_type": "default", "rope_theta": 100000.0})
    model = types.SimpleNamespace(dtype=torch.float32, is_mm_prefix_lm=False, max_model_len=4096, hf_text_config=text)
    made = types.SimpleNamespace(log=log, ropes=ropes, text=text, spec=types.SimpleNamespace(block_size=128, page_size_padded=None))
    made.config = types.SimpleNamespace(
        layers={f"layer.{i}": layer() for i in range(30)}, kv_transfer_config=None, model_config=model,
        cache_config=types.SimpleNamespace(mamba_cache_mode="none"),
    )  # fmt: skip
    made.choose = lambda: backend.choose_layers(made.config, list(made.config.layers), made.spec)
    made.backend = backend
    made.turn_all_but_one = lambda: setattr(text, "no_rope_layers", [i != 3 for i in range(30)])
    yield made
    for name in ("seine_vllm.backend", "seine_vllm.report"):
        sys.modules.pop(name, None)


def test_layers_are_served_together(served):
    (shape,) = served.choose()
    assert list(shape.numbers) == list(served.config.layers)
    assert served.log == ["seine: 30 layers attend through Seine, the first of them layer.0"]
    assert all(layer.impl.shape is shape for layer in served.config.layers.values())
    served.ropes["text"].is_neox_style = False
    assert len(served.choose()) == 1


def test_each_layer_has_the_rope_that_the_models_config_states(served):
    def ropes(names, **config):
        most, others = served.backend.ropes_of(types.SimpleNamespace(**config), names)
        return json.loads(most), json.loads(others) if others else []

    plain, slow = {"rope_type": "default", "rope_theta": 1e4}, {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
    names = [f"model.layers.{i}.self_attn.attn" for i in range(8)]
    assert ropes(names, rope_parameters=plain) == (plain, [])
    still = [{"layers": [3, 7], "rope": {"rope_type": "none"}}]
    assert ropes(names, rope_parameters=plain, no_rope_layers=[1, 1, 1, 0] * 2) == (plain, still)  # SmolLM3
    kinds = (["sliding_attention"] * 3 + ["full_attention"]) * 2
    of_kinds = {"rope_parameters": {"full_attention": slow, "sliding_attention": plain}, "layer_types": kinds}
    assert ropes([names[3], names[7]], **of_kinds) == (slow, [])  # Gemma 3, of which these are served
    assert ropes(names, **of_kinds) == (plain, [{"layers": [3, 7], "rope": slow}])
    with pytest.raises(ValueError, match="layers that say their number, and not vision.2.layers.3.attn"):
        ropes(["vision.2.layers.3.attn"], **of_kinds)
    with pytest.raises(ValueError, match="states the RoPE of each layer"):
        ropes(names)


def test_a_model_of_transformers_own_code_pairs_halves(served):
    del served.ropes["text"]
    assert served.choose() == []
    served.text.model_type = "smollm3"
    assert len(served.choose()) == 1


def test_codes_share_one_bound(served, monkeypatch):
    given = {}
    monkeypatch.setattr(served.backend._native, "PagedAttention", lambda **settings: given.update(settings))
    monkeypatch.setenv("SEINE_CODES_GIB", "1.5")
    served.backend.settings.of_process.cache_clear()
    for i, layer in enumerate(served.config.layers.values()):
        layer.impl.scale = 0.125 if i < 20 else 0.25  # two kinds of layers, which share a profile's numbers no more
    (_, second) = served.choose()
    second.make(100)
    assert given["codes_bytes"] == math.ceil(1.5 * 2**30 / 30) and given["num_layers"] == 10
    monkeypatch.setenv("SEINE_CODES_GIB", "1e-12")
    served.backend.settings.of_process.cache_clear()
    second.make(100)
    assert given["codes_bytes"] == 1  # 0 would be no bound


def test_metrics_grow_by_what_is_new():
    from prometheus_client import CollectorRegistry
    from seine_vllm.metrics import Metrics

    registry = CollectorRegistry()
    metrics = Metrics(registry)
    names = ("coded", "exact", "gated", "prompt_tokens", "encoded_keys", "found_windows", "decode_us", "prompt_us", "bytes")
    counts = {name: 10 * (i + 1) for i, name in enumerate(names)} | {"declined": {"a": 2, "b": 3}, "gate": {"l.1": 0.2}}
    for factor in (1, 3, 2):  # the last: a layer is gone
        metrics.show({name: factor * count if isinstance(count, int) else count for name, count in counts.items()})
    found = {(sample.name, *sample.labels.values()): sample.value for metric in registry.collect() for sample in metric.samples}
    assert found["seine_answers_total", "codes"] == 30 and found["seine_answers_total", "declined"] == 5
    assert found["seine_prompt_tokens_total",] == 120 and found["seine_attention_seconds_total", "decoding"] == pytest.approx(210e-6)
    assert found["seine_code_bytes",] == 180 and found["seine_gate_layers",] == 1


def of_two_ranks(served):
    for layer in served.config.layers.values():
        layer.impl.num_heads, layer.impl.num_kv_heads = 3, 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda served: setattr(served.config.cache_config, "mamba_cache_mode", "align"), "has blocks that vLLM copies"),
        (lambda served: setattr(served.spec, "page_size_padded", 1 << 20), "has blocks that are padded"),
        (lambda served: setattr(served.config.model_config, "is_mm_prefix_lm", True), "images without a causal mask"),
        (lambda served: served.config.layers.popitem(), "Seine cannot serve: .*29"),
        (of_two_ranks, "Seine cannot serve: .*heads"),
        (lambda served: setattr(served.text, "rope_parameters", {"full_attention": {"rope_type": "default"}}), "states the RoPE of each layer"),
        (lambda served: served.turn_all_but_one(), "Seine cannot serve: .*layer 3 turns"),
        (lambda served: setattr(served.text, "rope_parameters", {"rope_type": "of tomorrow", "rope_theta": 1e4}), "rope_type: must be"),
        (lambda served: served.ropes.pop("text"), "RoPE is known to pair"),
        (lambda served: served.ropes["vision"].__dict__.update(head_size=64), "RoPE is known to pair"),
    ],
)
def test_a_model_that_cannot_be_served_is_left_to_vllm_with_one_reason(served, change, why):
    change(served)
    assert served.choose() == [] and len(served.log) == 1
    assert re.search(rf"seine: vLLM attends by itself in (29|30) layers, such as layer.0, which .*{why}", served.log[0]), served.log
    assert all(layer.impl.shape is None for layer in served.config.layers.values())


def test_a_profile_that_is_not_there_leaves_the_model_to_vllm(served, monkeypatch):
    monkeypatch.setenv("SEINE_PROFILE", "nowhere.safetensors")
    assert served.choose() == [] and len(served.log) == 1 and "nowhere.safetensors" in served.log[0]
