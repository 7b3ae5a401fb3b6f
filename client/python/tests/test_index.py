"""seine_kv.Index and Sequence, in process and over a server: against Client's calls and numpy's attention."""

import json
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import seine_kv as seine
from seine_kv import client as client_module
from seine_kv.messages import Attention, SeineError, StepError
from seine_kv.tensor_file import read_tensors

DATA = Path(__file__).resolve().parents[3] / "bench" / "data"
PROFILE = DATA / "smollm2-135m.profile.safetensors"
LAYERS, HEADS, KV_HEADS, DIM, TOKENS = 2, 4, 2, 64, 400
SHAPE = {"num_layers": LAYERS, "num_q_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM}
ZONES = {"sink": 16, "local": 32, "update_buffer": 64, "dense_threshold": 64}
MADE_HERE = {"dtype": "float32", "zones": ZONES, "threads": 1, **SHAPE}


@pytest.fixture
def data():
    random = np.random.default_rng(11)
    shape = (LAYERS, TOKENS + 40, KV_HEADS, DIM)
    keys, values = (random.standard_normal(shape).astype(np.float32) for _ in range(2))
    return keys, values, random.standard_normal((HEADS, DIM)).astype(np.float32)


@pytest.fixture(params=["in process", "server"])
def index(request):
    """The same index, made here, and a server's that was made by its Client."""
    if request.param == "in process":
        with seine.Index(**MADE_HERE) as index:
            yield index
        return
    client = seine.connect(request.getfixturevalue("address"))
    client.wait_until_ready(20)
    client.create_index("short", dtype="float32", zones=ZONES, kv_store="keys_values", **SHAPE)
    with client.index("short") as index:
        yield index
    assert [made["spec"]["name"] for made in client.list_indexes()] == ["short"]  # a server's stays
    index.delete()


@pytest.fixture
def chat(index, data):
    return filled(index, data)


def filled(index, data):
    """A sequence of the index with TOKENS tokens in every layer."""
    chat = index.create_sequence("chat")
    for layer in range(LAYERS):
        assert chat.append(layer, data[0][layer, :TOKENS], data[1][layer, :TOKENS]) == TOKENS
    return chat


def exact(keys, values, queries, positions):
    """Attention in float64; positions: one array, of all heads."""
    rows, kept = (array[positions].astype(np.float64) for array in (keys, values))
    outputs, sums = [], []
    for head in range(HEADS):
        weights = np.exp(rows[:, head // 2] @ queries[head].astype(np.float64) / np.sqrt(DIM))
        outputs.append(weights @ kept[:, head // 2] / weights.sum())
        sums.append(np.log(weights.sum()))
    return np.stack(outputs), np.array(sums)


def test_appends_go_after_what_the_layer_holds(chat, data):
    keys, values, _ = data
    assert len(chat) == TOKENS and chat.tokens == [TOKENS, TOKENS] and chat
    assert chat.append(1, keys[1, TOKENS : TOKENS + 3], values[1, TOKENS : TOKENS + 3]) == TOKENS + 3
    assert chat.tokens == [TOKENS, TOKENS + 3] == chat.info().layer_tokens and len(chat) == TOKENS + 3
    assert chat.append(1, keys[1, 5:9], values[1, 5:9], position=5) == TOKENS + 3  # a replay
    with pytest.raises(SeineError) as caught:
        chat.append(0, keys[0, :1], values[0, :1], position=TOKENS + 1)
    assert caught.value.code == "OUT_OF_RANGE"
    assert chat.append(0, keys[0, TOKENS : TOKENS + 1], values[0, TOKENS : TOKENS + 1]) == TOKENS + 1
    with pytest.raises(SeineError) as caught:
        chat.append(9, keys[0, :1], values[0, :1])
    assert caught.value.field == "item.layer"
    with pytest.raises(ValueError, match=r"keys: must be \[tokens"):
        chat.append(0, keys[0, 0])


def test_retrieve_and_attend(chat, data):
    keys, values, queries = data
    found = chat.retrieve(1, queries, top_k=9, exact=True, with_scores=True, scope="per_q_head")
    assert found.positions.shape == (HEADS, 9) == found.scores.shape
    for head in range(HEADS):
        zone = keys[1, found.zone_begin : found.zone_end, head // 2].astype(np.float64)
        best = np.argsort(-(zone @ queries[head]), kind="stable")[:9]
        np.testing.assert_array_equal(found.set(head), np.sort(best + found.zone_begin))
    output, log_sum_exp = chat.attend(1, queries, tail=False, top_k=TOKENS)
    want, sums = exact(keys[1], values[1], queries, np.arange(TOKENS))
    np.testing.assert_allclose(output, want, atol=1e-5)
    np.testing.assert_allclose(log_sum_exp, sums, atol=1e-5)
    with pytest.raises(ValueError, match="selector: unknown setting topk; there are top_k, "):
        chat.attend(1, queries, topk=3)
    with pytest.raises(StepError) as caught:
        chat.retrieve(7, queries)
    assert caught.value.code == "INVALID_ARGUMENT" and caught.value.field.endswith("layer")


def test_a_batch_is_its_parts_and_a_step_appends_first(index, chat, data):
    keys, values, queries = data
    other = chat.fork(100)
    assert len(other) == 100 and other.id != chat.id
    batch = [(chat, queries), (other, 2 * queries)]
    answers = index.retrieve(0, batch, top_k=5)
    assert [answer.num_tokens for answer in answers] == [TOKENS, 100]
    np.testing.assert_array_equal(answers[0].positions, chat.retrieve(0, queries, top_k=5).positions)
    for (sequence, asked), (output, _) in zip(batch, index.attend(0, batch)):
        np.testing.assert_array_equal(output, sequence.attend(0, asked)[0])
    new = [(one, keys[0, at : at + 1], values[0, at : at + 1]) for one, at in ((chat, TOKENS), (other, 100), (chat, TOKENS + 1))]
    (output, _), _ = index.step(0, new, batch, Attention(tail=False), top_k=2 * TOKENS)
    want, _ = exact(keys[0], values[0], queries, np.arange(TOKENS + 2))  # two tokens of the same sequence
    np.testing.assert_allclose(output, want, atol=1e-5)
    assert chat.tokens == [TOKENS + 2, TOKENS] and other.tokens == [101, 100]
    assert index.step(1, [(chat, keys[1, TOKENS : TOKENS + 1], values[1, TOKENS : TOKENS + 1])]) == []
    with pytest.raises(StepError, match="append 0 .*layer 1") as caught:
        index.step(1, [(chat, keys[1, :1], values[1, :1, :, :32])], batch)
    assert caught.value.step.attended[1].output.shape == (HEADS, DIM)
    assert chat.tokens == [TOKENS + 2, TOKENS + 1] == chat.info().layer_tokens


def test_what_becomes_of_a_sequence(index, chat, data):
    keys, _, _ = data
    rows, values = chat.gather(0, 1, [3, 200], values=True)
    np.testing.assert_array_equal(rows, keys[0, [3, 200], 1])
    np.testing.assert_array_equal(values, data[1][0, [3, 200], 1])
    with chat.fork() as copy:
        copy.truncate(300)
        assert copy.tokens == [300, 300] and len(chat) == TOKENS
        assert copy.append(0, keys[0, 300:301], data[1][0, 300:301]) == 301
        kept = copy.evict(0, {"ratio": 0.5}, "knorm").kept
        assert [len(head) for head in kept] == [150, 150]
        np.testing.assert_array_equal(copy.score(0, "knorm")[1][0], kept[1])
        assert copy.diagnose(0, ["knorm", "keydiff"])[0]["tokens"] == 150
        assert len(index.sequences()) == 2
    assert [one.id for one in index.sequences()] == ["chat"]
    assert index.sequence("chat").tokens == [TOKENS, TOKENS]
    stats = index.stats()
    assert stats["num_sequences"] == 1 and stats["evictions"] == 1 and stats["store_bytes"] > 0 and "spec" not in stats
    chat.delete()
    with pytest.raises(SeineError) as caught:
        index.sequence("chat")
    assert caught.value.code == "NOT_FOUND"


def test_low_rank_bases(data):
    low = {"key_rank": 24, "value_rank": 33, "frame": "post_rope"}
    with seine.Index(dtype="float32", zones=ZONES, subspace=low, threads=1, **SHAPE) as index:
        with index.create_sequence() as chat:
            chat.append(0, data[0][0], data[1][0])
            keys, values, heads = chat.basis(0)
    assert keys.shape == (KV_HEADS, DIM, 24) and values.shape == (KV_HEADS, DIM, 33) and len(heads) == KV_HEADS


def test_indexes_of_a_process_share_a_client():
    with seine.Index(threads=1, **SHAPE) as one, seine.Index(threads=1, **SHAPE) as two, seine.Index(threads=2, **SHAPE) as other:
        assert one.client is two.client is not other.client and one.name != two.name
        assert other.client.server_info()["num_threads"] == 2 and "in process" in repr(one)
        with pytest.raises(SeineError) as caught:
            seine.Index(threads=1, name=one.name, **SHAPE)
        assert caught.value.code == "ALREADY_EXISTS"
    with pytest.raises(SeineError) as caught:
        seine.Index(threads=1, **{**SHAPE, "head_dim": 63})
    assert caught.value.code == "INVALID_ARGUMENT"
    with pytest.raises(TypeError, match="zone"):
        seine.Index(threads=1, zone={}, **SHAPE)


def test_a_forked_process_has_a_client_of_its_own():
    code = f"""
import multiprocessing, numpy as np, seine_kv as seine
rows = np.ones((100, {KV_HEADS}, {DIM}), np.float16)
def attended(_):
    with seine.Index(threads=2, **{SHAPE}) as index, index.create_sequence() as chat:
        chat.append(0, rows, rows)
        return float(chat.attend(0, np.ones(({HEADS}, {DIM}), np.float32))[0].mean())
assert attended(0) == 1
with multiprocessing.get_context("fork").Pool(1) as pool:
    print(pool.map_async(attended, [0]).get(30))
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert shown.stdout.strip() == "[1.0]", shown.stderr


def test_a_profile_is_a_file_or_a_name(monkeypatch, tmp_path):
    monkeypatch.delenv("SEINE_PROFILES", raising=False)
    shape = {"num_layers": 30, "num_q_heads": 9, "num_kv_heads": 3, "head_dim": 64, "threads": 1}
    with seine.Index(profile=PROFILE, **shape) as index:
        assert (index.spec["codec"]["name"], index.spec["codec"]["profile"]) == ("balanced", "smollm2-135m")
    for wrong, text in (
        ("smollm2-135m", "SEINE_PROFILES names no folder"),
        ("./smollm2-135m", "there is no file ./smollm2-135m"),
        (tmp_path / "no.profile.safetensors", "there is no file"),
    ):
        with pytest.raises(ValueError, match=f"profile: .*{text}"):
            seine.Index(profile=wrong, **shape)
    with pytest.raises(SeineError) as caught:  # a file, and no profile
        seine.Index(profile=DATA / "smollm2-135m-kjv-8k.safetensors", **shape)
    assert caught.value.code == "INVALID_ARGUMENT"
    monkeypatch.setenv("SEINE_PROFILES", str(DATA))
    with seine.Index(profile="smollm2-135m", codec={"horizon": 4096}, **shape) as index:
        assert (index.spec["codec"]["profile"], index.spec["codec"]["horizon"]) == ("smollm2-135m", 4096)
    with pytest.raises(ValueError, match="has no nobody-1.5.profile.safetensors"):
        seine.Index(profile="nobody-1.5", **shape)


def test_threads_share_an_index(index, chat, data):
    want = chat.attend(0, data[2])[0]
    failed = []

    def ask():
        own = index.sequence("chat")
        for _ in range(50):
            if not np.array_equal(own.attend(0, data[2])[0], want):
                failed.append(own)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_a_server_that_was_started_anew_is_found_again(tmp_path):
    from conftest import start

    socket = tmp_path / "seine.sock"
    client = seine.connect(str(socket))
    for _ in range(2):
        process = start(socket)
        try:
            client.wait_until_ready(20)
            client.create_index("again", dtype="float32", **SHAPE)
            chat = client.index("again").create_sequence()
            chat.append(0, np.ones((3, KV_HEADS, DIM), np.float32))
            assert chat.retrieve(0, np.ones((HEADS, DIM), np.float32)).num_tokens == 3  # over a stream that was open before
        finally:
            process.kill()
            process.wait(20)


# A profile out of arrays ------------------------------------------------------------------------------------------------


def trace():
    tensors, metadata = read_tensors(DATA / "smollm2-135m-kjv-8k.safetensors")
    layers = metadata["layers"].split(",")
    return [[tensors[f"layers.{layer}.{what}"] for layer in layers] for what in "qkv"]


def test_a_calibrated_profile_serves_the_balanced_code(tmp_path):
    """Measured on the first half of a real model's text, asked about the rest."""
    queries, keys, values = trace()
    rope = {"rope_theta": 100000.0, "rope_type": "default"}
    path, tokens = tmp_path / "kjv.profile.safetensors", 8000
    head = [q[:-192] for q in queries], [k[:tokens] for k in keys], [v[:tokens] for v in values]
    seine.calibrate(path, *head, rope=rope, model="three layers")
    shape = {"num_layers": 3, "num_q_heads": 9, "num_kv_heads": 3, "head_dim": 64, "threads": 1}
    recalls = []
    with seine.Index(profile=path, **shape) as index, index.create_sequence() as chat:
        assert index.spec["codec"]["name"] == "balanced"
        assert index.spec["geometry"]["rope"]["inv_freq"][1] == pytest.approx(100000.0 ** (-2 / 64))
        for layer in range(3):
            chat.append(layer, keys[layer], values[layer])
            for row in range(-192, 0, 48):
                asked = {"top_k": 100, "scope": "per_q_head"}
                found = chat.retrieve(layer, queries[layer][row], **asked)
                truth = chat.retrieve(layer, queries[layer][row], exact=True, **asked)
                recalls += [np.isin(found.set(head), truth.set(head)).mean() for head in range(9)]
    assert len(recalls) == 3 * 4 * 9 and np.mean(recalls) > 0.9


def test_a_calibrated_profile_states_how_each_layer_turns(tmp_path):
    rng, path = np.random.default_rng(3), tmp_path / "x.profile.safetensors"
    queries, keys = ([rng.standard_normal((400, heads, 64)).astype("float32") for _ in range(3)] for heads in (4, 2))
    part, none = {"rope_theta": 1e4, "partial_rotary_factor": 0.5}, {"rope_type": "none"}
    seine.calibrate(path, queries, keys, rope=[none, part, none])
    tensors, metadata = read_tensors(path)
    assert metadata["format"] == "seine-profile-2" and json.loads(metadata["rope"]) == part
    assert json.loads(metadata["layer_ropes"]) == [{"layers": [0, 2], "rope": none}]
    means = [tensors[f"layers.{layer}.k_mean"] for layer in range(3)]
    seen = [k[16:].mean(axis=0) for k in keys]
    for layer in (0, 2):
        np.testing.assert_allclose(means[layer], seen[layer], atol=1e-6)
    assert np.abs(means[1] - seen[1])[:, :32].max() > 0.01  # the part that turns
    np.testing.assert_allclose(means[1][:, 32:], seen[1][:, 32:], atol=1e-6)
    with seine.Index(num_layers=3, num_q_heads=4, num_kv_heads=2, head_dim=64, profile=path, threads=1) as index:
        geometry = index.spec["geometry"]
        assert geometry["rope"]["rotary_dim"] == 32 and [group["layers"] for group in geometry["layer_ropes"]] == [[0, 2]]
    stated = {"rope": {"config_json": json.dumps(part)}, "layer_ropes": [{"layers": [0, 2], "rope": {"config_json": json.dumps(none)}}]}
    shape = {"num_layers": 3, "num_q_heads": 4, "num_kv_heads": 2, "head_dim": 64, "profile": path, "threads": 1}
    with seine.Index(**shape, **stated) as index:
        assert index.spec["geometry"] == geometry
    client = seine.Index(**shape).client
    plain = {name: value for name, value in shape.items() if name not in ("profile", "threads")}
    client.create_index("turning", **plain, **stated)
    assert client.create_index("turning", exist_ok=True, **plain, **stated)["spec"]["geometry"]["layer_ropes"][0]["layers"] == [0, 2]
    stated["layer_ropes"][0]["layers"] = [0]
    with pytest.raises(SeineError, match=r"layer_ropes\[0\].layers is \[0, 2\], not \[0\]"):
        client.create_index("turning", exist_ok=True, **plain, **stated)
    with pytest.raises(SeineError, match="layer 0 turns 16 of 32 pairs of coordinates, and the profile's turns 0"):
        seine.Index(**shape, rope=stated["rope"])
    with pytest.raises(ValueError, match="rope: must be one a layer, 3 as keys has, not 2"):
        seine.calibrate(path, queries, keys, rope=[part, none])


def test_calibrate_names_what_is_wrong(tmp_path):
    queries, keys, values = ([array[:1000] for array in arrays] for arrays in trace())
    path = tmp_path / "x.profile.safetensors"
    for arguments, text in (
        ((queries[:2], keys, values), r"queries: must be one array a layer, 3 as keys has, not 2"),
        ((queries, [], values), r"keys: must be one array a layer, and there is none"),
        ((queries, [k[:, 0] for k in keys], values), r"keys\[0\]: must be \[tokens, heads, head_dim\]"),
        ((queries, keys, [v[:9] for v in values]), r"values\[0\]: must have the shape of keys"),
        (([q[:, :4] for q in queries], keys), r"queries\[0\]: .* does not go with keys"),
        ((queries, [k[:70] for k in keys]), r"keys\[0\]: must have at least 64 tokens after sink, 16, not 70"),
        ((queries, keys, values, {"rope_type": "default"}), r"rope_theta"),
        ((queries, keys, values, None, "halves"), r"rope_style: must be one of half_split, interleaved"),
        ((queries, [k * np.float16("inf") for k in keys]), r"layers.0.k_mean holds .*, which is not finite"),
    ):
        with pytest.raises(ValueError, match=text), np.errstate(invalid="ignore"):
            seine.calibrate(path, *arguments)
    assert not path.exists()
    seine.calibrate(path, queries, keys)  # without values, nor RoPE
    tensors, metadata = read_tensors(path)
    assert metadata["rope"] == "" and metadata["key_tokens"] == "984" and not any("v_mean" in name for name in tensors)


# The package ------------------------------------------------------------------------------------------------------------


def test_names_of_the_package_teach():
    assert set(seine.__all__) <= set(dir(seine))
    for name in seine.__all__:
        assert len(getattr(seine, name).__doc__) > 60, name
    with pytest.raises(AttributeError, match="no attribute 'Inbex'"):
        seine.Inbex
    code = "import seine_kv; help(seine_kv.Index); help(seine_kv)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "num_kv_heads, head_dim]" in shown and "seine.connect" in shown


def test_a_sequence_outlives_its_index_in_a_file(data, tmp_path):
    file = tmp_path / "chat.snapshot"
    with seine.Index(**MADE_HERE) as index:
        chat = filled(index, data)
        chat.fork(100, "branch")
        written = chat.snapshot(file)
        alone = chat.snapshot(tmp_path / "alone", alone=True)
        before = chat.attend(0, data[2])
        assert [info.handle.id for info in written.sequences] == ["chat", "branch"]
        assert [info.handle.id for info in alone.sequences] == ["chat"]
        assert written.bytes == file.stat().st_size
    with seine.Index(**MADE_HERE) as index:
        chat, branch = index.restore(file)
        assert len(chat) == TOKENS and len(branch) == 100
        for one, other in zip(before, chat.attend(0, data[2])):
            assert np.array_equal(one, other)
        assert index.restore(tmp_path / "alone", id="again")[0].handle.id == "again"
        with pytest.raises(SeineError) as caught:
            index.restore(file)
        assert caught.value.code == "ALREADY_EXISTS"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda whole: whole[:-1], r"cut short: \d+ of \d+ bytes"),
        (lambda whole: whole[: len(whole) // 2], r"cut short: \d+ of \d+ bytes"),
        (lambda whole: b"", "cut short, or none at all"),
        (lambda whole: whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:], r"section \d+ .* damaged"),
    ],
    ids=["a byte short", "half of it", "empty", "a bit flipped"],
)
def test_a_damaged_snapshot_is_refused_and_makes_no_sequence(data, tmp_path, damage, message):
    file = tmp_path / "chat.snapshot"
    with seine.Index(**MADE_HERE) as index:
        chat = filled(index, data)
        chat.snapshot(file)
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    with seine.Index(**MADE_HERE) as index:
        with pytest.raises(SeineError, match=message) as caught:
            index.restore(file)
        assert caught.value.code == "DATA_LOSS"
        assert "\n" not in str(caught.value)
        assert index.sequences() == []
        file.write_bytes(whole)
        assert len(index.restore(file)[0]) == TOKENS


@pytest.mark.parametrize("why", ["no CUDA device of ordinal 0: no driver", ""])
def test_it_is_warned_of_where_auto_has_not_taken_the_device(monkeypatch, why):
    class Connection:
        """Of a package with CUDA; the warning is the client's."""

        @staticmethod
        def in_process(*_):
            return Connection()

        def device_copies(self):
            return None

        def why_cpu(self):
            return why

    monkeypatch.setattr(client_module.native, "Connection", Connection)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client_module.Client.in_process()
    said = [f"the index searches on the CPU, and not by CUDA: {why}"] if why else []
    assert [str(warning.message) for warning in caught] == said
