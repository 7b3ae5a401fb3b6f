"""Seine in this process, or a server's, without protobuf and grpcio: what seine_kv's Python is made on.

Two kinds of errors. What cannot be sent at all is a ValueError or TypeError that opens with the path of what is wrong,
as in "spec.zones: unknown setting sinks; there are sink, local, update_buffer, dense_threshold". What Seine says is a
NativeError.

Messages are dicts of proto/seine/v1. Going in: None is left out; enums are words without their type's name ("float16",
"per_q_head", also "fp16", "bf16", "q_head"); bytes are bytes; a Tensor is any array in the host's memory, numpy's,
torch's, or another's with DLPack or the buffer protocol, of float32, float16, bfloat16 (ml_dtypes, torch) or int32. It
is copied where it is not contiguous. Fields called positions take any integers. Short forms: a name for
ScorerSettings, an int for Budget, (p, floor, cap) for MassP, an object with index, id and generation for
SequenceHandle.

Coming out: every field; absent ones are None; tensors are new numpy arrays, bfloat16 as its bits (uint16); a Status is
None where it is OK, else a dict of code, message, field and reason.

Thread safety: a Connection serves any number of threads. A Stream is one thread's at a time: RuntimeError for another
that comes meanwhile. The GIL is released while Seine works. Arrays that go in must not be written to until the call
returns."""

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, Optional, Union

import numpy as np

# (code, message, field, reason, retry_delay): of something inside an answer.
ErrorParts = tuple[str, str, str, str, float]

class NativeError(Exception):
    """What a call ended with; str(error) is Seine's text."""

    code: str  # a gRPC code's name: "NOT_FOUND"
    field: str  # of the request, "item.keys.shape"; "" where none is named
    reason: str  # for programs, "SHAPE_MISMATCH"; "" where none is given
    retry_delay: float  # seconds that the server asks to wait before the call is made again; 0.0 where it does not say

