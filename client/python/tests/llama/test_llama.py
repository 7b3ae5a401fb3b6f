"""Tests of seine_kv.llama's parts that need no plug-in: GGUF headers, and what is added to commands.

wheel_llama_test.py runs the whole in llama.cpps of PyPI."""

import json
import struct

import pytest

from seine_kv import llama
from seine_kv.llama import __main__ as program, gguf
from wheel_llama_test import gguf_string, write_model

KINDS = {int: (5, "<i"), float: (6, "<f"), bool: (7, "<?")}


def value_of(value):
    if isinstance(value, str):
        return struct.pack("<I", 8) + gguf_string(value)
    if isinstance(value, list) and value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(gguf_string, value))
    if isinstance(value, list):
        kind, form = KINDS[type(value[0])]
        return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(struct.pack(form, v) for v in value)
    kind, form = KINDS[type(value)]
    return struct.pack("<I", kind) + struct.pack(form, value)


def written(path, version=3, **values):
    """A GGUF without tensors; `__` stands for a dot."""
    header = struct.pack("<4sIQQ", b"GGUF", version, 0, len(values))
    path.write_bytes(header + b"".join(gguf_string(k.replace("__", ".")) + value_of(v) for k, v in values.items()))
    return path


def shapes(model):
    return [(h.layers, h.num_q_heads, h.num_kv_heads, h.head_dim, h.value_head_dim) for h in model.attending]


def test_a_models_layers_are_read_off_its_header(tmp_path):
    tiny = tmp_path / "tiny.gguf"
    write_model(tiny)
    assert shapes(gguf.describe(tiny)) == [(2, 4, 2, 64, 64)] and gguf.describe(tiny).context == 4096

    common = {"general__architecture": "x", "x__block_count": 6, "x__embedding_length": 1024, "x__attention__head_count": 8}
    hybrid = written(tmp_path / "a.gguf", **common, x__attention__head_count_kv=[0, 2, 0, 2, 0, 2])
    assert shapes(gguf.describe(hybrid)) == [(3, 8, 2, 128, 128)]
    interval = written(tmp_path / "b.gguf", **common, x__full_attention_interval=3)
    assert shapes(gguf.describe(interval)) == [(2, 8, 8, 128, 128)]
    slides = [True, True, False] * 2
    two = written(
        tmp_path / "c.gguf", **common, x__attention__sliding_window_pattern=slides, x__attention__key_length=512,
        x__attention__value_length=512, x__attention__key_length_swa=256, x__attention__value_length_swa=256,
        tokenizer__ggml__tokens=["a", "b"],
    )  # fmt: skip
    assert shapes(gguf.describe(two)) == [(4, 8, 8, 256, 256), (2, 8, 8, 512, 512)]
    latent = written(tmp_path / "d.gguf", **common, x__attention__key_length=576, x__attention__value_length=512)
    assert shapes(gguf.describe(latent)) == [(6, 8, 8, 576, 512)]
    reasons = {"x__attention__max_alibi_bias": 8.0, "x__attention__causal": False, "x__attention__head_count": 0}
    for (key, value), reason in zip(reasons.items(), ("ALiBi", "it keeps no keys and values", "none of its layers attends")):
        assert gguf.describe(written(tmp_path / "e.gguf", **common | {key: value})).whole_reason == reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no GGUF"),
        (b"GGUF" + struct.pack("<I", 9), "version 9"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 5), "in the middle"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 40), "longer than any"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + gguf_string("k") + struct.pack("<I", 77), "kind 77"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "no language model"),
    ],
)
def test_what_is_no_model_is_named(tmp_path, data, reason):
    file = tmp_path / "wrong.gguf"
    file.write_bytes(data)
    with pytest.raises(gguf.GgufError, match=reason):
        gguf.describe(file)


@pytest.mark.parametrize(
    ("command", "environment", "added"),
    [
        ("llama-server -m m.gguf", {}, "-fa on -ot zzz=CPU"),
        ("/opt/bin/llama-cli -fa off", {}, "-ot zzz=CPU"),
        ("llama-server --flash-attn=on --override-tensor exps=CPU", {}, ""),
        ("llama-server", {"LLAMA_ARG_FLASH_ATTN": "on", "LLAMA_ARG_OVERRIDE_TENSOR": "a=CPU"}, ""),
        ("llama-bench -m m.gguf", {}, "-fa 1"),
        ("llama-bench -fa 0,1", {}, ""),
        ("llama-cpp-server -m m.gguf", {}, "-- -fa on -ot zzz=CPU"),
        ("llama-cpp-server -m m.gguf -- -np 2", {}, "-fa on -ot zzz=CPU"),
        ("llama-quantize a.gguf b.gguf q8_0", {}, ""),
        ("python3 chat.py", {}, ""),
    ],
)
def test_only_what_nobody_said_is_added(command, environment, added):
    assert program.missing_options(command.split(), environment) == added.split()


