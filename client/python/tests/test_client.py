"""Clients over a real server and in process: the committed trace of a real model, and random data compared with numpy.

What is true of a server alone, which may hang or be missing, is asked of the two that call one.
"""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import seine_kv.address
import seine_kv.grpc
from seine_kv.address import default_address
from seine_kv.messages import Append, Attention, Item, SeineError

from conftest import read_plainly, start

TRACE = Path(__file__).resolve().parents[3] / "bench" / "data" / "smollm2-135m-kjv-8k.safetensors"
ZONES = {"sink": 16, "local": 64, "update_buffer": 64, "dense_threshold": 128}
HEADS, KV_HEADS, DIM, TOKENS = 4, 2, 64, 600


@pytest.fixture
def model():
    random = np.random.default_rng(3)
    return {
        "keys": random.standard_normal((TOKENS + 20, KV_HEADS, DIM)).astype(np.float32),
        "values": random.standard_normal((TOKENS + 20, KV_HEADS, DIM)).astype(np.float32),
        "queries": random.standard_normal((HEADS, DIM)).astype(np.float32),
    }


@pytest.fixture
def sequence(client, model):
    client.create_index(
        "m",
        num_layers=1,
        num_q_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        dtype="float32",
        zones=ZONES,
        retrieval={"scope": "per_q_head"},
        kv_store="keys_values",
    )
    sequence = client.create_sequence("m", "s")
    assert client.append(sequence, 0, 0, model["keys"][:TOKENS], model["values"][:TOKENS]) == TOKENS
    return sequence


def exact_top_k(keys, query, k, begin, end):
    scores = keys[begin:end].astype(np.float64) @ query.astype(np.float64)
    return np.sort(begin + np.argsort(-scores, kind="stable")[:k])


