"""The parts of `./dev bench`: what each runs, and which figures of its JSON become a table. bench/run.py runs them.

A command is seine-bench's, or begins with ./dev or PYTHON. The rows of all of a part's commands make one table; its id is "run" and
the part's name. In a command BIN stands for the folder of the programs, PYTHON for a Python with torch (SEINE_PYTHON), PEERS for
the option that adds PyPI's FAISS, and LEDGER for a file that the command writes and that is read in place of its output. The files of
RECORDS are written once, before the first command that names them; REFERENCE, MODULE and DECIMAL are texts that every Python brings, and
GEMMA is Gemma 3 270M's GGUF, which `./dev llama --gemma` fetches.
"""

from dataclasses import dataclass, field

import columns as c
import rows

DATA = "bench/data/smollm2-135m"
REAL = f"--trace {DATA}-kjv-8k.safetensors"
PROFILE = f"--profile {DATA}.profile.safetensors"
MILLION = "recall --synthetic rope --num-keys 1048576 --head-dim 128"
CODE = "recall --synthetic rope --num-keys 16384 --head-dim 128 --beta .02 --num-queries 8"
STEADY = "evict --synthetic rope --num-keys 65536 --kv-heads 8 --dtype fp16 --budget 2048 --interval 128"
SERVICE = "service --spawn BIN/seined --transport stream"
EVAL = f"PYTHON -m seine_kv.eval {PROFILE}"
RECORDS = {
    "TRACE": "PYTHON -m seine_kv.trace --text REFERENCE --tokens 8192 --queries-last 8192 --out TRACE",
    "GEMMATRACE": "PYTHON -m seine_kv.trace --model GEMMA --text REFERENCE --tokens 8192 --out GEMMATRACE",
    "GEMMAPROFILE": "PYTHON -m seine_kv.profile --model GEMMA --text MODULE docs/engines.md --tokens 4096 --out GEMMAPROFILE",
}
GEMMA = "recall --trace GEMMATRACE --num-queries 64 --cache warm --refine 300 --beta .05,.10,.25"
PROMPT = f"prompt --trace TRACE {PROFILE} --horizon 4096 --step 512,2048"
FLOOD = (
    "./dev soak --seconds 3 --seed 4 --only resets,reset-flood,pings,read-pings,read-pings-apart,settings,"
    "control-frames,idle-connections,unread,slow-readers,slow-http --ledger LEDGER"
)


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


@dataclass(frozen=True)
class Part:
    """One table. `keys` tell its rows apart; `quiet`: its times want a machine that does nothing else; `minutes` on two cores."""

    title: str
    commands: tuple
    columns: list
    keys: tuple
    minutes: float
    quiet: bool = False
    asked: bool = False  # runs only where --only names it: it takes long, or fetches what it needs
    text: tuple = ()
    plot: dict = None  # as docs/tools/figures.py draws it
    rows: object = field(default=lambda measured: measured.get("rows") or measured.get("points") or [measured])


@dataclass(frozen=True)
class Question:
    """Parts that answer one question, as docs/benchmarks.md groups and sums them up. `short`: each {TABLE-ROW-COLUMN} is a figure."""

    title: str
    short: str
    parts: tuple


