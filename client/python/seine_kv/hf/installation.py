"""One model's tie to one server: client, index, the stream of steps, the hooks, and what became of the calls."""

import atexit
import copy
import time
import warnings
import weakref
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch

from seine_kv.client import Attention, Client, SeineError
from seine_kv.forked import MadeHere
from seine_kv.hf.attention import current, implementations, probe, text_config
from seine_kv.hf.batch import Batch
from seine_kv.hf.blocks import block_size, read_in_blocks
from seine_kv.hf.cache import SeineCache
from seine_kv.hf.device import Lender, ordinal_of
from seine_kv.hf.gate import GateWarning, bound_of, read_gate
from seine_kv.hf.index import default_name, ensure_index, index_settings, token_bytes
from seine_kv.hf.low_rank import Memory
from seine_kv.hf.models import base_of, served_layers
from seine_kv.hf.prompts import Prompts
from seine_kv.hf.rows import DOWN
from seine_kv.hf.stats import Stats
from seine_kv.index import profile_file
from seine_kv.model import cache_name


class DenseFallbackWarning(UserWarning):
    """The server has failed: torch attends densely until it answers again. Stats count how often."""


def _in_process(model, threads, backend):
    """A client in this process, which searches on the model's own device where Seine was built for it."""
    ordinal = ordinal_of(model)
    if backend is not None or ordinal is None:
        return Client.in_process(threads, backend=backend or "auto")
    try:
        return Client.in_process(threads, backend=f"cuda:{ordinal}")
    except SeineError as error:
        if error.code != "FAILED_PRECONDITION":
            raise
        text = f"the index searches on the CPU, and keys, queries and outputs are copied to and fro: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=5)
    return Client.in_process(threads, backend="cpu")


