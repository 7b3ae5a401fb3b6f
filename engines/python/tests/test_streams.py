"""Decode steps: what they take and give, errors inside them, threads, and that nothing is kept from step to step."""

import gc
import os
import sys
import threading
import time
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import torch
from conftest import append, create, in_process, rows, same

from seine_kv import _native
from seine_kv.messages import Answer, Append, Attended, Attention, Item, Sequence, SequenceInfo

TOKENS = 400
QUERIES = np.random.default_rng(5).standard_normal((4, 64)).astype(np.float32)


@pytest.fixture
def chat(connection):
    chat = create(connection, kv_store="keys_values")
    append(connection, chat, 0, 0, rows(TOKENS, 1), rows(TOKENS, 2))
    return chat


def test_answers_have_the_fields_of_messages(connection, chat):
    stream = connection.open_stream()
    appends, answers, attended, server_us, error, retained = stream.step(
        [], [Item(chat, 0, QUERIES)], {"top_k": 5, "beta": 0.05, "with_scores": True}, None
    )
    answer = Answer(**answers[0])
    assert appends == [] and attended == [] and error is None and retained == [] and isinstance(server_us, int)
    assert answer.path == "index" and answer.positions.shape == (2, 5) and answer.positions.dtype == np.int32
    assert (
        answer.scores.shape == (2, 5)
        and answer.masses is None
        and answer.error is None
        and answer.counts.tolist() == [5, 5]
    )
    assert len(answer.visible(1)) == TOKENS - (answer.zone_end - answer.zone_begin) + 5
    result = stream.step([], [Item(chat, 0, QUERIES)], {"mass_p": (0.5, 1, 20)}, Attention(with_positions=True))
    whole = Attended(**result[2][0])
    assert (
        result[1] == [] and whole.output.shape == (4, 64) and whole.log_sum_exp.shape == (4,) and not whole.tail is None
    )
    selected = Answer(**whole.selected)
    assert selected.masses.shape == (4,) and selected.scores is None and selected.positions.shape == (4, 20)
    assert stream.step([], [Item(chat, 0, QUERIES)], None, Attention())[2][0]["selected"] is None
    # A dense layer has no sets; nothing that a step gave is written to by the next.
    kept = answer.positions.copy()
    dense = stream.step([Append(chat, 1, 0, rows(3), rows(3))], [Item(chat, 1, QUERIES)], None, None)[1][0]
    assert dense["path"] == "dense" and dense["positions"].size == 0 and same(kept, answer.positions)
    connection.call("Evict", {"handle": chat, "budget": 300, "scorer": "knorm"})
    evicted = Answer(**stream.step([], [Item(chat, 0, QUERIES)], {"top_k": 5}, None)[1][0])
    assert len(evicted.dense_positions) == 2 and len(evicted.visible(0)) < 300
    stream.close()


def test_a_step_answers_as_calls_do(connection, chat):
    stream = connection.open_stream()
    called = connection.call(
        "Retrieve", {"items": [{"handle": chat, "queries": QUERIES}], "selector": {"top_k": 7, "scope": "per_q_head"}}
    )
    stepped = stream.step([], [Item(chat, 0, QUERIES)], {"top_k": 7, "scope": "per_q_head"}, None)[1][0]
    for name in ("positions", "counts", "path", "num_tokens", "zone_begin", "zone_end", "all_returned"):
        assert same(stepped[name], called["answers"][0][name]), name


def test_arrays_of_other_kinds(connection):
    chat = create(connection, geometry={"dtype": "bfloat16"}, kv_store="keys_values")
    keys = torch.from_numpy(rows(TOKENS, 1)).bfloat16()
    assert append(connection, chat, 0, 0, keys, keys) == (TOKENS, None)
    stream, answers = connection.open_stream(), []
    same_row = keys[:1].contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    for i, row in enumerate((keys[:1], same_row, keys[::3][:1], keys.float().numpy().astype(ml_dtypes.bfloat16)[:1])):
        step = Append(chat, 0, TOKENS + i, row, row)
        assert stream.step([step], [], None, None)[0] == [None]
    for queries in (QUERIES, torch.from_numpy(QUERIES), np.asfortranarray(QUERIES), QUERIES.astype(">f4")):
        answers.append(stream.step([], [Item(chat, 0, queries)], {"top_k": 5}, Attention())[2][0])
        assert same(answers[-1], answers[0])
    held = connection.call("Gather", {"handle": chat, "positions": range(TOKENS, TOKENS + 4), "keys": True})["keys"]
    assert held.dtype == np.uint16 and same(
        held, np.repeat(keys[:1, 0].view(torch.int16).numpy().view(np.uint16), 4, 0)
    )


