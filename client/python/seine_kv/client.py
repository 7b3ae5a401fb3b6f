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
import queue
from dataclasses import dataclass, field
from typing import Optional

import grpc
import numpy as np

from seine.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    common_pb2,
    eviction_pb2,
    eviction_service_pb2,
    eviction_service_pb2_grpc,
    index_service_pb2,
    index_service_pb2_grpc,
    retrieval_service_pb2,
    retrieval_service_pb2_grpc,
    sequence_service_pb2,
    sequence_service_pb2_grpc,
    status_pb2,
    subspace_pb2,
    subspace_service_pb2,
    subspace_service_pb2_grpc,
)

_DTYPES = {
    "float32": common_pb2.D_TYPE_FLOAT32,
    "float16": common_pb2.D_TYPE_FLOAT16,
    "bfloat16": common_pb2.D_TYPE_BFLOAT16,
    "int32": common_pb2.D_TYPE_INT32,
}
# numpy has no bfloat16 of its own: those arrays come back as their bits, for .view(ml_dtypes.bfloat16).
_NUMPY = {
    common_pb2.D_TYPE_FLOAT32: np.dtype("<f4"),
    common_pb2.D_TYPE_FLOAT16: np.dtype("<f2"),
    common_pb2.D_TYPE_BFLOAT16: np.dtype("<u2"),
    common_pb2.D_TYPE_INT32: np.dtype("<i4"),
}
_PIECE_BYTES = 4 << 20  # of an append: what one message carries
_PATHS = {1: "index", 2: "dense", 3: "exact"}


class SeineError(Exception):
    """What the server (or gRPC) said. `code` is a gRPC code's name such as "NOT_FOUND"; `field` and `reason` may be ""."""

    def __init__(self, code, message, field="", reason=""):
        super().__init__(message)
        self.code, self.field, self.reason = code, field, reason


@dataclass(frozen=True)
class Sequence:
    """Names a sequence. Generation 0 means any; a stale one is FAILED_PRECONDITION."""

    index: str
    id: str
    generation: int = 0


@dataclass(frozen=True)
class SequenceInfo:
    handle: Sequence
    layer_tokens: list  # tokens each layer holds
    code_bytes: int
    store_bytes: int


@dataclass
class Append:
    """Tokens of one layer: keys (and values, where the index stores them) [tokens, num_kv_heads, head_dim]."""

    sequence: Sequence
    layer: int
    position: int  # of the first token
    keys: np.ndarray
    values: Optional[np.ndarray] = None


@dataclass
class Item:
    """One (sequence, layer) to retrieve for: queries [num_q_heads, head_dim]."""

    sequence: Sequence
    layer: int
    queries: np.ndarray


@dataclass
class Answer:
    """What one item got. Tokens [0, zone_begin) and [zone_end, num_tokens) are visible besides the sets; where `path` is
    "dense" all are, and there are no sets. A set belongs to a KV head or a query head, as `scope` says."""

    path: str
    num_tokens: int
    zone_begin: int
    zone_end: int
    all_returned: bool  # top_k covers the whole zone
    positions: np.ndarray  # int32 [sets, top_k], rows ascending, padded with -1
    counts: np.ndarray  # int32 [sets]
    scores: Optional[np.ndarray]  # float32 beside positions, with with_scores
    # One array a KV head once tokens of the layer were evicted: what is visible besides its sets, in place of the ranges.
    dense_positions: list = field(default_factory=list)
    error: Optional[SeineError] = None  # this item's own failure; the rest is then empty

    def set(self, i):
        """Positions of set i, ascending."""
        return self.positions[i, : self.counts[i]]


@dataclass
class Evicted:
    """What an eviction kept of a layer."""

    kept: list  # one int32 array of positions a KV head, ascending
    tokens_evicted: int  # of all heads together
    bytes_freed: int  # 0 in a dry run


