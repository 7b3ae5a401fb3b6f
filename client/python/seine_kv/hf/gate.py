"""Seine measures itself where it runs: now and then an answer is attended exactly too, and a layer that errs too much attends
exactly from then on, until it is tried again."""

import warnings
from collections import deque
from dataclasses import dataclass, field

import numpy as np

BOUND = 0.25  # of a layer's mean error
EVERY = 256  # answers of a layer from check to check, once it is known
EARLY = (1, 2, 4, 8, 16, 32, 64, 128)  # answers of a layer, or since it was tried again, that are checked before
KEPT = 8  # checks that the mean is over
PAUSE = 4096  # exact answers of a layer, after which the index is tried again


class GateWarning(UserWarning):
    """A layer's answers are too far from exact attention: it attends exactly from now on. Stats have the figures."""


@dataclass
class GateStats:
    """Of answers from the codes alone: short contexts are exact by themselves."""

    checks: int = 0
    error_sum: float = 0.0  # of each check: |output - exact| / |exact|, the mean of its query heads
    worst: float = 0.0
    exact_layers: dict = field(default_factory=dict)  # layer of the model that attends exactly now -> its error
    exact_rows: int = 0  # answers of such layers

    @property
    def mean_error(self):
        return self.error_sum / self.checks if self.checks else 0.0

    def lines(self):
        if self.checks:
            yield f"{self.checks:,} answers checked against exact attention: error {self.mean_error:.3f}, at most {self.worst:.3f}"
        if self.exact_layers:
            layers = ", ".join(f"{layer} ({error:.2f})" for layer, error in sorted(self.exact_layers.items()))
            yield f"layers that attend exactly, for their error was above the gate's: {layers}"


@dataclass
class _Layer:
    answers: int = 0  # from the codes, since it began or was tried again
    coded: bool = False  # whether the last one was; short zones are read whole
    errors: deque = field(default_factory=lambda: deque(maxlen=KEPT))
    exact_left: int = 0  # answers that are still exact
    tries: int = 0


class Gate:
    """bound: of a layer's mean error; None: nothing is checked. layers: of the model, which are served."""

    def __init__(self, bound, layers):
        if bound is not None and not bound > 0:
            raise ValueError(f"gate_bound: must be above 0, not {bound}")
        self._bound = bound
        self._layers = {layer: _Layer() for layer in layers} if bound is not None else {}
        self._warned = False
        self.stats = GateStats()

    def exact(self, layer):
        """Whether the layer attends exactly now."""
        return bool(self._layers) and self._layers[layer].exact_left > 0

    def count_exact(self, layer, rows):
        """So many exact answers of a layer have come."""
        state = self._layers[layer]
        self.stats.exact_rows += rows
        state.exact_left = max(0, state.exact_left - rows)
        if not state.exact_left:
            self.stats.exact_layers.pop(layer, None)

    def widened(self, layer, selector):
        """The selector of a layer that was tried again: twice the tokens for each time that it failed."""
        tries = self._layers[layer].tries if self._layers else 0
        return {**selector, "top_k": selector["top_k"] << tries} if tries and "top_k" in selector else selector

    def due(self, layer, rows):
        """Which of `rows` answers to come is to be checked; None: none. Layers take turns."""
        if not self._layers or not self._layers[layer].coded:
            return None
        answers = self._layers[layer].answers
        for row in range(rows):
            number = answers + row + 1
            if number in EARLY or (number + 37 * layer) % EVERY == 0:
                return row
        return None

    def answered(self, layer, paths):
        """Answers of a layer have come, by their paths."""
        if self._layers:
            coded = sum(path == "index" for path in paths)
            self._layers[layer].answers += coded
            self._layers[layer].coded = coded > 0

    def check(self, layer, output, exact):
        """Compares an answer with exact attention; both [query heads, head_dim]."""
        state, stats = self._layers[layer], self.stats
        norms = np.linalg.norm(exact, axis=1)
        error = float(np.mean(np.linalg.norm(output - exact, axis=1) / np.maximum(norms, 1e-20)))
        stats.checks += 1
        stats.error_sum += error
        stats.worst = max(stats.worst, error)
        state.errors.append(error)
        mean = sum(state.errors) / len(state.errors)
        if len(state.errors) < 4 or mean <= self._bound:
            return
        stats.exact_layers[layer] = mean
        self._layers[layer] = _Layer(exact_left=PAUSE, tries=min(state.tries + 1, 4))
        if not self._warned:
            text = f"layer {layer} attends exactly from now on: its answers differ from exact attention by {mean:.2f}, above {self._bound:g}"
            warnings.warn(f"{text}; stats().gate has every layer", GateWarning, stacklevel=2)
        self._warned = True
