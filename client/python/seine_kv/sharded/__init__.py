"""A sequence that is too long for one server: its tokens lie on several, in runs of positions that go round them.

    from seine_kv.client import Client
    from seine_kv.sharded import ShardedSequence

    shards = [Client("10.0.0.1:7465"), Client("10.0.0.2:7465"), Client("10.0.0.3:7465")]
    book = ShardedSequence.create(shards, "llama", num_layers=32, num_q_heads=32, num_kv_heads=8, head_dim=128)
    book.append(layer, keys, values)                     # [tokens, num_kv_heads, head_dim], after RoPE
    output, log_sum_exp = book.attend(layer, queries)    # all shards at once; answers merge by their log-sum-exps

Methods, positions and results are those of seine_kv.Sequence. What a shard is and what its answers merge to is as of the
C++ class, client/sharded/sharded_sequence.h: either finds the other's sequences. Errors are SeineError and begin with
the shard's number. One thread a sequence.
"""

from __future__ import annotations

from seine_kv.sharded.sequence import ShardedSequence

__all__ = ["ShardedSequence"]
