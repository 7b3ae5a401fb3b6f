"""The Client's calls about eviction and subspaces, a layer each; client.py has the others and says what holds for all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import ArrayLike

from seine.v1 import eviction_service_pb2, subspace_service_pb2
from seine_kv import settings, wire
from seine_kv.arrays import array_of, tensor_of
from seine_kv.messages import Evicted, Sequence

Settings = Mapping[str, Any]


class LayerCalls:
    """What Client is made of besides; never made by itself."""

    _eviction: Any
    _subspace: Any

    def _call(self, method: Any, request: Any) -> Any:
        raise NotImplementedError

    # Eviction -------------------------------------------------------------------------------------------------------

    def evict(
        self,
        sequence: Sequence,
        layer: int,
        budget: Union[int, Settings],
        scorer: Union[str, Settings] = "keydiff",
        keep: Optional[Settings] = None,
        dry_run: bool = False,
        **given: Any,
    ) -> Evicted:
        """Cuts a layer back to a budget and returns Evicted; with dry_run says what would be kept.

        budget: tokens a head, or dict of tokens or ratio (the share that goes), heads ("uniform", "adaptive", "pyramid"),
        safeguard, beta. scorer: a name, or dict of name and its options. keep, within the budget whatever the score: dict of
        sinks and recent (first and last positions, counts), recent_share (of the budget, for the last positions), positions
        (an array of any).
        given, for the scorers that need it: queries [positions, num_q_heads, head_dim] of the last positions, filters
        [num_kv_heads, head_dim] float32, scores (one float32 array a KV head), softmax_scale (of the attention that
        scorers compute; the index's).
        """
        request = eviction_service_pb2.EvictRequest(handle=wire.handle_of(sequence), layer=layer, dry_run=dry_run)
        settings.fill_eviction(request, scorer, budget, keep)
        settings.fill_given(request.given, **given)
        response = self._call(self._eviction.Evict, request)
        return Evicted([array_of(kept) for kept in response.kept], response.tokens_evicted, response.bytes_freed)

    def score(
        self, sequence: Sequence, layer: int, scorer: Union[str, Settings] = "keydiff", **given: Any
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """(positions, scores) of every token held, for each KV head; higher is kept. scorer and given as of evict."""
        request = eviction_service_pb2.ScoreRequest(handle=wire.handle_of(sequence), layer=layer)
        settings.fill_scorer(request.scorer, scorer)
        settings.fill_given(request.given, **given)
        heads = self._call(self._eviction.Score, request).heads
        return [(array_of(head.positions), array_of(head.scores)) for head in heads]

    def diagnose(
        self,
        sequence: Sequence,
        layer: int,
        scorers: Iterable[Union[str, Settings]] = ("keydiff", "manifoldkv", "knorm"),
        window: Optional[int] = None,
        budget: Union[int, Settings, None] = None,
        **given: Any,
    ) -> list[dict[str, Any]]:
        """What a layer's keys look like to eviction, one dict a KV head. budget: of the sets that scorers would keep, which
        are compared, as of evict (a ratio of .75 if left out); window: tokens of the dilution (4,096); given as of evict."""
        request = eviction_service_pb2.DiagnoseRequest(handle=wire.handle_of(sequence), layer=layer, window=window)
        for scorer in scorers:
            settings.fill_scorer(request.scorers.add(), scorer, "scorers")
        settings.fill_given(request.given, **given)
        if budget is not None:
            settings.fill_budget(request.budget, budget)
        return [settings.to_dict(head) for head in self._call(self._eviction.Diagnose, request).heads]

    # Subspaces ------------------------------------------------------------------------------------------------------

    def get_basis(self, sequence: Sequence, layer: int) -> tuple[np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """The newest bases of a layer's heads: (keys [num_kv_heads, head_dim, key_rank], values, one dict of measures a
        KV head)."""
        request = subspace_service_pb2.GetBasisRequest(handle=wire.handle_of(sequence), layer=layer)
        response = self._call(self._subspace.GetBasis, request)
        heads = [settings.to_dict(head) for head in response.heads]
        return array_of(response.bases.keys), array_of(response.bases.values), heads

    def load_basis(self, sequence: Sequence, layer: int, keys: ArrayLike, values: ArrayLike) -> None:
        """Puts other bases in place, of the same shapes and with orthonormal columns; what is stored keeps its own."""
        request = subspace_service_pb2.LoadBasisRequest(handle=wire.handle_of(sequence), layer=layer)
        request.bases.keys.CopyFrom(tensor_of(np.asarray(keys, np.float32), "keys"))
        request.bases.values.CopyFrom(tensor_of(np.asarray(values, np.float32), "values"))
        self._call(self._subspace.LoadBasis, request)

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
        return array_of(bases.keys), array_of(bases.values)

    def reconstruct(
        self, sequence: Sequence, layer: int, kv_head: int, begin: int, end: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(positions, keys, values) of what is retained of positions [begin, end) of one KV head, as it reads: rebuilt,
        or full-rank where it is kept so."""
        request = subspace_service_pb2.ReconstructRequest(
            handle=wire.handle_of(sequence), layer=layer, kv_head=kv_head, begin=begin, end=end
        )
        response = self._call(self._subspace.Reconstruct, request)
        return array_of(response.positions), array_of(response.keys), array_of(response.values)
