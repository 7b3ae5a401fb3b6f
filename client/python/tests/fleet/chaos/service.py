"""How long a kill interrupts those whom it hits, and those whom it does not."""

import threading
import time
from dataclasses import dataclass, field

FIGURES = ("first_answer_s", "last_answer_s", "others_stall_s", "new_family_s")


@dataclass
class _Outage:
    """From a kill until whatever it hit is served again. hit: numbers of the texts that are still to be answered."""

    kind: str
    at: float
    hit: set
    last_step: float
    figures: dict = field(default_factory=dict)

    def over(self):
        return not self.hit and "new_family_s" in self.figures


class Service:
    """Seconds without service, by what was killed. May be shared by threads."""

    def __init__(self, texts):
        self._texts, self._lock, self._outages = texts, threading.Lock(), []

    def killed(self, kind, node=""):
        """Is told right before a kill. node: the one that holds what the kill ends, if any."""
        now = time.monotonic()
        hit = {text.number for text in self._texts if node and text.node == node}
        with self._lock:
            self._outages.append(_Outage(kind, now, hit, now))

    def answered(self, texts, begin):
        """A step that began then has answered these texts."""
        now = time.monotonic()
        made = {text.number: text.made for text in texts}
        with self._lock:
            for outage in self._open():
                back = {number for number in outage.hit if made.get(number, 0.0) > outage.at}
                if back:
                    outage.figures.setdefault("first_answer_s", now - outage.at)
                    outage.hit -= back
                    outage.figures["last_answer_s"] = now - outage.at
                if begin > outage.at and made.keys() - outage.hit - back:
                    stall = now - outage.last_step
                    outage.figures["others_stall_s"] = max(stall, outage.figures.get("others_stall_s", 0.0))
                    outage.last_step = now

    def made(self, begin):
        """A family whose creation began then is there."""
        now = time.monotonic()
        with self._lock:
            for outage in self._open():
                if begin > outage.at:
                    outage.figures.setdefault("new_family_s", now - outage.at)

    def by_kind(self):
        """Kills of each kind, and the longest of each figure."""
        found = {}
        for outage in self._outages:
            kind = found.setdefault(outage.kind, {"kills": 0})
            kind["kills"] += 1
            for name in FIGURES:
                if name in outage.figures:
                    kind[name] = round(max(outage.figures[name], kind.get(name, 0.0)), 2)
        return found

    def _open(self):
        return [outage for outage in self._outages if not outage.over()]
