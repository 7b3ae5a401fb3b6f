"""A client of a Seine server, numpy in and numpy out.

    from seine_kv.client import Client

    with Client() as client:                                  # where seined listens unless told otherwise
        client.create_index("llama", num_layers=32, num_q_heads=32, num_kv_heads=8, head_dim=128)
        chat = client.create_sequence("llama")
        client.append(chat, layer=0, position=0, keys=keys)   # keys [tokens, num_kv_heads, head_dim], post-RoPE
        answer = client.retrieve(chat, layer=0, queries=q)    # q [num_q_heads, head_dim], post-RoPE
        answer.set(0)                                         # positions of the first set, ascending
        with client.decode_stream() as stream:                # one round trip a layer and decode step
            step = stream.step(appends=[Append(chat, 0, n, new_keys)], items=[Item(chat, 0, q)])

Arrays are float32, float16 or bfloat16 (ml_dtypes); keys and values must have the index's dtype. Errors are SeineError with
the server's text, the gRPC code's name, and the field of the request that is wrong. A call that fails has changed nothing on
the server, except CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE and UNKNOWN, where nobody knows; appends may be repeated.
A Client may be shared by threads; a DecodeStream belongs to one.
"""

import os

import grpc
import numpy as np

from seine.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    common_pb2,
    eviction_service_pb2,
    eviction_service_pb2_grpc,
    index_service_pb2,
    index_service_pb2_grpc,
    retrieval_service_pb2,
    retrieval_service_pb2_grpc,
    sequence_service_pb2,
    sequence_service_pb2_grpc,
    subspace_pb2,
    subspace_service_pb2,
    subspace_service_pb2_grpc,
)
from seine_kv import wire
from seine_kv.messages import (  # noqa: F401, for those who import them from here
    Answer,
    Append,
    Attended,
    Attention,
    Evicted,
    Item,
    SeineError,
    Sequence,
    SequenceInfo,
    Step,
)
from seine_kv.stream import DecodeStream



def default_address():
    """Where seined listens unless told otherwise."""
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    if folder.startswith("/") and os.path.isdir(folder):
        return f"unix://{folder}/seine.sock"
    return f"unix:///tmp/seine-{os.getuid()}.sock"


