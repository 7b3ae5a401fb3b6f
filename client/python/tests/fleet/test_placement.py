"""Where families go: the hash that C++ computes too, bounded loads, and the directory's table. No server, no Ray."""

import json
from pathlib import Path

import pytest

from seine_kv.fleet import description
from seine_kv.fleet.description import Description, Node
from seine_kv.fleet.errors import SequenceLost
from seine_kv.fleet.placement import choose, family_of, ranked, score
from seine_kv.fleet.table import Table

GOLDEN = json.loads((Path(__file__).parent / "placement.json").read_text())


def table(nodes=3, store=None):
    made = Table("f", {} if store is None else store)
    for i in range(nodes):
        made.join(f"n{i}", made.begin(f"n{i}", f"unix:///tmp/n{i}.sock"), False)
    return made


@pytest.mark.parametrize("case", GOLDEN["ranked"], ids=lambda case: case["family"] or "empty")
def test_golden_ranks(case):
    assert ranked(case["family"], case["nodes"]) == case["ranked"]
    assert [str(score(case["family"], node)) for node in case["ranked"]] == case["scores"]


@pytest.mark.parametrize("case", GOLDEN["choose"], ids=lambda case: case["family"])
def test_golden_choices(case):
    assert choose(case["family"], case["loads"]) == case["node"]


def test_a_family_is_what_stands_before_the_first_slash():
    assert [family_of(id) for id in ("x", "x/1", "x/1/2", "/x", "")] == ["x", "x", "x", "", ""]


def test_a_node_more_takes_only_its_share():
    families = [f"chat-{i}" for i in range(2000)]
    before = {family: ranked(family, ["a", "b", "c"])[0] for family in families}
    after = {family: ranked(family, ["a", "b", "c", "d"])[0] for family in families}
    moved = [family for family in families if before[family] != after[family]]
    assert all(after[family] == "d" for family in moved) and 400 < len(moved) < 600


