"""What became of the answers: lines in vLLM's log, now and then and at exit, and counters of Prometheus."""

import threading
import time
import weakref
from multiprocessing import util

from vllm.logger import init_logger

from seine_vllm import settings
from seine_vllm.metrics import Metrics

logger = init_logger("vllm.seine")


class Report:
    """Sums the counts of all layers."""

    def __init__(self):
        self._impls, self._told_gate, self._last, self._started = {}, set(), None, False
        self._saying, self._metrics, self._refused = threading.Lock(), None, False

    def add(self, name, impl):
        """A layer's counts from now on, while vLLM has the layer."""
        self._impls[name] = weakref.ref(impl)

    def _counts_of_layers(self):
        for name, ref in list(self._impls.items()):
            impl = ref()
            if impl is not None and impl.seine is not None:
                yield name, impl.seine.counts()

    def counts(self):
        """Sums over layers; declined: reason -> answers; gate: layers that attend exactly now -> what they lost."""
        total, gate, declined = {}, {}, {}
        for name, counts in self._counts_of_layers():
            for why, count in counts.pop("declined").items():
                declined[why] = declined.get(why, 0) + count
            lost = counts.pop("gate_lost_then")
            if counts.pop("gate_exact"):
                gate[name] = lost
            for key, value in counts.items():
                total[key] = total.get(key, 0) + value
        return {**total, "declined": declined, "gate": gate}

    def start(self):
        """Lines come from now on."""
        if self._started:
            return
        self._started = True
        util.Finalize(None, self.say, exitpriority=0)  # processes of multiprocessing, as vLLM's workers are, run no atexit
        every = settings.of_process().log_every
        if every:
            threading.Thread(target=self._say_again, args=(every,), name="seine-report", daemon=True).start()

    def _say_again(self, every):
        while True:
            time.sleep(every)
            self.say()

    def say(self):
        """A line, if anything has changed, and a warning for each layer that the gate has stopped."""
        with self._saying:
            self._say()

    def _say(self):
        counts = self.counts()
        for name, lost in counts["gate"].items():
            if name not in self._told_gate:
                self._told_gate.add(name)
                logger.warning("seine: the gate: %s attends exactly from now on, for its codes lose %.3f of attention", name, lost)
        if counts == self._last or "coded" not in counts:
            return
        self._last = counts
        logger.info("seine: %s", line_of(counts))
        if self._refused:
            return
        try:
            self._metrics = self._metrics or Metrics()
            self._metrics.show(counts)
        except (OSError, RuntimeError, ValueError) as error:  # a folder that is gone or full, or names that another has taken
            self._refused = True
            logger.warning("seine: counts are in the log alone from now on, for Prometheus's client refuses them: %s", error)


def line_of(counts):
    """One line. An answer is a token's in one layer."""
    parts = [
        f"answers: {counts['coded']:,} by codes, {counts['exact']:,} exact (short), {counts['gated']:,} exact (gate), "
        f"{sum(counts['declined'].values()):,} declined",
        f"prompts: {counts['prompt_tokens']:,} tokens",
        f"{counts['encoded_keys']:,} keys encoded, {counts['changed_windows']:,} windows changed, codes {counts['bytes'] / 2**20:.1f} MiB",
        f"decoding {counts['decode_us'] / 1e6:.2f} s (encoding {counts['encode_us'] / 1e6:.2f}), prompts {counts['prompt_us'] / 1e6:.2f} s",
    ]
    if counts["prompt_runs_taken"] < counts["prompt_runs_seen"]:
        parts[1] += f", {counts['prompt_runs_taken'] / counts['prompt_runs_seen']:.1%} of their keys attended"
    if counts["gate_checks"]:
        parts.append(f"gate: {counts['gate_checks']:,} checks, {counts['gate_lost'] / counts['gate_checks']:.4f} lost")
    if counts.get("cut"):
        parts.append(f"{counts['cut']:,} of those by codes partly row by row, for want of room")
    if counts["found_windows"]:
        parts.append(f"{counts['found_windows']:,} windows written unseen")
    parts += [f"declined {count:,}: {why}" for why, count in counts["declined"].items()]
    return "; ".join(parts)
