"""One sequence of an Index: what a model's layers have seen of one text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np
from numpy.typing import ArrayLike

from seine_kv import messages
from seine_kv.messages import Answer, Evicted, RetainedSets, SequenceInfo, Snapshot

if TYPE_CHECKING:
    from seine_kv.index import Index

Settings = Mapping[str, Any]


class Sequence:
    """Keys and values of one text, layer by layer; Index.create_sequence makes one.

        chat.append(layer, keys, values)                      # [tokens, num_kv_heads, head_dim], after RoPE
        found = chat.retrieve(layer, queries, top_k=100)      # queries [num_q_heads, head_dim], after RoPE
        output, log_sum_exp = chat.attend(layer, queries)

    Arrays are numpy's or torch's. len(chat) is the number of tokens that its longest layer has been given. In a with
    statement the sequence is deleted at the end. Errors are SeineError, as of seine_kv.client. One thread a sequence.
    """

    def __init__(self, index: Index, handle: messages.Sequence) -> None:
        self.index, self.handle = index, handle
        self._tokens: Optional[list[int]] = None  # each layer's; None: to be asked for

    def __enter__(self) -> Sequence:
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()

    def __len__(self) -> int:
        return max(self.tokens)

    def __bool__(self) -> bool:
        return True  # an empty one is there, too

    def __repr__(self) -> str:
        return f"Sequence({self.handle.index!r}, {self.handle.id!r})"

    # What it holds --------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Its name in the index."""
        return self.handle.id

    @property
    def tokens(self) -> list[int]:
        """Tokens that each layer has been given. [num_layers]"""
        if self._tokens is None:
            self._tokens = self.info().layer_tokens
        return list(self._tokens)

    def info(self) -> SequenceInfo:
        """Tokens of each layer, and bytes of codes and of stored keys and values."""
        return self.index.client.get_sequence(self.handle)

    def append(
        self,
        layer: int,
        keys: ArrayLike,
        values: Optional[ArrayLike] = None,
        position: Optional[int] = None,
        queries: Optional[ArrayLike] = None,
        retained: Optional[RetainedSets] = None,
    ) -> int:
        """Appends tokens of one layer; returns how many the layer has now.

        keys, values: [tokens, num_kv_heads, head_dim] in the index's dtype, keys after RoPE; values where the index
        stores them, as it does unless told otherwise. position: of the first token; None: after what the layer holds.
        queries: those of the last tokens, [n, num_q_heads, head_dim], for an index that evicts by them.
        retained: the layer's, as retained(layer) returns it: brought up to date by the answer.
        Position-checked: an identical replay is a no-op, a gap OUT_OF_RANGE, other data ALREADY_EXISTS.
        """
        position = self.next_position(layer) if position is None else position
        known = self._tokens
        self.forget()  # should this fail half-way
        sent = self.index.client.append(self.handle, layer, position, keys, values, queries, retained)
        self._tokens = known
        self.note(layer, position + sent)
        return self.tokens[layer]

    def retrieve(self, layer: int, queries: ArrayLike, **selector: Any) -> Answer:
        """The tokens that matter to `queries`, [num_q_heads, head_dim], after RoPE.

        selector: top_k=100, or mass_p=(share, floor, cap); scope="per_kv_head" (the usual) or "per_q_head": what one
        set is of; candidate_fraction, recall_target, rescore_k, with_scores=True, exact=True: as of Client.retrieve_batch. The answer's
        .set(i) has the positions of head i, ascending; .visible(i) has with them what is always visible. .positions and
        .scores, [heads, top_k], hold all, padded with -1.
        """
        return self.index.retrieve(layer, [(self, queries)], **selector)[0]

    def attend(
        self,
        layer: int,
        queries: ArrayLike,
        tail: Optional[bool] = None,
        scale: float = 0.0,
        prompt_mass: float = 1.0,
        softcap: float = 0.0,
        **selector: Any,
    ) -> tuple[Any, Any]:
        """Attention over what is visible and selected: (output [num_q_heads, head_dim], log_sum_exp [num_q_heads]).

        queries: [num_q_heads, head_dim], after RoPE. tail: whether windows' means stand in for what is not selected;
        None: where each query head selects for itself. scale: of the logits, 0: the index's.
        softcap: logits become softcap tanh(logit / softcap), as Gemma 2's; 0: they do not. Both results are float32,
        torch tensors on the queries' device where those are torch's. log_sum_exp merges the output with attention to
        other tokens.

        A prompt's queries are [tokens, num_q_heads, head_dim], of the layer's last tokens: append them first. Each sees
        what the layer holds up to its own token, and both results begin with [tokens]. There is no search then, but
        below 1 prompt_mass is the share of its attention that a token keeps (docs/prompts.md).
        """
        return self.index.attend(layer, [(self, queries)], tail, scale, prompt_mass, softcap, **selector)[0]

    def gather(
        self, layer: int, kv_head: int, positions: ArrayLike, keys: bool = True, values: bool = False
    ) -> tuple[Optional[np.ndarray], Optional[np.ndarray]]:
        """Stored rows of one KV head: (keys, values), each [count, head_dim], or None if not asked for."""
        return self.index.client.gather(self.handle, layer, kv_head, positions, keys, values)

    # What becomes of it ---------------------------------------------------------------------------------------------

    def fork(self, position: Optional[int] = None, id: str = "") -> Sequence:
        """A copy of the tokens before `position` (None: of all), which shares memory until one of the two changes."""
        return Sequence(self.index, self.index.client.fork(self.handle, id, position))

    def snapshot(self, file: str, alone: bool = False) -> Snapshot:
        """Writes the sequence and its forks, or the sequence alone, to a file: a name in the server's snapshots.dir, or
        a path where Seine is in this process. Index.restore reads it."""
        return self.index.client.snapshot(self.handle, file, alone)

    def truncate(self, position: int) -> None:
        """Drops the tokens at and after `position`, in every layer."""
        self._tokens = self.index.client.truncate(self.handle, position).layer_tokens

    def delete(self) -> None:
        """Deletes the sequence; its forks live on."""
        self.index.client.delete_sequence(self.handle)

    def evict(
        self,
        layer: int,
        budget: Union[int, Settings],
        scorer: Union[str, Settings] = "keydiff",
        keep: Optional[Settings] = None,
        dry_run: bool = False,
        retained: Optional[RetainedSets] = None,
        **given: Any,
    ) -> Evicted:
        """Cuts a layer back to a budget: tokens a head, or {"ratio": share that goes}. As Client.evict."""
        return self.index.client.evict(self.handle, layer, budget, scorer, keep, dry_run, retained, **given)

    def retained(self, layer: int) -> RetainedSets:
        """The positions that each KV head of a layer retains. Given to append and evict it is kept up to date; where the
        sequence is truncated its own truncate(position) follows, and a fork's begins with its copy()."""
        return self.index.client.retained(self.handle, layer)

    def score(
        self, layer: int, scorer: Union[str, Settings] = "keydiff", **given: Any
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """(positions, scores) of every token held, for each KV head; higher is kept. As Client.score."""
        return self.index.client.score(self.handle, layer, scorer, **given)

    def diagnose(
        self,
        layer: int,
        scorers: Iterable[Union[str, Settings]] = ("keydiff", "manifoldkv", "knorm"),
        **settings: Any,
    ) -> list[dict[str, Any]]:
        """What the layer's keys look like to eviction, one dict a KV head. settings: as of Client.diagnose."""
        return self.index.client.diagnose(self.handle, layer, scorers, **settings)

    def basis(self, layer: int) -> tuple[np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """The newest low-rank bases: keys [num_kv_heads, head_dim, key_rank], values, and measures of each KV head."""
        return self.index.client.get_basis(self.handle, layer)

    # Where it stands ------------------------------------------------------------------------------------------------

    def next_position(self, layer: int) -> int:
        """Where the layer's next token stands. A layer that is not there is left to the index to name."""
        if self._tokens is None:
            self._tokens = self.info().layer_tokens
        return self._tokens[layer] if isinstance(layer, int) and 0 <= layer < len(self._tokens) else 0

    def note(self, layer: int, end: int) -> None:
        """Takes note that the layer has been given the tokens before `end`, by this object or another way."""
        if self._tokens is not None:
            self._tokens[layer] = max(self._tokens[layer], end)

    def forget(self) -> None:
        """Has the index asked anew how many tokens it holds: needed where others append to the same sequence."""
        self._tokens = None
