"""Every call of Seine as Python has it, whatever carries it: arguments, checks, results.

A Client is these over one carrier: seine_kv.client's native module, or seine_kv.grpc's grpcio. Each gives `_invoke`,
which takes a method's name and its request as a dict in the words of proto/seine/v1, and returns the answer as one.
Appends and answers, which are most of the bytes, go their own ways.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Optional

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from seine_kv import settings
from seine_kv.arrays import as_array
from seine_kv.layer_calls import LayerCalls, Settings
from seine_kv.messages import (
    Answer,
    Append,
    Attended,
    Attention,
    Item,
    Retained,
    RetainedSets,
    SeineError,
    Sequence,
    SequenceInfo,
    Snapshot,
    Step,
)


class Calls(LayerCalls):
    """What every Client has; never made by itself."""

    # Server ---------------------------------------------------------------------------------------------------------

    def server_info(self) -> dict[str, Any]:
        """Version, backend, memory and limits, as a dict."""
        return self._invoke("GetServerInfo", {})

    def describe_head(self, sequence: Sequence, layer: int, kv_head: int) -> dict[str, Any]:
        """Zone, segments, bytes and codec of one KV head, as a dict."""
        return self._invoke("DescribeHead", {**self._layer(sequence, layer), "kv_head": kv_head})

    def compare_exact(
        self, index: str, sequence: str = "", *, layers: Iterable[int] = (), samples: int = 200, **selector: Any
    ) -> dict[str, Any]:
        """Recall and attention mass by layer and KV head: queries that were asked lately are asked once more and
        answered exactly besides.

        sequence: an id; all of the index's if left out. layers: all if left out. samples: items, at most 10,000, spread
        evenly. For the selector see retrieve_batch; exact is refused. Returns a dict of "heads", each with layer,
        kv_head, sets, recall, least_recall, attention_mass and, where the codec predicts it, predicted_recall; and
        "compared" and "dropped", in items. SeineError FAILED_PRECONDITION: no query was seen yet.
        """
        request = {
            "index": settings.name_of(index, "index"),
            "sequence": settings.name_of(sequence, "sequence"),
            "layers": list(layers),
            "samples": samples,
            "selector": settings.selector_of(**selector),
        }
        return self._invoke("CompareExact", request)

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
        layer_ropes: Optional[list[Settings]] = None,
        zones: Optional[Settings] = None,
        codec: Optional[Settings] = None,
        retrieval: Optional[Settings] = None,
        kv_store: Optional[str] = None,
        eviction: Optional[Settings] = None,
        subspace: Optional[Settings] = None,
        memory_limit_bytes: int = 0,
        exist_ok: bool = False,
    ) -> dict[str, Any]:
        """Creates an index and returns it as a dict: "spec", its specification with every default, and counts.

        dtype: of keys and values, "float32", "float16", "bfloat16", or numpy's or torch's.
        model: its name, which finds its profile.
        rope: of the keys; the profile's own if left out. A dict of style ("half_split", "interleaved") and config_json
          (config.json's rope_parameters as JSON) or inv_freq ([head_dim / 2], radians a token) with rotary_dim, the
          coordinates of a head in which pairs lie.
        layer_ropes: of layers that turn otherwise than rope says: dicts of layers, a list, and rope.
        zones: dict of sink, local, update_buffer, dense_threshold, in tokens.
        codec: dict of name ("balanced", "rsq"), profile, horizon (tokens), coarse_bits and total_bits (a coordinate),
          seed, centre ("none", "global", "window"), centre_window.
        retrieval: dict of top_k, candidate_fraction, rescore_k, coarse ("sign_ip", "collision"), collision_fraction,
          softmax_scale, scope ("per_kv_head", "per_q_head"), gqa_reduce ("softmax_sum", "max", "mean"). The names
          of before, beta, refine and rho, are taken as well.
        kv_store: "none", "keys", "keys_values".
        eviction: what the index evicts by itself. A dict of scorer, budget and keep, as of evict, interval (tokens),
          profile, horizon (tokens: qfilters from a profile), filters (qfilters in place of a profile: [num_layers,
          num_kv_heads, head_dim], as read_filters returns them) or filters_file (their name on the server), and
          keep_queries: the positions whose queries are kept for scorers that look at them, those asked and those given
          to append.
        subspace: keeps the zone's keys and values low-rank; needs kv_store "keys_values". A dict of key_rank and
          value_rank, or key_ranks and value_ranks (a list, one a layer), or energy: in (0, 1], with a profile, the
          smallest ranks that hold this share of its moments in every layer and head, with energy_by_layer in every
          head of each layer; the specification returned has them. Besides frame ("post_rope", "pre_rope"), profile,
          carried_to (positions), stack_queries (bases of keys begin with the profile's of queries and keys); interval
          (tokens, 1 to 256), learning_rate, max_gain, absolute_rate (learning rates are OjaKV's own), error_threshold,
          min_spacing, version_tokens; prompt_pool and prompt_learning_rate (a prompt makes one step with its rows,
          averaged over prompt_pool neighbours); full_rank (share of the tokens that stay full-rank), full_rank_queries
          (the last so many positions' queries choose them: append brings a prompt's) and full_rank_pool.
        exist_ok: an index of this name that has all that is asked for is returned as it is, with its sequences. One
        that
          has not is ALREADY_EXISTS, as any is without exist_ok.

        What is left out takes the default. SeineError INVALID_ARGUMENT names the setting that is wrong.
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
            layer_ropes,
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
            return self._invoke("CreateIndex", {"spec": spec})["index"]
        except (TypeError, ValueError) as error:  # in the words of the arguments, which name no message
            kind = ValueError if isinstance(error, ValueError) else TypeError
            raise kind(str(error).removeprefix("spec.").removeprefix("geometry.")) from None
        except SeineError as error:
            if error.code != "ALREADY_EXISTS" or not exist_ok:
                raise
        index = self.get_index(name)
        wrong = list(settings.differences(spec, index["spec"]))
        if wrong:
            text = f"name: the index {name} is there and does not fit: {'; '.join(wrong)}"
            raise SeineError("ALREADY_EXISTS", text, "name")
        return index

    def get_index(self, name: str) -> dict[str, Any]:
        """Specification and memory of an index, as a dict."""
        return self._invoke("GetIndex", {"name": settings.name_of(name, "name")})["index"]

    def list_indexes(self) -> list[dict[str, Any]]:
        """Every index, as get_index has it."""
        return self._invoke("ListIndexes", {})["indexes"]

    def delete_index(self, name: str) -> None:
        """Deletes an index with all its sequences."""
        self._invoke("DeleteIndex", {"name": settings.name_of(name, "name")})

    # Sequences ------------------------------------------------------------------------------------------------------

    def create_sequence(self, index: str, id: str = "") -> Sequence:
        """Creates an empty Sequence; without an id the server makes one."""
        request = {"index": settings.name_of(index, "index"), "id": settings.name_of(id, "id")}
        return settings.sequence_of(self._invoke("CreateSequence", request)["handle"])

    def get_sequence(self, sequence: Sequence) -> SequenceInfo:
        """How many tokens it holds, and its memory."""
        request = {"handle": settings.handle_of(sequence)}
        return settings.sequence_info_of(self._invoke("GetSequence", request)["sequence"])

    def list_sequences(self, index: str) -> list[SequenceInfo]:
        """Every sequence of an index, by id."""
        request = {"index": settings.name_of(index, "index"), "page_size": 1000, "page_token": ""}
        infos: list[SequenceInfo] = []
        while True:
            page = self._invoke("ListSequences", request)
            infos += [settings.sequence_info_of(info) for info in page["sequences"]]
            if not page["next_page_token"]:
                return infos
            request["page_token"] = page["next_page_token"]

    def delete_sequence(self, sequence: Sequence) -> None:
        """Deletes a sequence; forks of it live on."""
        self._invoke("DeleteSequence", {"handle": settings.handle_of(sequence)})

    def fork(self, sequence: Sequence, new_id: str = "", position: Optional[int] = None) -> Sequence:
        """A copy-on-write copy of the tokens before `position` (all of them if None)."""
        request = {"source": settings.handle_of(sequence), "new_id": new_id, "position": position}
        return settings.sequence_of(self._invoke("ForkSequence", request)["handle"])

    def truncate(self, sequence: Sequence, position: int) -> SequenceInfo:
        """Drops the tokens at and after `position`; returns the SequenceInfo."""
        request = {"handle": settings.handle_of(sequence), "position": position}
        return settings.sequence_info_of(self._invoke("TruncateSequence", request)["sequence"])

    def snapshot(self, sequence: Sequence, file: str, alone: bool = False) -> Snapshot:
        """Writes a sequence and its forks, or the sequence alone, to a file of that name in the server's snapshots.dir;
        of Seine in this process to the path `file`. What has the name is replaced, at once or not at all."""
        scope = "sequence" if alone else "family"
        request = {"handle": settings.handle_of(sequence), "file": settings.name_of(os.fspath(file), "file")}
        return settings.snapshot_of(self._invoke("Snapshot", {**request, "scope": scope}))

    def restore(self, index: str, file: str, id: str = "") -> Snapshot:
        """Makes the sequences that a snapshot holds, in an index of the same settings. id: in place of the one that its
        only sequence had."""
        request = {"index": settings.name_of(index, "index"), "file": settings.name_of(os.fspath(file), "file")}
        return settings.snapshot_of(self._invoke("Restore", {**request, "id": settings.name_of(id, "id")}))

    # Data -----------------------------------------------------------------------------------------------------------

    def append(
        self,
        sequence: Sequence,
        layer: int,
        position: int,
        keys: ArrayLike,
        values: Optional[ArrayLike] = None,
        queries: Optional[ArrayLike] = None,
        retained: Optional[RetainedSets] = None,
    ) -> int:
        """Appends tokens of one layer, in as many messages as it takes. keys, values: [tokens, num_kv_heads, head_dim];
        queries, for an index that keeps them (to evict by, or subspace's full_rank_queries): those of the last tokens,
        [n, num_q_heads, head_dim]. retained: of this layer, brought up to date by the answer.

        Position-checked: an identical replay is a no-op, a gap OUT_OF_RANGE, other data at positions held
        ALREADY_EXISTS. On an error, messages before the failing one stay. Returns the tokens sent.
        """
        item = Append(sequence, layer, position, self._given(keys))
        item.values = None if values is None else self._given(values)
        item.queries = None if queries is None else as_array(queries)
        item.retained = retained
        settings.check_append(item)  # before the first piece leaves
        tokens, report = self._append(item)
        if retained is not None:
            retained.update(report)
        return tokens

    def retrieve(self, sequence: Sequence, layer: int, queries: ArrayLike, **selector: Any) -> Answer:
        """The Answer for one (sequence, layer). queries: [num_q_heads, head_dim]. For the selector see
        retrieve_batch."""
        answer = self.retrieve_batch([Item(sequence, layer, as_array(queries))], **selector)[0]
        if answer.error is not None:
            raise answer.error
        return answer

    def retrieve_batch(self, items: Iterable[Item], **selector: Any) -> list[Answer]:
        """One Answer an Item, each with its own `error`.

        selector: top_k=, or mass_p=(p, floor, cap), the smallest set of floor to cap tokens that reaches the share p of
        the zone's softmax mass; scope= "per_kv_head" or "per_q_head"; gqa_reduce=; candidate_fraction= (once beta=) or recall_target=;
        rescore_k= (once refine=); with_scores=True; exact=True (read every stored key). What is left out takes the index's setting.
        """
        return self._answers(list(items), settings.selector_of(**selector), None)

    def attend(
        self, sequence: Sequence, layer: int, queries: ArrayLike, attention: Attention = Attention(), **selector: Any
    ) -> Attended:
        """The Attended for one (sequence, layer): attention over what is visible and selected. Needs kv_store
        "keys_values". queries: [num_q_heads, head_dim], or a prompt's (messages.Item). For the selector see retrieve_batch; here a scope
        that is not given means "per_q_head"."""
        attended = self.attend_batch([Item(sequence, layer, as_array(queries))], attention, **selector)[0]
        if attended.error is not None:
            raise attended.error
        return attended

    def attend_batch(
        self, items: Iterable[Item], attention: Attention = Attention(), **selector: Any
    ) -> list[Attended]:
        """One Attended an Item, each with its own `error`. For the selector see retrieve_batch."""
        return self._answers(list(items), settings.selector_of(**selector), attention)

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
        request = {
            **self._layer(sequence, layer),
            "kv_head": kv_head,
            "positions": np.asarray(positions, np.int32),
            "keys": keys,
            "values": values,
        }
        rows = self._invoke("Gather", request)
        return rows["keys"] if keys else None, rows["values"] if values else None

    # What a carrier gives -------------------------------------------------------------------------------------------

    def _given(self, array: Any) -> Any:
        """Keys or values as this carrier takes them."""
        return as_array(array)

    def _append(self, append: Append) -> tuple[int, Optional[Retained]]:
        """Sends what was checked; returns the tokens sent, and the report that was asked for."""
        raise NotImplementedError

    def _answers(self, items: list[Item], selector: Settings, attention: Optional[Attention]) -> list[Any]:
        """One Answer an Item, or one Attended with an Attention. selector: as settings.selector_of returns it."""
        raise NotImplementedError


class Steps:
    """What every Decode stream has; never made by itself."""

    def step(
        self,
        appends: Iterable[Append] = (),
        items: Iterable[Item] = (),
        attention: Optional[Attention] = None,
        *,
        on_error: str = "raise",
        **selector: Any,
    ) -> Step:
        """Applies the Appends, then retrieves for the Items, or attends with an Attention; returns a Step.

        For the selector see Client.retrieve_batch. on_error: "raise" makes a StepError of the first append or item that
        failed, whose `step` has what the others got, or of a step that was refused whole; "return" leaves errors in the
        Step, to be looked at one by one. Either way the stream goes on. A stream that breaks raises SeineError.
        """
        if on_error not in ("raise", "return"):
            raise ValueError(f"on_error: must be one of raise, return, not {on_error!r}")
        appends, items = list(appends), list(items)
        step = self._answered(appends, items, attention, settings.selector_of(**selector))
        for append, error, report in zip(appends, step.append_errors, step.retained):
            if append.retained is not None and error is None:
                append.retained.update(report)
        if on_error == "raise":
            step.raise_first(appends, items)
        return step

    def _answered(
        self, appends: list[Append], items: list[Item], attention: Optional[Attention], selector: dict[str, Any]
    ) -> Step:
        """The Step of what is sent, errors left in it."""
        raise NotImplementedError
