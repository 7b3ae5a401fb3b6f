"""How a fleet's actors are started: what they are given, and where Ray puts them."""

from __future__ import annotations

import os
import re
from typing import Any, Union

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from seine_kv.address import Security
from seine_kv.fleet import actors

_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def bytes_of(value: Union[int, str]) -> int:
    """8 << 30 or "8GiB". ValueError for anything else."""
    if isinstance(value, int) and value > 0:
        return value
    found = re.fullmatch(r"(\d+)(|[KMGT]iB)", value) if isinstance(value, str) else None
    if not found or int(found[1]) == 0:
        raise ValueError(f"memory_per_node: expected bytes, as 8GiB, not {value!r}")
    return int(found[1]) * _UNITS[found[2]]


def without_token(security: Security) -> Security:
    """What supervisors need: health asks for no token, and everybody in the cluster could read it."""
    return Security(tls_ca=security.tls_ca, tls_cert=security.tls_cert, tls_key=security.tls_key)


def usual_listen(name: str) -> str:
    alive = [node for node in ray.nodes() if node["Alive"]]
    if len({node["NodeManagerAddress"] for node in alive}) > 1:
        return "tcp"
    folder = f"/tmp/seine-{name}-{os.getuid()}"
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return f"unix:{folder}"


def start_directory(name: str, options: dict[str, Any]) -> None:
    made = ray.remote(actors.Directory).options(
        name=actors.directory_name(name),
        namespace=actors.NAMESPACE,
        lifetime="detached",
        num_cpus=0,
        max_restarts=-1,
        max_concurrency=10000,  # every client keeps a question open
    )
    ray.get(made.remote(name, options).names.remote())


def start_supervisor(fleet: str, node: str, options: dict[str, Any], group: PlacementGroup, bundle: int) -> Any:
    listen = options["listen"]
    if listen.startswith("unix:"):
        listen = f"unix://{listen[len('unix:'):].removeprefix('//').rstrip('/')}/{node}.sock"
    made = ray.remote(actors.Supervisor).options(
        name=actors.node_actor_name(fleet, node),
        namespace=actors.NAMESPACE,
        lifetime="detached",
        num_cpus=options["cpus"],
        memory=options["memory"],
        max_restarts=options["max_restarts"],
        max_concurrency=8,
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle),
    )
    return made.remote(fleet, node, listen, options["flags"], options["seined"], options["security"])


def why(error: Exception) -> str:
    """The last line of what Ray says, which is what was raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
