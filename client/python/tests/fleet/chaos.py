#!/usr/bin/env python3
"""Decodes on a fleet while its servers are killed, drained and added, and checks every answer.

usage: ./dev fleet [--minutes M] [--sequences N] [--seed S] [--seined PATH]

Four servers under Ray on this machine, and N sequences that decode: each step appends a token to every one and attends.
The answers are compared with exact attention in float64 over the tokens that the client knows it has appended. Meanwhile
servers and supervisors are killed with -9, one is drained and taken back, one is added. Prints a line of JSON: steps,
wrong (answers that differ, and families that live twice), unstated_errors (errors other than those that a caller is told
to expect), kills (server_kills and supervisor_kills), drains, undrains, added, moves (families made again on another
node). Ends with 1 where wrong or unstated_errors is not 0.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time

import numpy as np
from trouble import Trouble, all_up

HEADS, KV_HEADS, DIM, PROMPT, MOST = 2, 1, 64, 64, 512
STATED = ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")  # besides SequenceLost: to be tried again
TOLERANCE = 1e-3
NODES = 4


class Text:
    """One sequence and what it is known to hold."""

    def __init__(self, number, seed):
        self.number, self.round = number, 0
        generator = np.random.default_rng((seed, number))
        self.keys, self.values = generator.standard_normal((2, MOST, KV_HEADS, DIM), np.float32)
        self.queries = generator.standard_normal((HEADS, DIM)).astype(np.float32)
        self.tokens, self.sequence, self.node = 0, None, ""

    @property
    def id(self):
        return f"chat-{self.number}.{self.round}/main"

    def expected(self, tokens):
        logits = self.keys[:tokens, 0].astype(np.float64) @ self.queries.T.astype(np.float64) / np.sqrt(DIM)
        weights = np.exp(logits - logits.max(axis=0))
        return (weights / weights.sum(axis=0)).T @ self.values[:tokens, 0]


class Decoder:
    """All sequences, and what came of them."""

    def __init__(self, client, count, seed):
        self.client, self.texts = client, [Text(i, seed) for i in range(count)]
        self.counts = dict.fromkeys(("steps", "wrong", "unstated_errors", "moves", "lost", "answers"), 0)

    def step(self):
        """Makes what is to be made, then one step of all."""
        from seine_kv.messages import Append, Attention, Item

        there = [text for text in self.texts if text.sequence is not None or self.make(text)]
        appends = [Append(t.sequence, 0, t.tokens, *self.rows(t, t.tokens, t.tokens + 1)) for t in there]
        items = [Item(t.sequence, 0, t.queries) for t in there]
        step = self.client.step(appends, items, Attention(tail=False), on_error="return", exact=True)
        if step.error is not None:
            self.failed(step.error)
            return
        for text, error, attended in zip(there, step.append_errors, step.attended):
            self.take(text, error, attended)
        self.counts["steps"] += 1

    def rows(self, text, begin, end):
        return text.keys[begin:end], text.values[begin:end]

    def make(self, text):
        """A sequence that was lost, or is to begin: created, and its tokens appended again."""
        from seine_kv.messages import SeineError

        try:
            try:
                text.sequence = self.client.create_sequence("m", text.id)
            except SeineError as error:
                if error.code != "ALREADY_EXISTS":  # an earlier attempt that was not answered had come through
                    raise
                text.sequence = self.client.get_sequence(self.named(text)).handle
            self.client.append(text.sequence, 0, 0, *self.rows(text, 0, max(PROMPT, text.tokens)))
            node = self.client.node_of(text.sequence)
        except SeineError as error:
            text.sequence = None
            self.failed(error)
            return False
        text.tokens = max(PROMPT, text.tokens)
        self.counts["moves"] += text.node not in ("", node)
        text.node = node
        return True

    def named(self, text):
        from seine_kv.messages import Sequence

        return Sequence("m", text.id)

    def take(self, text, error, attended):
        """One sequence's part of a step."""
        failure = error or attended.error
        if error is None:
            text.tokens += 1
        if failure is not None:
            self.failed(failure)
            if failure.code == "NOT_FOUND":
                text.sequence = None
        elif attended.num_tokens != text.tokens or not self.agrees(text, attended):
            self.counts["wrong"] += 1
            told = f"{text.id} on {text.node}: {attended.num_tokens} tokens, {text.tokens} appended"
            print(f"wrong: {told}", file=sys.stderr)
        self.counts["answers"] += failure is None
        if text.tokens >= MOST and text.sequence is not None:
            self.end(text)

    def agrees(self, text, attended):
        return np.abs(attended.output - text.expected(text.tokens)).max() < TOLERANCE

    def end(self, text):
        """A text that is full makes room for another, of another family."""
        from seine_kv.messages import SeineError

        try:
            self.client.delete_sequence(text.sequence)
        except SeineError as error:
            self.failed(error)
        text.round, text.tokens, text.sequence, text.node = text.round + 1, 0, None, ""

    def failed(self, error):
        from seine_kv.fleet import SequenceLost

        if isinstance(error, SequenceLost):
            self.counts["lost"] += 1
        elif error.code not in STATED:
            self.counts["unstated_errors"] += 1
            print(f"unstated: {error.code} {error.reason}: {error}", file=sys.stderr)

    def twice(self):
        """How many families more than one node holds."""
        from seine_kv.fleet import family_of
        from seine_kv.messages import SeineError

        held = []
        for node in self.client.describe()["nodes"]:
            try:
                infos = self.client.node(node["name"]).list_sequences("m")
            except SeineError as error:
                if error.code != "NOT_FOUND":  # a node that was started again and has got no family yet
                    raise
                continue
            held += {family_of(info.handle.id) for info in infos}
        return len(held) - len(set(held))


def run(fleet, sequences, seconds, seed, pause, grow=True):
    """The counts of a run; grow: a node is added. It goes on until there was a kill. Some steps follow the last trouble,
    when all nodes are there again."""
    with fleet.client(timeout=30) as client:
        client.create_index(
            "m", num_layers=1, num_q_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, dtype="float32",
            kv_store="keys_values",
        )
        decoder, trouble = Decoder(client, sequences, seed), Trouble(fleet, seed, pause, NODES + 1 if grow else 0)
        decoder.step()
        trouble.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end or (not trouble.counts["kills"] and trouble.is_alive()):
            decoder.step()
        trouble.stop()
        all_up(fleet)
        for _ in range(5):
            decoder.step()
        decoder.counts["wrong"] += decoder.twice()
        client.delete_index("m")
    return {**decoder.counts, **trouble.counts, "seed": seed}


class Parser(argparse.ArgumentParser):
    """Tells what is wrong in one line, by the name of the command that users call."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n")


def main():
    parser = Parser(prog="./dev fleet", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--seined", default="")
    arguments = parser.parse_args()
    import ray

    from seine_kv.fleet import Fleet

    result = os.fdopen(os.dup(1), "w")  # what Ray prints is not for whoever reads this
    os.dup2(2, 1)
    ray.init(num_cpus=NODES + 2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", namespace="chaos")
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet.start(
            NODES, "256MiB", placement="PACK", name="chaos", listen=f"unix:{folder}", seined=arguments.seined,
            server_flags=["--log-level", "error"],
        )
        try:
            counts = run(fleet, arguments.sequences, 60 * arguments.minutes, arguments.seed, pause=5.0)
        finally:
            fleet.stop()
    ray.shutdown()
    print(json.dumps(counts), file=result, flush=True)
    return 1 if counts["wrong"] or counts["unstated_errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