class Installation:
    """See hf.install. Use from one thread at a time."""

    def __init__(
        self,
        model,
        endpoint=None,
        *,
        index=None,
        profile=None,
        zones=None,
        codec=None,
        retrieval=None,
        memory_limit_bytes=0,
        top_k=100,
        tail=None,
        selector=None,
        evict=None,
        low_rank=None,
        dtype=None,
        prefill="dense",
        block=None,
        prompt="exact",
        prompt_mass=None,
        gate=None,
        gate_bound=None,
        keep_cache=None,
        view=None,
        threads=0,
        backend=None,
        timeout=10.0,
        retry=5.0,
    ):
        self.served, self.left = served_layers(model)  # left: layer -> why it keeps its own attention
        self.sources = {layer: number for number, layer in enumerate(sorted(set(self.served.values())))}  # with a cache
        self.layers = {layer: self.sources[source] for layer, source in self.served.items()}  # of the model -> of the index
        self._timeout, self._retry, self._made = timeout, retry, MadeHere()
        local = endpoint is None
        self.block = block_size(prefill, block, evict)  # tokens; None: prompts attend all that came before
        for layer, source in self.served.items() if self.block is not None else ():
            if layer != source:
                raise ValueError(f"prefill: layer {layer} attends what layer {source} holds, which a block has cut back by then")
        self.prompts = Prompts(prompt, prompt_mass, threads)
        whole = evict is None and low_rank is None  # all rows can be read back as they came
        watched = bool(gate) or gate_bound is not None  # as asked: what is watched needs queries in the host's memory
        gate_bound = bound_of(gate, gate_bound, whole)
        self.view = view
        if view is not None:
            if not whole:
                raise ValueError("view: exact attention is over all keys, and with evict or low_rank the index has not all of them")
            view.choose(self.served)
        if self.block is not None:
            if keep_cache:
                raise ValueError("keep_cache: with prefill='blocks' torch cannot keep what is evicted")
            keep_cache = False
        elif keep_cache is None:
            keep_cache = not (local and whole)
        elif not keep_cache and not whole:
            raise ValueError("keep_cache: torch must keep the cache where rows are evicted or low-rank, for prompts attend all")
        self.keeps_cache = keep_cache
        if dtype is None and local and model.dtype == torch.float32:
            dtype = "float16"
        if not local and backend is not None:
            raise ValueError("backend: it is the server's to choose")
        self.client = _in_process(model, threads, backend) if local else Client(endpoint, timeout=timeout)
        ordinal = ordinal_of(model)
        lends = local and ordinal is not None and self.client.device_copies() is not None
        self.lender = Lender(ordinal) if lends else None
        self.asks_on_device = whole and view is None and not watched
        if local and profile is not None:
            profile = self.client.add_profile(profile_file(profile))
        if local and low_rank is not None and low_rank.profile is not None:
            low_rank = replace(low_rank, profile=self.client.add_profile(profile_file(low_rank.profile)))
        if gate_bound is not None:
            retrieval = {**(retrieval or {}), "gate": gate_bound}
        self._settings = index_settings(
            model, list(self.sources), profile, zones, codec, retrieval, evict, low_rank, memory_limit_bytes, dtype
        )
        self.dtype = getattr(torch, self._settings["dtype"])
        self._token_bytes = token_bytes(self._settings, model.dtype)
        self.index = index or default_name(self._settings)
        self.selector = dict(selector or {})
        if "mass_p" not in self.selector:
            self.selector["top_k"] = top_k
        self.tail, self.evict, self.num_layers = tail, evict, len(self.sources)
        self._gate_told = False
        self._stats, self._stream = Stats(prompts=self.prompts.stats), None
        self._asked = None  # the Attention of the last step
        self._down_until, self._warned = None, False  # monotonic; None: up
        self._batches = weakref.WeakSet()
        self._cache = None  # of the forward that is running
        self._buried = deque()  # sequences that nobody needs any more
        try:
            self.spec = ensure_index(self.client, self.index, self._settings)
        except BaseException:
            self.client.close()
            raise
        self._gate_bound = self.spec["retrieval"].get("gate")
        if self._gate_bound is None and (gate or gate_bound):
            warnings.warn("gate: nothing is watched, for the server is too old", RuntimeWarning, stacklevel=4)
        self.choosing_queries = (self.spec["subspace"] or {}).get("full_rank_queries") or 0
        self._model, self._hooks, self._previous = model, [], None
        self.text = text_config(model)
        self._undo_blocks = lambda: None
        atexit.register(self.close)

    def attach(self, name):
        """Makes `name` the model's attention, and follows its forwards."""
        self._previous = implementations(self._model.config)
        self._model.set_attn_implementation(implementations(self._model.config, name))
        if self._model.config._attn_implementation != name:
            raise ValueError(f"{type(self._model).__name__}: no layer attends by transformers' attention interface")
        base = base_of(self._model)
        if self.block is not None:
            self._undo_blocks = read_in_blocks(base, self.block)
        self._hooks = [
            base.register_forward_pre_hook(self._before, with_kwargs=True),
            base.register_forward_hook(self._after, always_call=True),
        ]

    def close(self, restore=False):
        """Takes the hooks out and deletes the sequences; the server may be gone. restore: caches whose rows lie in the index
        alone get them back first."""
        if restore:
            self._restore()
        atexit.unregister(self.close)
        for hook in self._hooks:
            hook.remove()
        if self._previous is not None:
            self._model.set_attn_implementation(self._previous)
        self._hooks, self._previous = [], None
        self._undo_blocks()
        self._undo_blocks = lambda: None
        self._end_stream()
        if self._made.here() and self._down_until is None:
            with suppress(SeineError):
                self._read_gate()
        for batch in self._batches:
            batch.leave()
        self.drain()
        self.client.close()

    def _restore(self):
        for batch in list(self._batches):
            try:
                batch.restore()
            except (SeineError, RuntimeError) as error:
                text = f"a cache is lost: its keys and values lay in the index alone and cannot be read back: {error}"
                warnings.warn(text, RuntimeWarning, stacklevel=3)

    def stats(self):
        """A copy of the counts since install; the gate's are the index's, asked for now where it answers."""
        if self.attached and self.available():
            self._read_gate()
        return copy.deepcopy(self._stats)

    def _read_gate(self):
        try:
            self._stats.gate = read_gate(self.client.get_index(self.index), list(self.sources))
        except SeineError as error:
            if error.code not in (*DOWN, "NOT_FOUND"):
                raise

    def retained(self, cache, layer, row=0):
        """The positions that each KV head of a layer retains of a row of `cache`, its padding not counted: one ascending
        int32 array a head, as the answers so far have told. ValueError: nothing is evicted, or the index holds nothing
        of the row."""
        if self.evict is None:
            raise ValueError("retained: nothing is evicted; install with evict")
        batch = getattr(cache, "batch", None)
        if batch is None or batch.owner is not self:
            raise ValueError("cache: no forward of this model has seen it since install")
        held = batch.rows[row]
        if held.sequence is None:
            raise ValueError(f"row: the index holds nothing of row {row}")
        if layer not in self.layers:
            raise ValueError(f"layer: {layer} is none that the index serves")
        return list(batch.positions(held, self.layers[layer]))

    def memory(self):
        """What the server holds now for the caches that live and for those gone since the last forward, as Memory.
        SeineError: the server's."""
        memory, held = Memory(), [row.sequence for batch in self._batches for row in batch.rows]
        for sequence in [sequence for sequence in held if sequence is not None] + list(self._buried):
            info = self.client.get_sequence(sequence)
            memory.tokens += sum(info.layer_tokens)
            memory.store_bytes += info.store_bytes
            memory.code_bytes += info.code_bytes
        memory.full_bytes = memory.tokens * self._token_bytes
        return memory

    @property
    def geometry(self):
        """num_layers, num_q_heads, num_kv_heads, head_dim of the index."""
        return {name: self._settings[name] for name in ("num_layers", "num_q_heads", "num_kv_heads", "head_dim")}

    # For Batch ------------------------------------------------------------------------------------------------------

    @property
    def counts(self):
        return self._stats

    @property
    def attached(self):
        """Whether the model decodes through this installation."""
        return bool(self._hooks)

    def available(self):
        """Whether the server may be called now; comes back to it once `retry` seconds have passed since it failed."""
        if self._down_until is None:
            return True
        if time.monotonic() < self._down_until:
            return False
        self._down_until = None
        return True

    def failed(self, error):
        """The server cannot be used for a while: warns once until it can again."""
        self._down_until = time.monotonic() + self._retry
        self._end_stream()
        self.warn(error)

    def warn(self, error):
        if not self._warned:
            text = f"attending densely in torch until Seine answers again: {getattr(error, 'code', 'error')}: {error}"
            warnings.warn(text, DenseFallbackWarning, stacklevel=2)
        self._warned = True

    def succeeded(self):
        self._warned = False

    def stepped_back(self, layer):
        """An answer of a layer of the model was exact, for the index has found that its codes lose too much: warns once."""
        if self._gate_told:
            return
        self._gate_told = True
        text = f"layer {layer} attends exactly from now on: its answers lose more than {self._gate_bound:g} of its attention"
        warnings.warn(f"{text}; stats().gate has every layer", GateWarning, stacklevel=2)

    def create_sequence(self):
        """A new sequence; and the index first, where a server that has been started anew has none."""
        try:
            return self.client.create_sequence(self.index)
        except SeineError as error:
            if error.code != "NOT_FOUND":
                raise
        ensure_index(self.client, self.index, self._settings)
        return self.client.create_sequence(self.index)

    def step(self, appends, items, logits):
        """One Decode-stream step; returns its Step. logits: their scale and soft cap. SeineError where the whole step failed."""
        if self._stream is None:
            self._stream = self.client.decode_stream(self._timeout)
        begun = time.perf_counter()
        try:
            step = self._stream.step(
                appends, items, self._attention(*logits), on_error="return", **self.selector
            )
        finally:
            self._stats.step_seconds += time.perf_counter() - begun
        if step.error is not None:
            raise step.error
        self._stats.steps += 1
        self._stats.server_seconds += step.server_us * 1e-6
        return step

    def _attention(self, scale, softcap):
        """The same object while these are the same: a stream reads it once."""
        if self._asked is None or (self._asked.scale, self._asked.softcap) != (scale, softcap):
            self._asked = Attention(self.tail, scale, softcap=softcap, with_positions=self.view is not None)
        return self._asked

    @contextmanager
    def appending(self, tokens):
        """Around an append of a prompt's tokens."""
        begun = time.perf_counter()
        yield
        self._stats.append_seconds += time.perf_counter() - begun
        self._stats.appended_tokens += tokens

    def lender_of(self, tensor):
        """The Lender of a tensor's device; None: what is sent of it goes by the host."""
        return self.lender if self.lender is not None and self.lender.holds(tensor) else None

    def shape(self, rows, tokens):
        """Of a layer's keys in torch."""
        return rows, self._settings["num_kv_heads"], tokens, self._settings["head_dim"]

    def follow(self, batch):
        """Keeps a batch in mind as long as its cache lives, to take its sequences away with the installation."""
        self._batches.add(batch)

    def bury(self, sequence):
        """Has a sequence deleted at the next occasion: this may run in a finaliser, where nothing may be called."""
        if sequence is not None:
            self._buried.append(sequence)

    def drain(self):
        """Deletes what was buried. A sequence that is gone already is no loss, nor is one of a server that is.
        A child of fork deletes nothing: the sequences are its parent's."""
        if not self._made.here():
            return self._buried.clear()
        while self._buried and (self._down_until is None or not self._hooks):
            try:
                self.client.delete_sequence(self._buried.popleft())
            except SeineError as error:
                if error.code != "NOT_FOUND":
                    break

    # Hooks ----------------------------------------------------------------------------------------------------------

    def _before(self, module, args, kwargs):
        """Before a forward of the base model: finds, or makes, the batch of its cache. SeineError in a child of fork."""
        if probe.get() is not None:
            probe.get().followed = True
            return None
        self._made.check()
        self.drain()
        # transformers that renamed the argument still take it by its old name.
        name = "past_key_values" if kwargs.get("past_key_values") is not None else cache_name(module)
        cache = kwargs.get(name)
        if cache is None:
            use_cache = kwargs.get("use_cache")
            if not (getattr(self.text, "use_cache", True) if use_cache is None else use_cache):
                return None  # nothing to keep: torch's own attention
            cache = kwargs[name] = SeineCache(config=module.config)
        SeineCache.adopt(cache)
        inputs = kwargs.get("input_ids")
        if inputs is None:
            inputs = kwargs["inputs_embeds"] if kwargs.get("inputs_embeds") is not None else args[0]
        if cache.batch is None or cache.batch.owner is not self or len(cache.batch.rows) != inputs.shape[0]:
            if cache.holds_elsewhere():
                raise ValueError(f"cache: it holds {len(cache.batch.rows)} rows, and {inputs.shape[0]} are asked; or another model's")
            cache.seen = ()
            cache.follow(Batch(self, inputs.shape[0]))
        cache.settle()
        cache.batch.set_padding(kwargs.get("attention_mask"))
        if self.view is not None:
            if inputs.dim() != 2:
                raise ValueError("view: it shows tokens, and the model is given embeddings")
            self.view.reads(cache.batch, inputs, cache.get_seq_length())
        cache.batch.shows_all = bool(kwargs.get("return_shared_kv_states"))
        current.set(cache.batch)
        self._cache = cache
        return args, kwargs

    def _after(self, *_):
        current.set(None)
        self.prompts.forget()
        if self._cache is not None:
            self._cache.note()
            self._cache = None

    def _end_stream(self):
        if self._stream is not None:
            self._stream.close(cancel=True)
            self._stream = None
