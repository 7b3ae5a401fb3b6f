"""What callers write and what they get back: words, wrong types, errors of steps, addresses, and what is missing."""

import base64
import inspect
import os
import re
import socket
import subprocess
import sys
import typing
from pathlib import Path

import numpy as np
import pytest

import seine_kv
from seine_kv import messages
from seine_kv.address import default_address
from seine_kv.messages import Append, Attention, Item, SeineError, Sequence, StepError

from conftest import KINDS

SHAPE = {"num_layers": 1, "num_q_heads": 2, "num_kv_heads": 2, "head_dim": 64}
TOKENS = 300


@pytest.fixture
def keys():
    return np.random.default_rng(7).standard_normal((TOKENS + 1, 2, 64)).astype(np.float32)


@pytest.fixture
def chat(client, keys):
    client.create_index("words", dtype="float32", **SHAPE)
    chat = client.create_sequence("words", "chat")
    client.append(chat, 0, 0, keys[:TOKENS])
    return chat


def test_names_of_before_are_taken(client):
    older = {"beta": 0.1, "refine": 300, "rho": 0.3}
    made = client.create_index("older", retrieval=older, **SHAPE)["spec"]["retrieval"]
    names = ("candidate_fraction", "rescore_k", "collision_fraction")
    assert [made[name] for name in names] == pytest.approx(list(older.values()))
    with pytest.raises(ValueError, match="beta and candidate_fraction are one setting"):
        client.create_index("both", retrieval={"beta": 0.1, "candidate_fraction": 0.1}, **SHAPE)


# Words ------------------------------------------------------------------------------------------------------------------


def test_a_part_of_a_word_is_refused_with_the_words_that_there_are(client, chat, keys):
    for wrong, words, call in (
        ("head", "per_kv_head, per_q_head", lambda word: client.retrieve(chat, 0, keys[0], scope=word)),
        ("sum", "softmax_sum, max, mean", lambda word: client.retrieve(chat, 0, keys[0], gqa_reduce=word)),
        ("ip", "sign_ip, collision", lambda word: client.create_index("x", retrieval={"coarse": word}, **SHAPE)),
        ("values", "none, keys, keys_values", lambda word: client.create_index("x", kv_store=word, **SHAPE)),
        ("split", "half_split, interleaved", lambda word: client.create_index("x", rope={"style": word}, **SHAPE)),
        ("rope", "post_rope, pre_rope", lambda word: client.create_index("x", subspace={"frame": word}, **SHAPE)),
        ("mean ", "unit_mean, mean, median, pairwise", lambda word: client.score(chat, 0, {"name": "keydiff", "anchor": word})),
        ("uni", "uniform, adaptive, pyramid", lambda word: client.evict(chat, 0, {"tokens": 9, "heads": word})),
        ("float", "float32, float16, bfloat16", lambda word: client.create_index("x", dtype=word, **SHAPE)),
        (3, "per_kv_head, per_q_head", lambda word: client.retrieve(chat, 0, keys[0], scope=word)),
    ):
        with pytest.raises(ValueError) as caught:
            call(wrong)
        assert words in str(caught.value) and repr(wrong) in str(caught.value)
    assert [index["spec"]["name"] for index in client.list_indexes()] == ["words"]


def test_what_comes_back_is_what_was_put_in(client):
    settings = {
        "rope": {"style": "interleaved", "inv_freq": [1.0 / (i + 1) for i in range(32)]},
        "zones": {"sink": 16, "local": 64, "update_buffer": 64, "dense_threshold": 128},
        "codec": {"name": "rsq", "centre": "window", "centre_window": 64},
        "retrieval": {"coarse": "sign_ip", "scope": "per_q_head", "gqa_reduce": "softmax_sum", "top_k": 7},
        "eviction": {
            "scorer": {"name": "keydiff", "anchor": "median", "similarity": "dot"},
            "budget": {"tokens": 500, "heads": "adaptive"},
            "keep": {"sinks": 4},
        },
        "subspace": {"key_rank": 20, "value_rank": 30, "frame": "pre_rope"},
    }
    spec = client.create_index("in", dtype="bfloat16", kv_store="keys_values", **settings, **SHAPE)["spec"]
    assert spec["geometry"]["dtype"] == "bfloat16" and spec["kv_store"] == "keys_values"
    assert_holds(spec["geometry"]["rope"], settings.pop("rope"))
    for group, values in settings.items():
        assert_holds(spec[group], values)
    # And once more: a specification makes another index.
    geometry = spec.pop("geometry")
    copy = client.create_index(**{**spec, "name": "out"}, **geometry)["spec"]
    assert {**copy, "name": "in"} == {**spec, "geometry": geometry}
    assert client.get_index("out")["spec"] == copy


