"""Options of scorers and budgets from Python: every one is taken, and what the newer ones do equals numpy."""

import inspect

import numpy as np
import pytest

from seine_kv.calls import Calls
from seine_kv.messages import SeineError

DIM, TOKENS, BUDGET = 64, 60, 16
SHAPE = {"num_layers": 2, "num_q_heads": 4, "num_kv_heads": 2, "head_dim": DIM, "dtype": "float32"}


@pytest.fixture
def rows():
    random = np.random.default_rng(21)
    keys, values = random.standard_normal((2, TOKENS, 2, DIM)).astype(np.float32)
    return keys, values * random.uniform(0.1, 3, (TOKENS, 1, 1)).astype(np.float32)


# Every setting is taken -----------------------------------------------------------------------------------------------


def settings_of(descriptor, path=()):
    """(path, field) of each setting of a message and of the messages in it."""
    for field in descriptor.fields:
        at = (*path, field.name)
        if field.message_type is not None and field.message_type.name != "Tensor":
            yield from settings_of(field.message_type, at)
        else:
            yield at, field


def sample(field):
    if field.enum_type is not None:
        prefix = field.enum_type.values_by_number[0].name[: -len("UNSPECIFIED")]
        return field.enum_type.values_by_number[1].name[len(prefix) :].lower()
    if field.message_type is not None:
        return np.ones((1, 1, 1), np.float32)
    if field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED:
        return [1, 2]
    return {field.TYPE_BOOL: True, field.TYPE_STRING: "name"}.get(field.type, 1)


def test_every_setting_of_eviction_and_subspaces_is_taken_from_a_dict():
    pytest.importorskip("grpc")
    from seine.v1 import eviction_pb2, subspace_pb2
    from seine_kv.grpc.settings import fill

    walked = 0
    for message in (eviction_pb2.EvictionSettings, subspace_pb2.SubspaceSettings):
        for path, field in settings_of(message.DESCRIPTOR):
            value = sample(field)
            for name in reversed(path):
                value = {name: value}
            taken = message()
            fill(taken, value, "settings")
            assert taken.ByteSize() > 0, path
            walked += 1
    assert walked > 30
    with pytest.raises(ValueError, match="no_such"):
        fill(eviction_pb2.EvictionSettings(), {"no_such": 1}, "settings")


def test_the_help_of_create_index_and_evict_names_the_settings():
    pytest.importorskip("grpc")
    from seine.v1 import eviction_pb2, subspace_pb2

    text = inspect.getdoc(Calls.create_index)
    for message in (eviction_pb2.EvictionSettings, subspace_pb2.SubspaceSettings):
        for field in message.DESCRIPTOR.fields:
            assert field.name in text, field.name
    text = inspect.getdoc(Calls.evict)
    for message in (eviction_pb2.Budget, eviction_pb2.Keep):
        for field in message.DESCRIPTOR.fields:
            assert field.name in text, field.name


# Q-Filters --------------------------------------------------------------------------------------------------------------


def test_an_index_evicts_by_filters(client, rows):
    filters = np.random.default_rng(4).standard_normal((2, 2, DIM)).astype(np.float32)
    settings = {"scorer": "qfilters", "budget": BUDGET, "interval": TOKENS - BUDGET, "filters": filters}
    index = client.create_index("by-filters", eviction=settings, **SHAPE)
    np.testing.assert_array_equal(index["spec"]["eviction"]["filters"], filters)
    same = client.create_index("by-filters", eviction=settings, exist_ok=True, **SHAPE)
    assert same["num_sequences"] == 0
    sequence = client.create_sequence("by-filters")
    client.append(sequence, 1, 0, rows[0])
    for head, (positions, _) in enumerate(client.score(sequence, 1, "knorm")):
        best = np.argsort(-(rows[0][:, head] @ filters[1, head]), kind="stable")[:BUDGET]
        np.testing.assert_array_equal(positions, np.sort(best))