def test_errors_inside_a_step(connection, chat):
    stream = connection.open_stream()
    good, gap = Append(chat, 0, TOKENS, rows(1), rows(1)), Append(chat, 0, TOKENS + 9, rows(1), rows(1))
    appends, answers, _, _, error, _ = stream.step(
        [good, gap], [Item(chat, 0, QUERIES), Item(chat, 7, QUERIES)], {"top_k": 5}, None
    )
    assert (
        appends[0] is None
        and appends[1][0] == "OUT_OF_RANGE"
        and appends[1][2] == "appends[1].position"
        and error is None
    )
    assert (
        answers[0]["error"] is None
        and answers[1]["error"][0] == "INVALID_ARGUMENT"
        and answers[1]["error"][2] == "items[1].layer"
    )
    assert answers[1]["positions"].shape == (0, 0)
    narrow = stream.step([Append(chat, 0, TOKENS + 1, rows(1).astype(np.float16), rows(1))], [], None, None)[0][0]
    assert (
        narrow[0] == "INVALID_ARGUMENT"
        and "got float16" in narrow[1]
        and narrow[2:] == ("appends[0].keys.dtype", "DTYPE_MISMATCH", 0.0)
    )
    appends, answers, attended, _, error, _ = stream.step([good], [Item(chat, 0, QUERIES)], {"top_k": -1}, None)
    assert (appends, answers, attended) == ([], [], []) and error[0] == "INVALID_ARGUMENT" and "top_k" in error[2]
    failed = stream.step([], [Item(chat, 7, QUERIES)], None, Attention(with_positions=True))[2][0]
    assert failed["output"] is None and failed["selected"] is None and failed["error"][0] == "INVALID_ARGUMENT"
    assert stream.step([], [Item(chat, 0, QUERIES)], None, None)[1][0]["num_tokens"] == TOKENS + 1  # the stream goes on


@pytest.mark.parametrize(
    "error, text, appends, items, selector, attention",
    [
        (
            TypeError,
            r"sequence: must be a Sequence, .* not 'chat'",
            lambda chat: [Append("chat", 0, 0, rows(1))],
            None,
            None,
            None,
        ),
        (
            TypeError,
            r"sequence: .* not a SequenceInfo; its .handle is one",
            lambda chat: [Append(SequenceInfo(chat, [], 0, 0), 0, 0, rows(1))],
            None,
            None,
            None,
        ),
        (TypeError, r"layer: must be an int, not '0'", lambda chat: [Append(chat, "0", 0, rows(1))], None, None, None),
        (
            TypeError,
            r"position: must be an int, not 1.5",
            lambda chat: [Append(chat, 0, 1.5, rows(1))],
            None,
            None,
            None,
        ),
        (ValueError, r"layer: must fit into 32 bits", None, lambda chat: [Item(chat, 2**31, QUERIES)], None, None),
        (
            ValueError,
            r"keys: dtype must be .* not float64",
            lambda chat: [Append(chat, 0, 0, np.zeros((1, 2, 64)))],
            None,
            None,
            None,
        ),
        (
            ValueError,
            r"queries: at most three dimensions, not \[1, 1, 4, 64\]",
            None,
            lambda chat: [Item(chat, 0, QUERIES[None, None])],
            None,
            None,
        ),
        (ValueError, r"selector: unknown setting topk; there are top_k, ", None, None, {"topk": 3}, None),
        (ValueError, r"scope: must be one of per_kv_head, per_q_head, not 'head'", None, None, {"scope": "head"}, None),
        (
            ValueError,
            r"selector: top_k and mass_p exclude each other",
            None,
            None,
            {"top_k": 3, "mass_p": (0.5, 1, 2)},
            None,
        ),
        (TypeError, r"mass_p: must be \(p, floor, cap\)", None, None, {"mass_p": 0.9}, None),
        (TypeError, r"scale: 'x' does not fit: must be a number", None, None, None, Attention(scale="x")),
        (AttributeError, "queries", None, lambda chat: [SimpleNamespace(sequence=chat, layer=0)], None, None),
        (TypeError, "not iterable", lambda chat: 7, None, None, None),
    ],
)
def test_what_cannot_be_sent(connection, chat, error, text, appends, items, selector, attention):
    stream = connection.open_stream()
    with pytest.raises(error, match=text):
        stream.step(appends(chat) if appends else [], items(chat) if items else [], selector, attention)
    assert stream.step([], [Item(chat, 0, QUERIES)], None, None)[1][0]["num_tokens"] == TOKENS  # nothing was sent


