"""The counts as metrics of Prometheus. They are of the process that attends, vLLM's worker, while its server's /metrics is of another:
the server shows them where PROMETHEUS_MULTIPROC_DIR names a folder that all of vLLM's processes share."""

from prometheus_client import REGISTRY, Counter, Gauge

ANSWERS = {"coded": "codes", "exact": "exact", "gated": "gate"}  # count -> label


class Metrics:
    """One a process. Counters grow by what is new since they were last shown."""

    def __init__(self, registry=REGISTRY):
        made = {"registry": registry}
        self._answers = Counter("seine_answers", "Answers: one token's attention in one layer", ["how"], **made)
        self._counters = {
            "prompt_tokens": Counter("seine_prompt_tokens", "Tokens of prompts, in each layer", **made),
            "encoded_keys": Counter("seine_encoded_keys", "Keys encoded, of all heads and layers", **made),
            "found_windows": Counter("seine_unseen_windows", "Windows that somebody wrote unseen", **made),
        }
        self._seconds = Counter("seine_attention_seconds", "Time of attention, encoding with decoding", ["of"], **made)
        self._gauges = {
            "bytes": Gauge("seine_code_bytes", "Codes held", multiprocess_mode="livesum", **made),
            "gate": Gauge("seine_gate_layers", "Layers that the gate has attend exactly", multiprocess_mode="livesum", **made),
        }
        self._shown = {}

    def show(self, counts):
        """counts: Report.counts()."""
        for name, label in ANSWERS.items():
            self._answers.labels(label).inc(self._new(name, counts[name]))
        self._answers.labels("declined").inc(self._new("declined", sum(counts["declined"].values())))
        for name, counter in self._counters.items():
            counter.inc(self._new(name, counts[name]))
        for name, label in (("decode_us", "decoding"), ("prompt_us", "prompts")):
            self._seconds.labels(label).inc(self._new(name, counts[name]) / 1e6)
        self._gauges["bytes"].set(counts["bytes"])
        self._gauges["gate"].set(len(counts["gate"]))

    def _new(self, name, count):
        """Layers that are gone take their counts with them: what is left counts from there."""
        before, self._shown[name] = self._shown.get(name, 0), count
        return max(count - before, 0)