def test_no_node_holds_more_than_its_bound():
    loads = dict.fromkeys("abcde", 0)
    for i in range(1000):
        loads[choose(f"chat-{i}", loads)] += 1
        assert max(loads.values()) <= -(-(i + 1) * 5 // 20)
    with pytest.raises(ValueError):
        choose("x", {})


def test_a_branch_goes_to_its_family():
    placed = table()
    first = placed.place("x", "m", "x", "")
    assert placed.place("x", "m", "x/2", "") == first and sum(placed.loads().values()) == 1
    placed.remove_sequence("x", "m", "x")
    assert placed.locate("x", "m") == first
    placed.remove_sequence("x", "m", "x/2")
    assert placed.locate("x", "m") is None and sum(placed.loads().values()) == 0


def test_a_generation_fences_a_node_that_comes_back():
    placed = table()
    held = placed.place("x", "m", "x", "")
    placed.leave(held.node, held.node_generation + 1)
    assert not placed.locate("x", "m").lost  # another generation is not meant
    placed.leave(held.node, held.node_generation)
    assert placed.locate("x", "m").lost and placed.loads()[held.node] == 0
    generation = placed.begin(held.node, held.address)
    assert generation == held.node_generation + 1 and placed.node(held.node).state == "lost"
    placed.join(held.node, held.node_generation, False)  # a late word of the old one
    assert placed.node(held.node).state == "lost"
    placed.join(held.node, generation, False)
    assert placed.node(held.node).state == "up" and placed.locate("x", "m").lost  # it came back empty
    again = placed.place("x", "m", "x", "")
    assert not again.lost and again.generation > held.generation
    placed = table()
    held = placed.place("x", "m", "x", "")
    placed.leave(held.node, 1)
    again = placed.place("x", "m", "x", "")
    placed.leave(held.node, 1)  # a late word of the old one
    assert again.node != held.node and not placed.locate("x", "m").lost


def test_what_was_lost_long_ago_is_forgotten():
    placed = table(1)
    placed.place("x", "m", "x", "")
    placed.begin("n0", "unix:///tmp/n0.sock")
    assert placed.locate("x", "m").lost
    placed.begin("n0", "unix:///tmp/n0.sock")
    assert placed.locate("x", "m") is None


def test_a_lost_node_takes_no_families():
    placed = table()
    placed.leave("n1", 1)
    assert {placed.place(f"c{i}", "m", f"c{i}", "").node for i in range(50)} == {"n0", "n2"}
    placed.leave("n0", 1)
    placed.leave("n2", 1)
    with pytest.raises(ValueError, match="no node"):
        placed.place("y", "m", "y", "")
    assert placed.locate("y", "m") is None


def test_drained_and_removed():
    placed = table()
    held = placed.place("x", "m", "x", "")
    with pytest.raises(ValueError, match="drain it first"):
        placed.remove(held.node)
    placed.drain(held.node)
    assert placed.place("x", "m", "x/1", "").node == held.node
    other = next(name for name in ("n0", "n1", "n2") if name != held.node)
    placed.drain(other)
    placed.leave(other, 1)
    generation = placed.begin(other, "unix:///tmp/other.sock")
    assert placed.drains(other)  # it stays so over a restart
    assert not placed.join(other, generation, False) and placed.node(other).state == "lost"  # its server does not know
    assert placed.join(other, generation, True) and placed.node(other).state == "draining"
    placed.undrain(other)
    assert placed.node(other).state == "up"
    assert held.node not in {placed.place(f"c{i}", "m", f"c{i}", "").node for i in range(50)}
    with pytest.raises(ValueError, match="holds 1 families"):
        placed.remove(held.node)
    placed.remove_index("m")
    placed.remove(held.node)
    assert [node.name for node in placed.describe().nodes] == sorted({"n0", "n1", "n2"} - {held.node})
    with pytest.raises(ValueError, match="there is no"):
        placed.drain(held.node)


def test_a_table_that_is_read_again_is_the_same():
    store = {}
    placed = table(store=store)
    names = placed.reserve(2)
    routes = [placed.place(f"c{i}", "m", f"c{i}", "") for i in range(20)]
    placed.leave("n2", 1)
    placed.drain("n1")
    read = Table("f", store)
    assert [read.locate(f"c{i}", "m") for i in range(20)] == [placed.locate(f"c{i}", "m") for i in range(20)]
    assert read.describe() == placed.describe() and read.loads() == placed.loads() and read.names() == names
    assert read.place("new", "m", "new", "").generation == max(route.generation for route in routes) + 1
    assert not set(read.reserve(2)) & set(names)


def test_a_description_is_read_as_it_was_written(tmp_path):
    fleet = Description("f", (Node("a", "unix:///tmp/a.sock"), Node("b", "127.0.0.1:7070", 3, "draining")))
    description.write(fleet, tmp_path / "fleet.json")
    assert description.read(tmp_path / "fleet.json") == fleet == description.read(fleet.as_dict())
    assert [file.name for file in tmp_path.iterdir()] == ["fleet.json"]


@pytest.mark.parametrize(
    "change, says",
    [
        ({"version": 2}, "version"),
        ({"nodes": []}, "nodes"),
        ({"nodes": [{"name": "a"}]}, r"nodes\[0\].address"),
        ({"nodes": [{"name": "", "address": "h:1"}]}, r"nodes\[0\].name"),
        ({"nodes": [{"name": "a", "address": "h"}]}, r"nodes\[0\].address"),
        ({"nodes": [{"name": "a", "address": "h:1", "state": "gone"}]}, r"nodes\[0\].state"),
        ({"nodes": [{"name": "a", "address": "h:1", "generation": 0}]}, r"nodes\[0\].generation"),
        ({"nodes": [{"name": "a", "address": "h:1"}, {"name": "a", "address": "h:2"}]}, "same name"),
    ],
)
def test_what_is_wrong_in_a_description_is_named(tmp_path, change, says):
    good = {"fleet": "f", "version": 1, "nodes": [{"name": "a", "address": "h:1"}]}
    (tmp_path / "fleet.json").write_text(json.dumps({**good, **change}))
    with pytest.raises(ValueError, match=f"fleet.json: {says}|fleet.json.*{says}"):
        description.read(tmp_path / "fleet.json")


def test_an_error_names_what_is_lost():
    error = SequenceLost([f"c{i}" for i in range(12)], "n1")
    assert (error.code, error.reason, error.node, len(error.families)) == ("NOT_FOUND", "SEQUENCE_LOST", "n1", 12)
    assert "n1" in str(error) and "4 more" in str(error)


def test_a_family_that_moves_keeps_its_generation():
    store = {}
    placed = table(store=store)
    held = placed.place("x", "m", "x", "")
    other, third = (name for name in ("n0", "n1", "n2") if name != held.node)
    placed.move("x", "m", 2, (held.node, 1), (other, 1))
    placed.move("x", "m", 1, (held.node, 1), (third, 1))  # a late word of an earlier move
    placed.move("x", "m", 3, (held.node, 1), (third, 1))  # from where it is no more
    placed.move("y", "m", 1, (held.node, 1), (third, 1))  # which nobody has placed
    moved = placed.locate("x", "m")
    assert (moved.node, moved.moves, moved.generation, moved.lost) == (other, 2, held.generation, False)
    assert placed.loads() == {held.node: 0, other: 1, third: 0}
    assert Table("f", store).locate("x", "m") == moved
    assert placed.elsewhere([held, moved]) == {("m", "x")} and placed.elsewhere([moved]) == set()
    placed.move("x", "m", 3, (other, 1), (third, 0))  # to a server that has been started again since
    assert placed.locate("x", "m").lost and placed.elsewhere([held]) == set()
    with pytest.raises(ValueError, match="there is no 'n9'"):
        placed.move("x", "m", 4, (third, 0), ("n9", 1))


def test_a_family_that_is_made_anew_goes_where_its_old_node_sends_it():
    """Its new server counts no moves of an earlier life, and neither does the directory: the next move is known."""
    placed = table()
    held = placed.place("x", "m", "x", "")
    other, third = (name for name in ("n0", "n1", "n2") if name != held.node)
    placed.move("x", "m", 2, (held.node, 1), (other, 0))  # lost there
    placed.place("x", "m", "x", held.node)  # whose server still says that it has moved, and takes it no more
    placed.move("x", "m", 2, (held.node, 1), (other, 1), making=True)
    now = placed.locate("x", "m")
    assert (now.node, now.lost, now.moves) == (other, False, 0)
    placed.move("x", "m", 1, (other, 1), (third, 1))
    now = placed.locate("x", "m")
    assert (now.node, now.lost, now.moves) == (third, False, 1)


def test_nodes_that_have_refused_a_family_are_passed_over():
    placed = table()
    first = placed.place("x", "m", "x")
    assert placed.place("x", "m", "x/2", "", [first.node]).node == first.node  # it is there
    placed.move("x", "m", 1, (first.node, 1), ("gone", 0))  # to a node that was taken out of the fleet
    assert placed.locate("x", "m").lost
    second = placed.place("x", "m", "x", "", [first.node])
    assert second.node != first.node
    with pytest.raises(ValueError):
        placed.place("y", "m", "y", "", ["n0", "n1", "n2"])


def test_a_family_leaves_a_node_that_ends_meanwhile():
    placed = table()
    held = placed.place("x", "m", "x", "")
    other = next(name for name in ("n0", "n1", "n2") if name != held.node)
    placed.leave(held.node, 1)
    placed.move("x", "m", 1, (held.node, 1), (other, 1))
    assert placed.locate("x", "m").node == other and not placed.locate("x", "m").lost


def test_what_a_node_is_thought_to_hold_can_be_forgotten():
    placed = table(2)
    routes = [placed.place(f"c{i}", "m", f"c{i}", "") for i in range(6)]
    there = placed.held("n0")
    assert there == [route for route in routes if route.node == "n0"]
    placed.move(there[0].family, "m", 1, ("n0", 1), ("n1", 1))
    placed.forget(there)  # but for what has moved since
    assert placed.held("n0") == [] and placed.loads() == {"n0": 0, "n1": 6 - len(there) + 1}


def test_a_family_that_was_made_again_is_not_elsewhere():
    placed = table()
    held = placed.place("x", "m", "x", "")
    placed.leave(held.node, 1)
    assert placed.place("x", "m", "x", "").node != held.node
    assert placed.elsewhere([held]) == set()


def test_families_of_two_indexes_are_two():
    placed = table()
    held = {index: placed.place("x", index, "x", "") for index in ("m", "draft")}
    assert sum(placed.loads().values()) == 2
    other = next(name for name in ("n0", "n1", "n2") if name not in {route.node for route in held.values()})
    placed.move("x", "m", 1, (held["m"].node, 1), (other, 1))
    assert placed.locate("x", "m").node == other and placed.locate("x", "draft") == held["draft"]
    placed.remove_index("m")
    assert placed.locate("x", "m") is None and placed.locate("x", "draft") == held["draft"]
