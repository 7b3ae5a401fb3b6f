"""An engine that follows what the heads retain from answers alone, by each of the three ways to Seine."""

import numpy as np
import pytest

from seine_kv.messages import Append, Retained, RetainedSets, SeineError

GEOMETRY = {"num_layers": 2, "num_q_heads": 4, "num_kv_heads": 2, "head_dim": 64}
EVICTION = {"scorer": "keydiff", "budget": {"tokens": 40, "heads": "adaptive"}, "keep": {"sinks": 2}, "interval": 10}
STEPS = 500


def rows(random, tokens):
    return random.standard_normal((tokens, 2, 64)).astype(np.float16)


def held(client, chat, layer):
    return [positions.tolist() for positions, _ in client.score(chat, layer, "knorm")]


def as_lists(retained):
    return [head.tolist() for head in retained.heads]


def test_follows_the_index_over_random_steps(client):
    random = np.random.default_rng(7)
    client.create_index("follow", **GEOMETRY, kv_store="keys", eviction=EVICTION)
    chats = [(client.create_sequence("follow"), [RetainedSets(2), RetainedSets(2)])]
    stale = 0
    with client.decode_stream() as stream:
        for _ in range(STEPS):
            at, layer, what = random.integers(len(chats)), int(random.integers(2)), random.integers(12)
            chat, layers = chats[at]
            retained = layers[layer]
            tokens = client.get_sequence(chat).layer_tokens
            if what < 4:
                client.append(chat, layer, tokens[layer], rows(random, 1 + random.integers(90)), retained=retained)
            elif what < 8:
                new = rows(random, 1 + random.integers(3))
                step = stream.step([Append(chat, layer, tokens[layer], new, retained=retained)])
                assert step.retained[0].num_tokens == tokens[layer] + len(new)
            elif what == 8 and tokens[layer]:
                evicted = client.evict(chat, layer, 30, "streaming_llm", retained=retained)
                assert as_lists(retained) == [head.tolist() for head in evicted.kept] or not retained.in_step
                assert evicted.retained.evictions == retained.evictions or not retained.in_step
            elif what == 9 and max(tokens):
                position = max(0, max(tokens) - int(random.integers(20)))
                client.truncate(chat, position)
                for sets in layers:
                    sets.truncate(position)
            elif what == 10 and len(chats) < 4:
                chats.append((client.fork(chat), [sets.copy() for sets in layers]))
            elif what == 11 and tokens[layer]:  # an answer that is lost
                client.append(chat, layer, tokens[layer], rows(random, 1 + random.integers(30)))
                continue
            if retained.in_step and retained.num_tokens == client.get_sequence(chat).layer_tokens[layer]:
                assert as_lists(retained) == held(client, chat, layer)
            stale += not retained.in_step
    assert stale > 5  # lost answers were noticed
    for chat, layers in chats:
        for layer, retained in enumerate(layers):
            for _ in range(2):  # the first may say that one was missed
                tokens = client.get_sequence(chat).layer_tokens[layer]
                client.append(chat, layer, tokens, rows(random, 1), retained=retained)
            assert retained.in_step and as_lists(retained) == held(client, chat, layer)
            assert as_lists(client.retained(chat, layer)) == as_lists(retained)


def test_dropped_is_what_the_answer_took_out(client):
    client.create_index("dropped", **GEOMETRY, kv_store="keys", eviction=EVICTION)
    chat, random, retained = client.create_sequence("dropped"), np.random.default_rng(1), RetainedSets(2)
    assert retained.wanted == "dropped"
    client.append(chat, 0, 0, rows(random, 200), retained=retained)
    assert retained.evictions > 5 and retained.num_tokens == 200
    for head, dropped in zip(retained.heads, retained.dropped):
        assert np.array_equal(np.union1d(head, dropped), np.arange(200))
    client.append(chat, 0, 0, rows(np.random.default_rng(1), 200), retained=retained)  # a replay
    assert retained.dropped == [] and retained.in_step
    before, evicted = as_lists(retained), client.evict(chat, 0, 20, "knorm", dry_run=True, retained=retained)
    assert as_lists(retained) == before and isinstance(evicted.retained, Retained)
    assert client.evict(chat, 0, 20, "knorm").retained is None
    client.append(chat, 0, 200, rows(random, 1), retained=retained)
    assert not retained.in_step and retained.wanted == "kept" and as_lists(retained) == before
    client.append(chat, 0, 201, rows(random, 1), retained=retained)
    assert retained.in_step and [len(head) for head in retained.heads] == [22, 22]
    gone = [sorted(set(old) - set(new)) for old, new in zip(before, as_lists(retained))]
    assert [head.tolist() for head in retained.dropped] == gone


def test_what_is_no_retained_sets_is_named(client):
    client.create_index("wrong", **GEOMETRY, kv_store="keys")
    chat, keys = client.create_sequence("wrong"), rows(np.random.default_rng(2), 3)
    wrong = r"retained: must be a RetainedSets, as Client.retained returns it, not \[\[0\]\]"
    with pytest.raises(TypeError, match=wrong):
        client.append(chat, 0, 0, keys, retained=[[0]])
    with pytest.raises(TypeError, match=wrong):
        client.evict(chat, 0, 5, retained=[[0]])
    with client.decode_stream() as stream, pytest.raises(TypeError, match=wrong):
        stream.step([Append(chat, 0, 0, keys, retained=[[0]])])
    assert client.get_sequence(chat).layer_tokens == [0, 0]
    with pytest.raises(SeineError, match="layer"):
        client.retained(chat, 7)
    other = RetainedSets(3)  # of another model
    client.append(chat, 0, 0, keys, retained=other)
    assert not other.in_step


def test_a_sequence_follows_too(in_process):
    from seine_kv import Index

    random = np.random.default_rng(3)
    with Index(**GEOMETRY, kv_store="keys", eviction=EVICTION) as index:
        chat = index.create_sequence()
        retained = chat.retained(1)
        chat.append(1, rows(random, 100), retained=retained)
        for _ in range(12):
            index.step(1, [(chat, rows(random, 1), retained)])
        assert retained.num_tokens == 112 and as_lists(retained) == as_lists(chat.retained(1))
        chat.evict(1, 10, "knorm", retained=retained)
        assert [len(head) for head in retained.heads] == [10, 10]