class Client:
    """Calls one server. `address`: unix:///path/to/socket or host:port; `timeout`: seconds for each call."""

    def __init__(self, address=None, timeout=60.0, max_message_bytes=64 << 20):
        self.address, self.timeout = address or default_address(), timeout
        options = [
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", -1),  # the server's limit counts, and it says so itself
            ("grpc.enable_http_proxy", 0),
            # A server that is started anew is found at once, not after gRPC's two minutes.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2000),
        ]
        self._channel = grpc.insecure_channel(self.address, options)
        self._indexes = index_service_pb2_grpc.IndexServiceStub(self._channel)
        self._sequences = sequence_service_pb2_grpc.SequenceServiceStub(self._channel)
        self._retrieval = retrieval_service_pb2_grpc.RetrievalServiceStub(self._channel)
        self._eviction = eviction_service_pb2_grpc.EvictionServiceStub(self._channel)
        self._subspace = subspace_service_pb2_grpc.SubspaceServiceStub(self._channel)
        self._admin = admin_service_pb2_grpc.AdminServiceStub(self._channel)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._channel.close()

    def wait_until_ready(self, seconds):
        """Waits for a server that is starting; SeineError UNAVAILABLE if none answers in time."""
        try:
            grpc.channel_ready_future(self._channel).result(timeout=seconds)
        except grpc.FutureTimeoutError:
            raise SeineError("UNAVAILABLE", f"no server at {self.address} within {seconds} s") from None

    # Server ---------------------------------------------------------------------------------------------------------

    def server_info(self):
        """Version, backend, memory and limits, as a dict."""
        return wire.to_dict(self._call(self._admin.GetServerInfo, admin_service_pb2.GetServerInfoRequest()))

    def describe_head(self, sequence, layer, kv_head):
        """Zone, segments, bytes and codec of one KV head, as a dict."""
        request = admin_service_pb2.DescribeHeadRequest(handle=wire.handle_of(sequence), layer=layer, kv_head=kv_head)
        return wire.to_dict(self._call(self._admin.DescribeHead, request))

    # Indexes --------------------------------------------------------------------------------------------------------

    def create_index(
        self,
        name,
        *,
        num_layers,
        num_q_heads,
        num_kv_heads,
        head_dim,
        dtype="float16",
        model="",
        rope=None,
        zones=None,
        codec=None,
        retrieval=None,
        kv_store=None,
        eviction=None,
        subspace=None,
        memory_limit_bytes=0,
    ):
        """Creates an index and returns its full specification as a dict.

        model: its name, which finds its profile on the server. rope, of the keys: dict of config_json (config.json's
        rope_parameters as JSON) or inv_freq ([head_dim / 2], radians a token), and style ("half_split", "interleaved");
        the profile's own if left out. zones: dict of sink, local, update_buffer, dense_threshold (tokens). codec: name
        ("balanced", "rsq"), profile, horizon (tokens), coarse_bits, total_bits (a coordinate), seed, centre ("none",
        "global", "window"), centre_window. retrieval: top_k, beta, refine, coarse ("sign_ip", "collision"), rho, scope
        ("per_kv_head", "per_q_head"), gqa_reduce ("softmax_sum", "max", "mean"), softmax_scale. kv_store: "none", "keys",
        "keys_values". eviction, which the index does by itself: dict of scorer, budget, keep (dicts as of evict), interval
        (tokens), profile, keep_queries (positions whose queries are kept for scorers that look at them: those asked, and
        those given to append), horizon (tokens: qfilters from a profile). subspace, which keeps the zone's keys and values low-rank and needs kv_store "keys_values": dict
        of key_rank and value_rank, or energy (in (0, 1], with a profile: the smallest ranks that hold this share of its
        moments in every layer and head; the specification returned has them), frame ("post_rope", "pre_rope"), profile,
        full_rank (share of the tokens), interval (tokens), error_threshold, min_spacing, learning_rate, max_gain,
        version_tokens, carried_to (positions). What is left out takes the server's default.
        """
        if dtype not in ("float32", "float16", "bfloat16"):
            raise ValueError(f"dtype: must be float32, float16 or bfloat16, not {dtype}")
        spec = index_service_pb2.IndexSpec(
            name=name,
            geometry=index_service_pb2.Geometry(
                num_layers=num_layers,
                num_q_heads=num_q_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                dtype=wire.DTYPES[dtype],
            ),
            model=model,
            memory_limit_bytes=memory_limit_bytes,
        )
        wire.fill(spec.geometry.rope, rope, "rope", style=common_pb2.RopeStyle)
        wire.fill(spec.zones, zones, "zones")
        wire.fill(spec.codec, codec, "codec", centre=common_pb2.Centre)
        enums = {"coarse": common_pb2.Coarse, "scope": common_pb2.Scope, "gqa_reduce": common_pb2.GqaReduce}
        wire.fill(spec.retrieval, retrieval, "retrieval", **enums)
        if eviction is not None:
            rest = {k: v for k, v in eviction.items() if k not in ("scorer", "budget", "keep")}
            wire.fill(spec.eviction, rest, "eviction")
            wire.fill_eviction(spec.eviction, eviction.get("scorer"), eviction.get("budget"), eviction.get("keep"))
        if subspace is not None:
            wire.fill(spec.subspace, subspace, "subspace", frame=subspace_pb2.KeyFrame)
        if kv_store is not None:
            spec.kv_store = wire.enum_value(common_pb2.KvStore, kv_store, "kv_store")
        request = index_service_pb2.CreateIndexRequest(spec=spec)
        return wire.to_dict(self._call(self._indexes.CreateIndex, request).index)

    def get_index(self, name):
        """Specification and memory of an index, as a dict."""
        request = index_service_pb2.GetIndexRequest(name=name)
        return wire.to_dict(self._call(self._indexes.GetIndex, request).index)

    def list_indexes(self):
        response = self._call(self._indexes.ListIndexes, index_service_pb2.ListIndexesRequest())
        return [wire.to_dict(index) for index in response.indexes]

    def delete_index(self, name):
        """Deletes an index with all its sequences."""
        self._call(self._indexes.DeleteIndex, index_service_pb2.DeleteIndexRequest(name=name))

    # Sequences ------------------------------------------------------------------------------------------------------

    def create_sequence(self, index, id=""):
        """Creates an empty Sequence; without an id the server makes one."""
        request = sequence_service_pb2.CreateSequenceRequest(index=index, id=id)
        return wire.sequence_of(self._call(self._sequences.CreateSequence, request).handle)

    def get_sequence(self, sequence):
        request = sequence_service_pb2.GetSequenceRequest(handle=wire.handle_of(sequence))
        return wire.sequence_info_of(self._call(self._sequences.GetSequence, request).sequence)

    def list_sequences(self, index):
        request = sequence_service_pb2.ListSequencesRequest(index=index)
        return [wire.sequence_info_of(info) for info in self._call(self._sequences.ListSequences, request).sequences]

    def delete_sequence(self, sequence):
        request = sequence_service_pb2.DeleteSequenceRequest(handle=wire.handle_of(sequence))
        self._call(self._sequences.DeleteSequence, request)

    def fork(self, sequence, new_id="", position=None):
        """A copy-on-write copy of the tokens before `position` (all of them if None)."""
        source = wire.handle_of(sequence)
        request = sequence_service_pb2.ForkSequenceRequest(source=source, new_id=new_id, position=position)
        return wire.sequence_of(self._call(self._sequences.ForkSequence, request).handle)

    def truncate(self, sequence, position):
        """Drops the tokens at and after `position`; returns the SequenceInfo."""
        request = sequence_service_pb2.TruncateSequenceRequest(handle=wire.handle_of(sequence), position=position)
        return wire.sequence_info_of(self._call(self._sequences.TruncateSequence, request).sequence)

    # Data -----------------------------------------------------------------------------------------------------------

    def append(self, sequence, layer, position, keys, values=None, queries=None):
        """Appends tokens of one layer, in as many messages as it takes. keys, values: [tokens, num_kv_heads, head_dim];
        queries, for an index that keeps them to evict by: those of the last tokens, [n, num_q_heads, head_dim].

        Position-checked: an identical replay is a no-op, a gap OUT_OF_RANGE, other data at positions held ALREADY_EXISTS.
        On an error, messages before the failing one stay. Returns the tokens sent.
        """
        values, queries = (None if array is None else np.asarray(array) for array in (values, queries))
        item = Append(sequence, layer, position, np.asarray(keys), values, queries)
        wire.check_tokens(item)  # before the first piece leaves
        pieces = (retrieval_service_pb2.AppendStreamRequest(item=piece) for piece in wire.pieces(item))
        return self._call(self._retrieval.AppendStream, pieces).tokens

    def retrieve(self, sequence, layer, queries, **selector):
        """The Answer for one (sequence, layer). queries: [num_q_heads, head_dim]. For the selector see retrieve_batch."""
        answer = self.retrieve_batch([Item(sequence, layer, queries)], **selector)[0]
        if answer.error is not None:
            raise answer.error
        return answer

    def retrieve_batch(self, items, **selector):
        """One Answer an Item, each with its own `error`.

        selector: top_k=, or mass_p=(p, floor, cap); scope= "per_kv_head" or "per_q_head"; gqa_reduce=; beta= or
        recall_target=; refine=; with_scores=True; exact=True (read every stored key). What is left out takes the index's
        setting.
        """
        request = retrieval_service_pb2.RetrieveRequest(
            items=map(wire.retrieve_item, items), selector=wire.selector_of(**selector)
        )
        return [wire.answer_of(answer) for answer in self._call(self._retrieval.Retrieve, request).answers]

    def attend(self, sequence, layer, queries, attention=Attention(), **selector):
        """The Attended for one (sequence, layer): attention over what is visible and selected. Needs kv_store
        "keys_values". queries: [num_q_heads, head_dim]. For the selector see retrieve_batch; here a scope
        that is not given means "per_q_head"."""
        attended = self.attend_batch([Item(sequence, layer, queries)], attention, **selector)[0]
        if attended.error is not None:
            raise attended.error
        return attended

    def attend_batch(self, items, attention=Attention(), **selector):
        """One Attended an Item, each with its own `error`. For the selector see retrieve_batch."""
        request = retrieval_service_pb2.AttendRequest(
            items=map(wire.retrieve_item, items),
            selector=wire.selector_of(**selector),
            attention=wire.attention_of(attention),
        )
        return [wire.attended_of(answer) for answer in self._call(self._retrieval.Attend, request).answers]

    def gather(self, sequence, layer, kv_head, positions, keys=True, values=False):
        """Stored rows of one KV head: (keys, values), each [count, head_dim] or None if not asked for."""
        request = retrieval_service_pb2.GatherRequest(
            handle=wire.handle_of(sequence),
            layer=layer,
            kv_head=kv_head,
            positions=wire.tensor_of(np.asarray(positions, np.int32), "positions"),
            keys=keys,
            values=values,
        )
        response = self._call(self._retrieval.Gather, request)
        return wire.array_of(response.keys) if keys else None, wire.array_of(response.values) if values else None

    # Eviction -------------------------------------------------------------------------------------------------------

    def evict(self, sequence, layer, budget, scorer="keydiff", keep=None, dry_run=False, **given):
        """Cuts a layer back to a budget and returns Evicted; with dry_run says what would be kept.

        budget: tokens a head, or dict of tokens or ratio (the share that goes), heads ("uniform", "adaptive", "pyramid"),
        safeguard, beta. scorer: a name, or dict of name and its options. keep: dict of sinks, recent, recent_share.
        given, for the scorers that need it: queries [positions, num_q_heads, head_dim] of the last positions, filters
        [num_kv_heads, head_dim] float32, scores (one float32 array a KV head), softmax_scale (of the attention that scorers
        compute; the index's).
        """
        request = eviction_service_pb2.EvictRequest(handle=wire.handle_of(sequence), layer=layer, dry_run=dry_run)
        wire.fill_eviction(request, scorer, budget, keep)
        wire.fill_given(request.given, **given)
        response = self._call(self._eviction.Evict, request)
        return Evicted([wire.array_of(kept) for kept in response.kept], response.tokens_evicted, response.bytes_freed)

    def score(self, sequence, layer, scorer="keydiff", **given):
        """(positions, scores) of every token held, for each KV head; higher is kept. scorer and given as of evict."""
        request = eviction_service_pb2.ScoreRequest(handle=wire.handle_of(sequence), layer=layer)
        wire.fill_eviction(request, scorer, None, None)
        wire.fill_given(request.given, **given)
        heads = self._call(self._eviction.Score, request).heads
        return [(wire.array_of(head.positions), wire.array_of(head.scores)) for head in heads]

    def diagnose(self, sequence, layer, scorers=("keydiff", "manifoldkv", "knorm"), window=None, **given):
        """What a layer's keys look like to eviction, one dict a KV head; given as of evict."""
        request = eviction_service_pb2.DiagnoseRequest(handle=wire.handle_of(sequence), layer=layer, window=window)
        for scorer in scorers:
            wire.fill_scorer(request.scorers.add(), scorer)
        wire.fill_given(request.given, **given)
        heads = []
        for head in self._call(self._eviction.Diagnose, request).heads:
            names = [d.name for d in head.DESCRIPTOR.fields]
            tensors = ("overlap", "correlation", "attention_correlation")
            heads.append({n: wire.array_of(getattr(head, n)) if n in tensors else getattr(head, n) for n in names})
        return heads

    # Subspaces ------------------------------------------------------------------------------------------------------

    def get_basis(self, sequence, layer):
        """The newest bases of a layer's heads: (keys [num_kv_heads, head_dim, key_rank], values, one dict of measures a
        KV head)."""
        request = subspace_service_pb2.GetBasisRequest(handle=wire.handle_of(sequence), layer=layer)
        response = self._call(self._subspace.GetBasis, request)
        return wire.array_of(response.bases.keys), wire.array_of(response.bases.values), [wire.to_dict(head) for head in response.heads]

    def load_basis(self, sequence, layer, keys, values):
        """Puts other bases in place, of the same shapes and with orthonormal columns; what is stored keeps its own."""
        request = subspace_service_pb2.LoadBasisRequest(handle=wire.handle_of(sequence), layer=layer)
        request.bases.keys.CopyFrom(wire.tensor_of(np.asarray(keys, np.float32), "keys"))
        request.bases.values.CopyFrom(wire.tensor_of(np.asarray(values, np.float32), "values"))
        self._call(self._subspace.LoadBasis, request)

    def calibrate_basis(self, index, layer, profile, key_rank=0, value_rank=0, energy=0.0, carried_to=0):
        """(keys, values) bases of a layer out of one of the server's profiles, in the index's frame; changes nothing. A rank
        of 0 follows from energy, the share of the moment that the basis is to hold."""
        request = subspace_service_pb2.CalibrateBasisRequest(
            index=index,
            layer=layer,
            profile=profile,
            key_rank=key_rank,
            value_rank=value_rank,
            energy=energy,
            carried_to=carried_to,
        )
        bases = self._call(self._subspace.CalibrateBasis, request).bases
        return wire.array_of(bases.keys), wire.array_of(bases.values)

    def reconstruct(self, sequence, layer, kv_head, begin, end):
        """(positions, keys, values) of what is retained of positions [begin, end) of one KV head, as it reads: rebuilt,
        or full-rank where it is kept so."""
        request = subspace_service_pb2.ReconstructRequest(
            handle=wire.handle_of(sequence), layer=layer, kv_head=kv_head, begin=begin, end=end
        )
        response = self._call(self._subspace.Reconstruct, request)
        return wire.array_of(response.positions), wire.array_of(response.keys), wire.array_of(response.values)

    def decode_stream(self, timeout=None):
        """A DecodeStream: append, then retrieve or attend, in one round trip for a whole batch. timeout: seconds a step."""
        return DecodeStream(self._retrieval.Decode, timeout)

    def _call(self, method, request):
        try:
            return method(request, timeout=self.timeout)
        except grpc.RpcError as error:
            raise wire.error_of_call(error) from None
