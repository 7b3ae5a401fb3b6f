"""An index of keys and values, in this process or on a server: the short way to Seine.

    import seine_kv as seine

    index = seine.Index(num_layers=32, num_q_heads=32, num_kv_heads=8, head_dim=128)      # in this process
    index = seine.connect("unix:///run/seine.sock").index("llama")                        # or a server's
    chat = index.create_sequence()
    chat.append(layer, keys, values)
    output, log_sum_exp = chat.attend(layer, queries)
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterable
from typing import Any, Optional, Union

from numpy.typing import ArrayLike, DTypeLike

from seine_kv import messages
from seine_kv.address import Security
from seine_kv.arrays import as_array, is_torch
from seine_kv.client import Client
from seine_kv.messages import Answer, Append, Attention, Item, RetainedSets
from seine_kv.sequence import Sequence

PROFILES = "SEINE_PROFILES"  # of the environment: a folder of model profiles
_SUFFIXES = (".profile.safetensors", ".safetensors")  # of a profile's file

_clients: dict[tuple[Any, ...], Client] = {}  # in process, by their settings
_numbers = itertools.count(1)  # of indexes without a name
_lock = threading.Lock()  # of both


def connect(address: Optional[str] = None, timeout: float = 60.0, security: Optional[Security] = None) -> Client:
    """A Client of a server; its .index(name) is an Index. address: unix:///path/to/socket, /path/to/socket or
    host:port; None: what SEINE_SERVER says, else where seined listens by default. timeout: seconds for each call.
    security: TLS and a token; None: what the environment says."""
    return Client(address, timeout, security)


class Index:
    """Keys and values of a model's sequences, kept so that each step reads few of them. Made in this process.

    num_layers, num_q_heads, num_kv_heads, head_dim: the model's; head_dim 64, 80, 96, 128, 192, 256 or 512.
    profile: of the model, which the balanced code needs: a file NAME.profile.safetensors as seine_kv.calibrate,
      `python -m seine_kv.profile` and `seine calibrate` write it, or the NAME of one in the folder that the environment
      variable SEINE_PROFILES names. None: the code that needs none (rsq), which takes more bytes.
    dtype: of keys and values as they are appended: "float16", "bfloat16", "float32", or numpy's or torch's.
    kv_store: "keys_values" as attend needs it, "keys" or "none", which take less and retrieve only.
    name: of the index; "": one of its own.
    settings: rope, layer_ropes, zones, codec, retrieval, eviction, subspace, memory_limit_bytes: dicts as of Client.create_index.
    threads: that answer a batch; 0: one for each core. backend: "auto", "cpu", "cuda" or "cuda:N".
    process_memory_bytes: bound of codes and stores of all indexes that share the client; 0: none.

    All Index objects of a process share one client in process, and with it threads and memory bound. Those that ask for
    other threads, process_memory_bytes or backend share another. A client lives as long as the process.

    In a with statement an index made here is deleted at the end; a server's stays. Errors are SeineError, as of
    seine_kv.client. May be shared by threads; each Sequence belongs to one at a time.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_q_heads: int,
        num_kv_heads: int,
        head_dim: int,
        profile: Union[str, os.PathLike[str], None] = None,
        dtype: DTypeLike = "float16",
        kv_store: str = "keys_values",
        name: str = "",
        threads: int = 0,
        process_memory_bytes: int = 0,
        backend: str = "auto",
        **settings: Any,
    ) -> None:
        client = _in_process(threads, process_memory_bytes, backend)
        if profile is not None:
            profile_name = client.add_profile(profile_file(profile))
            settings["codec"] = {**(settings.get("codec") or {}), "profile": profile_name}
        made = client.create_index(
            name or f"index-{next(_numbers)}",
            num_layers=num_layers,
            num_q_heads=num_q_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dtype=dtype,
            kv_store=kv_store,
            **settings,
        )
        self._begin(client, made["spec"], made_here=True)

    @classmethod
    def of(cls, client: Client, name: str) -> Index:
        """An index that a Client has, by its name; it is not deleted by a with statement. SeineError NOT_FOUND."""
        index = cls.__new__(cls)
        index._begin(client, client.get_index(name)["spec"], made_here=False)
        return index

    def _begin(self, client: Client, spec: dict[str, Any], made_here: bool) -> None:
        self.client, self.spec, self._made_here = client, spec, made_here

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        if self._made_here:
            self.delete()

    def __repr__(self) -> str:
        shape = ", ".join(f"{name}={value}" for name, value in self.spec["geometry"].items() if "rope" not in name)
        return f"Index({self.name!r}, {shape}; {self.client.address})"

    @property
    def name(self) -> str:
        """Its name on the client."""
        return self.spec["name"]

    def delete(self) -> None:
        """Deletes the index with all its sequences."""
        self.client.delete_index(self.name)

    def stats(self) -> dict[str, Any]:
        """What it holds and has done: num_sequences, code_bytes, store_bytes, evictions, evicted_tokens and more."""
        return {name: value for name, value in self.client.get_index(self.name).items() if name != "spec"}

    # Sequences ------------------------------------------------------------------------------------------------------

    def create_sequence(self, id: str = "") -> Sequence:
        """A new, empty Sequence; without an id it gets one."""
        return Sequence(self, self.client.create_sequence(self.name, id))

    def sequence(self, id: str) -> Sequence:
        """The Sequence of this id. SeineError NOT_FOUND."""
        return Sequence(self, self.client.get_sequence(messages.Sequence(self.name, id)).handle)

    def sequences(self) -> list[Sequence]:
        """All of them, by id."""
        return [Sequence(self, info.handle) for info in self.client.list_sequences(self.name)]

    def restore(self, file: str, id: str = "") -> list[Sequence]:
        """The sequences that a snapshot holds, in the file's order: as they were when Sequence.snapshot wrote them. The
        index must have been created with the same settings. id: in place of the one that its only sequence had."""
        return [Sequence(self, info.handle) for info in self.client.restore(self.name, file, id).sequences]

    # Batches --------------------------------------------------------------------------------------------------------

    def retrieve(self, layer: int, batch: Iterable[tuple[Sequence, ArrayLike]], **selector: Any) -> list[Answer]:
        """One Answer for each (sequence, queries [num_q_heads, head_dim]) of a layer, as Sequence.retrieve has it.

        The first failure of any is raised as StepError, whose .step has what the others got."""
        return self.step(layer, batch=batch, attention=None, **selector)

    def attend(
        self,
        layer: int,
        batch: Iterable[tuple[Sequence, ArrayLike]],
        tail: Optional[bool] = None,
        scale: float = 0.0,
        prompt_mass: float = 1.0,
        softcap: float = 0.0,
        **selector: Any,
    ) -> list[tuple[Any, Any]]:
        """(output, log_sum_exp) for each (sequence, queries) of a layer, as Sequence.attend has it."""
        attention = Attention(tail, scale, prompt_mass=prompt_mass, softcap=softcap)
        return self.step(layer, batch=batch, attention=attention, **selector)

    def step(
        self,
        layer: int,
        appends: Iterable[tuple[Any, ...]] = (),
        batch: Iterable[tuple[Sequence, ArrayLike]] = (),
        attention: Optional[Attention] = Attention(),
        **selector: Any,
    ) -> list[Any]:
        """A decode step of one layer in one call: appends first, then attention for a batch.

        appends: (sequence, keys, values) each, [tokens, num_kv_heads, head_dim], or (sequence, keys) where no values
        are stored; they go after what the layer holds. A RetainedSets of the layer may end each: it is brought up to
        date. batch: (sequence, queries [num_q_heads, head_dim]) each, or a prompt's (Sequence.attend). Returns
        (output, log_sum_exp) for each of the batch, as attend; with attention=None Answers, as retrieve.
        """
        sent, batch = self._placed(layer, appends), list(batch)
        items = [Item(one.handle, layer, as_array(queries)) for one, queries in batch]
        for one, _ in sent:
            one.forget()  # what it holds is known again once the step has come back
        step = self.client.step([append for _, append in sent], items, attention, on_error="return", **selector)
        step.raise_first([append for _, append in sent], items)
        for one, append in sent:
            one.note(layer, append.position + len(append.keys))
        if attention is None:
            return list(step.answers)
        return [_like(queries, one) for (_, queries), one in zip(batch, step.attended)]

    def _placed(self, layer: int, appends: Iterable[tuple[Any, ...]]) -> list[tuple[Sequence, Append]]:
        """Each after what its sequence's layer holds, and after those before it."""
        placed, ends = [], dict[messages.Sequence, int]()
        for one, *arrays in appends:
            retained = arrays.pop() if isinstance(arrays[-1], RetainedSets) else None
            arrays = [self.client._given(array) for array in arrays]
            position = ends.get(one.handle, one.next_position(layer))
            ends[one.handle] = position + len(arrays[0])
            placed.append((one, Append(one.handle, layer, position, *arrays, retained=retained)))
        return placed