@dataclass
class Step:
    """Answer to one decode step."""

    append_errors: list  # one an append: None or SeineError
    answers: list  # one Answer an item
    server_us: int
    error: Optional[SeineError] = field(default=None)  # the whole step was refused


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
        return _to_dict(self._call(self._admin.GetServerInfo, admin_service_pb2.GetServerInfoRequest()))

    def describe_head(self, sequence, layer, kv_head):
        """Zone, segments, bytes and codec of one KV head, as a dict."""
        request = admin_service_pb2.DescribeHeadRequest(handle=_handle(sequence), layer=layer, kv_head=kv_head)
        return _to_dict(self._call(self._admin.DescribeHead, request))

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
        "global", "window"), centre_window. retrieval: top_k, beta, refine, coarse ("sign_ip", "collision"), rho, scope ("per_kv_head",
        "per_q_head"), gqa_reduce ("softmax_sum", "max", "mean"), softmax_scale. kv_store: "none", "keys", "keys_values".
        eviction, which the index does by itself: dict of scorer, budget, keep (dicts as of evict), interval (tokens), profile.
        subspace, which keeps the zone's keys and values low-rank and needs kv_store "keys_values": dict of key_rank,
        value_rank, frame ("post_rope", "pre_rope"), profile, full_rank (share of the tokens), interval (tokens),
        error_threshold, min_spacing, learning_rate, max_gain, version_tokens, carried_to (positions).
        What is left out takes the server's default.
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
                dtype=_DTYPES[dtype],
            ),
            model=model,
            memory_limit_bytes=memory_limit_bytes,
        )
        _fill(spec.geometry.rope, rope, "rope", style=common_pb2.RopeStyle)
        _fill(spec.zones, zones, "zones")
        _fill(spec.codec, codec, "codec", centre=common_pb2.Centre)
        enums = {"coarse": common_pb2.Coarse, "scope": common_pb2.Scope, "gqa_reduce": common_pb2.GqaReduce}
        _fill(spec.retrieval, retrieval, "retrieval", **enums)
        if eviction is not None:
            rest = {k: v for k, v in eviction.items() if k not in ("scorer", "budget", "keep")}
            _fill(spec.eviction, rest, "eviction")
            _fill_eviction(spec.eviction, eviction.get("scorer"), eviction.get("budget"), eviction.get("keep"))
        if subspace is not None:
            _fill(spec.subspace, subspace, "subspace", frame=subspace_pb2.KeyFrame)
        if kv_store is not None:
            spec.kv_store = _enum(common_pb2.KvStore, kv_store, "kv_store")
        request = index_service_pb2.CreateIndexRequest(spec=spec)
        return _to_dict(self._call(self._indexes.CreateIndex, request).index)

    def get_index(self, name):
        """Specification and memory of an index, as a dict."""
        request = index_service_pb2.GetIndexRequest(name=name)
        return _to_dict(self._call(self._indexes.GetIndex, request).index)

    def list_indexes(self):
        response = self._call(self._indexes.ListIndexes, index_service_pb2.ListIndexesRequest())
        return [_to_dict(index) for index in response.indexes]

    def delete_index(self, name):
        """Deletes an index with all its sequences."""
        self._call(self._indexes.DeleteIndex, index_service_pb2.DeleteIndexRequest(name=name))

    # Sequences ------------------------------------------------------------------------------------------------------

    def create_sequence(self, index, id=""):
        """Creates an empty Sequence; without an id the server makes one."""
        request = sequence_service_pb2.CreateSequenceRequest(index=index, id=id)
        return _sequence(self._call(self._sequences.CreateSequence, request).handle)

    def get_sequence(self, sequence):
        request = sequence_service_pb2.GetSequenceRequest(handle=_handle(sequence))
        return _sequence_info(self._call(self._sequences.GetSequence, request).sequence)

    def list_sequences(self, index):
        request = sequence_service_pb2.ListSequencesRequest(index=index)
        return [_sequence_info(info) for info in self._call(self._sequences.ListSequences, request).sequences]

    def delete_sequence(self, sequence):
        self._call(self._sequences.DeleteSequence, sequence_service_pb2.DeleteSequenceRequest(handle=_handle(sequence)))

    def fork(self, sequence, new_id="", position=None):
        """A copy-on-write copy of the tokens before `position` (all of them if None)."""
        request = sequence_service_pb2.ForkSequenceRequest(source=_handle(sequence), new_id=new_id, position=position)
        return _sequence(self._call(self._sequences.ForkSequence, request).handle)

    def truncate(self, sequence, position):
        """Drops the tokens at and after `position`; returns the SequenceInfo."""
        request = sequence_service_pb2.TruncateSequenceRequest(handle=_handle(sequence), position=position)
        return _sequence_info(self._call(self._sequences.TruncateSequence, request).sequence)

    # Data -----------------------------------------------------------------------------------------------------------

    def append(self, sequence, layer, position, keys, values=None):
        """Appends tokens of one layer, in as many messages as it takes. keys, values: [tokens, num_kv_heads, head_dim].

        Position-checked: an identical replay is a no-op, a gap OUT_OF_RANGE, other data at positions held ALREADY_EXISTS.
        On an error, messages before the failing one stay. Returns the tokens sent.
        """
        item = Append(sequence, layer, position, np.asarray(keys), None if values is None else np.asarray(values))
        _check_tokens(item)  # before the first piece leaves
        pieces = (retrieval_service_pb2.AppendStreamRequest(item=piece) for piece in _pieces(item))
        return self._call(self._retrieval.AppendStream, pieces).tokens

    def retrieve(self, sequence, layer, queries, **selector):
        """The Answer for one (sequence, layer). queries: [num_q_heads, head_dim]. For the selector see retrieve_batch."""
        answer = self.retrieve_batch([Item(sequence, layer, queries)], **selector)[0]
        if answer.error is not None:
            raise answer.error
        return answer

    def retrieve_batch(self, items, **selector):
        """One Answer an Item, each with its own `error`.

        selector: top_k=, or mass_p=(p, floor, cap); scope= "per_kv_head" or "per_q_head"; gqa_reduce=; beta= or recall_target=; refine=;
        with_scores=True; exact=True (read every stored key). What is left out takes the index's setting.
        """
        request = retrieval_service_pb2.RetrieveRequest(items=map(_item, items), selector=_selector(**selector))
        return [_answer(answer) for answer in self._call(self._retrieval.Retrieve, request).answers]

    def gather(self, sequence, layer, kv_head, positions, keys=True, values=False):
        """Stored rows of one KV head: (keys, values), each [count, head_dim] or None if not asked for."""
        request = retrieval_service_pb2.GatherRequest(
            handle=_handle(sequence),
            layer=layer,
            kv_head=kv_head,
            positions=_tensor(np.asarray(positions, np.int32), "positions"),
            keys=keys,
            values=values,
        )
        response = self._call(self._retrieval.Gather, request)
        return _array(response.keys) if keys else None, _array(response.values) if values else None

    # Eviction -------------------------------------------------------------------------------------------------------

    def evict(self, sequence, layer, budget, scorer="keydiff", keep=None, dry_run=False, **given):
        """Cuts a layer back to a budget and returns Evicted; with dry_run says what would be kept.

        budget: tokens a head, or dict of tokens or ratio (the share that goes), heads ("uniform", "adaptive", "pyramid"),
        safeguard, beta. scorer: a name, or dict of name and its options. keep: dict of sinks, recent, recent_share.
        given, for the scorers that need it: queries [positions, num_q_heads, head_dim] of the last positions, filters
        [num_kv_heads, head_dim] float32, scores (one float32 array a KV head).
        """
        request = eviction_service_pb2.EvictRequest(handle=_handle(sequence), layer=layer, dry_run=dry_run)
        _fill_eviction(request, scorer, budget, keep)
        _fill_given(request.given, **given)
        response = self._call(self._eviction.Evict, request)
        return Evicted([_array(kept) for kept in response.kept], response.tokens_evicted, response.bytes_freed)

    def score(self, sequence, layer, scorer="keydiff", **given):
        """(positions, scores) of every token held, for each KV head; higher is kept. scorer and given as of evict."""
        request = eviction_service_pb2.ScoreRequest(handle=_handle(sequence), layer=layer)
        _fill_eviction(request, scorer, None, None)
        _fill_given(request.given, **given)
        heads = self._call(self._eviction.Score, request).heads
        return [(_array(head.positions), _array(head.scores)) for head in heads]

    def diagnose(self, sequence, layer, scorers=("keydiff", "manifoldkv", "knorm"), window=None, **given):
        """What a layer's keys look like to eviction, one dict a KV head; given as of evict."""
        request = eviction_service_pb2.DiagnoseRequest(handle=_handle(sequence), layer=layer, window=window)
        for scorer in scorers:
            _fill_scorer(request.scorers.add(), scorer)
        _fill_given(request.given, **given)
        heads = []
        for head in self._call(self._eviction.Diagnose, request).heads:
            names = [d.name for d in head.DESCRIPTOR.fields]
            tensors = ("overlap", "correlation", "attention_correlation")
            heads.append({n: _array(getattr(head, n)) if n in tensors else getattr(head, n) for n in names})
        return heads

    # Subspaces ------------------------------------------------------------------------------------------------------

    def get_basis(self, sequence, layer):
        """The newest bases of a layer's heads: (keys [num_kv_heads, head_dim, key_rank], values, one dict of measures a
        KV head)."""
        request = subspace_service_pb2.GetBasisRequest(handle=_handle(sequence), layer=layer)
        response = self._call(self._subspace.GetBasis, request)
        return _array(response.bases.keys), _array(response.bases.values), [_to_dict(head) for head in response.heads]

    def load_basis(self, sequence, layer, keys, values):
        """Puts other bases in place, of the same shapes and with orthonormal columns; what is stored keeps its own."""
        request = subspace_service_pb2.LoadBasisRequest(handle=_handle(sequence), layer=layer)
        request.bases.keys.CopyFrom(_tensor(np.asarray(keys, np.float32), "keys"))
        request.bases.values.CopyFrom(_tensor(np.asarray(values, np.float32), "values"))
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
        return _array(bases.keys), _array(bases.values)

    def reconstruct(self, sequence, layer, kv_head, begin, end):
        """(positions, keys, values) of what is retained of positions [begin, end) of one KV head, as it reads: rebuilt,
        or full-rank where it is kept so."""
        request = subspace_service_pb2.ReconstructRequest(
            handle=_handle(sequence), layer=layer, kv_head=kv_head, begin=begin, end=end
        )
        response = self._call(self._subspace.Reconstruct, request)
        return _array(response.positions), _array(response.keys), _array(response.values)

    def decode_stream(self):
        """A DecodeStream: append and retrieve in one round trip, for a whole batch."""
        return DecodeStream(self._retrieval.Decode)

    def _call(self, method, request):
        try:
            return method(request, timeout=self.timeout)
        except grpc.RpcError as error:
            raise _error_of_call(error) from None


