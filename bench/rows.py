"""Rows of a table from what a part of the bench measured, where these are not its JSON's "rows" as they stand."""

import pathlib


def prompt(measured):
    """Of each length: recall of one append and of the steps, smallest first."""
    names = ("small_steps", "large_steps")
    return [{**row, **{name: step["recall_at_k"] for name, step in zip(names, row["in_steps"])}} for row in measured["rows"]]


def encoding(measured):
    return [{"step": "one append", **measured["one_append"]}, *({**row, "step": f"steps of {row['step']}"} for row in measured["steps"])]


def wide_heads(measured):
    """Of one layer, what is no exact search."""
    about = {
        "layer": f"layer {measured['layers'][0]}",
        "codec": measured["codec"],
        "head_dim": measured["head_dim"],
        "group": measured["num_q_heads"] // measured["num_kv_heads"],
    }
    return [{**row, **about} for row in measured["rows"] if not row.get("exact")]


def wide_steps(measured):
    """Of one code, head_dim and group, by length."""
    about = {
        "head_dim": f"head_dim {measured['head_dim']}",
        "codec": measured["codec"],
        "group": f"groups of {measured['num_q_heads'] // measured['num_kv_heads']}",
    }
    heads = measured["layers"] * measured["num_kv_heads"]
    return [
        {**row, **about, "num_keys": f"{row['num_keys']:,} keys", "code_bytes_a_key": row["code_bytes"] / row["num_keys"] / heads}
        for row in measured["rows"]
    ]


def stored(measured):
    """Of each kind of row, all tokens held and half of them."""
    for row in measured["rows"]:
        kind = f"keys {row['frame'].replace('_', ' ')}, rank {row['key_rank']}" if row["key_rank"] else "full-rank"
        row["what"] = kind + (", half the tokens, by KeyDiff" if row["evicted"] else ", all tokens")
    return measured["rows"]


def answer(measured):
    """Whole answers in seconds."""
    names = ("first_plain", "first_both", "first_exact", "whole_plain", "whole_decode", "whole_both", "whole_exact")
    return [{**row, **{name: row[f"{name}_ms"] / 1e3 for name in names}} for row in measured["rows"]]


def vllm_step(measured):
    """Rows named by length and number of texts."""
    texts = {1: "one text"}
    return [{**row, "cells": f"{row['cells']:,} tokens", "texts": texts.get(row["texts"], f"{row['texts']} texts")} for row in measured["rows"]]


def vllm_first(measured):
    return [{**row, "cells": f"{row['cells']:,} tokens"} for row in measured["rows"]]


def vllm_chats(measured):
    return [{**row, "users": f"{row['users']} users", "turns": f"{row['turns']} turns"} for row in measured["rows"]]


def of_codec(measured):
    """Rows of llama.cpp's decoding, with the code that answered."""
    return [{**row, "codec": measured["plugin"]["codec"]} for row in measured["rows"]]


def hf_prompt(measured):
    """Each way of reading a prompt beside torch's."""
    found = []
    for text in measured["prompts"]:
        torch = text["prompts"][0]["first_token_s"]
        found += [{**row, "context": text["context"], "ratio": torch / row["first_token_s"]} for row in text["prompts"]]
    return found


def demo(measured):
    full = measured["full_cache_bytes"]
    shares = {"code_share": measured["code_bytes"] / full, "held_share": (measured["code_bytes"] + measured["store_bytes"]) / full}
    return [{"demo": "demo", **measured, **shares}]


def kernel(measured):
    shape = "{num_keys:,} keys, batch {batch}"
    return [{**row, "shape": shape.format(**row), **{f"{step['step']}_us": step["us"] for step in row["steps"]}} for row in measured]


def eval(measured):
    texts = [(pathlib.Path(text["text"]).name, text) for text in measured["quality"]]
    return [{"prompt": "dense", **method, "text": name} for name, text in texts for method in text["methods"]]


def needle(measured):
    return [{"method": method, **shares} for method, shares in measured["needle"]["accuracy"].items()]


def task(measured):
    (there,) = measured["tasks"]["lengths"]
    labels = measured["tasks"]["labels"]
    return [{**m, **m["right"], "label": labels[m["method"]], "mean": sum(m["right"].values()) / len(m["right"])} for m in there["methods"]]


def plan(measured):
    return [{**plan, "memory_share": plan["use"]["memory"]} for plan in measured["plans"]]


def fleet(measured):
    return [{"killed": kind, **row} for kind, row in measured["by_kind"].items()]


def soak(runs):
    """The last run of each attack and transport, of a ledger's lines."""
    last = {(run["attack"], run.get("transport", "unix")): run for run in runs}
    return [{**run["figures"], **run, "transport": transport} for (_, transport), run in last.items()]
