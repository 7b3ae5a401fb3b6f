"""What a shard is called and told, and how its errors read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seine_kv.calls import Calls
from seine_kv.messages import SeineError
from seine_kv.sharded.merging import Zones

WINDOW = 64  # tokens that share a code's centre: zones begin and end at multiples


def index_of(name: str, shard: int) -> str:
    return f"{name}.rest" if shard else name


def id_of(id: str, shard: int) -> str:
    return f"{id}.{shard}" if shard else id


def of_shard(shard: int, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """The call's result; its error with the shard's number in front."""
    try:
        return call(*given, **named)
    except SeineError as error:
        text = f"shard {shard}: {error}"
        raise SeineError(error.code, text, error.field, error.reason, error.retry_delay) from None


def check(shards: list[Calls], run: int, zones: Zones, spec: dict[str, Any]) -> None:
    wrong = {
        "shards": not shards,
        "run": run < WINDOW or run % WINDOW,
        "zones.sink": zones.sink < 0 or zones.sink % WINDOW or zones.sink > run,
        "zones.update_buffer": zones.update_buffer < WINDOW or zones.update_buffer % WINDOW,
        "zones.local": zones.local < 0,
        "codec.centre_window": (spec.get("codec") or {}).get("centre_window") not in (None, WINDOW),
        "eviction": spec.get("eviction") is not None,
        "subspace": spec.get("subspace") is not None,
    }
    for field, is_wrong in wrong.items():
        if is_wrong:
            text = f"{field}: not as a sharded sequence needs it (client/sharded/sharded_sequence.h)"
            raise SeineError("INVALID_ARGUMENT", text, field)