@pytest.mark.parametrize(
    "wrong, field",
    [
        ({"filters": np.ones((1, 2, DIM), np.float32)}, "spec.eviction.filters.shape"),
        ({"filters": np.full((2, 2, DIM), np.nan, np.float32)}, "spec.eviction.filters"),
        ({"filters": np.ones((2, 2, DIM), np.float32), "filters_file": "m"}, "spec.eviction.filters_file"),
        ({"filters_file": "none-of-this-name"}, "spec.eviction.filters_file"),
        ({"filters_file": "../../etc/passwd"}, "spec.eviction.filters_file"),
        ({"scorer": "knorm", "filters": np.ones((2, 2, DIM), np.float32)}, "spec.eviction.profile"),
    ],
)
def test_filters_that_do_not_fit_are_named(client, wrong, field):
    settings = {"scorer": "qfilters", "budget": BUDGET, **wrong}
    with pytest.raises(SeineError) as error:
        client.create_index("wrong-filters", eviction=settings, **SHAPE)
    assert error.value.field == field, error.value


# CriticalKV -----------------------------------------------------------------------------------------------------------


def test_value_weights_are_kvpresss(client, rows):
    keys, values = rows
    client.create_index("weighted", kv_store="keys_values", **SHAPE)
    sequence = client.create_sequence("weighted")
    client.append(sequence, 0, 0, keys, values)
    projection = np.random.default_rng(8).standard_normal((48, 4, DIM)).astype(np.float32)
    norms = np.abs(values).sum(axis=2).T  # [KV heads, tokens]
    sizes = np.abs(np.einsum("thd,nhgd->tnhg", values, projection.reshape(48, 2, 2, DIM))).sum(axis=1)
    for weight, given, weights in (
        ("norm", {}, norms),
        ("projected", {"output_projection": projection}, sizes.mean(axis=2).T),
    ):
        scorer = {"name": "knorm", "value_weight": weight, "weight_epsilon": 0.5}
        for head, (_, scores) in enumerate(client.score(sequence, 0, scorer, **given)):
            raw = -np.linalg.norm(keys[:, head], axis=1)
            np.testing.assert_allclose(scores, (raw + 0.5) * weights[head], rtol=1e-4)
        kept = client.evict(sequence, 0, BUDGET, {**scorer, "first_stage": 0.5}, dry_run=True, **given).kept
        for head in range(2):
            raw = -np.linalg.norm(keys[:, head], axis=1)
            first = np.argsort(-raw)[: BUDGET // 2]
            weighted = (raw + 0.5) * weights[head]
            weighted[first] = np.inf
            np.testing.assert_array_equal(kept[head], np.sort(np.argsort(-weighted)[:BUDGET]))
    with pytest.raises(SeineError) as error:
        client.evict(sequence, 0, BUDGET, {"name": "knorm", "value_weight": "projected"})
    assert error.value.field == "given.output_projection"
    with pytest.raises(SeineError) as error:
        settings = {"scorer": {"name": "knorm", "value_weight": "norm"}, "budget": 9}
        client.create_index("by-itself", eviction=settings, **SHAPE)
    assert error.value.field == "spec.eviction.scorer.value_weight"


# H2O ------------------------------------------------------------------------------------------------------------------


def test_h2o_adds_up_what_attend_pays(client, rows):
    keys, values = rows
    queries = np.random.default_rng(9).standard_normal((TOKENS, 4, DIM)).astype(np.float32)
    scorer = {"name": "h2o", "accumulate": True}
    client.create_index(
        "summed",
        kv_store="keys_values",
        zones={"dense_threshold": 1000},
        eviction={"scorer": scorer, "budget": TOKENS, "keep": {"recent_share": 0.5}},
        **SHAPE,
    )
    sequence = client.create_sequence("summed")
    client.append(sequence, 0, 0, keys[:50], values[:50], queries=queries[:50])
    for position in range(50, TOKENS):
        client.append(sequence, 0, position, keys[position : position + 1], values[position : position + 1])
        client.attend(sequence, 0, queries[position])
        client.attend(sequence, 0, queries[position])  # a step made again counts once
    for head, (positions, scores) in enumerate(client.score(sequence, 0, scorer)):
        sums = np.zeros(TOKENS)
        for position in range(TOKENS):
            for g in range(2):
                logits = keys[: position + 1, head].astype(float) @ queries[position, 2 * head + g] / np.sqrt(DIM)
                weights = np.exp(logits - logits.max())
                sums[: position + 1] += weights / weights.sum() / 2
        np.testing.assert_array_equal(positions, np.arange(TOKENS))
        np.testing.assert_allclose(scores, sums, rtol=2e-5, atol=1e-6)
