"""What many nodes would take: one text over all of them, or many texts placed on them. A model on paper, not a run.

    python -m seine_kv.sharded.simulate --results bench/results                   # both plans as a table
    python -m seine_kv.sharded.simulate --results bench/results -o json --plot plans.svg

Constants are measured on a few nodes by `./dev bench --only nodes` (seine-bench nodes); the latest table of --results
counts. The nodes, their network and the model are flags. Everything else is arithmetic that this file holds.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Any

TABLE = "runnodes"
MEASURED = {"kv_heads": 8, "q_heads": 32, "head_dim": 128}  # of seine-bench nodes


def measured(folder: Path) -> tuple[dict[str, Any], str]:
    """The latest table of seine-bench nodes, and its file. FileNotFoundError where no file has one."""
    found = []
    for file in sorted(folder.glob("*.json")):
        data = json.loads(file.read_text(encoding="utf-8"))
        found += [(table.get("date", ""), file.name, table) for table in data["tables"] if table["id"] == TABLE]
    if not found:
        raise FileNotFoundError(f"--results: no file of {folder} has the table {TABLE}; ./dev bench --only nodes makes it")
    _, name, table = max(found, key=lambda each: each[:2])
    return table, name


def constants(table: dict[str, Any]) -> dict[str, float]:
    """A node's layer takes step_us + key_us a key on one core; a call to one node adds rpc_us, of which the engine's own
    processor is busy for engine_us, and its answer merge_us. They are those of the shortest step, which other work on the
    machine disturbs least. there_bytes, back_bytes: a step's beyond its numbers."""
    keys = [key for key, _ in table["columns"]]
    rows = {int(row[0]): dict(zip(keys, row[2:])) for row in table["rows"]}
    low, high = min(rows), max(rows)
    key_us = (rows[high]["node"] - rows[low]["node"]) / (high - low)
    numbers = MEASURED["q_heads"] * MEASURED["head_dim"]
    return {
        "key_us": key_us,
        "step_us": rows[low]["node"] - low * key_us,
        "rpc_us": rows[low]["step"] - rows[low]["node"],
        "engine_us": rows[low]["engine"],
        "merge_us": rows[low]["merge"],
        "token_bytes": rows[high]["token"],
        "there_bytes": rows[high]["there"] - 2 * numbers,
        "back_bytes": rows[high]["back"] - 4 * (numbers + MEASURED["q_heads"]),
    }


def token_bytes(c: dict[str, float], a: argparse.Namespace) -> float:
    """What a token takes on its node, all layers: fp16 rows, codes, means."""
    return a.layers * c["token_bytes"] * a.kv_heads * a.head_dim / (MEASURED["kv_heads"] * MEASURED["head_dim"])


def step_bytes(c: dict[str, float], a: argparse.Namespace) -> tuple[float, float]:
    """Bytes of a layer's step to a shard and back: queries in 2 bytes, outputs and log-sum-exps in 4."""
    return 2 * a.q_heads * a.head_dim + c["there_bytes"], 4 * a.q_heads * (a.head_dim + 1) + c["back_bytes"]


def layer_us(c: dict[str, float], a: argparse.Namespace, keys: float) -> float:
    """One core's time for a layer, scaled from the KV heads that were measured."""
    return (c["step_us"] + c["key_us"] * keys) * a.kv_heads / MEASURED["kv_heads"]


def one_text(c: dict[str, float], a: argparse.Namespace, tokens: int, nodes: int) -> dict[str, Any]:
    """A sequence striped over all nodes: each step asks every one of them, one node after another."""
    keys = tokens / nodes
    there, back = step_bytes(c, a)
    cores = min(a.cores, a.kv_heads)  # one task a KV head
    node_us = a.layers * layer_us(c, a, keys) / cores
    engine_us = a.layers * ((nodes - 1) * c["engine_us"] + nodes * c["merge_us"])  # the first node's is in its call
    wire_us = a.layers * (c["rpc_us"] + a.round_trip_us + nodes * (there + back) * 8 / (a.gbit * 1e3))
    token_us = node_us + engine_us + wire_us
    rate = 1e6 / token_us
    return {
        "plan": f"{tokens:,} tokens on {nodes} nodes",
        "memory_gib_node": keys * token_bytes(c, a) / 2**30,
        "bytes_a_token": a.layers * nodes * (there + back),
        "node_ms_a_token": node_us / 1e3,
        "engine_ms_a_token": engine_us / 1e3,
        "wire_ms_a_token": wire_us / 1e3,
        "tokens_per_s": rate,
        "one_node_ms_a_token": a.layers * layer_us(c, a, tokens) / cores / 1e3,
        "use": {
            "memory": keys * token_bytes(c, a) / 2**30 / a.memory_gib,
            "cores": node_us / token_us * cores / a.cores,
            "network": rate * a.layers * nodes * max(there, back) * 8 / (a.gbit * 1e9),
            "engine": (engine_us + a.layers * c["engine_us"]) / token_us,
            "time": a.target_tokens_per_s / rate,
        },
    }


