"""Models in PyTorch, through Hugging Face."""

import columns as c
import rows
from parts.part import PROFILE, Part, one

EVAL = f"PYTHON -m seine_kv.eval {PROFILE}"
PARTS = {
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
}