class DecodeStream:
    """One message a layer and decode step for a whole batch. Use in a with statement, from one thread."""

    def __init__(self, method):
        self._requests = queue.SimpleQueue()
        self._call = method(iter(self._requests.get, None))
        self._steps = 0

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.close(cancel=kind is not None)

    def close(self, cancel=False):
        """Ends the stream; raises SeineError if the server ended it otherwise."""
        self._requests.put(None)
        if cancel:
            self._call.cancel()
            return
        try:
            for _ in self._call:
                pass
        except grpc.RpcError as error:
            raise _error_of_call(error) from None

    def step(self, appends=(), items=(), **selector):
        """Applies the Appends, then retrieves for the Items; returns a Step. For the selector see Client.retrieve_batch."""
        self._steps += 1
        self._requests.put(
            retrieval_service_pb2.DecodeRequest(
                step=self._steps, appends=map(_append, appends), items=map(_item, items), selector=_selector(**selector)
            )
        )
        try:
            response = next(self._call)
        except StopIteration:
            raise SeineError("UNAVAILABLE", "the server has ended the stream") from None
        except grpc.RpcError as error:
            raise _error_of_call(error) from None
        return Step(
            append_errors=[_error(status) for status in response.append_status],
            answers=[_answer(answer) for answer in response.answers],
            server_us=response.server_us,
            error=_error(response.status),
        )


