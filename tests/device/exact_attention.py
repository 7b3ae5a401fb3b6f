#!/usr/bin/env python3
"""Exact attention on a GPU beside what Seine is timed at: one decode step of one layer, by torch.

usage: exact_attention.py -o JSON [--tokens N,...] [--batch B,...] [--limit SECONDS] [--device cuda|cpu]

Geometry: 8 KV heads, 4 query heads each, head_dim 128, fp16. For each batch and length:
  flash, cudnn    scaled_dot_product_attention by that kernel alone; a group's heads are rows of one query
  scores          cuBLAS: q k^T, the group's softmax weights summed, and the 100 best: exact retrieval
and before them the bandwidth of copies within the device and over the link. Medians of at least ten runs, in us, over as
many copies of K and V as do not fit a cache together. Each output of attention is held against float32 first. The JSON
is written again after every figure; what does not fit, or is not there, is a line with its reason.
"""

import argparse
import json
import statistics
import sys
import time

KV_HEADS, GROUP, DIM, TOP_K = 8, 4, 128, 100
CACHE_BYTES = 200 << 20  # more than any cache of a GPU
MOST_ERROR = 2e-3  # of an output, absolute: inputs are of unit variance, in fp16


def numbers(text):
    return [int(n) for n in text.split(",")]


class Bench:
    """Figures of one machine, and the file that they go to."""

    def __init__(self, torch, device, path, deadline):
        self.torch, self.device, self.path, self.deadline = torch, device, path, deadline
        self.report = {"torch": torch.__version__, "device": "cpu", "kv_heads": KV_HEADS, "group": GROUP, "head_dim": DIM, "figures": []}
        if device == "cuda":
            self.report["device"] = torch.cuda.get_device_name()

    def add(self, figure):
        self.report["figures"].append(figure)
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump(self.report, file, indent=1)
        print(json.dumps(figure), flush=True)

    def median_us(self, calls):
        """Of calls by turns, which differ in the memory that they read."""
        times = []
        for run in range(13):
            call = calls[run % len(calls)]
            if self.device == "cuda":
                begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                call()
                end.record()
                self.torch.cuda.synchronize()
                times.append(begin.elapsed_time(end) * 1e3)
            else:
                begin = time.perf_counter()
                call()
                times.append((time.perf_counter() - begin) * 1e6)
        return statistics.median(times[3:])

    def copies(self):
        """GB/s within the device, both directions counted, and over the link from page-locked memory."""
        torch = self.torch
        one = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        other = torch.empty_like(one)
        self.add({"what": "copy", "gb_s": 2 * one.numel() / self.median_us([lambda: other.copy_(one)]) / 1e3})
        host = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
        us = self.median_us([lambda: other[: host.numel()].copy_(host, non_blocking=True)])
        self.add({"what": "link", "gb_s": host.numel() / us / 1e3})

    def layer(self, batch, tokens):
        torch = self.torch
        dtype = torch.float16 if self.device == "cuda" else torch.float32
        shape = (batch, KV_HEADS, tokens, DIM)
        pairs = max(1, -(-CACHE_BYTES // (2 * batch * KV_HEADS * tokens * DIM * 2))) if self.device == "cuda" else 1
        make = lambda *sizes: torch.randn(*sizes, device=self.device, dtype=dtype)
        return make(batch, KV_HEADS, GROUP, DIM), [(make(*shape), make(*shape)) for _ in range(pairs)]

    def wrong(self, out, q, k, v):
        """Largest distance of the first sequence's output from float32's."""
        q, k, v = (x[:1].float() for x in (q, k, v))
        weights = (q @ k.transpose(-1, -2) * DIM**-0.5).softmax(-1)
        return (out[:1].float() - weights @ v).abs().max().item()

    def attention(self, name, backend, q, pairs, shape):
        from torch.nn.attention import sdpa_kernel

        attend = self.torch.nn.functional.scaled_dot_product_attention
        with sdpa_kernel([backend]):
            error = self.wrong(attend(q, *pairs[0]), q, *pairs[0])
            if not error <= MOST_ERROR:
                return self.add({"what": name, **shape, "error": f"its output is {error} from float32's"})
            us = self.median_us([lambda k=k, v=v: attend(q, k, v) for k, v in pairs])
        read = sum(x.numel() * x.element_size() for x in pairs[0])
        return self.add({"what": name, **shape, "us": us, "gb_s": read / us / 1e3, "off": error})

    def scores(self, q, pairs, shape):
        k_best = min(TOP_K, shape["tokens"])

        def best(k):
            weights = (q @ k.transpose(-1, -2) * DIM**-0.5).softmax(-1)
            return weights.sum(-2).topk(k_best, dim=-1)

        us = self.median_us([lambda k=k: best(k) for k, _ in pairs])
        return self.add({"what": "scores", **shape, "us": us})

    def shape(self, batch, tokens):
        from torch.nn.attention import SDPBackend

        backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
        if self.device == "cpu":
            backends = {"math": SDPBackend.MATH}
        shape = {"batch": batch, "tokens": tokens}
        q, pairs = self.layer(batch, tokens)
        parts = [(name, lambda n=name, b=b: self.attention(n, b, q, pairs, shape)) for name, b in backends.items()]
        for name, run in parts + [("scores", lambda: self.scores(q, pairs, shape))]:
            try:
                run()
            except RuntimeError as error:  # no such kernel here, or no memory
                self.add({"what": name, **shape, "error": str(error).splitlines()[0]})

    def run(self, batches, lengths):
        if self.device == "cuda":
            self.copies()
        for tokens in lengths:
            for batch in batches:
                if time.monotonic() > self.deadline:
                    return self.add({"what": "all", "batch": batch, "tokens": tokens, "error": "time was up"})
                try:
                    self.shape(batch, tokens)
                except RuntimeError as error:
                    self.add({"what": "all", "batch": batch, "tokens": tokens, "error": str(error).splitlines()[0]})
                if self.device == "cuda":
                    self.torch.cuda.empty_cache()


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", dest="output", required=True)
    parser.add_argument("--tokens", type=numbers, default=[8192, 32768, 131072, 524288, 1048576])
    parser.add_argument("--batch", type=numbers, default=[1, 4, 8])
    parser.add_argument("--limit", type=float, default=230)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args(arguments)
    try:
        import torch
    except ImportError:
        print("exact_attention: torch is not on this machine", file=sys.stderr)
        return 3
    if args.device == "cuda" and not torch.cuda.is_available():
        print("exact_attention: torch sees no GPU here", file=sys.stderr)
        return 3
    torch.manual_seed(5)
    bench = Bench(torch, args.device, args.output, time.monotonic() + args.limit)
    with torch.inference_mode():
        bench.run(args.batch, args.tokens)
    return 0 if any("us" in figure for figure in bench.report["figures"]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
