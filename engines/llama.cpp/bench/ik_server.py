#!/usr/bin/env python3
"""A server of ik_llama.cpp as PyPI's ik-llama-cpp-python has it, which brings none: for `./dev llama --peer-server`.

    ./dev llama --peer-server engines/llama.cpp/bench/ik_server.py

takes the options of llama-server that peer.py gives, and answers /health, /props and /completion by tokens. Flash attention is on;
-rtr repacks the weights. It attends nothing but its own cache, and greedily: it is there to be timed.
"""

import argparse
import http.server
import json
import sys
import time


def parse_args(argv):
    parser = argparse.ArgumentParser(description="Serve ik_llama.cpp of PyPI, to be timed.")
    add = parser.add_argument
    add("-m", dest="model", required=True)
    add("-c", dest="cells", type=int, default=4096)
    add("-t", dest="threads", type=int, default=2)
    add("-ub", dest="ubatch", type=int, default=512)
    add("-ctk", default="f16", choices=("f16", "q8_0", "q4_0"))
    add("-ctv", default="f16", choices=("f16", "q8_0", "q4_0"))
    add("-rtr", action="store_true", help="repack weights as they are read")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8080)
    for name in ("-np", "-tb", "-b"):  # one slot, as many threads, and batches of a micro-batch
        add(name)
    add("-fa", nargs="?")
    return parser.parse_args(argv)


class Engine:
    TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}  # ggml's numbers

    def __init__(self, args):
        try:
            from ik_llama_cpp import _ctypes_api as api
            from ik_llama_cpp import _internals as of
        except ModuleNotFoundError:
            sys.exit(f"ik_server: {sys.executable} has no ik_llama_cpp: install ik-llama-cpp-python there")

        self.api, self.of = api, of
        api.llama_backend_init()
        model = api.llama_model_default_params()
        model.n_gpu_layers, model.repack_tensors = 0, args.rtr
        self.model = api.llama_model_load_from_file(args.model.encode(), model)
        if not self.model:
            sys.exit(f"ik_server: {args.model} cannot be read")
        context = api.llama_context_default_params()
        context.n_ctx = context.n_batch = args.cells
        context.n_ubatch, context.n_seq_max, context.flash_attn = args.ubatch, 1, True
        context.n_threads = context.n_threads_batch = args.threads
        context.type_k, context.type_v = self.TYPES[args.ctk], self.TYPES[args.ctv]
        self.context = api.llama_init_from_model(self.model, context)
        if not self.context:
            sys.exit("ik_server: no context")
        self.words = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.ubatch = args.ubatch

    def decode(self, tokens, position, logits=True):
        batch = self.of.make_batch_range(tokens, pos_start=position, logits_last=logits)
        failed = self.api.llama_decode(self.context, batch)
        self.api.llama_batch_free(batch)
        if failed:
            raise RuntimeError(f"llama_decode ended with {failed}")

    def likeliest(self):
        logits = self.api.llama_get_logits_ith(self.context, -1)[: self.words]
        return logits.index(max(logits))

    def complete(self, prompt, steps):
        """Prompt, then tokens: timed as llama-server does, the first token with the prompt."""
        self.api.llama_kv_cache_clear(self.context)
        begin = time.monotonic()
        for at in range(0, len(prompt), self.ubatch):
            block = prompt[at : at + self.ubatch]
            self.decode(block, at, at + len(block) == len(prompt))
        read, tokens = time.monotonic(), [self.likeliest()]
        spent = 0.0  # in decoding alone: choosing a token in Python is not the engine's
        for i in range(steps - 1):
            start = time.monotonic()
            self.decode(tokens[-1:], len(prompt) + i)
            spent += time.monotonic() - start
            tokens.append(self.likeliest())
        return {"tokens": tokens, "timings": {"prompt_n": len(prompt), "prompt_ms": (read - begin) * 1000,
                                              "predicted_n": len(tokens), "predicted_ms": spent * 1000}}  # fmt: skip


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def reply(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.reply({})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.reply(self.server.engine.complete(body["prompt"], body["n_predict"]))


def main(argv):
    args = parse_args(argv)
    engine = Engine(args)
    with http.server.HTTPServer((args.host, args.port), Handler) as server:
        server.engine = engine
        server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
