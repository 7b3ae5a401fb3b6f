"""seine_kv.grpc's Client.call: any method by its name, in protobuf's JSON form."""

import base64
import re
from pathlib import Path

import numpy as np
import pytest

from seine_kv.grpc import Client
from seine_kv.grpc.methods import METHODS
from seine_kv.messages import SeineError

SHAPE = {"num_layers": 1, "num_q_heads": 2, "num_kv_heads": 2, "head_dim": 64}
TOKENS = 300
HANDLE = {"index": "words", "id": "chat"}


@pytest.fixture
def keys():
    return np.random.default_rng(7).standard_normal((TOKENS + 1, 2, 64)).astype(np.float32)


@pytest.fixture
def over_grpc(address, keys):
    with Client(address) as client:
        client.wait_until_ready(20)
        client.create_index("words", dtype="float32", **SHAPE)
        client.append(client.create_sequence("words", "chat"), 0, 0, keys[:TOKENS])
        yield client
        client.delete_index("words")


def test_every_method_of_the_protos_is_known():
    protos = Path(__file__).resolve().parents[3] / "proto" / "seine" / "v1"
    declared = {name for file in protos.glob("*.proto") for name in re.findall(r"^  rpc (\w+)\(", file.read_text(), re.M)}
    assert {method.name.rpartition("/")[2] for method in METHODS} == declared


def tensor_dict(array):
    raw = base64.b64encode(array.tobytes()).decode()
    return {"dtype": "D_TYPE_FLOAT32", "shape": [str(size) for size in array.shape], "raw": raw}


def test_json_of_any_method(over_grpc, keys):
    for name in ("GetSequence", "SequenceService/GetSequence", "seine.v1.SequenceService.GetSequence"):
        assert over_grpc.call(name, {"handle": HANDLE})["sequence"]["layer_tokens"] == [str(TOKENS)]
    info = over_grpc.call("GetServerInfo")
    assert info["backend"] == "cpu" and info["device_memory_bytes"] == "0"  # written though it is the default
    pieces = [{"item": {"handle": HANDLE, "position": TOKENS, "keys": tensor_dict(keys[TOKENS:])}}] * 2  # one, and its replay
    assert over_grpc.call("AppendStream", pieces)["pieces"] == "2"
    steps = [{"items": [{"handle": HANDLE, "queries": tensor_dict(keys[0])}]}] * 3
    answers = list(over_grpc.call("Decode", steps))
    assert len(answers) == 3 and all(answer["answers"][0]["num_tokens"] == str(TOKENS + 1) for answer in answers)
    wrong = {"items": [{"handle": {**HANDLE, "id": "x"}, "queries": tensor_dict(keys[0])}]}
    lost = over_grpc.call("Retrieve", wrong)["answers"][0]["status"]
    kinds = {detail["@type"].rpartition("/")[2] for detail in lost["details"]}  # in any order
    assert lost["code"] == 5 and "google.rpc.ErrorInfo" in kinds


def test_a_wrong_method_or_json_is_said_before_anything_is_sent(over_grpc):
    for method, request, kind, text in (
        ("RetrieveTop", {}, ValueError, "did you mean Retrieve?"),
        ("Xylophone", {}, ValueError, "unknown method Xylophone"),
        (3, {}, TypeError, "method: must be its name"),
        ("GetIndex", {"nme": "x"}, ValueError, 'no field named "nme"'),
        ("GetIndex", {"name": 3}, ValueError, "name"),
        ("GetIndex", ["name"], TypeError, "a dict of GetIndexRequest"),
        ("Decode", [{"item": 3}], ValueError, "item"),
    ):
        with pytest.raises(kind, match=re.escape(text)):
            over_grpc.call(method, request)
    with pytest.raises(SeineError) as caught:
        over_grpc.call("GetIndex", {"name": "none"})
    assert caught.value.code == "NOT_FOUND" and caught.value.field == "name"
    with Client("/nowhere.sock") as nobody, pytest.raises(SeineError) as caught:
        list(nobody.call("Decode", [{}]))
    assert caught.value.code == "UNAVAILABLE"
