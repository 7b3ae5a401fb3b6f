"""A client of a running seined that has the protos alone: stubs that protoc made, and grpc. README.md has the commands.

    python grpc_client.py HOST:PORT

makes an index, appends 4,096 keys, of which ten point where the query does, and asks which tokens matter to each KV head.
"""

import array
import random
import sys

import grpc
from seine.v1 import common_pb2, index_service_pb2, index_service_pb2_grpc, retrieval_service_pb2, retrieval_service_pb2_grpc
from seine.v1 import sequence_service_pb2, sequence_service_pb2_grpc

LAYERS, Q_HEADS, KV_HEADS, HEAD_DIM, TOKENS = 1, 8, 2, 64, 4096
NAME = "grpc-client"


def tensor(numbers, *shape):
    """Little-endian float32; numpy's or torch's bytes do as well."""
    numbers = array.array("f", numbers)
    if sys.byteorder == "big":
        numbers.byteswap()
    return common_pb2.Tensor(dtype=common_pb2.D_TYPE_FLOAT32, shape=shape, raw=numbers.tobytes())


def main(address):
    made = random.Random(0)
    query = [made.gauss(0, 1) for _ in range(HEAD_DIM)]
    planted = set(made.sample(range(500, TOKENS - 1000), 10))
    keys = []
    for token in range(TOKENS):
        key = [2 * x for x in query] if token in planted else [made.gauss(0, 1) for _ in range(HEAD_DIM)]
        keys += KV_HEADS * key
    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(timeout=10)
        indexes = index_service_pb2_grpc.IndexServiceStub(channel)
        geometry = index_service_pb2.Geometry(
            num_layers=LAYERS, num_q_heads=Q_HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, dtype=common_pb2.D_TYPE_FLOAT32
        )
        indexes.CreateIndex(index_service_pb2.CreateIndexRequest(spec=index_service_pb2.IndexSpec(name=NAME, geometry=geometry)))
        create = sequence_service_pb2.CreateSequenceRequest(index=NAME)
        chat = sequence_service_pb2_grpc.SequenceServiceStub(channel).CreateSequence(create).handle
        retrieval = retrieval_service_pb2_grpc.RetrievalServiceStub(channel)
        item = retrieval_service_pb2.AppendItem(handle=chat, layer=0, position=0, keys=tensor(keys, TOKENS, KV_HEADS, HEAD_DIM))
        retrieval.Append(retrieval_service_pb2.AppendRequest(item=item))
        item = retrieval_service_pb2.RetrieveItem(handle=chat, layer=0, queries=tensor(Q_HEADS * query, Q_HEADS, HEAD_DIM))
        selector = retrieval_service_pb2.Selector(top_k=10, scope=common_pb2.SCOPE_PER_KV_HEAD)
        (answer,) = retrieval.Retrieve(retrieval_service_pb2.RetrieveRequest(items=[item], selector=selector)).answers
        indexes.DeleteIndex(index_service_pb2.DeleteIndexRequest(name=NAME))
    found = array.array("i", answer.positions.raw)
    if sys.byteorder == "big":
        found.byteswap()
    for head in range(KV_HEADS):
        positions = list(found[10 * head : 10 * head + 10])
        print(f"KV head {head}: {positions}, {len(planted & set(positions))} of the {len(planted)} that were planted")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
