"""Calls in process and to a server: the same answers to the byte, the same errors, limits of time, what ends when."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
from conftest import GEOMETRY, PROFILES, ZONES, append, create, in_process, rows, same, start

from seine_kv import _native
from seine_kv.messages import Append, Attention, Item, Sequence

TOKENS = 400
QUERIES = np.random.default_rng(5).standard_normal((4, 64)).astype(np.float32)
MEASURED = ("server_us", "uptime_seconds", "instance")  # what differs from run to run


def without_times(answer):
    return {name: value for name, value in answer.items() if name not in MEASURED}


def everything(connection):
    """A result of every method, and of steps, on one little index."""
    handle = {"index": "x", "id": "chat", "generation": 0}
    spec = {"name": "x", "geometry": GEOMETRY, "zones": ZONES, "kv_store": "keys_values"}
    spec["subspace"] = {"key_rank": 16, "value_rank": 16}
    results = [connection.call("CreateIndex", {"spec": spec}), connection.call("GetIndex", {"name": "x"})]
    results.append(connection.call("CreateSequence", {"index": "x", "id": "chat"}))
    chat, keys, values = Sequence("x", "chat"), rows(TOKENS, 1), rows(TOKENS, 2)
    for layer in range(2):
        results.append(append(connection, chat, layer, 0, keys, values, report="kept"))
    item = {"handle": handle, "layer": 0, "queries": QUERIES}
    selector = {"top_k": 9, "scope": "per_q_head", "with_scores": True}
    at = {"handle": handle, "layer": 0}
    for method, request in (
        ("Append", {"item": {**at, "position": TOKENS, "keys": keys[:3], "values": values[:3], "report": "kept"}}),
        (
            "AppendStream",
            {"item": {**at, "position": TOKENS + 3, "keys": keys[:3], "values": values[:3], "report": "dropped"}},
        ),
        ("Retrieve", {"items": [item, {**item, "layer": 9}], "selector": selector}),
        ("Retrieve", {"items": [item], "selector": {"mass_p": (0.5, 1, 20)}}),
        ("Attend", {"items": [item], "selector": selector, "attention": {"with_positions": True}}),
        ("Retrieve", {"items": [{**item, "dense_from": 200}], "selector": selector}),
        ("Gather", {**at, "kv_head": 1, "positions": [7, 3, 399], "keys": True, "values": True}),
        ("Score", {**at, "scorer": "knorm"}),
        ("Diagnose", {**at, "scorers": ["knorm", "keydiff"]}),
        ("Evict", {**at, "scorer": "knorm", "budget": 300, "dry_run": True}),
        ("DescribeStep", at),
        ("GetBasis", at),
        ("Reconstruct", {**at, "kv_head": 0, "begin": 0, "end": 90}),
        ("DescribeHead", {**at, "kv_head": 1}),
        ("MeasureProfile", {"sequences": [handle], "layer": 0}),
        ("CompareExact", {"index": "x", "sequence": "chat", "selector": selector}),
        ("ForkSequence", {"source": handle, "new_id": "fork"}),
        ("TruncateSequence", {"handle": {**handle, "id": "fork"}, "position": 300}),
        (
            "Evict",
            {"handle": {**handle, "id": "fork"}, "layer": 1, "scorer": "knorm", "budget": 200, "report": "dropped"},
        ),
        ("GetSequence", {"handle": handle}),
        ("ListSequences", {"index": "x"}),
        ("ListIndexes", {}),
    ):
        results.append(without_times(connection.call(method, request)))
    bases = results[-11]["bases"]
    results.append(connection.call("LoadBasis", {**at, "bases": bases, "frame": results[-11]["frame"]}))
    stream = connection.open_stream()
    more = [Append(chat, 1, TOKENS + i, keys[i : i + 1], values[i : i + 1]) for i in range(2)]
    for attention in (None, Attention(), Attention(with_positions=True)):
        for selector in (None, {"top_k": 5, "with_scores": True}, {"mass_p": (0.9, 1, 30)}, {"top_k": -1}):
            items = [Item(chat, layer, QUERIES) for layer in (0, 1, 7)]
            appends, answers, attended, _, error, _ = stream.step(more, items, selector, attention)
            results.append([appends, answers, attended, error])
    given = [np.full((4, 2), row, np.int32) for row in ((40, -1), (40, 41), (2, -1))]  # the last in the sink
    items = [Item(chat, 0, QUERIES, 200, positions) for positions in (None, *given)] + [Item(chat, 0, QUERIES, -1)]
    _, _, attended, _, error, _ = stream.step([], items, None, Attention())
    assert [one["error"] is None for one in attended] == [True, True, True, False, False]
    results.append([attended, error])
    stream.close()
    results.append(connection.call("DeleteSequence", {"handle": handle}))
    results.append(connection.call("DeleteIndex", {"name": "x"}))
    return results


class Recorder:
    """A connection that notes which methods are called."""

    def __init__(self, connection):
        self.connection, self.called = connection, set()
        self.append, self.open_stream = connection.append, connection.open_stream

    def call(self, method, request):
        self.called.add(method)
        return self.connection.call(method, request)


def test_in_process_and_a_server_answer_the_same_to_the_byte(both):
    recorders = [Recorder(connection) for connection in both]
    here, there = map(everything, recorders)
    assert len(here) == len(there) > 30
    for i, (one, other) in enumerate(zip(here, there)):
        assert same(one, other), (i, one, other)
    methods = {method["name"].rpartition("/")[2] for method in _native.methods()}
    others = {"Decode", "GetServerInfo", "GetMetrics", "CalibrateBasis"}  # steps, times, and the next tests
    others |= {"Snapshot", "Restore", "ReleaseBase", "SetFamilyState", "ListFamilyStates", "ListServers"}
    others |= {"SetDraining"}
    assert methods - recorders[0].called - {"OpenChannel"} == others  # a same-host channel is a server's alone


def test_frozen_families_are_the_same(both):
    for connection in both:
        chat = create(connection)
        freeze = connection.call("SetFamilyState", {"index": "x", "family": chat.id, "state": "frozen"})
        assert freeze["sequences"] == 1
        (state,) = connection.call("ListFamilyStates", {"index": "x"})["families"]
        assert state.pop("seconds_left") > 0
        assert (state["family"], state["state"]) == (chat.id, "frozen")
        with pytest.raises(_native.NativeError, match="takes no changes while it moves") as caught:
            connection.call("DeleteSequence", {"handle": {"index": "x", "id": chat.id, "generation": 0}})
        assert (caught.value.code, caught.value.retry_delay) == ("UNAVAILABLE", 0.02)
        thaw = {"index": "x", "family": chat.id, "state": "serving", "freeze": freeze["freeze"]}
        assert connection.call("SetFamilyState", thaw)["sequences"] == 1


def test_each_knows_itself(both):
    for connection in both:
        (server,) = connection.call("ListServers")["servers"]
        assert (server["itself"], server["known_by"], server["health"]) == (True, "itself", "serving")
        assert server["info"]["instance"] == connection.call("GetServerInfo")["instance"]


def test_draining_is_the_same(both):
    for connection in both:
        chat = create(connection)
        assert connection.call("SetDraining", {"draining": True}) == {"was_draining": False}
        with pytest.raises(_native.NativeError, match="takes no new families") as caught:
            connection.call("CreateSequence", {"index": "x"})
        assert (caught.value.code, caught.value.retry_delay) == ("UNAVAILABLE", 1.0)
        connection.call("DeleteSequence", {"handle": {"index": "x", "id": chat.id, "generation": 0}})
        assert connection.call("SetDraining", {"draining": False}) == {"was_draining": True}


def test_snapshots_are_the_same(both, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # in process a name is a path
    results = []
    for connection in both:
        chat = create(connection)
        handle = {"index": "x", "id": chat.id, "generation": 0}
        append(connection, chat, 0, 0, rows(TOKENS))
        written = connection.call("Snapshot", {"handle": handle, "file": "monday", "scope": "sequence"})
        connection.call("DeleteSequence", {"handle": handle})
        restored = connection.call("Restore", {"index": "x", "file": "monday"})
        item = {"handle": handle, "layer": 0, "queries": QUERIES}
        results.append([written, restored, without_times(connection.call("Retrieve", {"items": [item]}))])
        with pytest.raises(_native.NativeError, match="file: no such snapshot") as caught:
            connection.call("Restore", {"index": "x", "file": "tuesday"})
        assert caught.value.code == "NOT_FOUND"
        held = connection.call("Restore", {"index": "x", "file": "monday", "hold_seconds": 60, "id": "copy"})
        release = {"index": "x", "base": held["base"]}
        assert connection.call("ReleaseBase", release) == {"released": True}
        assert connection.call("ReleaseBase", release) == {"released": False}
        connection.call("DeleteSequence", {"handle": handle})
        held = connection.call("Restore", {"index": "x", "file": "monday", "hold_seconds": 60})
        there = connection.call("Restore", {"index": "x", "base": held["base"], "generation": 1})
        results[-1] += [there, without_times(connection.call("Retrieve", {"items": [item]}))]
    assert same(*results)
    assert (tmp_path / "monday").stat().st_size == results[0][0]["bytes"]


def test_what_a_server_is_is_said_alike(both):
    here, there = (connection.call("GetServerInfo") for connection in both)
    differ = {name for name in here if here[name] != there[name]} - {"memory_bytes", "uptime_seconds", "instance"}
    assert differ <= {"queue_capacity", "max_message_bytes"} and "smollm2-135m" in here["profiles"]
    for connection in both:
        geometry = {"num_layers": 30, "num_q_heads": 9, "num_kv_heads": 3, "head_dim": 64, "dtype": "float16"}
        create(
            connection, "low", geometry=geometry, kv_store="keys_values", subspace={"key_rank": 16, "value_rank": 16}
        )
    request = {"index": "low", "layer": 3, "profile": "smollm2-135m", "key_rank": 16, "value_rank": 16}
    assert same(*(connection.call("CalibrateBasis", request) for connection in both))


@pytest.mark.parametrize(
    "method, request_, code, field, reason",
    [
        ("GetIndex", {"name": "nope"}, "NOT_FOUND", "name", "INDEX_NOT_FOUND"),
        ("CreateIndex", {"spec": {"name": "a b"}}, "INVALID_ARGUMENT", None, None),
        (
            "CreateIndex",
            {"spec": {"name": "y", "geometry": GEOMETRY, "zones": {"sink": -1}}},
            "INVALID_ARGUMENT",
            "spec.zones.sink",
            None,
        ),
        (
            "CreateIndex",
            {"spec": {"name": "y", "geometry": GEOMETRY, "codec": {"profile": "no"}}},
            "NOT_FOUND",
            "spec.codec.profile",
            "PROFILE_NOT_FOUND",
        ),
        ("CreateIndex", {"spec": {"name": "x", "geometry": GEOMETRY}}, "ALREADY_EXISTS", None, None),
        ("Retrieve", {}, "INVALID_ARGUMENT", "items", "EMPTY"),
        (
            "Gather",
            {"handle": {"index": "x", "id": "chat"}, "positions": [900], "keys": True},
            "OUT_OF_RANGE",
            None,
            None,
        ),
        (
            "Append",
            {"item": {"handle": {"index": "x", "id": "chat"}, "keys": rows(1).astype(np.float16)}},
            "INVALID_ARGUMENT",
            "item.keys.dtype",
            "DTYPE_MISMATCH",
        ),
    ],
)
def test_errors_are_the_same(both, method, request_, code, field, reason):
    told = []
    for connection in both:
        create(connection)
        connection.call("CreateSequence", {"index": "x", "id": "chat"})
        with pytest.raises(_native.NativeError) as caught:
            connection.call(method, request_)
        told.append((str(caught.value), caught.value.code, caught.value.field, caught.value.reason))
    assert told[0] == told[1]
    assert (
        told[0][1] == code
        and field in (None, told[0][2])
        and reason in (None, told[0][3])
        and "D_TYPE" not in told[0][0]
    )


def test_append_checks_before_anything_leaves(connection):
    chat = create(connection, kv_store="keys_values")
    keys = rows(20)
    for wrong, text in (
        ((keys[0], None), r"keys: must be \[tokens, num_kv_heads, head_dim\], not \[2, 64\]"),
        ((keys, keys[:3]), r"values: must have the shape of keys, \[20, 2, 64\], not \[3, 2, 64\]"),
        ((keys, keys, np.zeros((21, 4, 64), np.float32)), "queries: must be"),
        ((keys.astype(np.float64), keys), "keys: dtype must be float32, float16 or bfloat16, not float64"),
    ):
        with pytest.raises(ValueError, match=text):
            append(connection, chat, 0, 0, wrong[0], wrong[1], queries=wrong[2] if len(wrong) > 2 else None)
    with pytest.raises(_native.NativeError) as caught:
        append(connection, chat, 0, 5, keys, keys)
    assert caught.value.code == "OUT_OF_RANGE" and caught.value.field == "item.position"
    assert (
        append(connection, chat, 0, 0, keys, keys)[0] == 20 and append(connection, chat, 0, 0, keys, keys)[0] == 20
    )  # a replay
    assert append(connection, chat, 0, 20, keys[::-2], keys[::-2])[0] == 10
    held = connection.call("Gather", {"handle": chat, "positions": np.arange(20, 30), "keys": True})["keys"]
    assert same(held, keys[::-2][:, 0].copy())


def test_a_long_append_goes_in_pieces(remote, connection):
    chat = create(connection, "x" if connection is not remote else "y", kv_store="keys_values")
    keys = rows(20_000, 3)  # 10 MiB of keys, above a piece
    assert append(connection, chat, 1, 0, keys, keys)[0] == 20_000
    held = connection.call(
        "Gather", {"handle": chat, "layer": 1, "kv_head": 1, "positions": np.arange(0, 20_000, 999), "values": True}
    )
    assert same(held["values"], keys[::999, 1].copy())


def test_methods_by_name(connection):
    assert connection.call("seine.v1.AdminService/GetServerInfo")["version"] == _native.version()
    for name, text in (
        ("GetServerinfo", "unknown method GetServerinfo; did you mean GetServerInfo?"),
        ("Decode", "Decode: is a stream"),
    ):
        with pytest.raises(ValueError, match=text.replace("?", r"\?")):
            connection.call(name)
    for make, text in (
        (lambda: connection.call("GetServerInfo", timeout=0), "timeout: must be above 0 s, not 0"),
        (lambda: connection.open_stream(transport="pigeon"), "transport: must be .*auto.*, not pigeon"),
        (lambda: _native.Connection.connect("nowhere"), "endpoint nowhere: expected unix:"),
        (lambda: _native.Connection.in_process(threads=-1), "threads: must be 0 or more, not -1"),
        (lambda: _native.Connection.in_process(memory_limit_bytes=-1), "memory_limit_bytes: must be 0 or more, not -1"),
    ):
        with pytest.raises(ValueError, match=text):
            make()


def test_what_an_own_index_is_made_with(tmp_path):
    for wrong, text in (
        ({"backend": "abacus"}, "backend: "),
        ({"profiles": str(tmp_path / "none")}, "profiles: .*No such file"),
        ({"profiles": [PROFILES, tmp_path]}, "profiles: more than one folder"),
        ({"profiles": __file__}, "profiles: "),
    ):
        with pytest.raises(_native.NativeError, match=text):
            _native.Connection.in_process(threads=1, **wrong)
    one = _native.Connection.in_process(threads=1, memory_limit_bytes=1 << 20)
    with pytest.raises(_native.NativeError) as caught:
        append(one, create(one), 0, 0, rows(20_000))
    assert caught.value.code == "RESOURCE_EXHAUSTED"
    assert one.call("GetServerInfo")["num_threads"] == 1 and one.endpoint == "in process"


def test_profiles_by_file(tmp_path, remote):
    file = PROFILES / "smollm2-135m.profile.safetensors"
    one = _native.Connection.in_process(threads=1)
    assert one.call("GetServerInfo")["profiles"] == []
    assert one.add_profile(file) == one.add_profile(str(file)) == "smollm2-135m"
    assert one.call("GetServerInfo")["profiles"] == ["smollm2-135m"]
    geometry = {"num_layers": 30, "num_q_heads": 9, "num_kv_heads": 3, "head_dim": 64, "dtype": "float16"}
    spec = {"name": "x", "geometry": geometry, "codec": {"profile": "smollm2-135m"}}
    assert one.call("CreateIndex", {"spec": spec})["index"]["spec"]["codec"]["name"] == "balanced"
    copy = tmp_path / file.name
    copy.write_bytes(file.read_bytes())
    for code, path, connection in (
        ("ALREADY_EXISTS", copy, one),
        ("INVALID_ARGUMENT", __file__, one),
        ("UNIMPLEMENTED", file, remote),
    ):
        with pytest.raises(_native.NativeError) as caught:
            connection.add_profile(path)
        assert caught.value.code == code
    assert _native.Connection.in_process(threads=1, profiles=[copy]).call("GetServerInfo")["profiles"] == [
        "smollm2-135m"
    ]


# Time ----------------------------------------------------------------------------------------------------------


def test_a_call_in_process_ends_in_its_time():
    one = in_process()
    chat = create(one, geometry={"num_layers": 1})
    append(one, chat, 0, 0, rows(60_000))
    begun = time.monotonic()
    with pytest.raises(_native.NativeError) as caught:
        one.call("Diagnose", {"handle": chat, "scorers": ["keydiff", "manifoldkv"]}, timeout=0.05)
    assert caught.value.code == "DEADLINE_EXCEEDED" and time.monotonic() - begun < 5


def stop(pid):
    """Stops a process; the signal alone may reach its threads a moment later."""
    os.kill(pid, signal.SIGSTOP)
    for thread in os.listdir(f"/proc/{pid}/task"):
        while Path(f"/proc/{pid}/task/{thread}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)


def test_a_server_that_is_stuck_or_gone(tmp_path):
    process, connection = start(tmp_path / "seine.sock")
    try:
        chat = create(connection)
        stream, other = connection.open_stream(timeout=0.5), connection.open_stream()
        assert stream.step([Append(chat, 0, 0, rows(3))], [], None, None)[0] == [None]
        assert stream.transport in ("stream", "shared memory")
        other.step([], [], None, None)
        stop(process.pid)
        for late, text in (
            (lambda: connection.call("GetServerInfo", timeout=0.5), "no answer from unix:.* in time"),
            (lambda: append(connection, chat, 0, 3, rows(3), timeout=0.5), "no answer from unix:.* in time"),
            (lambda: stream.step([], [], None, None), "no answer (within 0.5 s|from unix:.* in time)"),
        ):
            begun = time.monotonic()
            with pytest.raises(_native.NativeError, match=text) as caught:
                late()
            assert caught.value.code == "DEADLINE_EXCEEDED" and 0.4 < time.monotonic() - begun < 5
    finally:
        process.kill()
        process.wait()
    for gone in (lambda: other.step([], [], None, None), lambda: connection.call("GetServerInfo")):
        with pytest.raises(_native.NativeError) as caught:
            gone()
        assert caught.value.code == "UNAVAILABLE"
    with pytest.raises(_native.NativeError, match="no server at unix:.*; start one with seined"):
        connection.call("GetServerInfo")


def test_no_server_is_said_by_the_first_call(tmp_path):
    connection = _native.Connection.connect(str(tmp_path / "none.sock"))
    stream = connection.open_stream()
    for call in (
        lambda: connection.call("ListIndexes"),
        lambda: stream.step([], [], None, None),
        lambda: append(connection, Sequence("a", "b"), 0, 0, rows(1)),
    ):
        with pytest.raises(_native.NativeError, match="no server at .*there is no such socket") as caught:
            call()
        assert caught.value.code == "UNAVAILABLE"


def test_grpcio_in_the_same_process(remote):
    """Another gRPC and protobuf, with the same symbols: each goes on with its own."""
    stream = remote.open_stream()
    with grpc.insecure_channel(remote.endpoint) as channel:
        call = channel.unary_unary("/seine.v1.AdminService/GetServerInfo")
        for _ in range(20):
            assert _native.version().encode() in call(b"")
            assert remote.call("GetServerInfo")["version"] == _native.version()
            assert stream.step([], [], None, None)[4] is None


def test_a_process_that_leaves_everything_open_ends(remote):
    script = f"""