def run_program(tmp_path, monkeypatch, script, *command):
    """What a program gets that is started so: what it prints of itself, and what it is asked beforehand."""
    stub = tmp_path / "llama-server"
    stub.write_text("#!/bin/sh\n" + script)
    stub.chmod(0o755)
    plugin = tmp_path / llama.LIBRARY
    plugin.touch()
    monkeypatch.setattr(llama, "path", lambda: plugin)
    started = []
    monkeypatch.setattr(program.os, "execvpe", lambda file, words, environment: started.append((words, environment)))
    program.run([str(stub), *command])
    return started[0]


def test_a_program_that_takes_the_plug_in_runs_with_it(tmp_path, monkeypatch, capsys):
    loads = 'test -n "$GGML_BACKEND_PATH" && echo "  Seine: attention (0 MiB)"; echo "seine: ggml 9.8.7, interface 3: x" >&2'
    words, environment = run_program(tmp_path, monkeypatch, loads, "-m", "m.gguf")
    assert words[1:] == ["-m", "m.gguf", "-fa", "on", "-ot", "zzz=CPU"]
    assert environment["GGML_BACKEND_PATH"] == str(tmp_path / llama.LIBRARY)
    assert capsys.readouterr().err == f"seine: added GGML_BACKEND_PATH={tmp_path / llama.LIBRARY} -fa on -ot zzz=CPU\n"
    assert program.ask_program(str(tmp_path / "llama-server")) | {"program": ""} == {
        "program": "", "loads": True, "why": "", "ggml": "9.8.7", "interface": 3,
    }  # fmt: skip
    run_program(tmp_path, monkeypatch, loads, "-fa", "auto")
    assert "flash attention is not turned on, by the command's own word" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo none", "it loads no plug-ins"),
        ("echo 'seine: /x/libggml.so does not take the plug-in: it has version 9' >&2", "it has version 9"),
        ("echo 'load_backend: failed to load /x: undefined symbol' >&2", "undefined symbol"),
        ("exit 3", "ended with 3"),
    ],
)
def test_a_program_that_does_not_take_it_runs_without(tmp_path, monkeypatch, capsys, script, reason):
    words, environment = run_program(tmp_path, monkeypatch, script, "-m", "m.gguf")
    assert words[1:] == ["-m", "m.gguf"] and "GGML_BACKEND_PATH" not in environment
    said = capsys.readouterr().err
    assert "runs without the plug-in" in said and reason in said and said.count("\n") == 1


def test_a_plug_in_of_the_users_own_stays(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GGML_BACKEND_PATH", "/opt/libggml-other.so")
    _, environment = run_program(tmp_path, monkeypatch, "echo none")
    assert environment["GGML_BACKEND_PATH"] == "/opt/libggml-other.so"
    assert "which stays: Seine is not loaded" in capsys.readouterr().err


def test_check_says_what_of_a_model_is_answered(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(llama, "path", lambda: tmp_path / llama.LIBRARY)
    monkeypatch.setattr(llama, "about", lambda: {"version": "1", "interfaces": [2, 3], "min_kv": 2048})
    monkeypatch.setattr(llama, "unfit", lambda *shape: None if shape == (64, 64, 4, 2) else "too wide")
    good, wide = tmp_path / "good.gguf", tmp_path / "wide.gguf"
    write_model(good)
    written(wide, general__architecture="x", x__block_count=3, x__embedding_length=80, x__attention__head_count=2)
    assert program.main(["--check", str(good)]) == 0
    assert "2 layers of 4 query heads, 2 KV heads, head_dim 64: answered from 2,048 cells on" in capsys.readouterr().out
    assert program.main(["--check", str(good), str(wide), "-o", "json"]) == 1
    first, second = json.loads(capsys.readouterr().out)["models"]
    assert first["answered_layers"] == 2 and second["answered_layers"] == 0
    assert second["attending"][0] | {"why": ""} == {
        "layers": 3, "num_q_heads": 2, "num_kv_heads": 2, "head_dim": 40, "value_head_dim": 40, "answered": False, "why": "",
    }  # fmt: skip


def test_wrong_commands_are_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(llama, "path", lambda: tmp_path / llama.LIBRARY)
    monkeypatch.setattr(llama, "about", lambda: {"version": "1", "interfaces": [2, 3], "min_kv": 2048})
    for arguments in ([], ["--path", "--", "llama-server"], ["--check", "--path"]):
        with pytest.raises(SystemExit) as ended:
            program.main(arguments)
        assert ended.value.code == 2 and "give one of" in capsys.readouterr().err
    assert program.main(["--", "no-such-server"]) == 2
    assert capsys.readouterr().err == "seine_kv.llama: no-such-server: there is no such program\n"
    monkeypatch.undo()
    monkeypatch.setattr(llama, "LIBRARY", "libabsent.so")
    assert program.main(["--path"]) == 2
    assert "this installation of seine-kv has no plug-in" in capsys.readouterr().err
