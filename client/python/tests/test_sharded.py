"""A sequence over several shards against the same tokens on one node."""

import json

import numpy as np
import pytest
from conftest import PROFILES

from seine_kv.messages import SeineError
from seine_kv.sharded import ShardedSequence
from seine_kv.sharded.merging import Stripe, Zones

SPEC = {"num_layers": 2, "num_q_heads": 4, "num_kv_heads": 2, "head_dim": 64, "kv_store": "keys_values"}
ZONES = {"sink": 64, "local": 96, "update_buffer": 64, "dense_threshold": 256}


def rows(tokens, seed=0):
    return np.random.default_rng(seed).standard_normal((tokens, 2, 64)).astype(np.float16)


QUERIES = np.random.default_rng(5).standard_normal((4, 64)).astype(np.float32)


def one_node(client, keys, values, zones=ZONES):
    client.create_index("one", zones=zones, **SPEC)
    one = client.create_sequence("one", "one")
    client.append(one, 1, 0, keys, values)
    return one


@pytest.mark.parametrize("shards", [1, 2, 3, 5])
def test_positions_and_rows_are_one_to_one(shards):
    stripe, held = Stripe(shards, 64), [0] * shards
    for position in range(700):
        shard = stripe.shard_of(position)
        assert stripe.row_of(position) == held[shard]
        assert stripe.position_of(shard, held[shard]) == position
        assert [stripe.rows_before(s, position) for s in range(shards)] == held
        held[shard] += 1
    runs = sorted(run for shard in range(shards) for run in stripe.runs_of(shard, 70, 300))
    assert runs == [(70, 128), (128, 192), (192, 256), (256, 300)]


def test_a_share_and_half_as_much_again():
    whole = Zones(**ZONES).of(10_000, 4, False)
    assert [Zones.shard_top_k(100, Stripe(shards, 64), whole) for shards in (1, 2, 8)] == [100, 83, 27]