# Between numpy and the wire ---------------------------------------------------------------------------------------------


def _handle(sequence):
    return common_pb2.SequenceHandle(index=sequence.index, id=sequence.id, generation=sequence.generation)


def _sequence(handle):
    return Sequence(handle.index, handle.id, handle.generation)


def _sequence_info(info):
    return SequenceInfo(_sequence(info.handle), list(info.layer_tokens), info.code_bytes, info.store_bytes)


def _check_dtype(array, name):
    if array.dtype.name not in _DTYPES:
        raise ValueError(f"{name}: dtype must be float32, float16 or bfloat16, not {array.dtype.name}")


def _tensor(array, name):
    array = np.asarray(array)
    _check_dtype(array, name)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return common_pb2.Tensor(dtype=_DTYPES[array.dtype.name], shape=array.shape, raw=little.tobytes())


def _array(tensor):
    return np.frombuffer(tensor.raw, _NUMPY[tensor.dtype]).reshape(tuple(tensor.shape))


def _append(append):
    item = retrieval_service_pb2.AppendItem(
        handle=_handle(append.sequence),
        layer=append.layer,
        position=append.position,
        keys=_tensor(append.keys, "keys"),
    )
    if append.values is not None:
        item.values.CopyFrom(_tensor(append.values, "values"))
    return item


