"""seine_kv.client's Client.call: any method by its name, in words and arrays.

The grpcio client speaks protobuf's JSON form (test_grpc_call.py): there bytes are base64 and 64-bit numbers strings. Here
arrays need no such detour.
"""

import re

import numpy as np
import pytest

from seine_kv.client import Client
from seine_kv.messages import SeineError

SHAPE = {"num_layers": 1, "num_q_heads": 2, "num_kv_heads": 2, "head_dim": 64}
TOKENS = 300
HANDLE = {"index": "words", "id": "chat"}


@pytest.fixture
def keys():
    return np.random.default_rng(7).standard_normal((TOKENS + 1, 2, 64)).astype(np.float32)


@pytest.fixture(params=["remote", "in_process"])
def native(request, keys):
    remote = request.param == "remote"
    client = Client(request.getfixturevalue("address")) if remote else request.getfixturevalue("in_process")
    client.wait_until_ready(20)
    client.create_index("words", dtype="float32", **SHAPE)
    client.append(client.create_sequence("words", "chat"), 0, 0, keys[:TOKENS])
    yield client
    client.delete_index("words")


def test_words_and_arrays_of_any_method(native, keys):
    for name in ("GetSequence", "SequenceService/GetSequence", "seine.v1.SequenceService/GetSequence"):
        assert native.call(name, {"handle": HANDLE})["sequence"]["layer_tokens"] == [TOKENS]
    info = native.call("GetServerInfo")
    assert info["backend"] == "cpu" and info["device_memory_bytes"] == 0
    piece = {"item": {"handle": HANDLE, "position": TOKENS, "keys": keys[TOKENS:]}}
    assert native.call("AppendStream", piece)["tokens"] == 1
    request = {"items": [{"handle": HANDLE, "queries": keys[0]}], "selector": {"top_k": 5, "exact": True, "scope": "per_q_head"}}
    answer = native.call("Retrieve", request)["answers"][0]
    assert answer["path"] == "dense" and answer["num_tokens"] == TOKENS + 1
    rows = native.call("Gather", {"handle": HANDLE, "positions": np.int32([3]), "keys": True})
    np.testing.assert_array_equal(rows["keys"], keys[3:4, 0])
    assert rows["values"] is None
    lost = native.call("Retrieve", {"items": [{"handle": {**HANDLE, "id": "x"}, "queries": keys[0]}]})["answers"][0]
    assert lost["status"]["code"] == "NOT_FOUND" and answer["status"] is None


def test_a_wrong_method_or_dict_is_said_before_anything_is_sent(native):
    for method, request, kind, text in (
        ("Xylophone", {}, ValueError, "Xylophone"),
        ("Decode", {}, ValueError, "stream"),
        (3, {}, TypeError, "method: must be its name"),
        ("GetIndex", {"nme": "x"}, ValueError, "nme"),
        ("GetIndex", {"name": 3}, TypeError, "name"),
        ("GetIndex", ["name"], TypeError, "dict"),
    ):
        with pytest.raises(kind, match=re.escape(text)):
            native.call(method, request)
    with pytest.raises(SeineError) as caught:
        native.call("GetIndex", {"name": "none"})
    assert caught.value.code == "NOT_FOUND" and caught.value.field == "name"
