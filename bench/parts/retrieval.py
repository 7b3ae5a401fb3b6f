"""What retrieval finds and takes in one process, without a model."""

import columns as c
import rows
from parts.part import PROFILE, REAL, Part, one

MILLION = "recall --synthetic rope --num-keys 1048576 --head-dim 128"
CODE = "recall --synthetic rope --num-keys 16384 --head-dim 128 --beta .02 --num-queries 8"
GEMMA = "recall --trace GEMMATRACE --num-queries 64 --cache warm --refine 300 --beta .05,.10,.25"
PROMPT = f"prompt --trace TRACE {PROFILE} --horizon 4096 --step 512,2048"
AT_TENTH = [
    f"{method}beta01"
    for method in (
        "seinebalanced11window64profilerefine300",
        "seinersqsignipwindow64refine200",
        "paperrsqcollisionnocentrerefine100",
        "faisspqfastscan8b",
        "faisspqfastscan16b",
        "faissivfpq16b1664lists",
    )
]
PARTS = {
    "codes": Part(
        "Bytes of code a key of head_dim 128, whose fp16 row has 256",
        (f"{CODE} --codec rsq", f"{CODE} --codec balanced"),
        c.BYTES,
        ("method",),
        1,
        rows=lambda measured: [row for row in measured["rows"] if not row.get("exact")],
    ),
    "recall": Part(
        "Recall on a real model's keys, beside ParisKV's pipeline and FAISS",
        one(f"recall {REAL} {PROFILE} --horizon 4096 --refine 300 --beta .02,.05,.10,.25 --compare PEERS"),
        c.FOUND,
        ("method", "beta"),
        5,
        text=(
            "SmolLM2-135M, head_dim 64, 8,192 tokens of the King James Bible, three layers; every token is held, and truth is the exact "
            "top 100 of a query head. Seine and ParisKV's pipeline keep at least 400 candidates, and FAISS has no such floor: rows of "
            "one β are rows of one work only from 10 % on.",
        ),
        plot={"kind": "bars", "column": "recall", "title": "recall@100 at β 10 %: 762 candidates", "rows": AT_TENTH},
    ),
    "equal": Part(
        "Retrieval at equal numbers of candidates on a real model's keys: ours, ParisKV's pipeline, FAISS's PQ and Quest",
        one(f"recall {REAL} {PROFILE} --horizon 4096 --refine 300 --num-queries 64 --candidates 1%,2%,5%,10%"),
        c.EQUAL,
        ("method", "share"),
        5,
    ),
    "target": Part(
        "Candidates and recall by a target of the balanced code",
        one(f"recall {REAL} {PROFILE} --horizon 4096 --refine 300 --recall-target .9,.95,.99"),
        c.TARGET,
        ("method",),
        3,
        rows=lambda measured: [row for row in measured["rows"] if row.get("recall_target") is not None],
    ),
    "demo": Part("What the demo finds", one("./dev demo"), c.DEMO, ("demo",), 2, rows=rows.demo),
    "demotimes": Part(
        "A layer's append and attention in the demo: ours over every token, and over what Seine finds",
        one("./dev demo"),
        c.DEMO_TIMES,
        ("num_tokens",),
        2,
        quiet=True,
        text=("Both columns are of this server's own kernels. Lengths above 8,192 repeat the trace's rows, for times alone.",),
        rows=lambda measured: measured["attention_times"],
    ),
    "million": Part(
        "A million synthetic keys in the balanced code, one thread, cold",
        one(f"{MILLION} --codec balanced --refine 300 --beta .005,.02"),
        c.RECALL,
        ("method", "beta"),
        3,
        quiet=True,
    ),
    "millionrsq": Part(
        "A million synthetic keys without a profile, beside exact search, one thread, cold",
        one(f"{MILLION} --beta .01,.02,.05 --baseline faiss_flat PEERS"),
        c.RECALL,
        ("method", "beta"),
        5,
        quiet=True,
    ),
    "gaussian": Part(
        "A million Gaussian keys, which have no structure, in the balanced code, one thread, cold",
        one("recall --synthetic gaussian --num-keys 1048576 --head-dim 128 --codec balanced --refine 300 --beta .02"),
        c.RECALL,
        ("method", "beta"),
        2,
        quiet=True,
    ),
    "step": Part(
        "A decode step of one layer in process, 8 KV heads of 4 query heads, head_dim 128, one thread, cold",
        one("step --num-keys 2048,8192,32768,131072"),
        c.ONE_STEP,
        ("num_keys",),
        3,
        quiet=True,
    ),
    "wideheads": Part(
        "Recall on Gemma 3 270M's keys of head_dim 256, one KV head of 4 query heads, 8,192 tokens",
        tuple(
            f"{GEMMA} --layers {layer} {code}"
            for layer in range(3)
            for code in ("--codec rsq", "--profile GEMMAPROFILE --horizon 4096")
        ),
        c.WIDE_HEADS,
        ("layer", "codec", "beta"),
        5,
        asked=True,
        text=(
            "The three layers that attend all, of 18, read Python's reference; the balanced code has a profile of other texts. Each query "
            "head chooses for itself, so that how many share keys changes none of this.",
        ),
        rows=rows.wide_heads,
    ),
    "widesteps": Part(
        "A decode step of one layer in process, 2 KV heads of head_dim 256 and 512, made-up keys, one thread, cold",
        tuple(
            f"step --kv-heads 2 --num-keys 8192,32768 --head-dim {head_dim} --group {group} --codec {codec}"
            for head_dim, codec in ((256, "rsq"), (256, "balanced"), (512, "rsq"), (512, "balanced --coarse-bits .5 --total-bits 1"))
            for group in (4, 8, 16)
        ),
        c.WIDE_STEPS,
        ("head_dim", "codec", "group", "num_keys"),
        3,
        quiet=True,
        text=("The balanced code has a profile of these keys. Of head_dim 512 it has a bit a coordinate, of which half is scanned.",),
        rows=rows.wide_steps,
    ),
    "prompt": Part(
        "Recall while a prompt grows in steps, with the balanced code",
        one(PROMPT),
        c.PROMPT,
        ("num_tokens",),
        6,
        asked=True,
        rows=rows.prompt,
    ),
    "encoding": Part(
        "What a prompt in steps costs", one(PROMPT), c.ENCODING, ("step",), 6, quiet=True, asked=True, rows=rows.encoding
    ),
    "decode": Part(
        "Recall over a synthetic decode whose keys drift, four times as long as the prefill",
        one("drift --synthetic drift"),
        c.DRIFT,
        ("method",),
        2,
        text=(
            "One head of head_dim 128, 4,096 tokens of prefill. Every method names as many candidates, which grow from 400 to a twentieth "
            "of the keys: so a method that does not drift gains. `_all` is trained on all keys, the other peers on the prefill.",
        ),
    ),
    "kernels": Part(
        "What CUDA kernels must at least take: predicted from bytes, never measured",
        one("kernels"),
        c.KERNELS,
        ("shape",),
        1,
        text=("At 4,300 GB/s of device memory and 50 GB/s of link; Llama-3.1-8B's geometry, balanced, ½ bit scanned, β 1 %.",),
        rows=rows.kernel,
    ),
}