def _check_tokens(append):
    if append.keys.ndim != 3 or (append.values is not None and append.values.shape != append.keys.shape):
        raise ValueError("keys and values: must be [tokens, num_kv_heads, head_dim], of one shape")
    _check_dtype(append.keys, "keys")
    if append.values is not None:
        _check_dtype(append.values, "values")


def _pieces(append):
    """AppendItems of at most _PIECE_BYTES (but at least one token) that make up `append`."""
    tokens = len(append.keys)
    nbytes = append.keys.nbytes + (0 if append.values is None else append.values.nbytes)
    step = max(1, _PIECE_BYTES * tokens // max(1, nbytes))
    for first in range(0, max(1, tokens), step):
        part = slice(first, first + step)
        values = None if append.values is None else append.values[part]
        yield _append(Append(append.sequence, append.layer, append.position + first, append.keys[part], values))


def _item(item):
    return retrieval_service_pb2.RetrieveItem(
        handle=_handle(item.sequence), layer=item.layer, queries=_tensor(item.queries, "queries")
    )


def _selector(top_k=None, mass_p=None, scope=None, gqa_reduce=None, beta=None, refine=None, with_scores=False, exact=False, recall_target=None):
    if top_k is not None and mass_p is not None:
        raise ValueError("top_k and mass_p exclude each other")
    selector = retrieval_service_pb2.Selector(
        beta=beta,
        recall_target=recall_target,
        refine=refine,
        scope=_enum(common_pb2.Scope, scope, "scope") if scope else 0,
        gqa_reduce=_enum(common_pb2.GqaReduce, gqa_reduce, "gqa_reduce") if gqa_reduce else 0,
        with_scores=with_scores,
        exact=exact,
    )
    if top_k is not None:
        selector.top_k = top_k
    if mass_p is not None:
        p, floor, cap = mass_p
        selector.mass_p.CopyFrom(retrieval_service_pb2.MassP(p=p, floor=floor, cap=cap))
    return selector


def _answer(answer):
    has_sets = len(answer.positions.shape) == 2
    return Answer(
        path=_PATHS.get(answer.path, "unknown"),
        num_tokens=answer.num_tokens,
        zone_begin=answer.zone_begin,
        zone_end=answer.zone_end,
        all_returned=answer.all_returned,
        positions=_array(answer.positions) if has_sets else np.empty((0, 0), np.int32),
        counts=_array(answer.counts) if has_sets else np.empty(0, np.int32),
        scores=_array(answer.scores) if len(answer.scores.shape) == 2 else None,
        dense_positions=[_array(positions) for positions in answer.dense_positions],
        error=_error(answer.status),
    )


def _enum(enum, name, field):
    """The value of a name such as "window": CENTRE_WINDOW without the enum's prefix."""
    for full_name, value in enum.items():
        if value != 0 and full_name.lower().endswith("_" + str(name)):
            return value
    raise ValueError(f"{field}: unknown value {name}")


def _fill(message, settings, what, **enums):
    """Sets fields of `message` from a dict; a key that the message does not have is an error, not ignored."""
    for name, value in (settings or {}).items():
        if name not in message.DESCRIPTOR.fields_by_name:
            raise ValueError(f"{what}: unknown setting {name}")
        if hasattr(getattr(message, name), "extend"):  # a repeated field
            getattr(message, name).extend(value)
        else:
            setattr(message, name, _enum(enums[name], value, f"{what}.{name}") if name in enums else value)


def _fill_scorer(message, scorer):
    enums = {"anchor": eviction_pb2.Anchor, "similarity": eviction_pb2.Similarity, "metric": eviction_pb2.Metric}
    _fill(message, {"name": scorer} if isinstance(scorer, str) else scorer, "scorer", **enums)


def _fill_eviction(message, scorer, budget, keep):
    """Scorer, budget and keep of a request or of an index's settings."""
    _fill_scorer(message.scorer, scorer)
    if budget is not None:
        settings = budget if isinstance(budget, dict) else {"tokens": int(budget)}
        _fill(message.budget, settings, "budget", heads=eviction_pb2.HeadBudget)
    if keep is not None:
        _fill(message.keep, keep, "keep")


def _fill_given(message, queries=None, filters=None, scores=()):
    if queries is not None:
        message.queries.CopyFrom(_tensor(np.asarray(queries), "queries"))
    if filters is not None:
        message.filters.CopyFrom(_tensor(np.asarray(filters, np.float32), "filters"))
    for head in scores:
        message.scores.append(_tensor(np.asarray(head, np.float32), "scores"))


def _to_dict(message):
    """A message as nested dicts of Python values; enums by number's name in lower case."""
    out = {}
    for descriptor in message.DESCRIPTOR.fields:
        value = getattr(message, descriptor.name)
        if hasattr(value, "extend"):  # a repeated field
            value = [_to_dict(v) if descriptor.message_type is not None else v for v in value]
        elif descriptor.message_type is not None:
            value = _to_dict(value)
        elif descriptor.enum_type is not None:
            value = descriptor.enum_type.values_by_number[value].name.lower()
        out[descriptor.name] = value
    return out


# Errors -----------------------------------------------------------------------------------------------------------------


def _error(status):
    """A wire Status as SeineError, None if it is OK."""
    if status.code == 0:
        return None
    return _seine_error(_CODE_NAMES.get(status.code, "UNKNOWN"), status.message, status)


def _error_of_call(error):
    details = status_pb2.Status()
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            details.ParseFromString(value)
    return _seine_error(error.code().name, error.details() or error.code().name, details)


def _seine_error(code, message, details):
    # google.rpc's details, read with our wire-identical messages (proto/seine/v1/status.proto).
    field = reason = ""
    for any_detail in details.details:
        if any_detail.type_url.endswith("google.rpc.BadRequest"):
            violations = status_pb2.BadRequest.FromString(any_detail.value).field_violations
            field = violations[0].field if violations else ""
        elif any_detail.type_url.endswith("google.rpc.ErrorInfo"):
            reason = status_pb2.ErrorInfo.FromString(any_detail.value).reason
    return SeineError(code, message, field, reason)


_CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}