def test_close(connection, chat):
    stream = connection.open_stream()
    stream.step([], [Item(chat, 0, QUERIES)], None, None)
    stream.close()
    stream.close()
    for closed in (stream, connection.open_stream()):
        closed.close(cancel=True)
        with pytest.raises(_native.NativeError, match="the stream is closed") as caught:
            closed.step([], [], None, None)
        assert caught.value.code == "UNAVAILABLE"
    here = connection.endpoint == "in process"
    assert connection.open_stream().transport in (("in process",) if here else ("stream", "shared memory"))


def test_a_step_in_process_ends_in_its_time():
    one = in_process()
    chat = create(one, kv_store="keys_values", zones={"dense_threshold": 1 << 20})
    append(one, chat, 0, 0, rows(60_000), rows(60_000))
    stream = one.open_stream(timeout=0.001)
    items = [Item(chat, 0, QUERIES)] * 50
    late = stream.step([], items, {"exact": True}, Attention())[2]
    assert {answer["error"] and answer["error"][0] for answer in late} == {"DEADLINE_EXCEEDED"}
    assert one.open_stream().step([], items[:1], None, Attention())[2][0]["error"] is None


def test_a_stream_is_one_threads_at_a_time():
    one = in_process()
    chat = create(one, kv_store="keys_values", zones={"dense_threshold": 1 << 20})
    append(one, chat, 0, 0, rows(60_000), rows(60_000))
    stream, refused = one.open_stream(), threading.Event()
    items = [Item(chat, 0, QUERIES)] * 20

    def intrude():
        while not refused.is_set():
            try:
                stream.step([], [], None, None)
            except RuntimeError as error:
                assert "in use by another thread" in str(error)
                refused.set()

    thread = threading.Thread(target=intrude, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not refused.is_set() and time.monotonic() < deadline:
        try:
            stream.step([], items, None, Attention())
        except RuntimeError:
            refused.set()
    assert refused.is_set()
    thread.join()
    assert stream.step([], items[:1], None, Attention())[2][0]["error"] is None


def test_the_gil_is_released():
    """A thread of Python goes on counting while steps run: it would stand still for as long as the GIL is held."""
    one = in_process()
    chat = create(one, kv_store="keys_values", zones={"dense_threshold": 1 << 20})
    append(one, chat, 0, 0, rows(60_000), rows(60_000))
    begun, ended, counts = threading.Event(), threading.Event(), []

    def work():
        stream = one.open_stream()
        begun.set()
        stream.step([], [Item(chat, 0, QUERIES)] * 60, None, Attention())
        counts.append(len(ticks))
        ended.set()

    ticks, interval = [], sys.getswitchinterval()
    sys.setswitchinterval(100)  # nobody is asked to give the GIL up
    try:
        thread = threading.Thread(target=work)
        thread.start()
        begun.wait()
        while not ended.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert counts[0] > 20, counts


def test_two_threads_step_at_once(connection, chat):
    results, wrong = {}, []
    chats = [chat, Sequence(**connection.call("CreateSequence", {"index": "x"})["handle"])]
    append(connection, chats[1], 0, 0, rows(TOKENS, 1), rows(TOKENS, 2))

    def work(sequence):
        stream = connection.open_stream()
        outputs = []
        for i in range(100):
            step = Append(sequence, 0, TOKENS + i, rows(1, i), rows(1, i))
            appends, _, attended, _, error, _ = stream.step(
                [step], [Item(sequence, 0, QUERIES)], {"top_k": 5}, Attention()
            )
            if appends != [None] or error is not None or attended[0]["error"] is not None:
                wrong.append((appends, error, attended))
            outputs.append(attended[0]["output"])
        results[sequence.id] = outputs

    threads = [threading.Thread(target=work, args=(sequence,)) for sequence in chats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and same(results[chats[0].id], results[chats[1].id])


def test_nothing_is_kept_from_step_to_step(chat, connection):
    stream = connection.open_stream()
    keys, item = rows(1), Item(chat, 0, QUERIES)
    replay = [Append(chat, 0, 0, rows(TOKENS, 1)[:1], rows(TOKENS, 2)[:1])]

    def steps(count):
        for _ in range(count):
            stream.step(replay, [item], {"top_k": 5, "with_scores": True}, Attention(with_positions=True))
            stream.step(replay, [item, item], {"top_k": 5}, None)
            try:
                stream.step([Append(chat, 0, 0, keys[0, 0, 0], keys)], [], {"scope": "x"}, None)
            except ValueError:
                pass

    counted = [keys, item, QUERIES, replay[0], replay[0].keys]
    steps(500)
    gc.collect()
    before, references = resident(), [sys.getrefcount(one) for one in counted]
    steps(5000)
    gc.collect()
    assert [sys.getrefcount(one) for one in counted] == references
    assert resident() - before < 4e6, (before, resident())  # 15,000 steps; a leak of a tensor a step would be 15 MB


def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