def one(command):
    return (command,)


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
    "kernels": Part(
        "What CUDA kernels must at least take: predicted from bytes, never measured",
        one("kernels"),
        c.KERNELS,
        ("shape",),
        1,
        text=("At 4,300 GB/s of device memory and 50 GB/s of link; Llama-3.1-8B's geometry, balanced, ½ bit scanned, β 1 %.",),
        rows=rows.kernel,
    ),
    "quality": Part(
        "SmolLM2-135M decodes by several methods, beside dense attention",
        one(f"{EVAL} --quick --parts quality"),
        c.MODEL,
        ("label",),
        20,
        asked=True,
        text=(
            "Python's reference, 4,096 tokens of which the last 256 are decoded; head_dim 64. The rows of a budget attend as many tokens "
            "a head, but retrieval holds every token, and eviction no more than it attends.",
        ),
        rows=rows.eval,
    ),
    "blocks": Part(
        "Eviction of prompts read densely and in blocks, 10 and 25 % of the tokens held",
        one(f"{EVAL} --parts quality --kept .1,.25 --context 4096 --decoded 256"),
        c.MODEL,
        ("label", "prompt"),
        90,
        asked=True,
        rows=rows.eval,
    ),
    "needle": Part(
        "Needles in 1,024 and 2,048 tokens, share found",
        one(f"{EVAL} --quick --parts needle"),
        c.NEEDLES,
        ("method",),
        30,
        asked=True,
        rows=rows.needle,
    ),
    "tasks": Part(
        "Tasks over 4,096 tokens: share of answers chosen rightly",
        one(f"{EVAL} --parts tasks --lengths 4096 --samples 3 --batches 0"),
        c.TASKS,
        ("label",),
        120,
        asked=True,
        rows=rows.task,
    ),
    "token": Part(
        "Milliseconds a token of SmolLM2-135M in PyTorch, fp32, batch 1, dense and Seine by turns",
        one(f"{EVAL} --parts speed --speeds 1024,4096,8192"),
        c.TOKEN,
        ("context",),
        8,
        quiet=True,
        asked=True,
        text=("Dense is torch's own attention. How much of the gain is our exact kernel's is not told apart here.",),
        rows=lambda measured: measured["speed"],
    ),
    "answers": Part(
        "Whole answers of llama.cpp behind 8,000 tokens: the prompt and 256 tokens, two threads",
        tuple(f"./dev llama --whole --cells 8000 --steps 256 --prompt {prompt}" for prompt in ("exact", "sparse")),
        c.ANSWER,
        ("cells", "prompt"),
        14,
        quiet=True,
        asked=True,
        text=(
            "SmolLM2-135M. Attention is that of the prompt's last 2,048 tokens, each node by llama.cpp's own kernel and by Seine's in "
            "one process. The last column is the share of keys that its blocks attended.",
        ),
        rows=rows.answer,
    ),
    "wholeanswers": Part(
        "Whole answers of llama.cpp over the prompt's length: the prompt and 256 tokens, two threads",
        one("./dev llama --whole --cells 1000,2000,4000,8000 --steps 256 --prompt sparse"),
        c.ANSWERS,
        ("cells",),
        5,
        quiet=True,
        asked=True,
        text=("SmolLM2-135M, by turns. Seine reads prompts over the keys that matter, and decodes from its index.",),
        rows=rows.answer,
    ),
    "answerslong": Part(
        "The last 2,048 tokens of a long prompt, and 16 behind it, over repeated cells, two threads",
        (
            *(f"./dev llama --whole --cells 32000 --repeat 8000 --yarn 4 --steps 16 --prompt {prompt}" for prompt in ("exact", "sparse")),
            "./dev llama --whole --cells 128000 --repeat 8000 --yarn 16 --steps 16 --prompt sparse",
        ),
        c.ANSWER,
        ("cells", "prompt"),
        40,
        quiet=True,
        asked=True,
        rows=rows.answer,
    ),
    "sparseprompts": Part(
        "What sparse prompts of llama.cpp change: 256 given tokens behind 7,936, attended whole",
        one("./dev llama --cells 7936 --steps 256 --shares .85,.9,.96"),
        c.SPARSE,
        ("text", "share"),
        6,
        asked=True,
        text=("SmolLM2-135M. KL is from the same behind an exact prompt.",),
        rows=lambda measured: measured["rows"],
    ),
    "sparsegemma": Part(
        "The same with Gemma 3 270M, of whose 18 layers 3 attend all, behind 32,000 tokens",
        one("./dev llama --gemma --cells 32000 --steps 256 --shares .9,.96"),
        c.SPARSE,
        ("text", "share"),
        15,
        asked=True,
        rows=lambda measured: measured["rows"],
    ),
    "hfprompts": Part(
        "Prompts of SmolLM2-135M in PyTorch, fp32, by torch's own attention and through Seine",
        tuple(
            f"PYTHON -m seine_kv.eval --parts prompts --context {length} --decoded 256 --shares 0.9,0.96"
            for length in ("8192", "32768 --rope-scaling yarn:4")
        ),
        c.HF_PROMPT,
        ("context", "prompt"),
        18,
        quiet=True,
        asked=True,
        text=("KL is from the same 256 tokens behind the exact prompt; torch attends them whole in every case.",),
        rows=rows.hf_prompt,
    ),
    "answersavx2": Part(
        "The same answers behind 8,000 tokens where llama.cpp and Seine have AVX2 and no more",
        tuple(f"./dev llama --avx2 --whole --cells 8000 --steps 256 --prompt {prompt}" for prompt in ("exact", "sparse")),
        c.ANSWER,
        ("cells", "prompt"),
        18,
        quiet=True,
        asked=True,
        rows=rows.answer,
    ),
    "llama": Part(
        "llama.cpp decodes SmolLM2-135M by itself and through Seine, two threads, three texts",
        one("./dev llama --cells 1500,4000,7900 --steps 24"),
        c.ENGINE + c.QUALITY,
        ("cells",),
        10,
        quiet=True,
        asked=True,
    ),
    "llamalong": Part(
        "llama.cpp decodes SmolLM2-135M over long contexts of repeated cells, two threads",
        one("./dev llama --cells 32000,131072 --repeat 8000 --yarn 16 --steps 24"),
        c.ENGINE[:-1],
        ("cells",),
        6,
        quiet=True,
        asked=True,
    ),
    "llamaquantised": Part(
        "The same over caches of q8_0, of one text",
        one("./dev llama -ctk q8_0 -ctv q8_0 --cells 7900 --steps 48 --text REFERENCE"),
        c.ENGINE + c.QUALITY,
        ("cells",),
        3,
        quiet=True,
        asked=True,
    ),
    "llamaquantisedlong": Part(
        "The same over 32,256 repeated cells of q8_0",
        one("./dev llama -ctk q8_0 -ctv q8_0 --cells 32256 --repeat 8000 --yarn 4 --steps 48"),
        c.ENGINE[:-1],
        ("cells",),
        4,
        quiet=True,
        asked=True,
    ),
    "quantisedavx2": Part(
        "The same over caches of q8_0 where llama.cpp and Seine have AVX2 and no more: 7,900 cells of one text, and 32,256 repeated ones",
        (
            "./dev llama --avx2 -ctk q8_0 -ctv q8_0 --cells 7900 --steps 48 --text REFERENCE",
            "./dev llama --avx2 -ctk q8_0 -ctv q8_0 --cells 32256 --repeat 2048 --yarn 4 --steps 48",
        ),
        c.ENGINE + c.QUALITY,
        ("cells",),
        6,
        quiet=True,
        asked=True,
        text=("Repeated cells tell no quality.",),
    ),
    "peer": Part(
        "ik_llama.cpp beside llama.cpp and Seine: SmolLM2-135M, caches of q8_0, two threads, one text",
        one("./dev llama -ctk q8_0 -ctv q8_0 --cells 7900 --steps 48 --text REFERENCE --peer-server engines/llama.cpp/bench/ik_server.py"),
        c.PEER,
        ("cells",),
        4,
        quiet=True,
        asked=True,
        text=("By PyPI's ik-llama-cpp-python. Its times are taken before ours, not by turns.",),
    ),
    "slots": Part(
        "llama-server with four chats of 16,384 tokens in four slots: a full cache, and 8,192 cells and a seined",
        one("./dev llama --slots 16384 --shared 15872"),
        c.SLOTS,
        ("server",),
        7,
        quiet=True,
        asked=True,
        text=(
            "SmolLM2-135M, two threads. Chats share all but their last 512 tokens, which are read once. A step is a token of each chat. Each server is "
            "then killed, and starts again with the states that it saved.",
        ),
    ),
    "slotslong": Part(
        "llama-server with four chats of 65,536 tokens in four slots: a full cache, and 8,192 cells and a seined",
        one("./dev llama --slots 65536 --shared 57344 --layers 2"),
        c.SLOTS,
        ("server",),
        13,
        quiet=True,
        asked=True,
        text=("Two of SmolLM2-135M's layers, two threads, by rsq. Chats share all but their last 8,192 tokens.",),
    ),
    "gemma": Part(
        "llama.cpp decodes Gemma 3 270M, of whose 18 layers 3 attend all, two threads, three texts",
        (
            "./dev llama --gemma --cells 8000 --steps 256",
            "./dev llama --gemma --rsq --cells 8000 --steps 256",
        ),
        c.ENGINE + c.QUALITY,
        ("cells", "codec"),
        6,
        quiet=True,
        asked=True,
        text=("By the balanced code with a profile that the plug-in measured on another text, and by rsq.",),
        rows=rows.of_codec,
    ),
    "gemmalong": Part(
        "The same behind 30,000 tokens of one text",
        one("./dev llama --gemma --cells 30000 --steps 256 --text REFERENCE"),
        c.ENGINE + c.QUALITY,
        ("cells", "codec"),
        6,
        quiet=True,
        asked=True,
        rows=rows.of_codec,
    ),
    "gemmaanswers": Part(
        "Whole answers of llama.cpp with Gemma 3 270M: the prompt and 256 tokens, two threads",
        one("./dev llama --gemma --whole --cells 8000 --steps 256 --prompt sparse"),
        c.ANSWER,
        ("cells",),
        3,
        quiet=True,
        asked=True,
        rows=rows.answer,
    ),
    "gemmatoken": Part(
        "Milliseconds a token of Gemma 3 270M in PyTorch, fp32, batch 1, dense and Seine by turns",
        one("PYTHON -m seine_kv.eval --model GEMMA --profile GEMMAPROFILE --parts speed --speeds 8192"),
        c.TOKEN,
        ("context",),
        10,
        quiet=True,
        asked=True,
        text=("The engine is what torch takes beside the 3 layers that attend all.",),
        rows=lambda measured: measured["speed"],
    ),
    "gemmaprompts": Part(
        "Prompts of Gemma 3 270M in PyTorch, fp32, by torch's own attention and through Seine",
        one("PYTHON -m seine_kv.eval --model GEMMA --parts prompts --context 8192 --decoded 256 --shares 0.96"),
        c.HF_PROMPT,
        ("context", "prompt"),
        4,
        quiet=True,
        asked=True,
        rows=rows.hf_prompt,
    ),
    "gemmaquality": Part(
        "Gemma 3 270M in PyTorch decodes 256 given tokens behind 7,936 of three texts",
        (
            "PYTHON -m seine_kv.eval --model GEMMA --profile GEMMAPROFILE --parts quality --methods seine --context 8192 --decoded 256 "
            "--text REFERENCE DECIMAL docs/cli.md",
            "PYTHON -m seine_kv.eval --model GEMMA --parts quality --methods seine --context 8192 --decoded 256 --text REFERENCE",
        ),
        c.MODEL,
        ("label", "text"),
        8,
        asked=True,
        # Dense attention's row is the first command's.
        rows=lambda measured: [row for row in rows.eval(measured) if row["label"] != "dense" or len(measured["quality"]) > 1],
    ),
    "vllm": Part(
        "vLLM decodes SmolLM2-135M behind texts that were read, two threads",
        one("./dev vllm --bench --cells 1024,4096,8000 --texts 1,4"),
        c.VLLM_STEP,
        ("cells", "texts"),
        4,
        quiet=True,
        asked=True,
        text=("float32, by turns in one process. A step is a token of each text.",),
        rows=rows.vllm_step,
    ),
    "vllmmany": Part(
        "vLLM decodes eight texts of SmolLM2-135M together, two threads",
        one("./dev vllm --bench --cells 1024,4096,8000 --texts 8"),
        c.VLLM_STEP,
        ("cells", "texts"),
        6,
        quiet=True,
        asked=True,
        rows=rows.vllm_step,
    ),
    "vllmlong": Part(
        "vLLM decodes SmolLM2-135M behind 32,000 tokens that were read, two threads",
        one("./dev vllm --bench --cells 32000 --texts 1"),
        c.VLLM_STEP,
        ("cells", "texts"),
        4,
        quiet=True,
        asked=True,
        text=("float32; its RoPE is stretched by YaRN.",),
        rows=rows.vllm_step,
    ),
    "vllmfirst": Part(
        "vLLM's first token behind a prompt of SmolLM2-135M, two threads",
        one("./dev vllm --bench --first --cells 1024,8000 --rounds 1"),
        c.VLLM_FIRST,
        ("cells",),
        4,
        quiet=True,
        asked=True,
        text=("float32, in chunks of 2,048 tokens, each way once, by turns in one process.",),
        rows=rows.vllm_first,
    ),
    "vllmfirstlong": Part(
        "vLLM's first token behind 32,000 tokens of SmolLM2-135M, two threads",
        one("./dev vllm --bench --first --cells 32000 --rounds 1"),
        c.VLLM_FIRST,
        ("cells",),
        25,
        quiet=True,
        asked=True,
        text=("float32, in chunks of 2,048 tokens, each way once; its RoPE is stretched by YaRN.",),
        rows=rows.vllm_first,
    ),
    "vllmchats": Part(
        "Chats of four users over one document of 8,000 tokens by vLLM's server, with torch.compile, two threads",
        one("./dev vllm --chats"),
        c.VLLM_CHATS,
        ("users", "turns"),
        6,
        quiet=True,
        asked=True,
        text=("SmolLM2-135M in float32, five turns of 24 tokens asked and 64 answered; prompts are attended exactly, and found in vLLM's cache.",),
        rows=rows.vllm_chats,
    ),
    "vllmquality": Part(
        "What Seine's decoding in vLLM changes: 128 given tokens of SmolLM2-135M behind 7,900 of three texts",
        one("./dev vllm --quality"),
        c.VLLM_QUALITY,
        ("text",),
        6,
        asked=True,
        text=("float32, against vLLM's own attention of prompt and tokens.",),
    ),
    "llamaone": Part(
        "llama.cpp decodes a model of Llama-3.2-1B's geometry, random q4_K weights and repeated cells, two threads",
        one("./dev llama --random --cells 8192,32768,131072 --repeat 1024 --steps 12"),
        c.ENGINE[:-1],
        ("cells",),
        8,
        quiet=True,
        asked=True,
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
W = "runwholeanswers-8000"
FOUND, STORED = "runequal-seinebalanced11window64profilerefine3005", "runlowrank-keysprerope"
QUESTIONS = (
    Question(
        "How long does an answer take?",
        f"llama.cpp reads 8,000 tokens and writes 256 in {{{W}-whole}} s by itself, in {{{W}-exact}} s by our exact attention, "
        f"and in {{{W}-seine}} s through Seine.",
        ("wholeanswers", "answers", "answerslong", "answersavx2", "gemmaanswers", "hfprompts", "gemmaprompts", "vllmfirst", "vllmfirstlong", "vllmchats"),
    ),
    Question(
        "How fast is decoding?",
        "Behind 7,900 tokens a token takes llama.cpp {runllama-7900} ms, our exact attention {runllama-7900-exact} ms and the index "
        "{runllama-7900-seine} ms. Behind 1,500 all three take {runllama-1500} to {runllama-1500-seine} ms.",
        (
            *("llama", "llamalong", "llamaquantised", "llamaquantisedlong", "quantisedavx2", "peer", "llamaone", "slots", "slotslong"),
            *("gemma", "gemmalong", "token", "gemmatoken"),
            *("vllm", "vllmmany", "vllmlong", "demotimes", "step", "widesteps"),
        ),
    ),
    Question(
        "What do sparse prompts change?",
        "Tokens behind a sparse prompt have a KL of {runsparseprompts-modules096-kl} to {runsparseprompts-pages096-kl} from those "
        "behind an exact one, in three texts.",
        ("sparseprompts", "sparsegemma", "prompt", "encoding"),
    ),
    Question(
        "How much does retrieval find?",
        f"From {{{FOUND}-candidates}} of {{{FOUND}-held}} keys the balanced code finds {{{FOUND}-recall}} of the exact top 100, and rsq, "
        "which learns nothing, {runequal-seinersqsignipwindow64refine2005-recall}.",
        ("equal", "recall", "target", "demo", "wideheads", "decode", "million", "millionrsq", "gaussian"),
    ),
    Question(
        "What memory does it take?",
        f"Low-rank keys and values take {{{STORED}rank20alltokens-bytes}} of the full fp16 cache's bytes, and "
        f"{{{STORED}rank20halfthetokensbykeydiff-bytes}} with half the tokens evicted.",
        ("codes", "lowrank", "subspace", "carried", "drift", "updates", "ojakv"),
    ),
    Question(
        "What does eviction keep?",
        "A tenth of the tokens holds {runevict-qfilters10} of attention by Q-Filters, and {runevict-streamingllm10} by StreamingLLM.",
        ("evict", "steady", "blocks"),
    ),
    Question(
        "How well does a model answer?",
        "Gemma 3 270M attends {rungemmaquality-seinebalanced002tailclimd} of {rungemmaquality-seinebalanced002tailclimd-held} tokens where its "
        "layers attend all. The next token is dense attention's in {rungemmaquality-seinebalanced002tailtopicspy-same} to "
        "{rungemmaquality-seinebalanced002tailclimd-same} of places, in three texts.",
        ("quality", "gemmaquality", "vllmquality", "needle", "tasks"),
    ),
    Question(
        "What does a server bear?",
        "A bystander's step takes {runfloods-nonetls-p99} ms at p99 over TLS, and {runfloods-resetfloodtls-p99} ms beside a flood of resets.",
        ("service", "polling", "channel", "idle", "floods", "soak"),
    ),
    Question(
        "What do many machines add?",
        "A layer striped over four servers takes {runsharded-4-p50} µs, and one of them alone {runsharded-4-one} µs.",
        ("sharded", "nodes", "plans", "fleet"),
    ),
    Question("What would a GPU take?", "Predicted from bytes, and never measured.", ("kernels",)),
)
