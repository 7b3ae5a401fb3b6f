"""How a fleet's actors are started: what they are given, and where Ray puts them."""

from __future__ import annotations

import os
import re
from typing import Any, Union

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from seine_kv.address import Security, is_own_folder
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
    if not is_own_folder(os.lstat(folder)):
        raise ValueError(f"listen: {folder} is no folder of this user alone; name another, as unix:/FOLDER")
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


def grow(fleet: str, names: list[str], options: dict[str, Any], strategy: str, wait_seconds: float) -> None:
    """Starts servers of these names in a placement group of their own, and waits for them. RuntimeError: Ray has no room
    for all, or not all serve in time; none is left."""
    bundle = {"CPU": options["cpus"], "memory": options["memory"]}
    group = placement_group([bundle] * len(names), strategy, name=_group_name(fleet, names[0]), lifetime="detached")
    if not group.wait(wait_seconds):
        remove_placement_group(group)
        room = f"{len(names)} times {options['cpus']} CPUs and {options['memory']} bytes of memory"
        raise RuntimeError(f"Ray has no room for {room} ({strategy}) within {wait_seconds} s; see ray status")
    supervisors = [start_supervisor(fleet, name, options, group, i) for i, name in enumerate(names)]
    try:
        ray.get([supervisor.ready.remote() for supervisor in supervisors], timeout=wait_seconds)
    except ray.exceptions.RayError as error:
        for name in names:
            end(fleet, name, 0.0)
        remove_placement_group(group)
        raise RuntimeError(f"not all servers serve within {wait_seconds} s: {why(error)}") from None


def end(fleet: str, node: str, seconds: float) -> None:
    """Ends a node's server, within `seconds` or by force, and its supervisor."""
    try:
        supervisor = actors.actor(actors.node_actor_name(fleet, node))
    except ValueError:
        return  # it has gone already
    try:
        if seconds > 0:
            ray.get(supervisor.stop.remote(seconds), timeout=seconds + 5)
    except ray.exceptions.RayError:
        pass  # its server ends with it
    ray.kill(supervisor, no_restart=True)


def give_back(fleet: str, node: str = "") -> None:
    """Gives Ray back what was set aside for a fleet, or for a node that has a placement group of its own."""
    for group in ray.util.placement_group_table().values():
        own = group["name"] == _group_name(fleet, node) and len(group["bundles"]) == 1
        if (own if node else group["name"].startswith(_group_name(fleet, ""))) and group["state"] != "REMOVED":
            remove_placement_group(ray.util.get_placement_group(group["name"]))


def _group_name(fleet: str, node: str) -> str:
    return f"seine:{fleet}:{node}"


def why(error: Exception) -> str:
    """The last line of what Ray says, which is what was raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
