"""What Python costs a decode step: the time of Stream.step beside the index's own, in microseconds.

    PYTHONPATH=build/ci/python python engines/python/bench.py [--tokens N] [--steps N] [--threads N] [--server ADDRESS]

Every step appends one token of one layer and attends one item: 8 KV heads of 4 query heads each, head_dim 128, float16
keys and values, float32 queries, top 100. The first tenth of the steps warms up and is left out."""

import argparse
import json
import time

import numpy as np

from seine_kv import _native
from seine_kv.messages import Append, Attention, Item, Sequence

KV_HEADS, GROUP, DIM = 8, 4, 128


def parse_args(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192, help="held before the first step (default: 8192)")
    parser.add_argument("--steps", type=int, default=2000, help="(default: 2000)")
    parser.add_argument("--threads", type=int, default=1, help="of the index in process (default: 1)")
    parser.add_argument("--server", help="a seined's address; left out: in process")
    return parser.parse_args(arguments)


def filled(connection, tokens):
    """A sequence of one layer that holds so many tokens, and the rows that follow."""
    geometry = {
        "num_layers": 1,
        "num_q_heads": KV_HEADS * GROUP,
        "num_kv_heads": KV_HEADS,
        "head_dim": DIM,
        "dtype": "float16",
    }
    spec = {"name": "bench-python", "geometry": geometry, "kv_store": "keys_values"}
    connection.call("CreateIndex", {"spec": spec})
    sequence = Sequence(**connection.call("CreateSequence", {"index": "bench-python"})["handle"])
    rows = np.random.default_rng(1).standard_normal((tokens, KV_HEADS, DIM)).astype(np.float16)
    connection.append(sequence.index, sequence.id, sequence.generation, 0, 0, rows, rows)
    return sequence, rows


def measure(connection, tokens, steps):
    """(total, index) microseconds of each step."""
    sequence, rows = filled(connection, tokens)
    queries = np.random.default_rng(2).standard_normal((KV_HEADS * GROUP, DIM)).astype(np.float32)
    stream, attention, selector = connection.open_stream(), Attention(), {"top_k": 100}
    total, index = np.empty(steps), np.empty(steps)
    for i in range(steps):
        row = rows[i % tokens : i % tokens + 1]
        begun = time.perf_counter_ns()
        appends, _, attended, index[i], error, _ = stream.step(
            [Append(sequence, 0, tokens + i, row, row)], [Item(sequence, 0, queries)], selector, attention
        )
        total[i] = (time.perf_counter_ns() - begun) / 1000
        if error is not None or appends[0] is not None or attended[0]["error"] is not None:
            raise SystemExit(f"a step failed: {error or appends[0] or attended[0]['error']}")
    stream.close()
    connection.call("DeleteIndex", {"name": "bench-python"})
    return total[steps // 10 :], index[steps // 10 :]


def main():
    options = parse_args()
    if options.server:
        connection = _native.Connection.connect(options.server)
    else:
        connection = _native.Connection.in_process(threads=options.threads)
    total, index = measure(connection, options.tokens, options.steps)
    parts = {"step": total, "index": index, "beyond the index": total - index}
    result = {
        name: {
            "median_us": round(float(np.median(times)), 1),
            "best_tenth_us": round(float(np.quantile(times, 0.1)), 1),
        }
        for name, times in parts.items()
    }
    print(
        json.dumps({"endpoint": connection.endpoint, "tokens": options.tokens, "steps": len(total), **result}, indent=1)
    )


if __name__ == "__main__":
    main()
