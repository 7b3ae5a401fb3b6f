"""Servers: one, several, those that idle, those that are attacked or killed."""

import columns as c
import rows
from parts.part import REAL, Part, one

SERVICE = "service --spawn BIN/seined --transport stream"
FLOOD = (
    "./dev soak --seconds 3 --seed 4 --only resets,reset-flood,pings,read-pings,read-pings-apart,settings,"
    "control-frames,idle-connections,unread,slow-readers,slow-http --ledger LEDGER"
)
PARTS = {
    "service": Part("Decode steps over a Unix socket", one(SERVICE), c.STEP, ("transport", "polling"), 1, quiet=True),
    "polling": Part(
        "Decode steps over a Unix socket, a client that spins", one(f"{SERVICE} --polling"), c.STEP, ("transport", "polling"), 1, quiet=True
    ),
    "channel": Part(
        "Decode steps over the same-host channel",
        one("service --spawn BIN/seined --transport shm"),
        c.STEP,
        ("transport", "polling"),
        1,
        quiet=True,
    ),
    "sharded": Part(
        "A real model's layer of 8,192 tokens striped over servers of one machine, one thread each, beside one of them",
        one(f"sharded {REAL} --spawn BIN/seined --shards 1,2,4"),
        c.SHARDED,
        ("shards",),
        2,
        quiet=True,
    ),
    "nodes": Part(
        "A layer's step of 8 KV heads of 4 query heads on three nodes of one machine, one thread each",
        one("nodes --spawn BIN/seined --nodes 3 --num-keys 8192,32768,131072"),
        c.NODES,
        ("num_keys",),
        3,
        quiet=True,
    ),
    "plans": Part(
        "Many nodes on paper, from the latest run of the part nodes",
        one("PYTHON -m seine_kv.sharded.simulate --results bench/results"),
        c.PLANS,
        ("plan",),
        1,
        rows=rows.plan,
    ),
    "idle": Part(
        "Decode steps over ten times the sequences that memory holds, the rest on disk",
        one("idle --sequences 100 --ratio 10 --steps 2000 --folder /var/tmp"),
        c.IDLE,
        ("sequences",),
        2,
        quiet=True,
    ),
    "floods": Part(
        "By how much floods grow a server, over each transport",
        tuple(f"{FLOOD} --transport {transport}" for transport in ("unix", "tcp", "tls")),
        c.SOAK,
        ("attack", "transport"),
        3,
        asked=True,
        rows=rows.soak,
    ),
    "soak": Part(
        "Attacks, and what a bystander sees",
        one("./dev soak --quick --ledger LEDGER"),
        c.SOAK,
        ("attack", "transport"),
        10,
        asked=True,
        rows=rows.soak,
    ),
    "fleet": Part(
        "After a kill -9 in a fleet of four servers, the longest seconds until",
        one("./dev fleet --minutes 5 --seed 3"),
        c.FLEET,
        ("killed",),
        8,
        asked=True,
        rows=rows.fleet,
    ),
}
