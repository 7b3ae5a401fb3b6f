"""Milliseconds a decoded token through Seine beside dense attention, and where they go."""

from seine_kv.eval.engine import Prompt, seconds_a_token, through


def measure(model, ids, contexts, method, endpoint, tokens, progress):
    """One dict a context length: ms a token of dense and of Seine, and Seine's split into engine, RPC and index."""
    rows = []
    for n, context in enumerate(contexts):
        prompt = Prompt(model, ids[:, :context])
        dense = seconds_a_token(model, prompt, tokens)
        with through(model, method, endpoint) as seine:
            total = seconds_a_token(model, prompt, tokens)
            stats = seine.stats()
        a_token = seine.num_layers / max(1, stats.steps)  # of a sum over steps; a step is a layer's
        step, index = stats.step_seconds * a_token, stats.server_seconds * a_token
        rows.append({
            "context": context,
            "dense_ms": 1e3 * dense,
            "seine_ms": 1e3 * total,
            "engine_ms": 1e3 * (total - step),
            "rpc_ms": 1e3 * (step - index),
            "index_ms": 1e3 * index,
            "dense_tokens_per_s": 1 / dense,
            "seine_tokens_per_s": 1 / total,
        })  # fmt: skip
        progress(n + 1, len(contexts))
    return rows
