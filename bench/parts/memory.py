"""What is held: low-rank bases, and what eviction keeps."""

import columns as c
import rows
from parts.part import PROFILE, REAL, Part, one

STEADY = "evict --synthetic rope --num-keys 65536 --kv-heads 8 --dtype fp16 --budget 2048 --interval 128"
PARTS = {
    "subspace": Part(
        "Low-rank bases that follow a real model's stream",
        one(f"subspace {REAL} {PROFILE} --rank 38"),
        c.BASES,
        ("stream", "method"),
        2,
    ),
    "carried": Part(
        "The same with bases that are carried to all 8,192 positions",
        one(f"subspace {REAL} {PROFILE} --rank 38 --carried-to 8192"),
        c.BASES,
        ("stream", "method"),
        2,
    ),
    "drift": Part(
        "Low-rank bases that follow a synthetic drift",
        one("subspace --synthetic drift --num-keys 8192 --head-dim 128 --rank 76"),
        c.BASES,
        ("stream", "method"),
        1,
    ),
    "updates": Part(
        "What an update of 32 rows costs, head_dim 128, rank 96",
        one("subspace --synthetic drift --num-keys 8192 --head-dim 128 --rank 96"),
        [column for column in c.SUBSPACE if column[0] in ("rank", "cost")],
        ("stream", "method"),
        1,
        quiet=True,
    ),
    "lowrank": Part(
        "What a low-rank index holds of 8,192 tokens, and what it errs",
        one(f"subspace {REAL} {PROFILE} --evict keydiff --keep .5 --local 256 --full-rank .02"),
        c.STORED,
        ("what",),
        4,
        rows=rows.stored,
    ),
    "ojakv": Part(
        "OjaKV's pipeline, in our reading, beside the library's, at equal bytes",
        one(f"subspace {REAL} {PROFILE} --rank 38 --ojakv --full-rank .02 --num-queries 16"),
        c.OJAKV,
        ("frame", "method"),
        15,
        asked=True,
    ),
    "evict": Part(
        "What eviction keeps of a real model's attention",
        one(f"evict {REAL} --budget 10%,25%"),
        c.KEPT,
        ("scorer", "budget"),
        3,
    ),
    "steady": Part(
        "What steady eviction costs",
        one(f"{STEADY} --scorer keydiff,manifoldkv,windowed_manifoldkv,qfilters,knorm"),
        c.EVICT,
        ("scorer", "budget"),
        3,
        quiet=True,
    ),
}