def assert_holds(have, wanted):
    for name, want in wanted.items():
        if isinstance(want, dict):
            assert_holds(have[name], want)
        else:
            assert have[name] == want, name


def test_other_names_of_words_and_dtypes(client):
    for i, (dtype, word) in enumerate(((np.float32, "float32"), (np.dtype("<f2"), "float16"), ("bf16", "bfloat16"), ("fp32", "float32"))):
        spec = client.create_index(f"i{i}", dtype=dtype, retrieval={"scope": "q_head"}, **SHAPE)["spec"]
        assert spec["geometry"]["dtype"] == word and spec["retrieval"]["scope"] == "per_q_head"


def test_errors_speak_of_dtypes_in_the_same_words(client, chat, keys):
    with pytest.raises(SeineError, match="float32.* got float16") as caught:
        client.append(chat, 0, TOKENS, keys[TOKENS:].astype(np.float16))
    assert "D_TYPE" not in str(caught.value) and caught.value.field == "item.keys.dtype"


def test_what_is_absent_is_none(client, chat):
    spec = client.get_index("words")["spec"]
    assert spec["eviction"] is None and spec["subspace"] is None and spec["geometry"]["rope"] is None
    head = client.describe_head(chat, 0, 0)
    assert head["predicted_loss"] is None and head["lambda"] is None and head["num_tokens"] == TOKENS


def test_an_index_that_is_there_already(client, chat):
    """A script that is run twice: the same index serves; one that does not fit is told apart, field by field."""
    have = client.get_index("words")
    again = client.create_index("words", dtype="fp32", retrieval={"top_k": 100}, exist_ok=True, **SHAPE)
    assert again == have and again["num_sequences"] == 1
    with pytest.raises(SeineError) as caught:
        client.create_index("words", dtype="float32", **SHAPE)
    assert caught.value.code == "ALREADY_EXISTS"
    rope = {"config_json": '{"rope_theta": 10000.0, "rope_type": "default"}', "style": "interleaved"}
    for other, wrong in (
        ({"dtype": "float16"}, "geometry.dtype is float32, not float16"),
        ({"retrieval": {"top_k": 7, "scope": "per_q_head"}}, "retrieval.top_k is 100, not 7; retrieval.scope is per_kv_head"),
        ({"kv_store": "keys_values"}, "kv_store is keys, not keys_values"),
        ({"eviction": {"budget": 50}}, "eviction is None, not "),
    ):
        with pytest.raises(SeineError) as caught:
            client.create_index("words", exist_ok=True, **{"dtype": "float32", **SHAPE, **other})
        assert caught.value.code == "ALREADY_EXISTS" and wrong in str(caught.value) and caught.value.field == "name"
    with pytest.raises(SeineError) as caught:  # another mistake is itself
        client.create_index("words", zones={"sink": -1}, exist_ok=True, **SHAPE)
    assert caught.value.code == "INVALID_ARGUMENT"
    for _ in range(2):
        client.create_index("turned", rope=rope, eviction={"budget": 500}, exist_ok=True, **SHAPE)
    with pytest.raises(SeineError, match="eviction is stated, and now is not"):
        client.create_index("turned", exist_ok=True, **SHAPE)


def test_the_same_settings_written_otherwise_fit(client):
    """numpy's numbers, short forms, other names, and what float32 rounds."""
    table = np.array([1.0 / (i + 1) for i in range(32)])
    for settings in (
        {"retrieval": {"softmax_scale": 0.1, "scope": "q_head"}, "dtype": np.float32},
        {"rope": {"inv_freq": table, "style": "half_split"}, "zones": {"sink": np.int32(16)}},
        {"eviction": {"scorer": "knorm", "budget": np.int64(500)}, "codec": {"name": "rsq", "seed": None}},
    ):
        first, again = (client.create_index("twice", exist_ok=True, **settings, **SHAPE) for _ in range(2))
        assert first == again
        client.delete_index("twice")


