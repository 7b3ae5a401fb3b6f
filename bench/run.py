#!/usr/bin/env python3
"""Runs the parts of the bench and writes their figures to bench/results/MACHINE-DATE.json; `./dev bench` calls it.

Each part is one command, of seine-bench or of ./dev. Its rows become a table of the format that docs/tools/figures.py reads, with the
command, the commit and the machine's bandwidth. The file is written after every part: a bench that is ended early, or run
again for one part, loses nothing. Where several files have a table, ./dev figures shows the latest.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import figures  # noqa: E402

DATA = "bench/data/smollm2-135m"
REAL = f"--trace {DATA}-kjv-8k.safetensors"
PROFILE = f"--profile {DATA}.profile.safetensors"
MILLION = "recall --synthetic rope --num-keys 1048576 --head-dim 128"
STEADY = "evict --synthetic rope --num-keys 65536 --kv-heads 8 --dtype fp16 --budget 2048 --interval 128"
SERVICE = "service --spawn BIN/seined --transport stream"
PROBE = "recall --synthetic gaussian --num-keys 4096 --head-dim 64"  # tells the machine's bandwidth in a second

# A column: its key and title, the JSON's key, and the digits behind the point.
RECALL = [
    ("bytes", "bytes a key", "bytes_per_key", 1),
    ("recall", "recall@k", "recall_at_k", 4),
    ("worst", "worst head", "recall_at_k_worst_head", 4),
    ("mass", "attention mass", "attention_mass", 4),
    ("time", "µs a query", "us_per_query", 1),
    ("scan", "ns a key scanned", "scan_ns_per_key", 3),
]
EQUAL = [
    ("candidates", "candidates", "candidates", 0),
    ("recall", "recall@k", "recall_at_k", 4),
    ("exact", "with all of them scored exactly", "recall_exact", 4),
    ("mass", "attention mass", "attention_mass", 4),
    ("held", "tokens held", "tokens_held", 0),
    ("attended", "attended", "tokens_attended", 0),
    ("dim", "head_dim", "head_dim", 0),
    ("bytes", "bytes of code a key", "bytes_per_key", 1),
    ("read", "bytes read a query", "bytes_read", 0),
]
EVICT = [
    ("kept", "attention kept", "retained_attention_mass", 4),
    ("overlap", "overlap with attention's top", "overlap_with_attention_top", 4),
    ("cost", "µs a token", "us_per_token", 4),
    ("bandwidth", "share of the read bandwidth", "read_bandwidth_share", 3),
]
SUBSPACE = [
    ("rank", "rank", "rank", 0),
    ("error", "reconstruction error", "rer", 4),
    ("overlap", "overlap", "overlap", 4),
    ("updates", "updates", "updates", 0),
    ("cost", "µs an update", "us_per_update", 1),
    ("attention", "error of attention", "attention_error", 4),
]
DRIFT = [
    ("bytes", "bytes a key", "bytes_per_key", 1),
    ("first", "recall@k at the prefill's end", "recall_first", 4),
    ("last", "at the decode's end", "recall_last", 4),
    ("worst", "worst head there", "worst_head_last", 4),
    ("kept", "kept", "kept", 4),
]
STEP = [
    ("p50", "p50, µs", "p50_us", 0),
    ("p99", "p99, µs", "p99_us", 0),
    ("index", "p50 in the index, µs", "in_process_p50_us", 0),
    ("rpc", "p50 of the RPC, µs", "rpc_overhead_p50_us", 0),
    ("append", "appended keys a second and core", "append_keys_per_s_core", 0),
]
LAYER = [
    ("retrieve", "Retrieve, µs", "us_retrieve", 0),
    ("attend", "Attend, µs", "us_attend", 0),
    ("exact", "exact attention, µs", "us_exact", 0),
    ("recall", "recall@k", "recall_at_k", 3),
]
SHARDED = [
    ("p50", "p50, µs", "p50_us", 0),
    ("p99", "p99, µs", "p99_us", 0),
    ("one", "one node's p50, µs", "one_node_p50_us", 0),
    ("onelong", "one node's p99, µs", "one_node_p99_us", 0),
    ("exact", "exact, µs", "exact_p50_us", 0),
    ("attended", "tokens attended a head", "attended_tokens_a_head", 0),
    ("error", "error", "error", 4),
    ("asmany", "one node's at as many tokens", "one_node_error_as_many", 4),
    ("merge", "largest difference of exact answers", "exact_merge_error", 7),
]
NODES = [
    ("node", "in a node's index, µs", "node_us", 1),
    ("step", "as the engine sees it, µs", "step_us", 1),
    ("all", "all nodes at once, µs", "all_us", 1),
    ("engine", "the engine's processor time a node, µs", "engine_us", 1),
    ("merge", "merging a node, µs", "merge_us", 1),
    ("there", "bytes there", "bytes_there", 0),
    ("back", "bytes back", "bytes_back", 0),
    ("token", "bytes a token", "token_bytes", 0),
]
IDLE = [
    ("bytes", "bytes of all sequences", "bytes", 0),
    ("limit", "bytes of memory", "memory_limit_bytes", 0),
    ("checked", "answers checked", "checked", 0),
    ("wrong", "wrong", "wrong", 0),
    ("refused", "refused", "refused", 0),
    ("restores", "restores", "restores", 0),
    ("spills", "spills", "spills", 0),
    ("first50", "first step after a restore, p50, ms", "first_step_ms_p50", 2),
    ("first99", "and p99, ms", "first_step_ms_p99", 2),
    ("p50", "step in memory, p50, ms", "step_ms_p50", 2),
    ("p99", "step in memory, p99, ms", "step_ms_p99", 2),
]
ENGINE = [
    ("plain", "llama.cpp, ms a token", "plain_ms", 1),
    ("exact", "exact attention of ours in its place", "exact_ms", 1),
    ("seine", "through Seine", "seine_ms", 1),
    ("attention", "of which attention", "attention_ms", 1),
    ("prompt", "prompt, of llama.cpp's time", "prompt_ratio", 2),
]
QUALITY = [
    ("kl", "KL", "kl", 4),
    ("klexact", "KL of our exact attention", "kl_exact", 4),
    ("klbetween", "KL between these two", "kl_to_exact", 4),
    ("ppl", "perplexity", "ppl_plain", 3),
    ("pplexact", "of our exact attention", "ppl_exact", 3),
    ("pplseine", "through Seine", "ppl_seine", 3),
]
ONE_STEP = [
    ("retrieve", "Retrieve, µs", "us_retrieve", 0),
    ("attend", "Attend, µs", "us_attend", 0),
    ("exact", "exact attention, µs", "us_exact", 0),
    ("recall", "recall@100", "recall_at_k", 4),
]
BY_NAME = ("llama", "llamalong", "llamaone")  # they fetch and build a llama.cpp: not without being asked
# name: (title, command of seine-bench or ./dev, columns, keys that tell rows apart)
PARTS = {
    "recall": (
        "Recall on a real model's keys, beside the paper's pipeline and FAISS",
        f"recall {REAL} {PROFILE} --horizon 4096 --refine 300 --beta .02,.05,.10,.25 --compare PEERS",
        RECALL,
        ("method", "beta"),
    ),
    "equal": (
        "Retrieval at equal numbers of candidates on a real model's keys: ours, ParisKV's pipeline, FAISS's PQ and Quest",
        f"recall {REAL} {PROFILE} --horizon 4096 --refine 300 --num-queries 64 --candidates 1%,2%,5%,10%",
        EQUAL,
        ("method", "share"),
    ),
    "million": (
        "A million synthetic keys in the balanced code, one thread, cold",
        f"{MILLION} --codec balanced --refine 300 --beta .005,.02",
        RECALL,
        ("method", "beta"),
    ),
    "millionrsq": (
        "A million synthetic keys without a profile, beside exact search, one thread, cold",
        f"{MILLION} --beta .01,.02,.05 --baseline faiss_flat PEERS",
        RECALL,
        ("method", "beta"),
    ),
    "step": (
        "A layer's decode step of 8 KV heads of 4 query heads beside exact attention, one thread, cold",
        "step --layers 1 --kv-heads 8 --group 4 --scope q_head --num-keys 2048,8192,32768,131072",
        LAYER,
        ("num_keys",),
    ),
    "subspace": (
        "Low-rank bases that follow a real model's stream",
        f"subspace {REAL} {PROFILE} --rank 38",
        SUBSPACE,
        ("stream", "method"),
    ),
    "drift": (
        "Low-rank bases that follow a synthetic drift",
        "subspace --synthetic drift --num-keys 8192 --head-dim 128 --rank 76",
        SUBSPACE,
        ("stream", "method"),
    ),
    "decode": (
        "Recall over a synthetic decode whose keys drift, four times as long as the prefill",
        "drift --synthetic drift",
        DRIFT,
        ("method",),
    ),
    "evict": (
        "What eviction keeps of a real model's attention",
        f"evict {REAL} --budget 10%,25%",
        EVICT,
        ("scorer", "budget"),
    ),
    "steady": (
        "What steady eviction costs",
        f"{STEADY} --scorer keydiff,manifoldkv,windowed_manifoldkv,qfilters,knorm",
        EVICT,
        ("scorer", "budget"),
    ),
    "service": ("Decode steps over a Unix socket", SERVICE, STEP, ("transport", "polling")),
    "polling": ("Decode steps over a Unix socket, a client that spins", f"{SERVICE} --polling", STEP, ("transport", "polling")),
    "sharded": (
        "A real model's layer of 8,192 tokens striped over servers of one machine, one thread each, beside one of them",
        f"sharded {REAL} --spawn BIN/seined --shards 1,2,4",
        SHARDED,
        ("shards",),
    ),
    "nodes": (
        "A layer's step of 8 KV heads of 4 query heads on three nodes of one machine, one thread each",
        "nodes --spawn BIN/seined --nodes 3 --num-keys 8192,32768,131072",
        NODES,
        ("num_keys",),
    ),
    "idle": (
        "Decode steps over ten times the sequences that memory holds, the rest on disk",
        "idle --sequences 100 --ratio 10 --steps 2000 --folder /var/tmp",
        IDLE,
        ("sequences",),
    ),
    "step": (
        "A decode step of one layer in process, 8 KV heads of 4 query heads, head_dim 128, one thread, cold",
        "step --num-keys 2048,8192,32768,131072",
        ONE_STEP,
        ("num_keys",),
    ),
    "llama": (
        "llama.cpp decodes SmolLM2-135M by itself and through Seine, two threads, three texts",
        "./dev llama --cells 1500,4000,7900 --steps 24",
        ENGINE + QUALITY,
        ("cells",),
    ),
    "llamalong": (
        "llama.cpp decodes SmolLM2-135M over long contexts of repeated cells, two threads",
        "./dev llama --cells 32000,131072 --repeat 8000 --yarn 16 --steps 24",
        ENGINE[:-1],
        ("cells",),
    ),
    "llamaone": (
        "llama.cpp decodes a model of Llama-3.2-1B's geometry, random q4_K weights and repeated cells, two threads",
        "./dev llama --random --cells 8192,32768,131072 --repeat 1024 --steps 12",
        ENGINE[:-1],
        ("cells",),
    ),
}


def label_of(row, keys):
    parts = [("polling" if row[key] else "blocking") if key == "polling" else row.get(key) for key in keys]
    return ", ".join(f"beta {part:g}" if key == "beta" else str(part) for key, part in zip(keys, parts) if part is not None)


def rounded(value, digits):
    if value is None:
        return None
    return round(value, digits) if digits else round(value)


def table_of(name, measured, command, about):
    """The part's table. Its rows are named by their labels' letters and digits."""
    title, _, columns, keys = PARTS[name]
    rows = []
    for row in measured.get("rows") or measured.get("points") or [measured]:
        label = label_of(row, keys)
        cells = [rounded(row.get(source), digits) for _, _, source, digits in columns]
        rows.append([re.sub(r"[^a-z0-9]", "", label.lower()), label, *cells])
    return {
        "id": f"run{name}",
        "title": title,
        "machine": about["machine"],
        "commit": about["commit"],
        "read_bandwidth_gb_s": about["read_bandwidth_gb_s"],
        "command": command,
        "columns": [[key, title] for key, title, _, _ in columns],
        "rows": rows,
    }


def output_of(*command):
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def run(folder, command, peers):
    """(what the command printed as JSON, the command as one would type it)."""
    words = shlex.split(command.replace("PEERS", f"--peers {shlex.quote(peers)}" if peers else "").replace("BIN", str(folder)))
    if words[0] != "./dev":
        words.insert(0, "seine-bench")
    typed, program = shlex.join(words), words[0] if words[0] == "./dev" else folder / "seine-bench"
    done = subprocess.run([program, *words[1:], "-o", "json"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"bench: {typed} ended with {done.returncode}")
    return json.loads(done.stdout), typed


def machine(folder, now):
    """Where and on what it runs: name, description and commit."""
    probe = run(folder, PROBE, "")[0]
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
    cpu, cores = model[1].strip() if model else os.uname().machine, len(os.sched_getaffinity(0))
    bandwidth = round(probe["read_bandwidth_gb_s"], 1)
    name = "-".join(re.findall(r"[a-z0-9]+", cpu.lower().partition(" @")[0].replace("(r)", "").replace("(tm)", "")))
    commit = output_of("git", "rev-parse", "--short=10", "HEAD") or "unknown"
    changed = output_of("git", "status", "--porcelain", "--untracked-files=no")
    return {
        "machine": f"{name}-{now:%Y-%m-%d}",
        "date": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "commit": commit + (" with changes" if changed else ""),
        "cpu": cpu,
        "cores": cores,
        "simd_target": probe["simd_target"],
        "read_bandwidth_gb_s": bandwidth,
        "text": f"{cpu}, {cores} cores, {probe['simd_target']}, {bandwidth} GB/s a core on {now:%Y-%m-%d}",
    }


def keep(path, about, table):
    """Puts the table into the file, in place of the one that an earlier run of that day left."""
    tables = json.loads(path.read_text(encoding="utf-8"))["tables"] if path.exists() else []
    tables = [old for old in tables if old["id"] != table["id"]] + [table]
    measured = {key: value for key, value in about.items() if key not in ("machine", "text")}
    data = {
        "format": figures.FORMAT,
        "about": "Written by ./dev bench.",
        "measured": measured,
        "machines": {about["machine"]: about["text"]},
        "tables": tables,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".tmp")
    new.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    new.replace(path)


def main():
    parser = argparse.ArgumentParser(prog="./dev bench", description="Measures, and writes bench/results/MACHINE-DATE.json.")
    parser.add_argument("--only", metavar="NAME", action="append", choices=PARTS, help="one part; may be given again")
    parser.add_argument("--list", action="store_true", help="name the parts and their commands")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "bench" / "results", help="folder that is written to")
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/cpu/bin"), help="folder of the programs")
    arguments = parser.parse_args()
    if arguments.list:
        typed = {name: ("" if part[1].startswith("./dev") else "seine-bench ") + part[1] for name, part in PARTS.items()}
        print("\n".join(f"{name:12}{command}" for name, command in typed.items()))
        return
    folder = ROOT / arguments.bin
    about = machine(folder, datetime.datetime.now(datetime.timezone.utc))
    path = arguments.results / f"{about['machine']}.json"
    chosen = [name for name in PARTS if name in (arguments.only or PARTS.keys() - BY_NAME)]
    for number, name in enumerate(chosen, 1):
        print(f"bench: {number} of {len(chosen)}, {name}: {PARTS[name][0]}", file=sys.stderr, flush=True)
        begin = time.monotonic()
        measured, command = run(folder, PARTS[name][1], os.environ.get("SEINE_PEERS", ""))
        table = table_of(name, measured, command.replace(f"{ROOT}/", ""), about)
        keep(path, about, table)
        print(f"\n{table['title']}\n\n{figures.table_text(table)}", flush=True)
        print(f"bench: {name} took {time.monotonic() - begin:.0f} s; it is in {path}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