def test_recall_on_a_real_model(client):
    """The last tokens of the committed trace, decoded as an engine would: answers against exact attention."""
    tensors, metadata = read_plainly(TRACE)
    layers = [int(layer) for layer in metadata["layers"].split(",")]
    keys = [tensors[f"layers.{layer}.k"] for layer in layers]
    queries = [tensors[f"layers.{layer}.q"] for layer in layers]
    tokens, kv_heads, dim = keys[0].shape
    q_heads, steps = queries[0].shape[1], 8
    client.create_index(
        "trace",
        num_layers=len(layers),
        num_q_heads=q_heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        zones={"sink": 16, "local": 512, "update_buffer": 64, "dense_threshold": 1024},
        codec={"centre": "window", "centre_window": 64},
        retrieval={"beta": 0.10, "refine": 200, "coarse": "sign_ip", "scope": "per_q_head"},
        kv_store="keys",
    )
    sequence = client.create_sequence("trace")
    for layer, array in enumerate(keys):
        assert client.append(sequence, layer, 0, array[: tokens - steps]) == tokens - steps
    recalls = []
    with client.decode_stream() as stream:
        for position in range(tokens - steps, tokens):
            for layer in range(len(layers)):
                query = queries[layer][position - tokens]
                append = Append(sequence, layer, position, keys[layer][position : position + 1])
                step = stream.step([append], [Item(sequence, layer, query)], top_k=100)
                assert step.error is None and step.append_errors == [None]
                answer = step.answers[0]
                assert answer.path == "index" and answer.num_tokens == position + 1
                for head in range(q_heads):
                    head_keys = keys[layer][:, head // (q_heads // kv_heads)]
                    truth = exact_top_k(head_keys, query[head], 100, answer.zone_begin, answer.zone_end)
                    recalls.append(np.isin(answer.set(head), truth).mean())
    assert len(recalls) == steps * len(layers) * q_heads
    assert np.mean(recalls) >= 0.95


def test_retrieve_and_gather(client, sequence, model):
    answer = client.retrieve(sequence, 0, model["queries"], top_k=20, exact=True, with_scores=True)
    assert answer.path == "exact" and answer.positions.shape == (HEADS, 20) == answer.scores.shape
    for head in range(HEADS):
        keys = model["keys"][:, head // 2]
        expected = exact_top_k(keys, model["queries"][head], 20, answer.zone_begin, answer.zone_end)
        np.testing.assert_array_equal(answer.set(head), expected)
        np.testing.assert_allclose(answer.scores[head], keys[expected] @ model["queries"][head] / 8, rtol=1e-4)
    positions = answer.set(1)
    keys, values = client.gather(sequence, 0, 1, positions, values=True)
    np.testing.assert_array_equal(keys, model["keys"][positions, 1])
    np.testing.assert_array_equal(values, model["values"][positions, 1])
    share = client.retrieve(sequence, 0, model["queries"], mass_p=(0.5, 3, 50))
    assert all(3 <= count <= 50 for count in share.counts)
    # A set that falls short was ended by the cap, and the answer says so.
    assert share.masses.shape == (HEADS,) and share.capped == bool((share.masses < 0.5).any())
    tight = client.retrieve(sequence, 0, model["queries"], mass_p=(0.99, 1, 2))
    assert tight.capped and (tight.counts == 2).all() and (tight.masses < 0.99).all()
    assert answer.masses is None and not answer.capped
    # Queries of another dtype, and answers for KV heads.
    halves = client.retrieve(sequence, 0, model["queries"].astype(np.float16), top_k=20, exact=True, scope="per_kv_head")
    assert halves.positions.shape == (KV_HEADS, 20)


def test_sequences_that_no_message_holds_are_all_listed(tmp_path, connect):
    process = start(tmp_path / "seine.sock", "--max-message", "64KiB")
    try:
        with connect(f"unix://{tmp_path / 'seine.sock'}") as client:
            client.wait_until_ready(20)
            client.create_index("pages", num_layers=1, num_q_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM)
            ids = [f"{i}{'x' * 120}" for i in range(1000, 1600)]
            for id in ids:
                client.create_sequence("pages", id)
            assert [info.handle.id for info in client.list_sequences("pages")] == ids
    finally:
        process.kill()
        process.wait(timeout=20)


def test_sequences(client, sequence, model):
    assert client.get_sequence(sequence).layer_tokens == [TOKENS]
    copy = client.fork(sequence, "copy", position=300)
    assert client.get_sequence(copy).layer_tokens == [300]
    assert client.truncate(copy, 200).layer_tokens == [200]
    assert {info.handle.id for info in client.list_sequences("m")} == {"s", "copy"}
    client.delete_sequence(copy)
    assert len(client.list_sequences("m")) == 1
    assert client.append(sequence, 0, 500, model["keys"][500:620], model["values"][500:620]) == 120  # a replay that runs on
    assert client.get_sequence(sequence).layer_tokens == [620]
    assert client.describe_head(sequence, 0, 1)["num_tokens"] == 620


def test_compare_exact_tells_each_head(client, sequence, model):
    with pytest.raises(SeineError) as error:
        client.compare_exact("m")
    assert (error.value.code, error.value.field) == ("FAILED_PRECONDITION", "sequence")  # nobody has asked yet
    client.retrieve(sequence, 0, model["queries"])
    told = client.compare_exact("m", "s", samples=5, layers=[0], top_k=10, scope="per_q_head")
    assert (told["compared"], told["dropped"]) == (1, 0)
    assert [(head["layer"], head["kv_head"]) for head in told["heads"]] == [(0, 0), (0, 1)]
    assert all(0 <= head["least_recall"] <= head["recall"] <= 1 for head in told["heads"])
    with pytest.raises(SeineError, match="selector.exact"):
        client.compare_exact("m", exact=True)


def test_decode_stream_keeps_errors_apart(client, sequence, model):
    with client.decode_stream() as stream:
        good = Append(sequence, 0, TOKENS, model["keys"][TOKENS : TOKENS + 1], model["values"][TOKENS : TOKENS + 1])
        gap = Append(sequence, 0, TOKENS + 9, good.keys, good.values)
        items = [Item(sequence, 0, model["queries"]), Item(sequence, 3, model["queries"])]
        step = stream.step([good, gap], items, on_error="return")
        assert step.append_errors[0] is None and step.append_errors[1].code == "OUT_OF_RANGE"
        assert step.answers[0].error is None and step.answers[0].num_tokens == TOKENS + 1
        assert step.answers[1].error.code == "INVALID_ARGUMENT" and "layer" in step.answers[1].error.field
        assert stream.step(items=items[:1], top_k=-1, on_error="return").error.code == "INVALID_ARGUMENT"
        assert stream.step(items=items[:1], top_k=5).answers[0].positions.shape == (HEADS, 5)


def test_errors_name_code_field_and_reason(client, sequence, model):
    def code_of(call, *args, **kwargs):
        with pytest.raises(SeineError) as caught:
            call(*args, **kwargs)
        return caught.value.code, caught.value.field

    keys, values, queries = model["keys"][:1], model["values"][:1], model["queries"]
    nobody = type(sequence)("m", "nobody")
    assert code_of(client.get_index, "nowhere")[0] == "NOT_FOUND"
    assert code_of(client.get_sequence, nobody)[0] == "NOT_FOUND"
    assert code_of(client.create_sequence, "m", "s")[0] == "ALREADY_EXISTS"
    assert code_of(client.append, sequence, 0, TOKENS + 1, keys, values)[0] == "OUT_OF_RANGE"
    assert code_of(client.append, sequence, 0, 0, keys + 1, values)[0] == "ALREADY_EXISTS"
    assert code_of(client.append, sequence, 2, 0, keys, values) == ("INVALID_ARGUMENT", "item.layer")
    assert code_of(client.append, sequence, 0, TOKENS, keys[..., :32], values[..., :32]) == ("INVALID_ARGUMENT", "item.keys.shape")
    assert code_of(client.append, sequence, 0, TOKENS, keys * np.nan, values)[0] == "INVALID_ARGUMENT"
    code, field = code_of(client.retrieve, sequence, 5, queries)
    assert code == "INVALID_ARGUMENT" and field.endswith("layer")
    assert code_of(client.retrieve, sequence, 0, queries, top_k=0)[0] == "INVALID_ARGUMENT"
    with pytest.raises(SeineError) as caught:
        client.truncate(sequence, TOKENS + 1)
    assert caught.value.reason and str(caught.value)
    assert client.get_sequence(sequence).layer_tokens == [TOKENS]


def test_what_numpy_or_spelling_gets_wrong_never_leaves(client, sequence, model):
    keys = model["keys"][:1]
    geometry = {"num_layers": 1, "num_q_heads": 4, "num_kv_heads": 2, "head_dim": 64}
    for call in (
        lambda: client.append(sequence, 0, TOKENS, keys.astype(np.int8)),
        lambda: client.append(sequence, 0, TOKENS, keys[0]),
        lambda: client.append(sequence, 0, TOKENS, keys, keys[:0]),
        lambda: client.retrieve(sequence, 0, model["queries"], scope="per_cow"),
        lambda: client.retrieve(sequence, 0, model["queries"], top_k=3, mass_p=(0.5, 1, 9)),
        lambda: client.create_index("x", dtype="int8", **geometry),
        lambda: client.create_index("x", zones={"sinks": 3}, **geometry),
        lambda: client.create_index("x", codec={"centre": "moon"}, **geometry),
    ):
        with pytest.raises(ValueError):
            call()
    assert len(client.list_indexes()) == 1


def test_long_appends_travel_in_pieces(client):
    geometry = {"num_layers": 1, "num_q_heads": 8, "num_kv_heads": 8, "head_dim": 128}
    client.create_index("wide", kv_store="keys", **geometry)
    sequence = client.create_sequence("wide")
    keys = np.random.default_rng(1).standard_normal((5000, 8, 128)).astype(np.float16)  # 10 MB
    assert client.append(sequence, 0, 0, keys) == 5000
    rows, _ = client.gather(sequence, 0, 7, [0, 2048, 4999])
    np.testing.assert_array_equal(rows, keys[[0, 2048, 4999], 7])
    empty = client.retrieve(client.create_sequence("wide"), 0, np.zeros((8, 128), np.float32))
    assert empty.path == "dense" and empty.positions.size == 0


def test_no_server(connect):
    with connect("unix:///nowhere/seine.sock") as client:
        with pytest.raises(SeineError) as caught:
            client.server_info()
        assert caught.value.code == "UNAVAILABLE"
        with pytest.raises(SeineError):
            client.wait_until_ready(0.2)


def test_default_address(monkeypatch, tmp_path):
    monkeypatch.delenv("SEINE_SERVER", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_address() == f"unix://{tmp_path}/seine.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    assert default_address() == f"unix:///tmp/seine-{os.getuid()}/seine.sock"
    tmp_path.chmod(0o777)  # anybody could listen there
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_address().startswith("unix:///tmp/seine-")


def test_nothing_is_sent_where_others_may_listen(monkeypatch, tmp_path):
    folder, own = tmp_path / "folder", tmp_path / "own"
    own.mkdir(mode=0o700)
    monkeypatch.setattr(seine_kv.address, "folder_in_tmp", lambda: str(folder))
    address = f"unix://{folder}/seine.sock"

    def make_open():
        folder.mkdir()
        folder.chmod(0o777)

    for make in (make_open, lambda: folder.symlink_to(own), folder.touch):
        make()
        with pytest.raises(SeineError, match="no folder of this user alone") as refused:
            seine_kv.grpc.Client(address)
        assert refused.value.code == "FAILED_PRECONDITION"
        (folder.rmdir if folder.is_dir() and not folder.is_symlink() else folder.unlink)()
    assert not seine_kv.address.why_not_trusted(address)  # nobody listens: said as ever
    folder.mkdir(mode=0o700)
    assert not seine_kv.address.why_not_trusted(address)


def test_an_index_by_its_models_profile(client):
    shape = {"num_layers": 30, "num_q_heads": 9, "num_kv_heads": 3, "head_dim": 64}
    by_model = client.create_index("by-model", model="HuggingFaceTB/SmolLM2-135M", **shape)
    assert by_model["spec"]["codec"]["name"] == "balanced"
    rope = {"inv_freq": [10000.0 ** (-2 * i / 64) for i in range(32)], "style": "half_split"}
    by_name = client.create_index("by-name", rope=rope, codec={"profile": "smollm2-135m", "horizon": 4096}, **shape)
    assert by_name["spec"]["codec"]["horizon"] == 4096
    np.testing.assert_allclose(by_name["spec"]["geometry"]["rope"]["inv_freq"], rope["inv_freq"])
    with pytest.raises(SeineError, match="codec.profile"):
        client.create_index("nobody", codec={"profile": "nobody"}, **shape)


def test_eviction_keeps_positions_and_retrieves_among_them(client, sequence, model):
    before = client.get_sequence(sequence).store_bytes
    dry = client.evict(sequence, 0, budget=150, scorer={"name": "manifoldkv", "metric": "l1"}, dry_run=True)
    assert dry.bytes_freed == 0 and [len(kept) for kept in dry.kept] == [150, 150]
    mean = model["keys"][:TOKENS].astype(np.float64).mean(axis=0)
    far = np.abs(model["keys"][:TOKENS] - mean).sum(axis=2)
    for head in range(KV_HEADS):
        np.testing.assert_array_equal(dry.kept[head], np.sort(np.argsort(-far[:, head])[:150]))
    evicted = client.evict(sequence, 0, budget={"ratio": 0.5}, keep={"sinks": 4})
    assert evicted.tokens_evicted == KV_HEADS * TOKENS // 2 and evicted.bytes_freed > 0
    assert client.get_sequence(sequence).store_bytes < before
    answer = client.retrieve(sequence, 0, model["queries"], top_k=5, exact=True)
    assert (answer.zone_begin, answer.zone_end) == (0, TOKENS)
    for q_head in range(HEADS):
        kept, dense = evicted.kept[q_head // 2], answer.dense_positions[q_head // 2]
        zone = np.setdiff1d(kept, dense)
        logits = model["keys"][zone, q_head // 2] @ model["queries"][q_head]
        np.testing.assert_array_equal(answer.set(q_head), np.sort(zone[np.argsort(-logits)[:5]]))
    positions, scores = client.score(sequence, 0, "knorm")[0]
    np.testing.assert_array_equal(positions, evicted.kept[0])
    np.testing.assert_allclose(scores, -np.linalg.norm(model["keys"][positions, 0], axis=1), rtol=1e-5)
    heads = client.diagnose(sequence, 0, scorers=["keydiff", "tova"], queries=model["queries"][None])
    assert heads[0]["tokens"] == TOKENS // 2 and heads[1]["overlap"].shape == (2, 2)
    with pytest.raises(SeineError) as error:
        client.gather(sequence, 0, 0, np.setdiff1d(np.arange(TOKENS), evicted.kept[0])[:1])
    assert error.value.code == "NOT_FOUND"
    with pytest.raises(ValueError, match="scorer: unknown setting windows"):
        client.evict(sequence, 0, 10, scorer={"name": "knorm", "windows": 3})


def test_an_index_that_evicts_by_itself(client):
    random = np.random.default_rng(5)
    settings = {"scorer": "knorm", "budget": {"tokens": 100, "heads": "adaptive"}, "keep": {"sinks": 4}, "interval": 20}
    index = client.create_index(
        "evicting", num_layers=1, num_q_heads=2, num_kv_heads=2, head_dim=DIM, dtype="float32", zones=ZONES, eviction=settings
    )
    assert index["spec"]["eviction"]["interval"] == 20
    sequence = client.create_sequence("evicting")
    client.append(sequence, 0, 0, random.standard_normal((500, 2, DIM)).astype(np.float32))
    positions = [p for p, _ in client.score(sequence, 0, "knorm")]
    assert sum(map(len, positions)) < 2 * 120
    assert client.get_index("evicting")["evictions"] > 10


def test_an_index_that_evicts_by_queries(client):
    """In messages of any length: the queries go with the tokens that they are of."""
    random = np.random.default_rng(6)
    settings = {"scorer": {"name": "snapkv", "query_window": 8}, "budget": {"tokens": 100}, "interval": 20}
    shape = {"num_layers": 1, "num_q_heads": 4, "num_kv_heads": 2, "head_dim": DIM, "dtype": "float32", "zones": ZONES}
    index = client.create_index("by-queries", eviction=settings, **shape)
    assert index["spec"]["eviction"]["keep_queries"] == 8
    client.create_index("by-call", **shape)
    own, called = client.create_sequence("by-queries"), client.create_sequence("by-call")
    tokens = 30_000  # 61 MB: many messages
    keys = random.standard_normal((tokens, 2, DIM)).astype(np.float32)
    queries = random.standard_normal((tokens, 4, DIM)).astype(np.float32)
    client.append(own, 0, 0, keys[:120], queries=queries[112:120])
    client.append(called, 0, 0, keys[:120])
    client.evict(called, 0, 100, settings["scorer"], queries=queries[112:120])
    kept = [positions for positions, _ in client.score(called, 0, "knorm")]
    for head, (positions, _) in enumerate(client.score(own, 0, "knorm")):
        np.testing.assert_array_equal(positions, kept[head])
    assert client.append(own, 0, 120, keys[120:], queries=queries[120:]) == tokens - 120
    assert all(len(positions) < 120 for positions, _ in client.score(own, 0, settings["scorer"]))
    assert client.get_index("by-queries")["query_bytes"] == 8 * 4 * DIM * 4
    with pytest.raises(SeineError) as error:
        client.append(called, 0, 120, keys[:1], queries=queries[:1])
    assert error.value.field == "item.queries"
    with pytest.raises(ValueError, match="queries: must be"):
        client.append(own, 0, tokens, keys[:1], queries=queries[:2])


def test_subspaces(client, model):
    client.create_index(
        "low",
        num_layers=1,
        num_q_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        dtype="float32",
        zones={"sink": 16, "local": 32, "update_buffer": 64, "dense_threshold": 64},
        kv_store="keys_values",
        subspace={"key_rank": 24, "value_rank": 33, "frame": "post_rope"},
    )
    sequence = client.create_sequence("low")
    keys = model["keys"][:TOKENS]
    client.append(sequence, 0, 0, keys, 2 * keys)
    key_bases, value_bases, heads = client.get_basis(sequence, 0)
    assert key_bases.shape == (KV_HEADS, DIM, 24) and value_bases.shape == (KV_HEADS, DIM, 33)
    assert len(heads) == KV_HEADS and heads[0]["low_rank_tokens"] == (TOKENS - 48) // 64 * 64
    for basis in key_bases:
        np.testing.assert_allclose(basis.T @ basis, np.eye(24), atol=1e-4)
    positions, got, values = client.reconstruct(sequence, 0, 1, 0, 40)
    np.testing.assert_array_equal(positions, np.arange(40))
    np.testing.assert_array_equal(got[:16], keys[:16, 1])  # the sink is as it came
    assert not np.array_equal(got[16:], keys[16:40, 1])
    gathered = client.gather(sequence, 0, 1, positions, values=True)
    np.testing.assert_array_equal(got, gathered[0])
    np.testing.assert_array_equal(values, gathered[1])
    everything = client.attend(sequence, 0, model["queries"], top_k=TOKENS)
    _, keys_read, values_read = client.reconstruct(sequence, 0, 0, 0, TOKENS)  # attention over the rows as they read
    weights = np.exp(keys_read @ model["queries"][0] / np.sqrt(DIM))
    np.testing.assert_allclose(everything.output[0], weights @ values_read / weights.sum(), atol=1e-4)
    client.load_basis(sequence, 0, key_bases[::-1], value_bases)
    np.testing.assert_array_equal(client.get_basis(sequence, 0)[0], key_bases[::-1])
    with pytest.raises(SeineError) as error:
        client.load_basis(sequence, 0, 2 * key_bases, value_bases)
    assert error.value.field == "bases.keys"
    with pytest.raises(SeineError) as error:
        client.calibrate_basis("low", 0, "none", energy=0.9)
    assert error.value.code == "NOT_FOUND"
    with pytest.raises(ValueError, match="subspace: unknown setting rank"):
        client.create_index("x", num_layers=1, num_q_heads=1, num_kv_heads=1, head_dim=64, subspace={"rank": 3})
    client.delete_index("low")


def test_ranks_follow_from_an_energy_share(client):
    shape = dict(num_layers=30, num_q_heads=9, num_kv_heads=3, head_dim=64, kv_store="keys_values")
    asked = {"energy": 0.9, "frame": "pre_rope", "profile": "smollm2-135m"}
    made = client.create_index("energy", subspace=asked, **shape)["spec"]["subspace"]
    assert 1 < made["key_rank"] < made["value_rank"] < 64 and made["energy"] == 0.9
    assert client.get_index("energy")["spec"]["subspace"] == made
    client.delete_index("energy")
    for wrong in ({"energy": 0.9}, {**asked, "energy": 0.0}, {**asked, "energy": 1.5}, {**asked, "value_rank": 9}):
        with pytest.raises(SeineError) as error:
            client.create_index("energy", subspace=wrong, **shape)
        assert error.value.code == "INVALID_ARGUMENT" and error.value.field == "spec.subspace.energy"


def test_ojakvs_own_settings(client):
    """A prompt's own step, tokens chosen by its last queries, ranks by layer; and what makes no sense."""
    shape = dict(num_layers=2, num_q_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, dtype="float32")
    shape |= dict(kv_store="keys_values", zones={"sink": 16, "local": 32, "update_buffer": 64, "dense_threshold": 64})
    asked = {"key_ranks": [20, 24], "value_rank": 30, "interval": 256, "absolute_rate": True, "learning_rate": 0.01}
    asked |= {"prompt_pool": 4, "prompt_learning_rate": 0.1, "full_rank": 0.125, "full_rank_queries": 8}
    asked |= {"full_rank_pool": 3}
    made = client.create_index("own", subspace=asked, **shape)["spec"]["subspace"]
    assert {name: made[name] for name in asked} == asked and made["max_gain"] is None and made["key_rank"] == 0
    random = np.random.default_rng(5)
    keys, values = random.standard_normal((2, 400, KV_HEADS, DIM), np.float32)
    queries = random.standard_normal((8, HEADS, DIM), np.float32)
    with_queries, without = client.create_sequence("own"), client.create_sequence("own")
    client.append(with_queries, 1, 0, keys, values, queries)
    client.append(without, 1, 0, keys, values)
    for sequence, unseen in ((with_queries, 0), (without, (400 - 48) // 64)):
        bases, _, heads = client.get_basis(sequence, 1)
        assert bases.shape == (KV_HEADS, DIM, 24)
        for head in heads:
            assert head["keys"]["updates"] == 1 and head["keys"]["rows"] == 0
            assert head["full_rank_tokens"] == (400 - 48) // 64 * 8
            assert head["blocks_without_queries"] == unseen
    client.delete_index("own")
    for wrong, field in (
        ({"interval": 257}, "interval"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"key_ranks": [20]}, "key_ranks"),
        ({"key_ranks": [20, DIM + 1]}, "key_ranks[1]"),
        ({"full_rank_pool": 2}, "full_rank_pool"),
        ({"max_gain": 1.0}, "max_gain"),
        ({"full_rank": 0.0}, "full_rank_queries"),
        ({"prompt_pool": 0}, "prompt_learning_rate"),
        ({"stack_queries": True}, "stack_queries"),
    ):
        with pytest.raises(SeineError) as error:
            client.create_index("own", subspace={**asked, **wrong}, **shape)
        assert error.value.code == "INVALID_ARGUMENT" and error.value.field == f"spec.subspace.{field}"


def test_a_step_has_a_deadline(private_server, connect, model):
    """A server that hangs: the step ends, within its time, and says so."""
    process, address = private_server
    with connect(address) as client:
        client.wait_until_ready(20)
        client.create_index("m", num_layers=1, num_q_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, dtype="float32")
        sequence = client.create_sequence("m")
        stream = client.decode_stream(timeout=0.4)
        assert stream.step(items=[Item(sequence, 0, model["queries"])]).answers[0].path == "dense"
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)  # until it has stopped
        try:
            begun = time.monotonic()
            with pytest.raises(SeineError) as caught:
                stream.step(items=[Item(sequence, 0, model["queries"])])
            assert caught.value.code == "DEADLINE_EXCEEDED" and 0.4 <= time.monotonic() - begun < 5
        finally:
            process.send_signal(signal.SIGCONT)
        stream.close(cancel=True)


def softmax_attention(model, query_heads, positions):
    """Output [heads, DIM] and log-sum-exp [heads] in float64; positions: for each query head, or one array for all."""
    outputs, sums = [], []
    for head in range(query_heads):
        rows = positions[head] if isinstance(positions, list) else positions
        keys, values = (model[name][rows, head // 2].astype(np.float64) for name in ("keys", "values"))
        logits = keys @ model["queries"][head] / np.sqrt(DIM)
        weights = np.exp(logits - logits.max())
        outputs.append(weights @ values / weights.sum())
        sums.append(np.log(weights.sum()) + logits.max())
    return np.stack(outputs), np.array(sums)


def test_attend_is_attention_over_what_is_visible(client, sequence, model):
    everything = client.attend(sequence, 0, model["queries"], Attention(tail=False), top_k=TOKENS)
    output, log_sum_exp = softmax_attention(model, HEADS, np.arange(TOKENS))
    np.testing.assert_allclose(everything.output, output, atol=1e-5)
    np.testing.assert_allclose(everything.log_sum_exp, log_sum_exp, atol=1e-5)
    assert everything.attended_tokens == HEADS * TOKENS and everything.selected is None and not everything.tail
    few = client.attend(sequence, 0, model["queries"], Attention(tail=False, with_positions=True), top_k=20, beta=0.05)
    answer = few.selected
    dense = [*range(answer.zone_begin), *range(answer.zone_end, TOKENS)]
    visible = [np.concatenate([dense, answer.set(head)]).astype(int) for head in range(HEADS)]
    output, log_sum_exp = softmax_attention(model, HEADS, visible)
    np.testing.assert_allclose(few.output, output, atol=1e-5)
    np.testing.assert_allclose(few.log_sum_exp, log_sum_exp, atol=1e-5)
    assert few.path == "index" and few.num_tokens == TOKENS and few.attended_tokens == sum(map(len, visible))
    with pytest.raises(SeineError) as caught:
        client.attend(sequence, 1, model["queries"])
    assert caught.value.code == "INVALID_ARGUMENT" and caught.value.field.endswith("layer")


def test_a_step_attends(client, sequence, model):
    with client.decode_stream() as stream:
        append = Append(sequence, 0, TOKENS, model["keys"][TOKENS : TOKENS + 1], model["values"][TOKENS : TOKENS + 1])
        items = [Item(sequence, 0, model["queries"]), Item(sequence, 7, model["queries"])]
        step = stream.step([append], items, Attention(tail=False), top_k=2 * TOKENS, on_error="return")
        output, _ = softmax_attention(model, HEADS, np.arange(TOKENS + 1))
        np.testing.assert_allclose(step.attended[0].output, output, atol=1e-5)
        assert step.answers == [] and step.attended[1].error.code == "INVALID_ARGUMENT"
        assert step.attended[1].output is None
        refused = stream.step(items=items[:1], attention=Attention(scale=-1.0), on_error="return")
        assert refused.error.field.endswith("scale")


def causal_attention(model, queries, length):
    """(outputs, log-sum-exps) of queries [tokens, HEADS, DIM] of the last positions below `length`, in float64."""
    outputs, sums = [], []
    for t, query in enumerate(queries):
        seen = length - len(queries) + t + 1
        output, log_sum_exp = softmax_attention({**model, "queries": query}, HEADS, np.arange(seen))
        outputs.append(output)
        sums.append(log_sum_exp)
    return np.stack(outputs), np.stack(sums)


def test_a_prompt_is_attended(client, sequence, model):
    prompt = np.random.default_rng(9).standard_normal((130, HEADS, DIM)).astype(np.float32)
    attended = client.attend(sequence, 0, prompt)
    output, log_sum_exp = causal_attention(model, prompt, TOKENS)
    np.testing.assert_allclose(attended.output, output, atol=1e-5)
    np.testing.assert_allclose(attended.log_sum_exp, log_sum_exp, atol=2e-5)
    assert attended.path == "dense" and attended.num_tokens == TOKENS and not attended.tail
    assert attended.attended_tokens == HEADS * sum(range(TOKENS - 129, TOKENS + 1))
    half = client.attend(sequence, 0, prompt.astype(np.float16), Attention(scale=0.5))
    assert half.output.shape == (130, HEADS, DIM) and half.log_sum_exp.shape == (130, HEADS)
    with client.decode_stream() as stream:  # its tokens come with it, beside a step of one
        rows = slice(TOKENS, TOKENS + 20)
        append = Append(sequence, 0, TOKENS, model["keys"][rows], model["values"][rows])
        items = [Item(sequence, 0, prompt[:20]), Item(sequence, 0, model["queries"])]
        step = stream.step([append], items, Attention(tail=False), top_k=2 * TOKENS)
        np.testing.assert_allclose(step.attended[0].output, causal_attention(model, prompt[:20], TOKENS + 20)[0], atol=1e-5)
        assert step.attended[1].output.shape == (HEADS, DIM)


@pytest.mark.parametrize(
    "change, field",
    [
        ({"queries": (TOKENS + 1, HEADS, DIM)}, "queries"),
        ({"queries": (2, HEADS + 1, DIM)}, "queries.shape"),
        ({"queries": (0, HEADS, DIM)}, "queries.shape"),
        ({"dense_from": 3}, "dense_from"),
        ({"positions": np.zeros((HEADS, 1), np.int32)}, "positions"),
        ({"attention": Attention(prompt_mass=0.0)}, "attention.prompt_mass"),
        ({"attention": Attention(prompt_mass=1.5)}, "attention.prompt_mass"),
        ({"attention": Attention(with_positions=True)}, "queries"),
        ({"attention": None}, "queries"),
    ],
)
def test_a_wrong_prompt_is_told(client, sequence, change, field):
    change = {"queries": (2, HEADS, DIM), "attention": Attention(), **change}
    attention = change.pop("attention")
    item = Item(sequence, 0, np.ones(change.pop("queries"), np.float32), **change)
    with pytest.raises(SeineError) as caught:
        answers = client.retrieve_batch([item]) if attention is None else client.attend_batch([item], attention)
        raise answers[0].error
    assert caught.value.code == "INVALID_ARGUMENT" and caught.value.field.endswith(field), caught.value


def test_attending_needs_stored_values(client):
    geometry = {"num_layers": 1, "num_q_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM}
    client.create_index("keys", kv_store="keys", **geometry)
    with pytest.raises(SeineError) as caught:
        client.attend(client.create_sequence("keys"), 0, np.zeros((HEADS, DIM), np.float32))
    assert caught.value.code == "FAILED_PRECONDITION"
