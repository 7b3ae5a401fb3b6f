"""A Hugging Face model on CUDA that decodes through Seine, end to end: the tokens of dense attention where k >= n, one row
and several, prompts read in turns; no query or output leaves the device, and keys and values go once to the memory that
keeps them, as the backend counts. With --emulated the same path over the emulated device, where torch's tensors of the
host stand for those on it (engines/python/device_tests).

Exit code 0: so it was; 77, with a line: there is no GPU here, or no torch, transformers or CUDA in this build.
"""

import argparse
import sys
import time

LAYERS, HEADS, KV_HEADS, DIM, VOCABULARY = 2, 4, 2, 64, 97
ZONES = {"sink": 16, "local": 32, "update_buffer": 64, "dense_threshold": 64}
PROMPT, TOKENS = 200, 24


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


try:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError as error:
    skip(f"{error.name} is not on this machine")

from seine_kv import hf
from seine_kv.client import Client, SeineError
from seine_kv.hf import batch as hf_batch
from seine_kv.hf import installation as hf_installation
from seine_kv.model import cache_name


def make_model(device, dtype):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=DIM,
        max_position_embeddings=4096,
        initializer_range=0.3,  # far from uniform attention, and no two tokens alike
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval().to(device, dtype)


def generate(model, ids, mask=None):
    """The new tokens of each row, greedily."""
    mask = torch.ones_like(ids) if mask is None else mask
    out = model.generate(ids, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False)
    return out[:, ids.shape[1] :].tolist()


def of_rows(device, *lengths):
    """Rows of random tokens, padded on the left, and their mask."""
    longest = max(lengths)
    ids = torch.zeros(len(lengths), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        torch.manual_seed(length)
        ids[row, -length:], mask[row, -length:] = torch.randint(2, VOCABULARY, (length,)), 1
    return ids.to(device), mask.to(device)


class Counted:
    """What the backend has copied since, of an installation."""

    def __init__(self, seine):
        self._client, self._before = seine.client, seine.client.device_copies()

    def bytes(self):
        return [after - before for after, before in zip(self._client.device_copies(), self._before)]


def no_host_copy(*_):
    raise AssertionError("a tensor went through the host")


def check_tokens(model, device, rows):
    """Tokens equal to dense attention's where everything is attended. Every row of each step is Seine's."""
    ids, mask = of_rows(device, *rows)
    want = generate(model, ids, mask)
    by_host, hf_batch.to_numpy = hf_batch.to_numpy, no_host_copy
    try:
        seine = hf.install(model, top_k=4096, tail=False, zones=ZONES, dtype=model.dtype)
        assert seine.lender is not None and seine.asks_on_device
        got = generate(model, ids, mask)
    finally:
        hf_batch.to_numpy = by_host
    stats = seine.stats()
    assert got == want, f"{rows}: {got} where dense attention says {want}"
    assert stats.dense_rows == 0 and stats.rows == LAYERS * (TOKENS - 1) * len(rows), stats
    hf.uninstall(model)


def check_copies(model, device):
    """Against the same decode with queries by way of the host: what stays away is queries and outputs, whole; what comes
    instead is keys and values, once."""
    ids, _ = of_rows(device, PROMPT)
    copied = []
    for by_host in (False, True):
        seine = hf.install(model, gate=False, top_k=32, zones=ZONES, dtype=model.dtype)
        if by_host:
            seine.lender = None
        counted = Counted(seine)
        generate(model, ids)
        copied.append(counted.bytes())
        hf.uninstall(model)
    (to_device, to_host), (host_to_device, host_to_host) = copied
    steps, element = LAYERS * (TOKENS - 1), model.dtype.itemsize
    rows = LAYERS * (PROMPT + TOKENS - 1) * 2 * KV_HEADS * DIM * element
    assert host_to_device - to_device == steps * HEADS * DIM * 4, (copied, steps)
    assert host_to_host - (to_host - rows) >= steps * HEADS * (DIM + 1) * 4, (copied, rows)
    print(f"copied a layer and token: {(to_host - rows) / steps:.0f} bytes of answers to the host and {to_device / steps:.0f} of arguments "
          f"to the device; of keys and values {rows / LAYERS / (PROMPT + TOKENS - 1):.0f}, once")  # fmt: skip


def check_turns(model, device):
    """A chat: a prompt, an answer, a second prompt behind both, which reads rows back."""
    ids, _ = of_rows(device, PROMPT)
    more, _ = of_rows(device, 31)

    def talk():
        first = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, return_dict_in_generate=True)
        whole = torch.cat([first.sequences, more], dim=1)
        mask = torch.ones_like(whole)
        again = model.generate(whole, attention_mask=mask, max_new_tokens=8, do_sample=False, **{cache_name(model): first.past_key_values})
        return again[:, ids.shape[1] :].tolist()

    want = talk()
    hf.install(model, top_k=4096, tail=False, zones=ZONES, dtype=model.dtype)
    got = talk()
    assert got == want, (got, want)
    hf.uninstall(model)


def check_half(model, device):
    """Half precision: no tokens to compare, for both round; every row is Seine's and a number."""
    ids, _ = of_rows(device, PROMPT)
    seine = hf.install(model, top_k=32, zones=ZONES)
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False, output_logits=True,
                             return_dict_in_generate=True)  # fmt: skip
    assert all(torch.isfinite(logits).all() for logits in out.logits) and seine.stats().dense_rows == 0
    hf.uninstall(model)


def emulate():
    """Has install take a model in the host's memory for one on a device."""
    import emulated

    hf_installation.ordinal_of = lambda model: 0
    hf_installation.Lender = emulated.Lender
    return "cpu"


def find_device():
    if not torch.cuda.is_available():
        skip("torch finds no GPU")
    try:
        Client.in_process(1, backend="cuda").close()
    except SeineError as error:
        if error.code != "FAILED_PRECONDITION":
            raise
        skip(f"Seine cannot use the GPU: {error}")
    return "cuda"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--emulated", action="store_true", help="over the emulated device, without a GPU")
    device = emulate() if parser.parse_args().emulated else find_device()
    model = make_model(device, torch.float32)
    checks = (
        ("tokens of dense attention", lambda: check_tokens(model, device, (PROMPT,))),
        ("the same of a batch", lambda: check_tokens(model, device, (PROMPT, 90, 3))),
        ("copies", lambda: check_copies(model, device)),
        ("a second prompt", lambda: check_turns(model, device)),
        ("bfloat16", lambda: check_half(make_model(device, torch.bfloat16), device)),
    )
    for name, check in checks:
        begun = time.perf_counter()
        check()
        print(f"{name}: {time.perf_counter() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    main()