import numpy as np
from seine_kv import _native
for connection in (_native.Connection.in_process(), _native.Connection.connect({remote.endpoint!r})):
    stream = connection.open_stream()
    stream.step([], [], None, None)
    globals()[connection.endpoint] = connection, stream, connection.call
print("done")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


# Lives ----------------------------------------------------------------------------------------------------------


def test_a_stream_outlives_its_connection():
    one = in_process()
    chat = create(one)
    append(one, chat, 0, 0, rows(TOKENS))
    stream = one.open_stream()
    del one
    gc.collect()
    assert stream.step([], [Item(chat, 0, QUERIES)], {"top_k": 5}, None)[1][0]["positions"].shape == (2, 5)


def test_the_memory_of_a_connection_goes_with_it():
    sizes = []
    for i in range(8):
        one = in_process()
        append(one, create(one), 0, 0, rows(30_000))
        del one
        gc.collect()
        sizes.append(resident())
    assert sizes[-1] < sizes[2] + 20e6, sizes


def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_calls_of_several_threads_at_once(connection):
    chat, wrong = create(connection), []
    append(connection, chat, 0, 0, rows(TOKENS))
    expected = connection.call("Retrieve", {"items": [{"handle": chat, "queries": QUERIES}]})["answers"]

    def work():
        for _ in range(50):
            if not same(
                connection.call("Retrieve", {"items": [{"handle": chat, "queries": QUERIES}]})["answers"], expected
            ):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
