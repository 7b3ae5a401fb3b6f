"""Milliseconds a decode step and time to the first token: vLLM's own attention, Seine, and no attention at all, by turns in one
process, behind prompts that were read.

    python engines/vllm/tests/bench.py --models FOLDER --cells 1024,8000 --texts 1,4
    python engines/vllm/tests/bench.py --models FOLDER --cells 8000 --first

Decoding: each text is read once, through Seine, and stays in vLLM's cache. Then each way decodes behind it in turn: between turns the
rows are put into the order that the other's kernels have in a block. A step is one token of every text. The first token (--first) is
of one text, which each way reads from its beginning.
"""

import argparse
import copy
import dataclasses
import json
import platform
import re
import statistics
import time
from pathlib import Path

import torch
from engine import Engine, end
from layout import Order
from models import folder_of, stretched
from rows import keep, kept, say
from seine_vllm import settings

WAYS = ("vllm", "seine", "none")
FIRST_WAYS = ("vllm", "exact", "sparse", "none")
CHUNK = 2048  # tokens of a step
APART = 7919  # tokens from a text's first to the next one's
BLOCK = 128  # tokens


def numbers(text):
    return [int(number) for number in text.split(",")]


def processor():
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


class Ways:
    """Who attends: vLLM, Seine under settings of each way, or nobody."""

    def __init__(self, engine):
        self.engine, self.made, self.now, self.stock_order = engine, {}, None, False
        layer = next(layer for layer, shape in zip(engine.layers, engine.shapes) if shape is not None)
        self.order = Order(layer, BLOCK, layer.head_size, layer.kv_cache.dtype)
        for name, changes in (("seine", {}), ("exact", {"prompt": "exact", "mode": "exact"}), ("sparse", {"prompt": "sparse"})):
            self.made[name] = self._shapes(dataclasses.replace(settings.of_process(), **changes))

    def _shapes(self, own):
        """Of each impl its Shape, and its PagedLayer once there is one, under these settings."""
        copies = {}
        usual, settings.of_process = settings.of_process, lambda: own
        try:
            for shape in set(filter(None, self.engine.shapes)):
                copies[shape] = copy.copy(shape)
                copies[shape].attention = copies[shape].make(self.engine.num_blocks)
        finally:
            settings.of_process = usual
        return [[copies.get(shape), None] for shape in self.engine.shapes]

    def take(self, way):
        """`way` attends from now on, and finds what the cache holds in its own order."""
        self._put_back()
        ours = way in self.made
        for i, impl in enumerate(self.engine.impls):
            impl.shape, impl.seine = self.made[way][i] if ours else (None, None)
            if way == "none":
                impl.forward = lambda layer, query, key, value, cache, metadata, output, *a, **k: output.zero_()
                impl.do_kv_cache_update = lambda *a, **k: None
        self.now = way
        if way != "none" and self.stock_order == ours:
            for layer, shape in zip(self.engine.layers, self.engine.shapes):
                if shape is not None:
                    (self.order.to_rows if ours else self.order.to_stock)(layer.kv_cache)
            self.stock_order = not ours

    def _put_back(self):
        for i, impl in enumerate(self.engine.impls):
            if self.now in self.made:
                self.made[self.now][i] = [impl.shape, impl.seine]
            for name in ("forward", "do_kv_cache_update"):
                impl.__dict__.pop(name, None)


def steps_of(engine, prompts, tokens, cached=0):
    """Runs texts together. Returns (seconds of each step until all have a first token, milliseconds of each behind that)."""
    before = engine.cached
    for prompt in prompts:
        engine.add(prompt, engine.params(tokens))
    lengths, first, times = {}, [], []
    while engine.engine.has_unfinished_requests():
        all_there = len(lengths) == len(prompts)
        seconds = timed_step(engine, lengths)
        if all_there:
            times.append(1000 * seconds)
        else:
            first.append(seconds)
    if engine.cached - before < cached * len(prompts):
        raise SystemExit(f"vllm: {engine.cached - before} tokens were found in the cache, of {cached * len(prompts)} that were read")
    return first, times


def timed_step(engine, lengths):
    begin = time.perf_counter()
    outputs = engine.engine.step()
    seconds = time.perf_counter() - begin
    for output in outputs:
        if output.outputs[0].token_ids:
            if output.request_id not in lengths:
                engine.cached += output.num_cached_tokens or 0
            lengths[output.request_id] = len(output.outputs[0].token_ids)
            engine.answers[output.request_id.split("-")[0]] = list(output.outputs[0].token_ids)
    return seconds


def open_engine(args, longest, blocks, caching):
    engine = Engine(
        folder_of(args.models, "smollm2"), dtype=args.dtype, max_num_seqs=8, max_num_batched_tokens=CHUNK, enable_prefix_caching=caching,
        block_size=BLOCK, max_model_len=longest, num_gpu_blocks_override=blocks, **stretched(longest),
    )  # fmt: skip
    engine.num_blocks, engine.cached, engine.answers = blocks, 0, {}
    ways = Ways(engine)
    ways.take("exact")
    steps_of(engine, [engine.tokens(100)], 4)
    return engine, ways


def check_order(engine, ways, prompt, cached):
    """vLLM's own attention goes on behind what Seine has read, with the tokens of our exact attention."""
    answers = []
    for way in ("exact", "vllm"):
        ways.take(way)
        steps_of(engine, [prompt], 12, cached)
        answers.append(engine.answers[str(engine.last_id)])
    if answers[0] != answers[1]:
        raise SystemExit(f"vllm: behind one text our exact attention says {answers[0]}, and vLLM's {answers[1]}")


