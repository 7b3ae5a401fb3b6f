"""The index watches itself where it runs: now and then it compares an answer with exact ones, and a layer whose answers lose
too much of its attention is attended exactly from then on, until it is tried again (docs/python.md, index/layer_gate.h)."""

from dataclasses import dataclass, field


class GateWarning(UserWarning):
    """A layer loses too much of its attention: it attends exactly from now on. Stats have the figures."""


@dataclass
class GateStats:
    """Of answers from the codes alone: short contexts are exact by themselves. As GetIndex tells, at the time of stats()."""

    checks: int = 0
    mean_lost: float = 0.0  # share of attention that the exact top k holds and the answers' do not, the mean of the checks
    exact_rows: int = 0  # answers of layers that attend exactly, since they lost too much
    exact_layers: dict = field(default_factory=dict)  # layer of the model that does now -> what it lost

    def lines(self):
        if self.checks:
            yield f"{self.checks:,} answers checked: {self.mean_lost:.4f} of attention lost"
        if self.exact_layers:
            layers = ", ".join(f"{layer} ({lost:.2f})" for layer, lost in sorted(self.exact_layers.items()))
            yield f"layers that attend exactly, for they lost too much of their attention: {layers}"


def read_gate(info, names):
    """GateStats of an index, from get_index's dict. names: the model's layer of each of the index's."""
    gate = info.get("gate")
    if gate is None:  # a server that is older
        return GateStats()
    layers = {names[layer["layer"]]: layer["lost"] for layer in gate["layers"]}
    return GateStats(gate["checks"], gate["mean_lost"] or 0.0, gate["exact_answers"], layers)


def bound_of(gate, bound, whole):
    """The index's setting that install's arguments ask for; None: its default. ValueError."""
    if gate and not whole:
        raise ValueError("gate: with evict or low_rank answers differ from exact attention on purpose")
    if bound is not None and (gate is False or not whole):
        raise ValueError("gate_bound: nothing is watched, with gate=False, evict or low_rank")
    if bound is not None and not 0 < bound <= 1:
        raise ValueError(f"gate_bound: must be above 0 and at most 1, not {bound}")
    return 0.0 if gate is False and whole else bound
