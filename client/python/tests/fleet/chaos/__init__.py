"""Decodes on a fleet while its servers, its machines and Ray's head are killed, and checks every answer. `./dev fleet`."""

from chaos.decoder import Decoder
from chaos.mender import Mender
from chaos.service import Service
from chaos.text import DIM, HEADS, KV_HEADS, Text
from chaos.trouble import Trouble, all_up, until
from chaos.visitor import Visitor

NODES = 4
INDEX = dict(num_layers=1, num_q_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, dtype="float32", kv_store="keys_values")


def run(fleet, sequences, seconds, seed, pause, grow=True, machines=None):
    """The counts of a run; grow: a node is added; machines: they are killed too, and Ray's head. It goes on until there
    was a kill, and until all decode again. To be called from the main thread."""
    with fleet.client(timeout=30, patience=2.0) as client:
        client.create_index("m", **INDEX)
        texts = [Text(i, seed) for i in range(sequences)]
        service = Service(texts)
        mender, visitor = Mender(client, texts), Visitor(client, service)
        decoder = Decoder(client, service, mender)
        trouble = Trouble(fleet, service, seed, pause, NODES + 1 if grow else 0, machines)
        mender.start(), decoder.start(), visitor.start()
        try:
            until(lambda: decoder.decoding == sequences or not decoder.is_alive())
            trouble.make(seconds)
            all_up(fleet, client)
            until(lambda: decoder.decoding == sequences or not decoder.is_alive())
        finally:
            decoder.stop(), mender.stop(), visitor.stop()
        decoder.counts["wrong"] += decoder.twice()
        client.delete_index("m")
    counts = dict(decoder.counts, moves=mender.counts["moves"])
    for name in ("lost", "unstated_errors"):
        counts[name] += mender.counts[name] + visitor.counts[name] + trouble.errors[name]
    return {**counts, **trouble.counts, "by_kind": service.by_kind(), "seed": seed}