def _like(queries: Any, attended: messages.Attended) -> tuple[Any, Any]:
    """Attention's results where the queries are: numpy's, or torch's on their device."""
    if not is_torch(queries):
        return attended.output, attended.log_sum_exp
    import torch

    results = (attended.output, attended.log_sum_exp)
    output, log_sum_exp = (torch.tensor(array, device=queries.device) for array in results)
    return output, log_sum_exp


def _in_process(threads: int, memory: int, backend: str) -> Client:
    with _lock:
        key = (os.getpid(), threads, memory, backend)  # a forked process has not its parent's threads
        if key not in _clients:
            _clients[key] = Client.in_process(threads, memory_limit_bytes=memory, backend=backend)
        return _clients[key]


def profile_file(profile: Union[str, os.PathLike[str]]) -> str:
    """The file of a profile that is a path or a name. ValueError for what is neither."""
    path = os.fspath(profile)
    if os.sep in path or path.endswith(_SUFFIXES[-1]):
        if not os.path.isfile(path):
            raise ValueError(f"profile: there is no file {path}")
        return path
    folder = os.environ.get(PROFILES, "")
    if not folder:
        raise ValueError(f"profile: {path} is a name, and {PROFILES} names no folder to look in; give the file's path")
    for suffix in _SUFFIXES:
        if os.path.isfile(os.path.join(folder, path + suffix)):
            return os.path.join(folder, path + suffix)
    raise ValueError(f"profile: {folder}, which {PROFILES} names, has no {path}{_SUFFIXES[0]}")
