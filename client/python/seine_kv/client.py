"""A client of a Seine server, numpy in and numpy out.

    from seine_kv.client import Append, Client, Item

    with Client() as client:                                  # where SEINE_SERVER says, or seined listens by default
        client.create_index("llama", num_layers=32, num_q_heads=32, num_kv_heads=8, head_dim=128)
        chat = client.create_sequence("llama")
        client.append(chat, layer=0, position=0, keys=keys)   # keys [tokens, num_kv_heads, head_dim], post-RoPE
        answer = client.retrieve(chat, layer=0, queries=q)    # q [num_q_heads, head_dim], post-RoPE
        answer.set(0)                                         # positions of the first set, ascending
        with client.decode_stream() as stream:                # one round trip a layer and decode step
            step = stream.step(appends=[Append(chat, 0, n, new_keys)], items=[Item(chat, 0, q)])

Arrays are float32, float16 or bfloat16 (ml_dtypes); keys and values must have the index's dtype. Errors are SeineError with
the server's text, the gRPC code's name, and the field of the request that is wrong; what cannot be sent at all is a TypeError
or ValueError. A call that fails has changed nothing on the server, except CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE and
UNKNOWN, where nobody knows; appends may be repeated. A Client may be shared by threads; a DecodeStream belongs to one.

Settings are dicts of words and numbers, and come back in the same words from create_index, get_index and list_indexes; there
None stands for what is absent, and may be put in again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Optional, Union

import grpc
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from seine.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    eviction_service_pb2_grpc,
    index_service_pb2,
    index_service_pb2_grpc,
    retrieval_service_pb2,
    retrieval_service_pb2_grpc,
    sequence_service_pb2,
    sequence_service_pb2_grpc,
    subspace_service_pb2_grpc,
)
from seine_kv import methods, settings, wire
from seine_kv.address import default_address, target_of
from seine_kv.arrays import array_of, tensor_of
from seine_kv.layer_calls import LayerCalls, Settings
from seine_kv.messages import (
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
    StepError,
)
from seine_kv.stream import DecodeStream

__all__ = [
    "Answer",
    "Append",
    "Attended",
    "Attention",
    "Client",
    "DecodeStream",
    "Evicted",
    "Item",
    "SeineError",
    "Sequence",
    "SequenceInfo",
    "Step",
    "StepError",
    "default_address",
]


class Client(LayerCalls):
    """Calls one server. `address`: unix:///path/to/socket, /path/to/socket or host:port; None: what the environment variable
    SEINE_SERVER says, else where seined listens by default. `timeout`: seconds for each call."""

    def __init__(self, address: Optional[str] = None, timeout: float = 60.0, max_message_bytes: int = 64 << 20) -> None:
        self.address, self.timeout = target_of(address) if address else default_address(), timeout
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

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def wait_until_ready(self, seconds: float) -> None:
        """Waits for a server that is starting; SeineError UNAVAILABLE if none answers in time."""
        try:
            grpc.channel_ready_future(self._channel).result(timeout=seconds)
        except grpc.FutureTimeoutError:
            raise SeineError("UNAVAILABLE", wire.no_server(self.address, f"none within {seconds} s")) from None

    # Server ---------------------------------------------------------------------------------------------------------

    def server_info(self) -> dict[str, Any]:
        """Version, backend, memory and limits, as a dict."""
        return settings.to_dict(self._call(self._admin.GetServerInfo, admin_service_pb2.GetServerInfoRequest()))

    def describe_head(self, sequence: Sequence, layer: int, kv_head: int) -> dict[str, Any]:
        """Zone, segments, bytes and codec of one KV head, as a dict."""
        request = admin_service_pb2.DescribeHeadRequest(handle=wire.handle_of(sequence), layer=layer, kv_head=kv_head)
        return settings.to_dict(self._call(self._admin.DescribeHead, request))

    # Indexes --------------------------------------------------------------------------------------------------------

    def create_index(
        self,
        name: str,
        *,
        num_layers: int,
        num_q_heads: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: DTypeLike = "float16",
        model: str = "",
        rope: Optional[Settings] = None,
        zones: Optional[Settings] = None,
        codec: Optional[Settings] = None,
        retrieval: Optional[Settings] = None,
        kv_store: Optional[str] = None,
        eviction: Optional[Settings] = None,
        subspace: Optional[Settings] = None,
        memory_limit_bytes: int = 0,
        exist_ok: bool = False,
    ) -> dict[str, Any]:
        """Creates an index and returns it as a dict: "spec", its specification with every default filled in, and counts.

        dtype, of keys and values: "float32", "float16", "bfloat16", or numpy's or torch's. model: its name, which finds its
        profile on the server. rope, of the keys: dict of config_json (config.json's
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
        version_tokens, carried_to (positions). What is left out takes the server's default. exist_ok: an index of this name
        that has all that is asked for is returned as it is, with its sequences; one that has not is ALREADY_EXISTS, as any
        is without exist_ok.
        """
        geometry = {
            "num_layers": num_layers,
            "num_q_heads": num_q_heads,
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
        }
        spec = settings.index_spec(
            name,
            geometry,
            dtype,
            rope,
            model=model,
            zones=zones,
            codec=codec,
            retrieval=retrieval,
            kv_store=kv_store,
            eviction=eviction,
            subspace=subspace,
            memory_limit_bytes=memory_limit_bytes,
        )
        try:
            request = index_service_pb2.CreateIndexRequest(spec=spec)
            return settings.to_dict(self._call(self._indexes.CreateIndex, request).index)
        except SeineError as error:
            if error.code != "ALREADY_EXISTS" or not exist_ok:
                raise
        index = self.get_index(name)
        wrong = list(settings.differences(settings.to_dict(spec), index["spec"]))
        if wrong:
            raise SeineError("ALREADY_EXISTS", f"name: the index {name} is there and does not fit: {'; '.join(wrong)}", "name")
        return index

    def get_index(self, name: str) -> dict[str, Any]:
        """Specification and memory of an index, as a dict."""
        request = index_service_pb2.GetIndexRequest(name=wire.name_of(name, "name"))
        return settings.to_dict(self._call(self._indexes.GetIndex, request).index)

    def list_indexes(self) -> list[dict[str, Any]]:
        response = self._call(self._indexes.ListIndexes, index_service_pb2.ListIndexesRequest())
        return [settings.to_dict(index) for index in response.indexes]

    def delete_index(self, name: str) -> None:
        """Deletes an index with all its sequences."""
        self._call(self._indexes.DeleteIndex, index_service_pb2.DeleteIndexRequest(name=wire.name_of(name, "name")))

    # Sequences ------------------------------------------------------------------------------------------------------

    def create_sequence(self, index: str, id: str = "") -> Sequence:
        """Creates an empty Sequence; without an id the server makes one."""
        request = sequence_service_pb2.CreateSequenceRequest(index=wire.name_of(index, "index"), id=wire.name_of(id, "id"))
        return wire.sequence_of(self._call(self._sequences.CreateSequence, request).handle)

    def get_sequence(self, sequence: Sequence) -> SequenceInfo:
        request = sequence_service_pb2.GetSequenceRequest(handle=wire.handle_of(sequence))
        return wire.sequence_info_of(self._call(self._sequences.GetSequence, request).sequence)

    def list_sequences(self, index: str) -> list[SequenceInfo]:
        request = sequence_service_pb2.ListSequencesRequest(index=wire.name_of(index, "index"), page_size=1000)
        infos = []
        while True:
            page = self._call(self._sequences.ListSequences, request)
            infos += [wire.sequence_info_of(info) for info in page.sequences]
            if not page.next_page_token:
                return infos
            request.page_token = page.next_page_token

    def delete_sequence(self, sequence: Sequence) -> None:
        request = sequence_service_pb2.DeleteSequenceRequest(handle=wire.handle_of(sequence))
        self._call(self._sequences.DeleteSequence, request)

    def fork(self, sequence: Sequence, new_id: str = "", position: Optional[int] = None) -> Sequence:
        """A copy-on-write copy of the tokens before `position` (all of them if None)."""
        source = wire.handle_of(sequence)
        request = sequence_service_pb2.ForkSequenceRequest(source=source, new_id=new_id, position=position)
        return wire.sequence_of(self._call(self._sequences.ForkSequence, request).handle)

    def truncate(self, sequence: Sequence, position: int) -> SequenceInfo:
        """Drops the tokens at and after `position`; returns the SequenceInfo."""
        request = sequence_service_pb2.TruncateSequenceRequest(handle=wire.handle_of(sequence), position=position)
        return wire.sequence_info_of(self._call(self._sequences.TruncateSequence, request).sequence)

    # Data -----------------------------------------------------------------------------------------------------------

    def append(
        self,
        sequence: Sequence,
        layer: int,
        position: int,
        keys: ArrayLike,
        values: Optional[ArrayLike] = None,
        queries: Optional[ArrayLike] = None,
    ) -> int:
        """Appends tokens of one layer, in as many messages as it takes. keys, values: [tokens, num_kv_heads, head_dim];
        queries, for an index that keeps them to evict by: those of the last tokens, [n, num_q_heads, head_dim].

        Position-checked: an identical replay is a no-op, a gap OUT_OF_RANGE, other data at positions held ALREADY_EXISTS.
        On an error, messages before the failing one stay. Returns the tokens sent.
        """
        item = Append(sequence, layer, position, np.asarray(keys))
        item.values, item.queries = (None if array is None else np.asarray(array) for array in (values, queries))
        wire.check_tokens(item)  # before the first piece leaves
        pieces = (retrieval_service_pb2.AppendStreamRequest(item=piece) for piece in wire.pieces(item))
        return self._call(self._retrieval.AppendStream, pieces).tokens

    def retrieve(self, sequence: Sequence, layer: int, queries: ArrayLike, **selector: Any) -> Answer:
        """The Answer for one (sequence, layer). queries: [num_q_heads, head_dim]. For the selector see retrieve_batch."""
        answer = self.retrieve_batch([Item(sequence, layer, np.asarray(queries))], **selector)[0]
        if answer.error is not None:
            raise answer.error
        return answer

    def retrieve_batch(self, items: Iterable[Item], **selector: Any) -> list[Answer]:
        """One Answer an Item, each with its own `error`.

        selector: top_k=, or mass_p=(p, floor, cap), the smallest set of floor to cap tokens that reaches the share p of the
        zone's softmax mass; scope= "per_kv_head" or "per_q_head"; gqa_reduce=; beta= or
        recall_target=; refine=; with_scores=True; exact=True (read every stored key). What is left out takes the index's
        setting.
        """
        request = retrieval_service_pb2.RetrieveRequest(
            items=map(wire.retrieve_item, items), selector=wire.selector_of(**selector)
        )
        return [wire.answer_of(answer) for answer in self._call(self._retrieval.Retrieve, request).answers]

    def attend(
        self, sequence: Sequence, layer: int, queries: ArrayLike, attention: Attention = Attention(), **selector: Any
    ) -> Attended:
        """The Attended for one (sequence, layer): attention over what is visible and selected. Needs kv_store
        "keys_values". queries: [num_q_heads, head_dim]. For the selector see retrieve_batch; here a scope
        that is not given means "per_q_head"."""
        attended = self.attend_batch([Item(sequence, layer, np.asarray(queries))], attention, **selector)[0]
        if attended.error is not None:
            raise attended.error
        return attended

    def attend_batch(
        self, items: Iterable[Item], attention: Attention = Attention(), **selector: Any
    ) -> list[Attended]:
        """One Attended an Item, each with its own `error`. For the selector see retrieve_batch."""
        request = retrieval_service_pb2.AttendRequest(
            items=map(wire.retrieve_item, items),
            selector=wire.selector_of(**selector),
            attention=wire.attention_of(attention),
        )
        return [wire.attended_of(answer) for answer in self._call(self._retrieval.Attend, request).answers]

    def gather(
        self,
        sequence: Sequence,
        layer: int,
        kv_head: int,
        positions: ArrayLike,
        keys: bool = True,
        values: bool = False,
    ) -> tuple[Optional[np.ndarray], Optional[np.ndarray]]:
        """Stored rows of one KV head: (keys, values), each [count, head_dim] or None if not asked for."""
        request = retrieval_service_pb2.GatherRequest(
            handle=wire.handle_of(sequence),
            layer=layer,
            kv_head=kv_head,
            positions=tensor_of(np.asarray(positions, np.int32), "positions"),
            keys=keys,
            values=values,
        )
        response = self._call(self._retrieval.Gather, request)
        return array_of(response.keys) if keys else None, array_of(response.values) if values else None

    def decode_stream(self, timeout: Optional[float] = None) -> DecodeStream:
        """A DecodeStream: append, then retrieve or attend, in one round trip for a whole batch. timeout: seconds a step."""
        return DecodeStream(self._retrieval.Decode, timeout, self.address)

    # Anything else --------------------------------------------------------------------------------------------------

    def call(
        self, method: str, request: Union[Settings, Iterable[Settings]] = {}
    ) -> Union[dict[str, Any], Iterator[dict[str, Any]]]:
        """Any method of the server by its name ("Retrieve", "seine.v1.RetrievalService/Retrieve"), its messages as dicts
        in protobuf's JSON form: bytes are base64, 64-bit numbers strings. A stream of requests is an iterable of dicts, a
        stream of answers an iterator over them, which has no timeout. A wrong name or request is a ValueError."""
        found = methods.find(method)
        kind = f"{'stream' if found.streams_requests else 'unary'}_{'stream' if found.streams_responses else 'unary'}"
        run = getattr(self._channel, kind)(
            f"/{found.name}", found.request.SerializeToString, found.response.FromString
        )
        if not found.streams_requests or isinstance(request, Mapping):
            message = methods.message_of(found, request)
            sent: Any = iter([message]) if found.streams_requests else message
        else:
            sent = iter([methods.message_of(found, one) for one in request])  # all of them, before the first leaves
        if not found.streams_responses:
            return methods.dict_of(self._call(run, sent))
        return self._answers(run(sent))

    def _answers(self, answers: Iterable[Any]) -> Iterator[dict[str, Any]]:
        try:
            for answer in answers:
                yield methods.dict_of(answer)
        except grpc.RpcError as error:
            raise wire.error_of_call(error, self.address) from None

    def _call(self, method: Callable[..., Any], request: Any) -> Any:
        try:
            return method(request, timeout=self.timeout)
        except grpc.RpcError as error:
            raise wire.error_of_call(error, self.address) from None
