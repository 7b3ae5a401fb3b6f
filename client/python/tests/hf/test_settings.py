"""An index that exists must be the one that hf.install is asked for: whatever differs is named. Needs torch and transformers."""

import hashlib

import pytest
from conftest import start
from small_model import client, make_model  # noqa: F401 - a fixture

from seine_kv import hf
from seine_kv.client import Client

KEYDIFF = {"evict": hf.Eviction(64)}
LOW_RANK = {"low_rank": hf.LowRank(0.5, 0.5)}
# What the index was made with, what is asked of it, and the fields that the error names.
UNLIKE = [
    (KEYDIFF, {"evict": hf.Eviction(64, scorer="manifoldkv")}, ["eviction.scorer.name"]),
    (KEYDIFF, {"evict": hf.Eviction(64, scorer={"name": "keydiff", "similarity": "dot"})}, ["eviction.scorer.similarity"]),
    (KEYDIFF, {"evict": hf.Eviction({"tokens": 64, "heads": "adaptive"})}, ["eviction.budget.heads"]),
    (KEYDIFF, {"evict": hf.Eviction(64, keep={"sinks": 8, "recent": 3})}, ["eviction.keep.sinks", "eviction.keep.recent"]),
    (KEYDIFF, {"evict": hf.Eviction(65, interval=32)}, ["eviction.budget.tokens", "eviction.interval"]),
    (KEYDIFF, {}, ["eviction"]),
    ({}, KEYDIFF, ["eviction"]),
    (LOW_RANK, {"low_rank": hf.LowRank(0.25, 0.5)}, ["subspace.key_rank"]),
    (LOW_RANK, {"low_rank": hf.LowRank(0.5, 0.5, frame="post_rope")}, ["subspace.frame"]),
    (LOW_RANK, {"low_rank": hf.LowRank(0.5, 0.5, more={"interval": 64})}, ["subspace.interval"]),
    (LOW_RANK, {}, ["subspace"]),
    ({}, {"zones": {"sink": 16, "local": 32}}, ["zones.sink", "zones.local"]),
    ({}, {"retrieval": {"beta": 0.1, "scope": "q_head"}}, ["retrieval.candidate_fraction", "retrieval.scope"]),
    ({}, {"codec": {"seed": 7}}, ["codec.seed"]),
    ({}, {"memory_limit_bytes": 1 << 28}, ["memory_limit_bytes"]),
    ({}, {"dtype": "bfloat16"}, ["geometry.dtype"]),
]


@pytest.mark.parametrize("made, asked, fields", UNLIKE)
def test_every_setting_that_differs_is_named(client, made, asked, fields):  # noqa: F811
    model = make_model()
    hf.install(model, client.address, index="one", **made)
    hf.uninstall(model)
    hf.install(model, client.address, index="one", **made)  # the same again: what the server fills in is no difference
    hf.uninstall(model)
    with pytest.raises(ValueError, match="exists and does not fit") as error:
        hf.install(model, client.address, index="one", **asked)
    assert all(f"{field} is " in str(error.value) for field in fields) and "\n" not in str(error.value)
    assert [index["spec"]["name"] for index in client.list_indexes()] == ["one"]


def test_rope_that_differs_is_named(client):  # noqa: F811
    model = make_model()
    hf.install(model, client.address, index="one")
    hf.uninstall(model)
    other = make_model(rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    with pytest.raises(ValueError, match="geometry.rope"):
        hf.install(other, client.address, index="one")


def test_where_no_other_index_may_be_made_the_settings_given_are_compared(tmp_path, monkeypatch):
    digest = hashlib.sha256(b"s3cret").hexdigest()
    (tmp_path / "tokens.yaml").write_text(f"- {{sha256: {digest}, tenant: acme, role: admin}}\n")
    (tmp_path / "quotas.yaml").write_text("acme: {indexes: 1}\n")
    files = ("--auth-tokens-file", str(tmp_path / "tokens.yaml"), "--auth-quotas-file", str(tmp_path / "quotas.yaml"))
    process, endpoint = start(tmp_path / "seine.sock", *files, "--auth-unix", "token"), f"unix://{tmp_path}/seine.sock"
    try:
        monkeypatch.setenv("SEINE_TOKEN", "s3cret")
        with Client(endpoint) as client:
            client.wait_until_ready(20)
        model = make_model()
        hf.install(model, endpoint, index="one", **KEYDIFF)
        hf.uninstall(model)
        with pytest.raises(ValueError, match="does not fit: .*eviction.scorer.name is keydiff, not manifoldkv"):
            hf.install(model, endpoint, index="one", evict=hf.Eviction(64, scorer="manifoldkv"))
        with pytest.warns(RuntimeWarning, match="only settings that are given were compared"):
            hf.install(model, endpoint, index="one", **KEYDIFF)
        hf.uninstall(model)
    finally:
        process.terminate()
        assert process.wait(timeout=20) == 0
