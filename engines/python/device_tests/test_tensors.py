"""Tensors on a device through the native module: read and written where they lie, and refused where they lie wrong."""

import numpy as np
import pytest
import torch
from emulated import Tensor

from seine_kv.client import Append, Attention, Client, Item, SeineError, StepError

HEADS, KV_HEADS, DIM, TOKENS = 6, 2, 64, 500
GEOMETRY = {"num_layers": 1, "num_q_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM, "kv_store": "keys_values"}
ZONES = {"sink": 16, "local": 64, "update_buffer": 64, "dense_threshold": 128}


def random(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


KEYS = random(TOKENS + 1, KV_HEADS, DIM, dtype=torch.float16, seed=1)
VALUES = random(TOKENS + 1, KV_HEADS, DIM, dtype=torch.float16, seed=2)
QUERIES = random(HEADS, DIM, seed=3)


def opened(backend):
    client = Client.in_process(1, backend=backend)
    client.create_index("model", **GEOMETRY, zones=ZONES)
    return client, client.create_sequence("model")


@pytest.fixture
def device():
    client, chat = opened("cuda")
    yield client, chat
    client.close()


def rooms(ordinal=0):
    return Tensor(ordinal, torch.zeros(HEADS, DIM)), Tensor(ordinal, torch.zeros(HEADS))


def copied(client, call):
    """Bytes to the device and to the host that a call copies, and what it returns."""
    before = client.device_copies()
    returned = call()
    after = client.device_copies()
    return after[0] - before[0], after[1] - before[1], returned


def test_a_step_leaves_queries_and_outputs_where_they_are(device):
    client, chat = device
    cpu, same = opened("cpu")
    assert cpu.device_copies() is None
    cpu.append(same, 0, 0, KEYS[:TOKENS], VALUES[:TOKENS])
    k, v = Tensor(0, KEYS[:TOKENS]), Tensor(0, VALUES[:TOKENS])
    Tensor.streams.clear()
    down = copied(client, lambda: client.append(chat, 0, 0, k, v))[1]
    assert down == 2 * TOKENS * KV_HEADS * DIM * 2  # once, to where they are kept
    assert Tensor.streams.count(1) == 2  # each tensor's producer is told of the stream that reads it
    selector = {"top_k": 30, "scope": "per_q_head"}
    last = slice(TOKENS, TOKENS + 1)
    want = cpu.step([Append(same, 0, TOKENS, KEYS[last], VALUES[last])], [Item(same, 0, QUERIES)], Attention(), **selector)
    q, (output, sums) = Tensor(0, QUERIES), rooms()
    append = Append(chat, 0, TOKENS, Tensor(0, KEYS[last]), Tensor(0, VALUES[last]))
    got = client.step([append], [Item(chat, 0, q, output=output, log_sum_exp=sums)], Attention(), **selector)
    assert got.attended[0].output is output and got.attended[0].log_sum_exp is sums
    assert got.attended[0].path == want.attended[0].path
    assert got.attended[0].attended_tokens == want.attended[0].attended_tokens
    np.testing.assert_allclose(output.torch().numpy(), want.attended[0].output, atol=1e-5)
    np.testing.assert_allclose(sums.torch().numpy(), want.attended[0].log_sum_exp, atol=1e-5)

    def ask(item):
        return copied(client, lambda: client.step((), [item], Attention(), **selector))

    there = ask(Item(chat, 0, q, output=output, log_sum_exp=sums))
    here = ask(Item(chat, 0, QUERIES))
    assert here[0] - there[0] == QUERIES.numel() * 4
    assert here[1] - there[1] >= (QUERIES.numel() + HEADS) * 4
    half = ask(Item(chat, 0, q))  # queries there, the answer in the host's memory
    assert half[0] == there[0] and half[1] == here[1]
    np.testing.assert_array_equal(half[2].attended[0].output, here[2].attended[0].output)
    assert (client.retrieve_batch([Item(chat, 0, q)], **selector)[0].positions == client.retrieve_batch([Item(chat, 0, QUERIES)], **selector)[0].positions).all()
    cpu.close()


def refused(client, item, field, text, appends=(), attention=Attention()):
    with pytest.raises(StepError) as caught:
        client.step(appends, [] if item is None else [item], attention)
    assert caught.value.code == "INVALID_ARGUMENT" and text in str(caught.value), caught.value
    assert caught.value.field.endswith(field), caught.value.field


def test_what_lies_wrong_is_refused_and_the_stream_goes_on(device):
    client, chat = device
    client.append(chat, 0, 0, Tensor(0, KEYS[:TOKENS]), Tensor(0, VALUES[:TOKENS]))
    other, _ = opened("cuda:1")
    q, (output, sums) = Tensor(0, QUERIES), rooms()
    elsewhere = "in the memory of the device that searches"
    astray = Tensor(0, QUERIES)
    astray.address = QUERIES.data_ptr()  # said to lie on the device
    for queries in (astray, Tensor(1, QUERIES)):
        refused(client, Item(chat, 0, queries), "device", elsewhere)
        refused(client, Item(chat, 0, q, output=queries, log_sum_exp=sums), "device", elsewhere)
    astray = Tensor(0, KEYS[:1])
    astray.address = KEYS.data_ptr()
    for keys in (astray, Tensor(1, KEYS[:1])):
        refused(client, None, "keys", elsewhere, [Append(chat, 0, TOKENS, keys, Tensor(0, VALUES[:1]))])
    refused(client, Item(chat, 0, Tensor(0, QUERIES.half())), "queries.dtype", "float32")
    refused(client, Item(chat, 0, Tensor(0, QUERIES[:2])), "queries.shape", "expected [6, 64]")
    refused(client, Item(chat, 0, QUERIES, output=output, log_sum_exp=sums), "queries", "host's memory")
    refused(client, Item(chat, 0, q, output=output), "device", "output and log_sum_exp are given together")
    refused(client, Item(chat, 0, q, output=sums, log_sum_exp=sums), "output.shape", "expected [6, 64]")
    refused(client, Item(chat, 0, q, output=output, log_sum_exp=sums), "output", "not attended", attention=None)
    positions = Tensor(0, torch.zeros(HEADS, 1, dtype=torch.int32))
    refused(client, Item(chat, 0, QUERIES, positions=positions), "positions", "read by the host")
    with pytest.raises(ValueError, match="output: must lie on the device"):
        client.step((), [Item(chat, 0, q, output=np.zeros((HEADS, DIM), np.float32), log_sum_exp=sums)], Attention())
    strided = Tensor(0, torch.zeros(HEADS, 2 * DIM))
    strided.shape = (HEADS, DIM)
    with pytest.raises(ValueError, match="queries: must be contiguous"):
        client.step((), [Item(chat, 0, strided)], Attention())
    with pytest.raises(ValueError, match="queries: dtype"):
        client.step((), [Item(chat, 0, Tensor(0, torch.zeros(HEADS, DIM, dtype=torch.int64)))], Attention())
    assert client.step((), [Item(chat, 0, q, output=output, log_sum_exp=sums)], Attention()).error is None
    other.close()


def test_two_devices_have_their_own(device):
    answers = []
    other = opened("cuda:1")
    for ordinal, (client, chat) in enumerate((device, other)):
        client.append(chat, 0, 0, Tensor(ordinal, KEYS), Tensor(ordinal, VALUES))
        output, sums = rooms(ordinal)
        client.step((), [Item(chat, 0, Tensor(ordinal, QUERIES), output=output, log_sum_exp=sums)], Attention())
        answers.append(output.torch())
    torch.testing.assert_close(*answers, rtol=0, atol=0)
    other[0].close()


def test_where_no_device_searches_none_is_read(device):
    cpu, chat = opened("cpu")
    with pytest.raises((TypeError, ValueError)):
        cpu.append(chat, 0, 0, Tensor(0, KEYS), Tensor(0, VALUES))
    cpu.append(chat, 0, 0, KEYS, VALUES)
    with pytest.raises((TypeError, ValueError)):
        cpu.step((), [Item(chat, 0, Tensor(0, QUERIES))], Attention())
    with pytest.raises(SeineError, match="NaN or infinity"):
        cpu.attend(chat, 0, QUERIES * np.nan)
    cpu.close()
