"""The Client's calls about eviction and subspaces, a layer each; calls.py has the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import ArrayLike

from seine_kv import settings
from seine_kv.messages import Evicted, Retained, RetainedSets, Sequence, wanted_of

Settings = Mapping[str, Any]

_MOST_TOKENS = 2**31 - 1  # a budget that holds any layer


class LayerCalls:
    """What Client is made of besides; never made by itself."""

    def _invoke(self, method: str, request: Settings) -> dict[str, Any]:
        """Calls a method by its name; TypeError, ValueError or SeineError."""
        raise NotImplementedError

    def _layer(self, sequence: Sequence, layer: int) -> dict[str, Any]:
        return {"handle": settings.handle_of(sequence), "layer": settings.integer(layer, "layer")}

    # Eviction -------------------------------------------------------------------------------------------------------

    def evict(
        self,
        sequence: Sequence,
        layer: int,
        budget: Union[int, Settings],
        scorer: Union[str, Settings] = "keydiff",
        keep: Optional[Settings] = None,
        dry_run: bool = False,
        retained: Optional[RetainedSets] = None,
        **given: Any,
    ) -> Evicted:
        """Cuts a layer back to a budget and returns Evicted; with dry_run says what would be kept.

        budget: tokens a head, or dict of tokens or ratio (the share that goes), heads ("uniform", "adaptive",
        "pyramid"), safeguard, pyramid_ratio. scorer: a name, or dict of name and its options. keep, within the budget whatever
        the score: dict of sinks and recent (first and last positions, counts), recent_share (of the budget, for the
        last positions), positions (an array of any). given, for the scorers that need it: queries [positions,
        num_q_heads, head_dim] of the last positions, filters [num_kv_heads, head_dim] float32, scores (one float32
        array a KV head), softmax_scale (of the attention that scorers compute; the index's), output_projection: the
        layer's o_proj.weight as [hidden_size, num_q_heads, head_dim], for a scorer of value_weight "projected".
        retained: of this layer, brought up to date by the answer, which has it as a Retained besides.
        """
        request = {
            **self._layer(sequence, layer),
            "scorer": settings.scorer_of(scorer),
            "budget": settings.budget_of(budget),
            "keep": settings.keep_of(keep),
            "given": settings.given_of(**given),
            "dry_run": dry_run,
            "report": wanted_of(retained),
        }
        answer = self._invoke("Evict", request)
        report = None if answer["retained"] is None else Retained(**answer["retained"])
        if retained is not None:
            retained.update(report)
        return Evicted(**{**answer, "retained": report})

    def retained(self, sequence: Sequence, layer: int) -> RetainedSets:
        """The RetainedSets of a layer as it is now, to be followed from here on. Nothing changes. FAILED_PRECONDITION
        where the index keeps no keys."""
        dry = {"budget": {"tokens": _MOST_TOKENS}, "dry_run": True, "report": "kept"}
        report = Retained(**self._invoke("Evict", {**self._layer(sequence, layer), **dry})["retained"])
        sets = RetainedSets(len(report.kept))
        sets.update(report)
        return sets

    def score(
        self, sequence: Sequence, layer: int, scorer: Union[str, Settings] = "keydiff", **given: Any
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """(positions, scores) of every token held, for each KV head; higher is kept. scorer and given as of evict."""
        request = {
            **self._layer(sequence, layer),
            "scorer": settings.scorer_of(scorer),
            "given": settings.given_of(**given),
        }
        return [(head["positions"], head["scores"]) for head in self._invoke("Score", request)["heads"]]

    def diagnose(
        self,
        sequence: Sequence,
        layer: int,
        scorers: Iterable[Union[str, Settings]] = ("keydiff", "manifoldkv", "knorm"),
        window: Optional[int] = None,
        budget: Union[int, Settings, None] = None,
        **given: Any,
    ) -> list[dict[str, Any]]:
        """What a layer's keys look like to eviction, one dict a KV head. budget: of the sets that scorers would keep,
        which are compared, as of evict (a ratio of .75 if left out); window: tokens of the dilution (4,096); given as
        of evict."""
        request = {
            **self._layer(sequence, layer),
            "scorers": [settings.scorer_of(scorer) for scorer in scorers],
            "budget": settings.budget_of(budget),
            "window": window,
            "given": settings.given_of(**given),
        }
        return self._invoke("Diagnose", request)["heads"]

    # Subspaces ------------------------------------------------------------------------------------------------------

    def get_basis(self, sequence: Sequence, layer: int) -> tuple[np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """The newest bases of a layer's heads: (keys [num_kv_heads, head_dim, key_rank], values, one dict of measures a
        KV head)."""
        answer = self._invoke("GetBasis", self._layer(sequence, layer))
        return answer["bases"]["keys"], answer["bases"]["values"], answer["heads"]

    def load_basis(self, sequence: Sequence, layer: int, keys: ArrayLike, values: ArrayLike) -> None:
        """Puts other bases in place, of the same shapes and with orthonormal columns; what is stored keeps its own."""
        bases = {"keys": np.asarray(keys, np.float32), "values": np.asarray(values, np.float32)}
        self._invoke("LoadBasis", {**self._layer(sequence, layer), "bases": bases})

    def calibrate_basis(
        self,
        index: str,
        layer: int,
        profile: str,
        key_rank: int = 0,
        value_rank: int = 0,
        energy: float = 0.0,
        carried_to: int = 0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """(keys, values) bases of a layer out of one of the server's profiles, in the index's frame; changes nothing. A
        rank of 0 follows from energy, the share of the moment that the basis is to hold."""
        request = {
            "index": settings.name_of(index, "index"),
            "layer": layer,
            "profile": profile,
            "key_rank": key_rank,
            "value_rank": value_rank,
            "energy": energy,
            "carried_to": carried_to,
        }
        bases = self._invoke("CalibrateBasis", request)["bases"]
        return bases["keys"], bases["values"]

    def reconstruct(
        self, sequence: Sequence, layer: int, kv_head: int, begin: int, end: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(positions, keys, values) of what is retained of positions [begin, end) of one KV head, as it reads: rebuilt,
        or full-rank where it is kept so."""
        request = {**self._layer(sequence, layer), "kv_head": kv_head, "begin": begin, "end": end}
        rows = self._invoke("Reconstruct", request)
        return rows["positions"], rows["keys"], rows["values"]
