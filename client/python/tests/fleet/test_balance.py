"""Which families a fleet moves to be even. No server, no Ray."""

import numpy as np

from seine_kv.fleet.balance import plan


def held(**sizes):
    return {node: {("m", f"{node}-{i}"): size for i, size in enumerate(families)} for node, families in sizes.items()}


def after(there, moves):
    there = {node: dict(families) for node, families in there.items()}
    for move in moves:
        there[move.target][move.key] = there[move.source].pop(move.key)
    return {node: sum(families.values()) for node, families in there.items()}


def test_a_new_node_gets_its_share():
    there = held(a=[1] * 8, b=[1] * 8, c=[])
    moves = plan(there)
    assert max(after(there, moves).values()) * 4 * 3 <= 5 * 16
    assert {move.target for move in moves} == {"c"} and len({move.key for move in moves}) == len(moves)


def test_what_is_even_enough_stays():
    assert plan(held(a=[5], b=[4])) == plan(held(a=[7])) == plan({}) == plan(held(a=[], b=[])) == []


def test_a_family_that_is_all_of_a_node_stays():
    assert plan(held(a=[100], b=[])) == []  # it would be as full elsewhere
    assert [move.key for move in plan(held(a=[100, 1], b=[]))] == [("m", "a-1")]


def test_the_bound_is_kept():
    there = held(a=[4, 4, 4, 2], b=[])
    assert plan(there, 1) == [] and [move.bytes for move in plan(there, 5)] == [4]
    assert [move.bytes for move in plan(there)] == [4, 2]


def test_any_fleet_gets_more_even_and_never_less():
    random = np.random.default_rng(3)
    for _ in range(50):
        there = held(**{name: [int(size) for size in random.zipf(1.5, random.integers(0, 20)) if size < 1000] for name in "abcd"})
        loads = after(there, moves := plan(there))
        before = after(there, [])
        assert max(loads.values()) <= max(before.values()) and min(loads.values()) >= min(before.values())
        assert not moves or sum(load**2 for load in loads.values()) < sum(load**2 for load in before.values())