# Wrong types --------------------------------------------------------------------------------------------------------------


def test_a_wrong_type_is_a_type_error_that_names_the_argument(client, chat, keys):
    one = keys[:1]
    with client.decode_stream() as stream:
        for message, call in (
            (r"sequence: .* not 'chat'", lambda: client.append("chat", 0, 0, one)),
            (r"sequence: .* not 'chat'", lambda: client.retrieve("chat", 0, keys[0])),
            (r"sequence: .* not 'chat'", lambda: stream.step([Append("chat", 0, 0, one)])),
            (r"sequence: .* SequenceInfo; its \.handle", lambda: client.append(client.list_sequences("words")[0], 0, 0, one)),
            (r"layer: must be an int, not '0'", lambda: client.append(chat, "0", 0, one)),
            (r"position: must be an int, not 1.5", lambda: client.append(chat, 0, 1.5, one)),
            (r"index: must be its name", lambda: client.create_sequence(client.get_index("words"))),
            (r"zones\.sink: 'many'", lambda: client.create_index("x", zones={"sink": "many"}, **SHAPE)),
            (r"zones: must be a dict", lambda: client.create_index("x", zones=16, **SHAPE)),
            (r"head_dim: must be an int", lambda: client.create_index("x", **{**SHAPE, "head_dim": "64"})),
            (r"mass_p: must be \(p, floor, cap\).* not 0.9", lambda: client.retrieve(chat, 0, keys[0], mass_p=0.9)),
            (r"budget: must be tokens a head.* not 0.25", lambda: client.evict(chat, 0, 0.25)),
            (r"keep\.positions: must be positions", lambda: client.evict(chat, 0, 9, keep={"positions": [1.5]})),
        ):
            with pytest.raises(TypeError, match=message):
                call()
        assert stream.step(items=[Item(chat, 0, keys[0])]).answers[0].num_tokens == TOKENS  # none of it left
    assert client.get_sequence(chat).layer_tokens == [TOKENS]
    for message, call in (
        (r"keys: must be \[tokens, num_kv_heads, head_dim\], not \[2, 64\]", lambda: client.append(chat, 0, TOKENS, keys[0])),
        (r"budget: tokens and ratio exclude", lambda: client.evict(chat, 0, {"tokens": 9, "ratio": 0.5})),
        (r"zones: unknown setting sinks; there are sink, local", lambda: client.create_index("x", zones={"sinks": 1}, **SHAPE)),
        (r"selector: unknown setting topk; there are top_k,", lambda: client.retrieve(chat, 0, keys[0], topk=3)),
        (r"scope: must be one of per_kv_head, per_q_head", lambda: client.retrieve(chat, 0, keys[0], scope="head")),
        (r"on_error: must be one of raise, return", lambda: client.decode_stream().step(on_error="ignore")),
    ):
        with pytest.raises(ValueError, match=message):
            call()


# Steps --------------------------------------------------------------------------------------------------------------------


def test_a_step_raises_what_failed_and_the_stream_goes_on(client, chat, keys):
    good, gap = Append(chat, 0, TOKENS, keys[TOKENS:]), Append(chat, 0, TOKENS + 9, keys[TOKENS:])
    item, wrong = Item(chat, 0, keys[0]), Item(chat, 3, keys[0])
    with client.decode_stream() as stream:
        with pytest.raises(StepError, match=r"append 1 \(words/chat, layer 0\): .*1 more failed") as caught:
            stream.step([good, gap], [item, wrong])
        assert caught.value.code == "OUT_OF_RANGE" and isinstance(caught.value, SeineError)
        step = caught.value.step  # what did not fail has been done
        assert step.append_errors[0] is None and step.answers[0].num_tokens == TOKENS + 1 and step.answers[1].error is not None
        with pytest.raises(StepError, match=r"item 0 \(words/chat, layer 3\)") as caught:
            stream.step(items=[wrong])
        assert caught.value.code == "INVALID_ARGUMENT" and caught.value.field.endswith("layer")
        with pytest.raises(StepError, match="the step: .*top_k") as caught:
            stream.step(items=[item], top_k=-1)
        returned = stream.step([good, gap], [item, wrong], on_error="return")
        assert [error and error.code for error in returned.append_errors] == [None, "OUT_OF_RANGE"]
        assert stream.step(items=[item]).answers[0].num_tokens == TOKENS + 1