def place(lengths: list[int], nodes: int, full: float) -> list[list[int]]:
    """Each text to the emptier of its two first nodes by rendezvous hash; to the next one where it does not fit."""
    held: list[list[int]] = [[] for _ in range(nodes)]
    sums = [0] * nodes
    for text, length in enumerate(lengths):
        order = sorted(range(nodes), key=lambda node: blake2b(f"{text}/{node}".encode(), digest_size=8).digest())
        wanted = sorted(order[:2], key=lambda node: sums[node]) + order[2:]
        node = next((one for one in wanted if sums[one] + length <= full), wanted[0])
        held[node].append(length)
        sums[node] += length
    return held


def many_texts(c: dict[str, float], a: argparse.Namespace, sequences: int, nodes: int) -> dict[str, Any]:
    """Texts of log-normal lengths, each whole on a node; a share of them decodes at a time."""
    draw = random.Random(a.seed)
    lengths = [int(draw.lognormvariate(0, 1) * a.median_tokens) for _ in range(sequences)]
    held = place(lengths, nodes, a.memory_gib * 2**30 / token_bytes(c, a))
    tokens = [sum(node) for node in held]
    there, back = step_bytes(c, a)
    asked = a.decoding * a.target_tokens_per_s * a.layers  # steps a second and text
    busy = [asked * sum(layer_us(c, a, length) for length in node) / 1e6 for node in held]  # cores
    memory = [count * token_bytes(c, a) / 2**30 for count in tokens]
    return {
        "plan": f"{sequences:,} sequences on {nodes} nodes",
        "memory_gib_node": max(memory),
        "memory_of_mean": max(memory) / (sum(memory) / nodes),
        "sequences_most": max(map(len, held)),
        "bytes_a_token": a.layers * (there + back),
        "cores_busy_most": max(busy),
        "cores_busy_of_mean": max(busy) / (sum(busy) / nodes),
        "use": {
            "memory": max(memory) / a.memory_gib,
            "cores": max(busy) / a.cores,
            "network": max(map(len, held)) * asked * max(there, back) * 8 / (a.gbit * 1e9),
        },
    }


def report(result: dict[str, Any]) -> str:
    lines = [result["plan"]]
    for name, value in result.items():
        if isinstance(value, (int, float)):
            lines.append(f"  {name.replace('_', ' '):<22}{value:>14,.1f}")
    uses = sorted(result["use"].items(), key=lambda use: -use[1])
    lines += [f"  {'of all ' + name:<22}{100 * share:>13,.1f} %" for name, share in uses]
    return "\n".join([*lines, f"  breaks first: {result['breaks_first']}"])


def plot(results: list[dict[str, Any]]) -> str:
    """Bars of what each plan uses, as SVG; the line is what there is."""
    bars = [(f"{one['plan']}: {name}", share) for one in results for name, share in one["use"].items()]
    widest = max(1.0, *(share for _, share in bars))
    scale, out = 360 / widest, []
    for i, (name, share) in enumerate(bars):
        y = 24 + 22 * i
        out.append(f'<text x="300" y="{y + 12}" text-anchor="end">{name}</text>')
        out.append(f'<rect x="310" y="{y}" width="{max(share * scale, 1):.1f}" height="16" fill="#4477aa"/>')
        out.append(f'<text x="{314 + share * scale:.1f}" y="{y + 12}">{100 * share:.1f} %</text>')
    height, line = 36 + 22 * len(bars), 310 + scale
    out.append(f'<line x1="{line:.1f}" x2="{line:.1f}" y1="16" y2="{height - 8}" stroke="#cc3311"/>')
    style = 'font-family="sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{height}" {style}>{"".join(out)}</svg>\n'


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m seine_kv.sharded.simulate", description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=Path, required=True, help="folder of the measured figures: bench/results")
    for name, value, text in (
        ("layers", 32, "of the model"),
        ("q-heads", 32, "query heads"),
        ("kv-heads", 8, "KV heads"),
        ("head-dim", 128, "coordinates of a key"),
        ("cores", 64, "of a node"),
        ("memory-gib", 512, "of a node, for Seine"),
        ("gbit", 100, "a second of a node's network"),
        ("round-trip-us", 30, "of that network, which one machine has not"),
        ("target-tokens-per-s", 10, "that a text is to be decoded at"),
        ("median-tokens", 8192, "of many texts"),
        ("seed", 1, "of their lengths"),
    ):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{text} (default %(default)s)")
    parser.add_argument("--decoding", type=float, default=0.05, help="share of the texts that decode at a time")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--plot", type=Path, help="writes what each plan uses as SVG")
    a = parser.parse_args(arguments)
    try:
        table, file = measured(a.results)
    except FileNotFoundError as error:
        parser.error(str(error))
    c = constants(table)
    results = [one_text(c, a, 10_000_000, 16), many_texts(c, a, 10_000, 64)]
    for result in results:
        result["breaks_first"] = max(result["use"], key=lambda name: result["use"][name])
    if a.output == "json":
        print(json.dumps({"constants": c, "from": file, "plans": results}, indent=2))
    else:
        print("\n\n".join(map(report, results)))
    if a.plot is not None:
        a.plot.write_text(plot(results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