def row_of(args, cells, texts, measured, unit):
    """Medians of what each way took, and how many times as long vLLM's own took."""
    row = {"cells": cells, "texts": texts, "dtype": args.dtype, "threads": torch.get_num_threads(), "machine": processor()}
    middle = {way: statistics.median(taken) for way, taken in measured.items()}
    row |= {f"{way}_{unit}": round(taken, 3) for way, taken in middle.items()}
    return row | {f"{way}_ratio": round(middle["vllm"] / taken, 3) for way, taken in middle.items() if way != "vllm" and "vllm" in middle}


def decode_rows(args, wanted):
    """A row of each (length, number of texts)."""
    most = max(texts for _, texts in wanted)
    lengths = [max(cells for cells, texts in wanted if texts > i) for i in range(most)]  # of each text in the end
    room = args.steps + 2 + BLOCK
    engine, ways = open_engine(args, max(lengths) + room, sum(-(-(n + room) // BLOCK) + 2 for n in lengths), caching=True)
    for cells in sorted({cells for cells, _ in wanted}):
        counts = sorted(texts for length, texts in wanted if length == cells)
        length = cells - args.steps // 2
        prompts = [engine.tokens(length, APART * i) for i in range(counts[-1])]
        ways.take("sparse")
        begin = time.monotonic()
        for prompt in prompts:  # what a shorter one has read of it is there
            steps_of(engine, [prompt], 1)
        cached = (length - 1) // BLOCK * BLOCK
        if cells == min(cells for cells, _ in wanted):
            check_order(engine, ways, prompts[0], cached)
        say(f"read {len(prompts)} texts of {length:,} tokens; {time.monotonic() - begin:.0f} s")
        for texts in counts:
            measured, encoding = {way: [] for way in args.ways}, []
            for turn in range(args.rounds):
                for way in list(measured)[:: -1 if turn % 2 else 1]:  # back and forth: the blocks' order changes once a round
                    steps = measured[way]
                    ways.take(way)
                    _, times = steps_of(engine, prompts[:texts], args.steps + 2, cached)
                    steps += times[1:]  # the first encodes
                    encoding += times[:1] if way == "seine" else []
            row = row_of(args, cells, texts, measured, "step_ms")
            yield {**row, "what": "decode", "encode_step_ms": round(encoding[0], 1) if encoding else None}


def first_rows(args, wanted):
    """A row of each length: seconds until one text has its first token."""
    longest = max(cells for cells, _ in wanted) + BLOCK
    engine, ways = open_engine(args, longest, -(-longest // BLOCK) + 8, caching=False)
    for way in args.ways:  # what is made with the first text of each
        ways.take(way)
        steps_of(engine, [engine.tokens(300)], 1)
    for cells, _ in sorted(wanted):
        measured = {way: [] for way in args.ways}
        for _ in range(args.rounds):
            for way, seconds in measured.items():
                ways.take(way)
                first, _ = steps_of(engine, [engine.tokens(cells)], 1)
                seconds.append(sum(first))
                say(f"first token behind {cells:,}, {way}: {seconds[-1]:.2f} s")
        yield {**row_of(args, cells, 1, measured, "first_s"), "what": "first"}


def run(args):
    """Rows that --rows holds are not measured again."""
    what = "first" if args.first else "decode"
    there = {(row["cells"], row["texts"]): row for row in kept(args.rows) if row["what"] == what}
    pairs = [(cells, texts) for cells in args.cells for texts in ([1] if args.first else args.texts) if cells * texts <= args.most_tokens]
    wanted = [pair for pair in pairs if pair not in there]
    for row in (first_rows if args.first else decode_rows)(args, wanted) if wanted else ():
        there[row["cells"], row["texts"]] = row
        keep(args.rows, row)
    return [there[pair] for pair in pairs]


def shown(rows):
    """Lines for people."""
    for row in rows:
        unit = "first_s" if row["what"] == "first" else "step_ms"
        ways = [name.removesuffix(f"_{unit}") for name in row if name.endswith(unit) and not name.startswith("encode")]
        taken = ", ".join(f"{way} {row[f'{way}_{unit}']}" + (f" ({row[f'{way}_ratio']} x)" if f"{way}_ratio" in row else "") for way in ways)
        yield f"{row['cells']:,} tokens x {row['texts']}: {taken} {unit.rpartition('_')[2]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder of models, which are made where they are missing")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--cells", type=numbers, default=[1024, 4096], help="tokens behind which is decoded, or that are read")
    parser.add_argument("--texts", type=numbers, default=[1, 4], help="decoded together")
    parser.add_argument("--most-tokens", type=int, default=1 << 17, help="of all texts together: more are left out")
    parser.add_argument("--steps", type=int, default=24, help="decoded of each text in a turn")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each way")
    parser.add_argument("--first", action="store_true", help="time to the first token, in place of decoding")
    parser.add_argument("--ways", help=f"some of {','.join(WAYS)}; with --first of {','.join(FIRST_WAYS)}")
    parser.add_argument("--rows", type=Path, help="file that keeps each row: what it has is not measured again")
    parser.add_argument("-o", choices=("text", "json"), default="text")
    args = parser.parse_args()
    known = FIRST_WAYS if args.first else WAYS
    args.ways = args.ways.split(",") if args.ways else known
    if not set(args.ways) <= {*known, "exact", "sparse"}:
        parser.error(f"--ways: some of {','.join(known)}")
    begin, rows = time.monotonic(), run(args)
    print(json.dumps({"rows": rows}) if args.o == "json" else "\n".join(shown(rows)))
    say(f"{len(rows)} rows in {time.monotonic() - begin:.0f} s")
    end(0)


if __name__ == "__main__":
    main()
