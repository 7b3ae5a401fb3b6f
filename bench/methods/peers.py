"""Peers of seine-bench that live in Python: exact search by numpy and by FAISS, and FAISS's PQ fast-scan.

    seine-bench recall ... --peers "python3 bench/methods/peers.py"

calls this with keys [heads, num_keys, head_dim] and queries [heads, queries, head_dim] as fp32 .npy files and reads
the JSON that it prints: versions, and rows of name, exact, beta, answers, recall_at_k, recall_at_k_worst_head,
bytes_per_key and us_per_query (median). The heads of a group take turns in `queries`. One thread, one query at a time.
As in the C++ baselines, the best beta * n by PQ codes are scored exactly and the best top_k of them answer. Needs
numpy, and faiss-cpu from PyPI (built for AVX2 and AVX-512, unlike the distribution's) where it is there.
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # read when the libraries are loaded

import argparse
import json
import statistics
import sys
import time

import numpy as np

try:
    import faiss
except ImportError:
    faiss = None


def top_k_of(scores, k):
    return np.argpartition(-scores, k - 1)[:k] if k < len(scores) else np.arange(len(scores))


class NumpyExact:
    name, exact = "exact, numpy", True

    def build(self, keys):
        self.keys = keys
        self.bytes_per_key = 4 * keys.shape[1]

    def search(self, query, k, beta):
        return top_k_of(self.keys @ query, k)


class FaissFlat:
    name, exact = "exact, FAISS", True

    def build(self, keys):
        self.index = faiss.IndexFlatIP(keys.shape[1])
        self.index.add(keys)
        self.bytes_per_key = 4 * keys.shape[1]

    def search(self, query, k, beta):
        return self.index.search(query[None], k)[1][0]


class FaissPqFastScan:
    exact = False

    def __init__(self, share):
        self.share = share  # bytes a key over head_dim

    def build(self, keys):
        dim = keys.shape[1]
        self.bytes_per_key = dim // self.share
        self.name = f"FAISS PQ fast-scan {self.bytes_per_key} B"
        faiss.omp_set_num_threads(os.cpu_count())
        self.index = faiss.IndexPQFastScan(dim, 2 * self.bytes_per_key, 4, faiss.METRIC_INNER_PRODUCT)
        self.index.train(keys)
        self.index.add(keys)
        faiss.omp_set_num_threads(1)
        self.keys = keys

    def search(self, query, k, beta):
        wanted = min(len(self.keys), max(k, round(beta * len(self.keys))))
        ids = self.index.search(query[None], wanted)[1][0]
        ids = np.sort(ids[ids >= 0])
        return ids[top_k_of(self.keys[ids] @ query, k)]


class Tally:
    """What one method at one beta did, over heads."""

    def __init__(self):
        self.head_recalls, self.times, self.answers = [], [], 0

    def run(self, method, beta, queries, truths, k, group, evict, timed):
        recalls = [[] for _ in range(group)]
        for i, (query, truth) in enumerate(zip(queries, truths)):
            if evict is not None and i < timed:
                evict.sum()
            begin = time.perf_counter()
            found = method.search(query, k, beta)
            if i < timed:
                self.times.append(time.perf_counter() - begin)
            recalls[i % group].append(len(np.intersect1d(found, truth)) / len(truth))
            self.answers += 1
            if method.exact and i + 1 >= timed:
                break
        self.head_recalls += [statistics.fmean(r) for r in recalls if r]

    def row(self, method, beta):
        return {
            "name": method.name,
            "exact": method.exact,
            "beta": beta,
            "answers": self.answers,
            "recall_at_k": statistics.fmean(self.head_recalls),
            "recall_at_k_worst_head": min(self.head_recalls),
            "bytes_per_key": method.bytes_per_key,
            "us_per_query": 1e6 * statistics.median(self.times),
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", required=True, help=".npy, fp32 [heads, num_keys, head_dim]")
    parser.add_argument("--queries", required=True, help=".npy, fp32 [heads, queries, head_dim]")
    parser.add_argument("--top-k", type=int, default=100)
    parser.add_argument("--beta", default="0.05", help="comma-separated shares of the keys kept as candidates")
    parser.add_argument("--group", type=int, default=1, help="query heads of a KV head")
    parser.add_argument("--evict-bytes", type=int, default=0, help="read so much memory before each timed query")
    parser.add_argument("--timed", type=int, default=96, help="timed queries over all heads")
    args = parser.parse_args()

    keys, queries = np.load(args.keys, mmap_mode="r"), np.load(args.queries)
    betas = [float(b) for b in args.beta.split(",")]
    evict = np.ones(args.evict_bytes // 8) if args.evict_bytes else None
    timed = max(3, args.timed // len(keys))
    versions = f"numpy {np.__version__}"
    methods = [NumpyExact()]
    if faiss is None:
        print("peers.py: no faiss here (pip install faiss-cpu): numpy only", file=sys.stderr)
    else:
        versions += f", FAISS {faiss.__version__} ({faiss.get_compile_options().strip()})"
        methods += [FaissFlat(), FaissPqFastScan(8), FaissPqFastScan(4)]
        faiss.omp_set_num_threads(1)

    tallies = {}
    for head_keys, head_queries in zip(keys, queries):
        head_keys = np.ascontiguousarray(head_keys)
        truths = [top_k_of(head_keys @ q, args.top_k) for q in head_queries]
        for method in methods:
            method.build(head_keys)
            for beta in [None] if method.exact else betas:
                tally = tallies.setdefault((method, beta), Tally())
                tally.run(method, beta, head_queries, truths, args.top_k, args.group, evict, timed)
    json.dump({"versions": versions, "rows": [t.row(m, b) for (m, b), t in tallies.items()]}, sys.stdout)


if __name__ == "__main__":
    main()
