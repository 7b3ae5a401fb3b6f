"""Calls that concern every node of a fleet, and their answers as one server's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from seine_kv.fleet.router import fleet_generation
from seine_kv.messages import SeineError, Sequence

if TYPE_CHECKING:
    from seine_kv.fleet.client import FleetClient

Settings = Mapping[str, Any]

_SERVER_SUMS = ("memory_limit_bytes", "memory_bytes", "device_memory_limit_bytes", "device_memory_bytes", "num_sequences")
_SERVER_SUMS += ("num_threads", "queue_capacity")


def _numbers(answers: list[dict[str, Any]], names: Iterable[str]) -> dict[str, int]:
    return {name: sum(int(answer[name]) for answer in answers) for name in names if name in answers[0]}


def _server_info(client: FleetClient, request: Settings) -> dict[str, Any]:
    """Sums of memory, sequences and threads; limits of one message and the shortest uptime; the rest is the first's."""
    answers = list(client.each("GetServerInfo", request).values())
    _require(answers)
    least = {name: min(int(answer[name]) for answer in answers) for name in ("max_message_bytes", "uptime_seconds")}
    known = set.intersection(*(set(answer["profiles"]) for answer in answers))
    most = {"num_indexes": max(int(answer["num_indexes"]) for answer in answers), "profiles": sorted(known)}
    return {**answers[0], **_numbers(answers, _SERVER_SUMS), **least, **most}


def _merged_index(infos: list[dict[str, Any]]) -> dict[str, Any]:
    """One index of all nodes: the first's specification, and counts and bytes of all."""
    merged = {**infos[0], **_numbers(infos, [name for name in infos[0] if name not in ("spec", "gate")])}
    gates = [info["gate"] for info in infos if info.get("gate") is not None]  # not of nodes that are older
    if gates:
        merged["gate"] = _merged_gate(gates)
    return merged


def _merged_gate(gates: list[dict[str, Any]]) -> dict[str, Any]:
    """Checks of all nodes; a layer that attends exactly on any of them, with the most that it lost."""
    merged: dict[str, Any] = _numbers(gates, ("checks", "exact_answers"))
    lost = sum(int(gate["checks"]) * (gate["mean_lost"] or 0.0) for gate in gates)
    merged["mean_lost"] = lost / merged["checks"] if merged["checks"] else 0.0
    layers: dict[int, float] = {}
    for layer in (layer for gate in gates for layer in gate["layers"]):
        layers[layer["layer"]] = max(layer["lost"], layers.get(layer["layer"], 0.0))
    merged["layers"] = [{"layer": layer, "lost": layers[layer]} for layer in sorted(layers)]
    return merged


def _get_index(client: FleetClient, request: Settings) -> dict[str, Any]:
    answers = list(client.each("GetIndex", request, missing=True).values())
    _require(answers)
    there = [answer["index"] for answer in answers if not isinstance(answer, SeineError)]
    if not there:
        raise answers[0]
    return {"index": _merged_index(there)}


def _list_indexes(client: FleetClient, request: Settings) -> dict[str, Any]:
    by_name: dict[str, list[dict[str, Any]]] = {}
    for answer in client.each("ListIndexes", request).values():
        for index in answer["indexes"]:
            by_name.setdefault(index["spec"]["name"], []).append(index)
    return {"indexes": [_merged_index(by_name[name]) for name in sorted(by_name)]}


def _create_index(client: FleetClient, request: Settings) -> dict[str, Any]:
    """On every node, or on none. Nodes that have it already, while others were started again, keep theirs."""
    made: dict[str, dict[str, Any]] = {}
    refused: dict[str, SeineError] = {}
    nodes = [node["name"] for node in client.describe()["nodes"] if node["state"] != "lost"]
    for name in nodes:
        try:
            made[name] = client.node(name)._invoke("CreateIndex", request)["index"]
        except SeineError as error:
            refused[name] = error
            if error.code != "ALREADY_EXISTS":
                break
    fatal = [error for error in refused.values() if error.code != "ALREADY_EXISTS" or not made]
    if fatal or not made:
        for name in made:
            client.node(name)._invoke("DeleteIndex", {"name": request["spec"]["name"]})
        raise fatal[0] if fatal else _no_node()
    return {"index": _merged_index(list(made.values()))}


def _delete_index(client: FleetClient, request: Settings) -> dict[str, Any]:
    answers = client.each("DeleteIndex", request, missing=True)
    client.router.directory.remove_index(request["name"])
    errors = [answer for answer in answers.values() if isinstance(answer, SeineError)]
    if len(errors) == len(answers):
        raise errors[0] if errors else _no_node()
    return {}


def _list_sequences(client: FleetClient, request: Settings) -> dict[str, Any]:
    """All pages of all nodes at once, by id."""
    whole = {**request, "page_size": 0, "page_token": ""}
    answers = client.each("ListSequences", whole, missing=True)
    there = [answer for answer in answers.values() if not isinstance(answer, SeineError)]
    if not there:
        raise next(iter(answers.values())) if answers else _no_node()
    sequences = [info for answer in there for info in answer["sequences"]]
    for info in sequences:
        route = client.router.known(Sequence(info["handle"]["index"], info["handle"]["id"]))
        info["handle"]["generation"] = fleet_generation(route, int(info["handle"]["generation"]))
    return {"sequences": sorted(sequences, key=lambda info: info["handle"]["id"]), "next_page_token": ""}


def _calibrate_basis(client: FleetClient, request: Settings) -> dict[str, Any]:
    answers = list(client.each("CalibrateBasis", request).values())
    _require(answers)
    return answers[0]


def _require(answers: list[Any]) -> None:
    if not answers:
        raise _no_node()


def _no_node() -> SeineError:
    return SeineError("UNAVAILABLE", "no node of the fleet serves", "", "NO_NODE")


WHOLE: dict[str, Callable[[FleetClient, Settings], dict[str, Any]]] = {
    "GetServerInfo": _server_info,
    "CreateIndex": _create_index,
    "GetIndex": _get_index,
    "ListIndexes": _list_indexes,
    "DeleteIndex": _delete_index,
    "ListSequences": _list_sequences,
    "CalibrateBasis": _calibrate_basis,
}
