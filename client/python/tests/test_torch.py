"""torch's tensors in seine_kv.Index: taken as they are, and given back where they came in. Needs torch and ml_dtypes."""

import numpy as np
import torch

import seine_kv as seine

HEADS, KV_HEADS, DIM, TOKENS = 4, 2, 64, 300
SHAPE = {"num_layers": 1, "num_q_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM, "threads": 1}


def rows():
    torch.manual_seed(3)
    return torch.randn(TOKENS, KV_HEADS, DIM), torch.randn(TOKENS, KV_HEADS, DIM), torch.randn(HEADS, DIM)


def test_torch_in_torch_out():
    keys, values, queries = rows()
    with seine.Index(dtype=torch.float32, **SHAPE) as index, index.create_sequence() as chat:
        assert chat.append(0, keys, values.requires_grad_()) == TOKENS
        output, log_sum_exp = chat.attend(0, queries.requires_grad_(), top_k=TOKENS)
        assert isinstance(output, torch.Tensor) and output.dtype == torch.float32 and not output.requires_grad
        spread = [tensor.repeat_interleave(HEADS // KV_HEADS, dim=1).transpose(0, 1) for tensor in (keys, values)]
        want = torch.nn.functional.scaled_dot_product_attention(queries[:, None], *spread)[:, 0]
        torch.testing.assert_close(output, want.detach(), atol=1e-5, rtol=1e-5)
        logits = torch.einsum("hd,hnd->hn", queries, spread[0]) / DIM**0.5
        torch.testing.assert_close(log_sum_exp, logits.logsumexp(1).detach(), atol=1e-5, rtol=1e-5)
        assert isinstance(chat.attend(0, queries.detach().numpy())[0], np.ndarray)


def test_strided_and_bfloat16_tensors_arrive_as_they_read():
    keys, values, queries = rows()
    by_head = keys.to(torch.bfloat16).transpose(0, 1).contiguous().transpose(0, 1)  # as transformers' caches lie
    with seine.Index(dtype=torch.bfloat16, **SHAPE) as index, index.create_sequence() as chat:
        assert chat.append(0, by_head, by_head) == TOKENS
        back = torch.from_numpy(chat.gather(0, 1, [7, 290])[0].view(np.int16).copy()).view(torch.bfloat16)
        assert torch.equal(back, by_head[[7, 290], 1])
        assert chat.retrieve(0, queries.to(torch.bfloat16), top_k=5).path == "dense"