class Connection:
    """Made by in_process or connect. Streams outlive it; what is in process ends with the last that uses it."""

    @staticmethod
    def in_process(
        threads: int = 0,
        backend: str = "auto",
        memory_limit_bytes: int = 0,
        profiles: Union[str, PathLike[str], list[Union[str, PathLike[str]]], None] = "",
    ) -> Connection:
        """An empty Seine of its own in this process. threads: 0, one for each processor that the process may use (affinity, quota). backend: "cpu", "cuda", "cuda:N" or "auto".
        memory_limit_bytes: 0, none. profiles: a folder as of seined's --profiles, a file, or a list of files with one
        folder at most. NativeError FAILED_PRECONDITION: no such backend here; INVALID_ARGUMENT: no such folder, or no
        profile."""

    @staticmethod
    def connect(
        endpoint: str,
        timeout: Optional[float] = 60.0,
        tls_ca: str = "",
        tls_cert: str = "",
        tls_key: str = "",
        token: str = "",
        token_file: str = "",
    ) -> Connection:
        """A server's: unix:///path/to/socket, /path/to/socket or host:port, else ValueError. It is connected by the
        first call, which is UNAVAILABLE where nothing answers. timeout: seconds of calls that are given none; None: no
        limit. The rest: as Security has it, "" for what is not given."""

    @property
    def endpoint(self) -> str:
        """The address, or "in process"."""

    def call(
        self, method: str, request: Optional[Mapping[str, Any]] = None, timeout: Optional[float] = None
    ) -> dict[str, Any]:
        """Any method by its name ("CreateIndex", "seine.v1.IndexService/CreateIndex"), but those that answer with a
        stream; of a stream of requests, as AppendStream, this is the only one. timeout: seconds; None: the
        connection's, in process none. ValueError: there is no such method."""

    def append(
        self,
        index: str,
        id: str,
        generation: int,
        layer: int,
        position: int,
        keys: Any,
        values: Any = None,
        queries: Any = None,
        report: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> tuple[int, Optional[dict[str, Any]]]:
        """Appends tokens of one layer at `position`; returns how many, and the report. keys, values [tokens,
        num_kv_heads, head_dim] in the index's dtype; queries [1 to tokens, num_q_heads, head_dim] of the last tokens,
        where the index keeps them. report: "dropped" or "kept"; then a dict with the fields of messages.Retained.

        In process the index reads the arrays where they lie, and takes all or none. To a server they go in pieces, and
        those before a failing one stay. The index's errors name fields inside "item"."""

    def open_stream(self, timeout: Optional[float] = None, transport: str = "auto") -> Stream:
        """A Stream. timeout: seconds that a step may take; a server's stream is ended by one that takes longer, in
        process the step fails and the stream goes on. transport: "auto" or "in process"; of a server "auto" (shared
        memory where the server is of this host and offers it, else gRPC's stream), "stream", "shared memory", or
        either with "polling " before it, which never sleeps; else ValueError. A server that is not there is
        UNAVAILABLE in the first step."""

    def device_copies(self) -> Optional[tuple[int, int]]:
        """In process, where a CUDA device attends: bytes that calls have copied to it, and to the host, so far. Then keys
        and values of appends, queries, output and log_sum_exp of items may lie on it: contiguous tensors with DLPack,
        read once the legacy default stream waits for theirs. None: there is none, and they may not."""

    def why_cpu(self) -> str:
        """In process, where "auto" has taken the CPU in a build with CUDA: why. Else empty."""

    def add_profile(self, path: Union[str, PathLike[str]]) -> str:
        """In process: a profile's file for indexes to come. Returns the profile's name, for codec.profile: the file's,
        without .profile.safetensors or .safetensors. NativeError INVALID_ARGUMENT: it is no profile; ALREADY_EXISTS:
        another file was added by that name; UNIMPLEMENTED: a server has its own."""

class TensorFile:
    """A safetensors or .npy file (profile/io/tensor_file.h)."""

    def __init__(self, path: Union[str, bytes, PathLike[str]], mapped: bool = False) -> None:
        """mapped: False reads the file into memory, of at most 2 GiB, and compares its checksum. FileNotFoundError,
        PermissionError, OSError; ValueError, opening with the path: it is no such file, is cut short or contradicts
        itself."""

    @property
    def names(self) -> list[str]:
        """Its tensors', in the order of their bytes, without those of a dtype that has no name here."""
    @property
    def metadata(self) -> dict[str, str]: ...
    def get(self, name: str) -> tuple[str, list[int], np.ndarray]:
        """safetensors' name of the dtype, the shape, and the bytes, read-only uint8. KeyError: there is none of that name;
        ValueError: its dtype has no name here."""

class Rope:
    """How heads turn by RoPE (profile/rope.h). Immutable."""

    def __init__(self, config: str, head_dim: int, style: str, length: int) -> None:
        """config: JSON as ParseRope takes it, as at `length` tokens; "": RoPE is not stated, and undo leaves x as it is. style:
        "half_split" or "interleaved". ValueError names the field that is missing, wrong or not known."""

    @property
    def inv_freq(self) -> list[float]:
        """[head_dim / 2] radians a token, 0 of pairs that do not turn."""
    @property
    def rotary_dim(self) -> int:
        """In how many first coordinates of a head pairs lie."""
    def undo(self, x: np.ndarray, first_position: int) -> None:
        """Turns float64 [heads, tokens, head_dim], seen from first_position on, back to position 0. In place."""

class ProfileBuilder:
    """Sums of the rows that a profile is made of (profile/profile.h); one thread's at a time. Rows are [tokens, heads,
    head_dim] float32 as attention sees them. ValueError: a layer or a shape that is not this builder's."""

    def __init__(self, num_layers: int, num_q_heads: int, num_kv_heads: int, head_dim: int) -> None: ...
    def add_queries(self, layer: int, rows: np.ndarray, first_position: int, rope: Rope) -> None: ...
    def add_keys(self, layer: int, rows: np.ndarray, first_position: int, rope: Rope) -> None:
        """Windows of 64 begin at the first row; a last part of one counts in k_moment alone."""
    def add_values(self, layer: int, rows: np.ndarray) -> None: ...
    def write(
        self,
        path: Union[str, bytes, PathLike[str]],
        *,
        model: str,
        texts: list[str],
        licence: str,
        rope: str,
        layer_ropes: str,
        rope_style: str,
        fp32: bool,
    ) -> None:
        """The profile file, whole or not at all. ValueError: a layer without rows, or a number that the file cannot hold;
        OSError: it cannot be written."""

class PromptMask:
    """Places that each token of a prompt sees; made by PromptAttention.mask."""

    @property
    def tokens(self) -> int: ...
    @property
    def places(self) -> int: ...

class PromptAttention:
    """Attention of prompts over arrays, without an index (index/prompt/prompt_attention.h). Any thread may call it, in the
    process that made it."""

    def __init__(self, threads: int = 0) -> None:
        """threads: 0, one for each processor that the process may use."""

    def mask(self, tokens: int, places: int, group: int, seen: Any = None) -> PromptMask:
        """seen: uint8 [rows or 1, KV heads or 1, tokens, places], not 0 where a token sees a place, copied; None: token t
        sees places [0, places - tokens + t]. group: query heads that share a KV head."""

    def attend(
        self,
        mask: PromptMask,
        queries: Any,
        keys: Any,
        values: Any,
        scale: float,
        mass: float = 1.0,
        most: float = 0.5,
        sample: int = 0,
        least: int = 2048,
        sink: int = 64,
        local: int = 256,
    ) -> tuple[np.ndarray, dict[str, int]]:
        """queries float32 [rows, query heads, tokens, head_dim]; keys, values [rows, KV heads, places, head_dim] of
        float32, float16 or bfloat16; head_dim a multiple of 16 up to 256. Returns outputs, float32 [rows, tokens, query
        heads, head_dim], 0 of a token that sees nothing; and counts: seen and taken runs of 8 keys, blocks, exact_blocks.

        mass: 1, exact; below, in (0, 1), the share that a block's runs must hold of what sampled tokens see. most: a block
        that needs a larger share of the runs is exact. sample: every so-manieth token; 0: by the number of keys. least: of
        fewer keys all are attended. sink, local: first and last keys that always are."""

class PagedStep:
    """What each text of an engine's step sees of its paged cache; for all layers of one PagedAttention."""

    @property
    def num_tokens(self) -> int:
        """Queries of the step, those behind which padding begins."""

class PagedLayer:
    """One layer's codes over its cache, which lies in the engine's memory. Calls of a layer come one at a time."""

    def write(self, keys: Any, values: Any, slots: Any) -> None:
        """Puts rows into slots, block x block_size + place: [at least len(slots), KV heads, head_dim] of the cache's dtype,
        tokens and heads strided as they like. A slot below 0 takes nothing."""

    def attend(self, step: PagedStep, queries: Any, output: Any) -> None:
        """queries, output float32 [at least num_tokens, query heads, head_dim], a token's elements in a row. A text's only query
        of a step is its newest token, and is attended by codes from min_tokens on; several are a prompt's, and see what lies
        before them. Rows of `output` behind num_tokens stay. What the codes cannot answer is attended exactly, and counted."""

    def counts(self) -> dict[str, Any]:
        """Answers, one a token: coded, exact (shorter than min_tokens, or all of it near), gated (the layer's codes lose too
        much), declined (reason -> count: exact for another reason); cut: of coded, those that attended some blocks row by row for want of
        room for codes. prompt_tokens, prompt_runs_seen, prompt_runs_taken (of 8
        keys), encoded_keys, changed_windows (of heads), decode_us, prompt_us, encode_us, bytes (of codes); gate_checks, gate_lost
        (their sum), gate_exact (now), gate_lost_then."""

class PagedAttention:
    """Layers of one shape over an engine's paged cache, as vLLM has it (docs/vllm.md)."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_q_heads: int,
        num_kv_heads: int,
        head_dim: int,
        num_blocks: int,
        block_size: int,
        max_tokens: int,
        scale: float,
        softcap: float = 0.0,
        min_tokens: int = 2048,
        top_k: int = 100,
        beta: float = 0.0,
        refine: int = 100,
        sink: int = 64,
        local: int = 256,
        tail: bool = True,
        gate: float = 0.05,
        prompt_mass: float = 1.0,
        prompt_min: int = 2048,
        profile: str = "",
        rope: str = "",
        layer_ropes: str = "",
        rope_style: str = "half_split",
        codes_bytes: int = 0,
        threads: int = 0,
    ) -> None:
        """block_size: a multiple of 64. max_tokens: of the longest text. sink, local: a text's first and last tokens, always
        attended. gate: share of attention that a layer may lose; 0: any. prompt_mass: 1, exact; below, of prompts of prompt_min
        tokens. profile: a file; rope: rope_parameters of config.json as JSON; layer_ropes: of layers that turn otherwise, [{"layers": [3],
        "rope": {...}}, ...]; rope_style: half_split or interleaved. codes_bytes: most that a layer's codes take, of blocks from the first
        on; 0: any. threads: 0: the OpenMP that is loaded for the whole
        process, as torch's is, or where there is none one thread a core. ValueError or NativeError names what is wrong."""

    @property
    def openmp(self) -> bool:
        """Whether it runs on the process's OpenMP."""

    @property
    def code_blocks(self) -> int:
        """Blocks from the first on that may have codes; texts attend the others row by row."""

    @property
    def threads(self) -> int: ...
    def layer(self, number: int, cache: Any) -> PagedLayer:
        """cache: dense [num_blocks, block_size, KV heads, 2 head_dim], a key and behind it its value, of float32, float16 or
        bfloat16. It is kept alive, and read and written where it lies."""

    def step(self, query_start: Any, seq_lens: Any, block_table: Any) -> PagedStep:
        """query_start [texts + 1], seq_lens [texts], both int32 or int64: text i has queries [query_start[i], query_start[i + 1]),
        of its last tokens. block_table int32 [at least texts, blocks]: where its blocks lie."""

class Stream:
    """Decode steps, one at a time: append, then retrieve or attend, for a whole batch."""

    @property
    def transport(self) -> str:
        """How steps travel: "in process", or as of open_stream; "" where the server was not there."""

    @property
    def fallback(self) -> str:
        """Why "auto" has taken gRPC's stream: the error of opening shared memory; "" where it has not."""

    def step(
        self,
        appends: Iterable[Any],
        items: Iterable[Any],
        selector: Optional[Mapping[str, Any]],
        attention: Optional[Any],
    ) -> tuple[
        list[Optional[ErrorParts]],
        list[dict[str, Any]],
        list[dict[str, Any]],
        int,
        Optional[ErrorParts],
        list[Optional[dict[str, Any]]],
    ]:
        """Applies the appends in order, then retrieves for the items, or attends where there is an attention.

        appends: seine_kv.messages.Append, or what has its attributes; items: messages.Item; selector: a dict of top_k
        or mass_p (p, floor, cap), scope, gqa_reduce, candidate_fraction, recall_target, rescore_k, with_scores, exact; attention:
        messages.Attention. Returns (append_errors, answers, attended, server_us, error, retained):

        append_errors: None or (code, message, field, reason, retry_delay), one an append. answers: one dict an item, none in a step
        with attention, with the fields of messages.Answer: path ("index", "dense", "exact", "gate"), num_tokens, zone_begin,
        zone_end, all_returned, positions int32 [sets, top_k], counts int32 [sets], scores float32 [sets, top_k] or
        None, dense_positions (a list of int32 arrays), error, codes_stale, masses float32 [sets] or None, capped.
        attended: one dict an item in a step with attention, with the fields of messages.Attended: path, num_tokens,
        output float32 [num_q_heads, head_dim] or None, log_sum_exp float32 [num_q_heads] or None (both None too where an
        item's own output and log_sum_exp, on a device, have taken them), attended_tokens,
        tail, selected (such a dict as answers have, with with_positions, or None), error, codes_stale. server_us:
        microseconds in the index. error: of the whole step, which then has changed nothing. retained: one dict an
        append where any has a report, with the fields of messages.Retained; None of one without, or that failed.

        NativeError: the stream has ended, and why."""

    def close(self, cancel: bool = False) -> None:
        """Ends the stream, at once with cancel; NativeError where the server had ended it otherwise. Later steps are
        NativeError UNAVAILABLE. Closing again does nothing."""

def version() -> str:
    """Seine's, "0.1.0"."""

def methods() -> list[dict[str, Any]]:
    """Every method of the wire contract, Decode included: dicts of name ("seine.v1.IndexService/CreateIndex"), request
    and response (messages' names), streams_requests, streams_responses."""

def checked(message: str, settings: Optional[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings as a message such as "IndexSpec" has them: every field, words in full, arrays as they would be sent.
    Nothing is sent. Errors as of Connection.call's request, with paths that begin inside the message."""

def schema(message: str) -> dict[str, dict[str, Any]]:
    """The fields of a message of proto/seine/v1, such as "IndexSpec": field -> dict of type ("int", "float", "bool",
    "str", "bytes", "word", "array", "dict"), repeated, optional, and of enum (the words) or message (its name).
    ValueError: there is no such message."""