@pytest.mark.parametrize("tokens, shards, run", [(40, 3, 64), (300, 2, 64), (777, 3, 128), (900, 5, 64)])
def test_exact_answers_are_those_of_one_node(client, tokens, shards, run):
    keys, values = rows(tokens), rows(tokens, 1)
    one = one_node(client, keys, values)
    with ShardedSequence.create([client] * shards, "m", "s", run=run, zones=ZONES, **SPEC) as whole:
        assert whole.append(1, keys[: tokens // 3], values[: tokens // 3]) == tokens // 3
        assert whole.append(1, keys[tokens // 3 :], values[tokens // 3 :]) == tokens == len(whole)
        for selector in ({"top_k": 20}, {"top_k": 5, "scope": "per_kv_head", "gqa_reduce": "max"}, {"top_k": 2000}):
            want = client.attend(one, 1, QUERIES, exact=True, **selector)
            got = whole.attended(1, QUERIES, exact=True, **selector)
            np.testing.assert_allclose(got.output, want.output, atol=1e-5)
            np.testing.assert_allclose(got.log_sum_exp, want.log_sum_exp, atol=1e-5)
            assert (got.path, got.attended_tokens) == (want.path, want.attended_tokens)
            node = client.retrieve(one, 1, QUERIES, exact=True, with_scores=True, **{"scope": "per_q_head", **selector})
            found = whole.retrieve(1, QUERIES, exact=True, with_scores=True, **selector)
            assert (found.zone_begin, found.zone_end) == (node.zone_begin, node.zone_end)
            for i in range(len(node.counts)):
                assert found.set(i).tolist() == node.set(i).tolist()
        output, log_sum_exp = whole.attend(1, QUERIES)
        assert output.shape == (4, 64) and np.isfinite(log_sum_exp).all()
        np.testing.assert_array_equal(whole.gather(1, 1, [tokens - 1, 0])[0], keys[[tokens - 1, 0], 1])


def test_forks_truncates_and_opens_again(client):
    keys, values = rows(500), rows(500, 1)
    shards = [client] * 3
    whole = ShardedSequence.create(shards, "m", "s", run=64, zones=ZONES, **SPEC)
    whole.append(1, keys, values)
    fork = whole.fork(300, "f")
    assert fork.tokens == [0, 300]
    fork.append(1, keys[:50], values[:50])
    whole.truncate(450)
    whole.append(1, keys[:10], values[:10])
    again = ShardedSequence.open(shards, "m", "s", run=64, zones=ZONES, **SPEC)
    assert again.tokens == whole.tokens == [0, 460] and fork.tokens == [0, 350]
    again.append(1, keys[:60], values[:60], position=450)  # a replay of 10, and 50 more
    assert len(again) == 510
    whole.delete(), whole.delete(), fork.delete()
    with pytest.raises(SeineError, match="^shard .: ") as found:
        ShardedSequence.open(shards, "m", "s", run=64, zones=ZONES, **SPEC)
    assert found.value.code == "NOT_FOUND"


def test_what_cannot_be_is_refused(client):
    def refused(call, code, field):
        with pytest.raises(SeineError) as error:
            call()
        assert (error.value.code, error.value.field) == (code, field)

    def create(**changed):
        ShardedSequence.create([client], "m", "s", **{"run": 64, "zones": ZONES, **SPEC, **changed})

    refused(lambda: create(run=100), "INVALID_ARGUMENT", "run")
    refused(lambda: create(zones={"sink": 16}), "INVALID_ARGUMENT", "zones.sink")
    refused(lambda: create(eviction={"scorer": "keydiff", "budget": 64}), "INVALID_ARGUMENT", "eviction")
    refused(lambda: create(subspace={"key_rank": 8}), "INVALID_ARGUMENT", "subspace")
    whole = ShardedSequence.create([client], "m", "s", run=64, zones=ZONES, **SPEC)
    refused(lambda: create(), "ALREADY_EXISTS", "id")
    refused(lambda: whole.append(1, rows(1), rows(1), 1), "OUT_OF_RANGE", "position")
    refused(lambda: whole.attend(2, QUERIES), "INVALID_ARGUMENT", "layer")
    refused(lambda: whole.attend(1, QUERIES, mass_p=(0.9, 1, 9)), "INVALID_ARGUMENT", "selector.mass_p")
    refused(lambda: whole.attend(1, QUERIES, scope="per_kv_head"), "INVALID_ARGUMENT", "selector.gqa_reduce")


def test_a_gap_is_refused_and_filled(client):
    keys, values = rows(300), rows(300, 1)
    whole = ShardedSequence.create([client] * 2, "m", "s", run=64, zones=ZONES, **SPEC)
    whole.append(1, keys[:200], values[:200])  # 128 rows on shard 0, 72 on shard 1
    client.append(whole.handles[0], 1, 128, keys[256:260], values[256:260])  # as half an append leaves it
    whole.sync()
    assert whole.tokens[1] == 200
    with pytest.raises(SeineError, match="append again from position 200") as error:
        whole.attend(1, QUERIES)
    assert error.value.code == "FAILED_PRECONDITION"
    assert whole.append(1, keys[200:], values[200:]) == 300
    whole.attend(1, QUERIES)


def test_a_dead_shard_is_named(private_server, client, connect):
    process, address = private_server
    other = connect(address, 20)
    other.wait_until_ready(20)
    whole = ShardedSequence.create([client, other], "m", "s", run=64, zones=ZONES, **SPEC)
    whole.append(1, rows(100), rows(100))
    process.kill()
    process.wait(timeout=20)
    for call in (
        lambda: whole.attend(1, QUERIES),
        lambda: whole.truncate(100),
        whole.sync,
        lambda: whole.append(1, rows(100), rows(100)),
        whole.delete,
    ):
        with pytest.raises(SeineError, match="^shard 1: "):
            call()
    assert [info.handle.id for info in client.list_sequences("m")] == []


def test_chosen_first_as_many_tokens_are_attended(client):
    keys, values = rows(1500), rows(1500, 1)
    one = one_node(client, keys, values)
    whole = ShardedSequence.create([client] * 3, "m", "s", run=128, zones=ZONES, **SPEC)
    whole.append(1, keys, values)
    want = client.attend(one, 1, QUERIES, top_k=64)
    more = whole.attended(1, QUERIES, top_k=64)
    whole.choose_first = True
    got = whole.attended(1, QUERIES, top_k=64)
    assert got.tail and got.path == "index"
    assert got.attended_tokens == want.attended_tokens < more.attended_tokens
    np.testing.assert_allclose(got.log_sum_exp, want.log_sum_exp, atol=0.1)


# On paper ---------------------------------------------------------------------------------------------------------------


def simulated(capsys, *flags):
    from seine_kv.sharded import simulate

    assert simulate.main(["--results", str(PROFILES.parent / "results"), *flags]) == 0
    return capsys.readouterr().out


def test_plans_add_up(capsys, tmp_path):
    out = json.loads(simulated(capsys, "-o", "json", "--plot", str(tmp_path / "plans.svg")))
    constants, (text, texts) = out["constants"], out["plans"]
    assert all(value > 0 for value in constants.values())
    assert text["memory_gib_node"] == pytest.approx(10e6 / 16 * 32 * constants["token_bytes"] / 2**30)
    bytes_of_a_step = 2 * 4096 + constants["there_bytes"] + 4 * 32 * 129 + constants["back_bytes"]
    assert text["bytes_a_token"] == pytest.approx(32 * 16 * bytes_of_a_step)
    assert text["one_node_ms_a_token"] > 10 * text["node_ms_a_token"]
    parts = sum(text[f"{part}_ms_a_token"] for part in ("node", "engine", "wire"))
    assert text["tokens_per_s"] == pytest.approx(1e3 / parts)
    assert 1 <= texts["memory_of_mean"] < 1.3 and texts["memory_gib_node"] < 512
    for plan in (text, texts):
        assert plan["breaks_first"] == max(plan["use"], key=plan["use"].get)
    assert (tmp_path / "plans.svg").read_text().count("<rect") == len(text["use"]) + len(texts["use"])


def test_constants_are_the_latest_that_were_measured(capsys, tmp_path):
    from seine_kv.sharded import simulate

    def write(name, date, node):
        keys = ["node", "step", "engine", "merge", "there", "back", "token"]
        rows = [["100", "100", node, node + 7, 5, 1, 8200, 16600, 4000], ["300", "300", 3 * node, 0, 0, 0, 8200, 16600, 4800]]
        table = {"id": "runnodes", "date": date, "columns": [[key, key] for key in keys], "rows": rows}
        (tmp_path / name).write_text(json.dumps({"tables": [table]}))

    write("a.json", "2026-02-01", 200)
    write("b.json", "2026-01-01", 999)
    assert simulate.main(["--results", str(tmp_path), "-o", "json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["from"] == "a.json"
    assert out["constants"] == {
        "key_us": 2, "step_us": 0, "rpc_us": 7, "engine_us": 5, "merge_us": 1, "token_bytes": 4800, "there_bytes": 8,
        "back_bytes": 88,
    }
    with pytest.raises(SystemExit):
        simulate.main(["--results", str(PROFILES)])
    assert "has the table runnodes" in capsys.readouterr().err


def test_plans_follow_their_flags(capsys):
    small, table = (json.loads(simulated(capsys, "-o", "json", *flags))["plans"] for flags in ((), ("--gbit", "1")))
    assert table[0]["wire_ms_a_token"] > 10 * small[0]["wire_ms_a_token"]
    assert "breaks first: " in simulated(capsys)


def test_texts_are_placed_where_they_fit():
    from seine_kv.sharded.simulate import place

    held = place([10] * 600, 3, 2000)
    assert sum(map(len, held)) == 600 and max(map(len, held)) == 200  # full nodes are passed over
