"""Low-rank storage of a model's keys and values on the server, and what it and the codes take."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional, Union


@dataclass
class LowRank:
    """Keeps keys and values beyond the sink and the local tokens as codes in bases that follow the stream (OjaKV).

    key_rank, value_rank: dimensions of head_dim that are kept, or a share of them (a float, at most 1), or a list of
    either, one a layer. frame: "pre_rope"
    projects keys whose RoPE is undone, which fewer dimensions hold; "post_rope" as they come; None: before RoPE where the
    server can be told the model's. profile: that the bases begin with; None: that of hf.install, without one each
    sequence's first tokens. more: other settings of Client.create_index's `subspace`, as full_rank, interval, prompt_pool,
    version_tokens. With full_rank_queries a prompt brings its last queries, and steps theirs.
    """

    key_rank: Union[int, float, Sequence] = 0.6
    value_rank: Union[int, float, Sequence] = 0.6
    frame: Optional[str] = None
    profile: Optional[str] = None
    more: dict = field(default_factory=dict)

    def index_settings(self, head_dim, profile, rope_stated):
        """For Client.create_index's `subspace`."""
        frame = self.frame or ("pre_rope" if rope_stated else "post_rope")
        ranks = {}
        for name in ("key_rank", "value_rank"):
            rank = getattr(self, name)
            if isinstance(rank, (list, tuple)):
                ranks[name + "s"] = [_dimensions(one, head_dim, f"{name}[{i}]") for i, one in enumerate(rank)]
            else:
                ranks[name] = _dimensions(rank, head_dim, name)
        return {**ranks, "frame": frame, "profile": self.profile or profile or "", **self.more}


def _dimensions(rank, head_dim, name):
    if isinstance(rank, float):
        if not 0 < rank <= 1:
            raise ValueError(f"low_rank.{name}: a share must be above 0 and at most 1, not {rank}")
        return max(1, round(rank * head_dim))
    if not 1 <= rank <= head_dim:
        raise ValueError(f"low_rank.{name}: must be 1 to head_dim, {head_dim}, not {rank}")
    return rank


@dataclass
class Memory:
    """What the server holds for the sequences of an installation. Capacity, so that what forks share counts for each."""

    tokens: int = 0  # a token once a layer, evicted ones too
    full_bytes: int = 0  # of their keys and values in a full cache of the model's dtype
    store_bytes: int = 0  # of those held: as they came or low-rank with their bases, and what lies beside them
    code_bytes: int = 0  # of what searches read

    @property
    def share(self):
        """Bytes of keys and values held, as a share of the full cache's."""
        return self.store_bytes / self.full_bytes if self.full_bytes else 0.0

    def __str__(self):
        return (
            f"{self.tokens:,} tokens: keys and values {self.store_bytes / 2**20:.1f} MiB, {self.share:.1%} of the full "
            f"cache's {self.full_bytes / 2**20:.1f}; codes {self.code_bytes / 2**20:.1f}"
        )
