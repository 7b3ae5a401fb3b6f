"""Many servers as one: `seined` on every machine of a Ray cluster, and a client that routes to them.

    from seine_kv.fleet import Fleet

    fleet = Fleet.start(nodes=3, memory_per_node="8GiB")     # one seined an actor; it outlives this process
    with fleet.client() as client:                           # the calls of seine_kv.Client
        client.create_index("llama", num_layers=32, num_q_heads=32, num_kv_heads=8, head_dim=128)
        chat = client.create_sequence("llama", "chat-7")
        client.append(chat, layer=0, position=0, keys=keys)
    fleet.write("fleet.json")                                # for processes that have not joined Ray:
    client = seine_kv.fleet.connect("fleet.json")

An id is `family/branch`; a fork stays in its family. The family is what a node is chosen for, and what is lost with a
node: SequenceLost names the families. What is created again lives on another node and is appended to again.

Bytes of a decode step go from the client to the servers, never through Ray. Fleet needs Ray (the extra `ray`), as do
clients that it makes; connect needs none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seine_kv.fleet.client import FleetClient as FleetClient, connect as connect
    from seine_kv.fleet.errors import SequenceLost as SequenceLost
    from seine_kv.fleet.fleet import Fleet as Fleet
    from seine_kv.fleet.placement import family_of as family_of

# Each is imported when it is first asked for: Fleet alone imports Ray.
_MODULES = {
    "Fleet": "fleet",
    "FleetClient": "client",
    "SequenceLost": "errors",
    "connect": "client",
    "family_of": "placement",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value