# Answers ------------------------------------------------------------------------------------------------------------------


def test_visible_is_what_attention_attends(client, keys):
    """Against Attend's own output over the same answer, in numpy: dense, searched, and after an eviction, in both scopes."""
    shape = {**SHAPE, "num_q_heads": 4}
    zones = {"sink": 16, "local": 32, "update_buffer": 64, "dense_threshold": 64}
    client.create_index("visible", dtype="float32", kv_store="keys_values", zones=zones, **shape)
    sequence, queries = client.create_sequence("visible"), np.random.default_rng(9).standard_normal((4, 64)).astype(np.float32)
    tokens = 0
    for append, path in ((40, "dense"), (200, "index"), (-150, "index"), (-40, "dense")):
        if append > 0:
            client.append(sequence, 0, tokens, keys[tokens : tokens + append], keys[tokens : tokens + append])
            tokens += append
        else:
            client.evict(sequence, 0, -append, "knorm")
        for scope, group in (("per_q_head", 1), ("per_kv_head", 2)):
            attended = client.attend(sequence, 0, queries, Attention(tail=False, with_positions=True), top_k=5, scope=scope, candidate_fraction=0.05)
            assert attended.path == path
            for head in range(4):
                rows = keys[attended.selected.visible(head // group), head // 2].astype(np.float64)
                weights = np.exp(rows @ queries[head] / 8)
                np.testing.assert_allclose(attended.output[head], weights @ rows / weights.sum(), atol=1e-5)


# Eviction -----------------------------------------------------------------------------------------------------------------


def test_named_positions_are_kept(client, chat, keys):
    norms = np.linalg.norm(keys[:TOKENS].astype(np.float64), axis=2)
    worst = np.argsort(norms[:, 0])[-3:]  # knorm would let these go first
    kept = client.evict(chat, 0, 50, "knorm", {"positions": list(worst[::-1]) + [worst[0]]}, dry_run=True).kept
    for head in range(2):
        best = [position for position in np.argsort(norms[:, head]) if position not in worst][: 50 - len(worst)]
        np.testing.assert_array_equal(kept[head], np.sort([*best, *worst]))
    np.testing.assert_array_equal(client.evict(chat, 0, 50, "knorm", {"positions": worst}).kept[0], kept[0])


def test_diagnose_needs_no_queries_and_takes_a_budget(client, chat, keys):
    rows = keys[:TOKENS].astype(np.float64)
    scores = (-np.linalg.norm(rows, axis=2), np.linalg.norm(rows - rows.mean(axis=0), axis=2))
    for budget, kept in ((None, TOKENS // 4), (40, 40), ({"ratio": 0.5}, TOKENS // 2)):
        heads = client.diagnose(chat, 0, scorers=("knorm", "manifoldkv"), budget=budget)
        for head in range(2):
            sets = [set(np.argsort(-score[:, head])[:kept]) for score in scores]
            assert heads[head]["overlap"][0, 1] == pytest.approx(len(sets[0] & sets[1]) / kept)
            assert heads[head]["attention_correlation"] is None and heads[head]["tokens"] == TOKENS
            assert heads[head]["norm_mean"] == pytest.approx(np.linalg.norm(rows[:, head], axis=1).mean(), rel=1e-5)


# Addresses ----------------------------------------------------------------------------------------------------------------


def test_seine_server_and_bare_paths(address, connect, monkeypatch):
    path = address[len("unix://") :]
    for spelling in (address, f"unix:{path}", path, os.path.relpath(path)):
        monkeypatch.delenv("SEINE_SERVER", raising=False)
        with connect(spelling) as client:
            assert client.server_info()["version"]
        monkeypatch.setenv("SEINE_SERVER", spelling)
        assert default_address() == address
        with connect() as client:
            assert client.server_info()["version"]
    monkeypatch.setenv("SEINE_SERVER", "localhost:50051")
    assert default_address() == "localhost:50051"
    for wrong in ("localhost", "localhost:port", "localhost:0", ":1", "unix:", "http://localhost:1", "/tmp/" + 110 * "x"):
        with pytest.raises(ValueError, match="address: "):
            connect(wrong)
        monkeypatch.setenv("SEINE_SERVER", wrong)
        with pytest.raises(ValueError, match="SEINE_SERVER: "):
            connect()


def test_a_server_that_is_not_there_is_one_line(connect, tmp_path):
    closed = tmp_path / "closed.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(closed))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = f"127.0.0.1:{listener.getsockname()[1]}"
    for address, why in (
        (str(tmp_path / "no.sock"), "there is no such socket"),
        (str(closed), "the connection was refused"),
        (port, "the connection was refused"),
    ):
        with connect(address) as client:
            stream = client.decode_stream()
            for call in (client.server_info, stream.step, lambda: client.wait_until_ready(0.1)):
                with pytest.raises(SeineError) as caught:
                    call()
                text = str(caught.value)
                assert caught.value.code == "UNAVAILABLE" and text.startswith(f"no server at {client.address} (")
                assert "seined" in text and "SEINE_SERVER" in text and "\n" not in text and len(text) < 250
                assert why in text or call.__name__ == "<lambda>"
                assert caught.value.__suppress_context__ and caught.value.__cause__ is None  # no traceback of gRPC's


def test_a_server_that_goes_away_is_one_line(connect, private_server):
    process, address = private_server
    with connect(address) as client:
        client.wait_until_ready(20)
        stream = client.decode_stream()
        stream.step()
        process.kill()
        process.wait(20)
        with pytest.raises(SeineError) as caught:
            stream.step()
        assert caught.value.code == "UNAVAILABLE" and address in str(caught.value)


# The package --------------------------------------------------------------------------------------------------------------


def test_version_and_types(client):
    assert client.server_info()["version"] == seine_kv.__version__  # of one tree
    assert (Path(seine_kv.__file__).parent / "py.typed").is_file()
    stream = type(client.decode_stream())
    public = [type(client), stream, *(one for one in vars(messages).values() if inspect.isclass(one) and one.__module__ == messages.__name__)]
    functions = [default_address]
    for one in public:
        own = [f for _, f in inspect.getmembers(one, lambda f: inspect.isfunction(f) or inspect.ismethod(f))]
        own = [f for f in own if f.__module__.startswith("seine_kv")]
        functions += [f for f in own if not f.__name__.startswith("_") or f.__name__ == "__init__"]
    assert {type(client).append, stream.step, type(client).evict, type(client).call} <= set(functions)
    for function in functions:
        signature = inspect.signature(function)
        named = [p for name, p in signature.parameters.items() if name != "self"]
        bare = [p.name for p in named if p.annotation is p.empty]
        assert not bare and ("return" in function.__annotations__), f"{function.__qualname__}: {bare}"
        assert inspect.getdoc(function) or function.__name__ == "__init__", function.__qualname__
    for one in (one for one in public if hasattr(one, "__dataclass_fields__")):
        assert typing.get_type_hints(one)


def test_importing_the_package_costs_nothing():
    code = "import sys; before = set(sys.modules); import seine_kv; print(*sorted(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "grpc", "torch", "seine_kv._native"} & set(run.stdout.split()), run.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_each_client_needs_its_own_carrier_alone(kind):
    module, other = ("grpc", "_native") if kind == "grpc" else ("client", "grpc")
    missing = ["seine_kv._native"] if kind == "grpc" else ["grpc", "google.protobuf", "seine.v1"]
    code = f"import sys; sys.modules.update(dict.fromkeys({missing!r}))\nimport seine_kv.{module}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_native_module_says_what_to_do():
    code = "import sys; sys.modules['seine_kv._native'] = None\nimport seine_kv.client"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = run.stderr.strip().splitlines()[-1]
    assert run.returncode == 1 and last.startswith("ImportError: seine_kv's native module cannot be loaded"), run.stderr
    assert "from seine_kv.grpc import Client" in last


def test_hf_without_torch_says_what_to_install():
    for missing in ("torch", "transformers"):
        code = f"import sys; sys.modules[{missing!r}] = None\nfrom seine_kv import hf"
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        last = run.stderr.strip().splitlines()[-1]
        assert run.returncode == 1 and last.startswith("ImportError: seine_kv.hf needs"), run.stderr
        assert "pip install torch" in last and len(run.stderr.splitlines()) < 12


def test_a_sequence_can_be_named(client, chat):
    assert client.get_sequence(Sequence("words", "chat")).layer_tokens == [TOKENS]


