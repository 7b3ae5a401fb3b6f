"""Steps over all texts that can decode, each answer compared with exact attention in float64."""

import sys
import threading
import time

from chaos.text import MOST, count_failure

from seine_kv.fleet import family_of
from seine_kv.messages import Append, Attention, Item, SeineError


class Decoder(threading.Thread):
    """Texts that fail or are full go to the mender, which gives them back. So a step waits for no sequence to be made.
    decoding: how many the last step answered."""

    def __init__(self, client, service, mender):
        super().__init__(daemon=True, name="decoder")
        self._client, self._service, self._mender = client, service, mender
        self._texts, self._over, self._error = [], threading.Event(), None
        self.decoding = 0
        self.counts = dict.fromkeys(("steps", "wrong", "unstated_errors", "lost", "answers"), 0)

    def run(self):
        try:
            while not self._over.is_set():
                self.step()
        except Exception as error:  # what a client may not raise is a finding
            self._error = error

    def stop(self):
        """Ends the thread, and raises what it met that is no error of a call."""
        self._over.set()
        self.join()
        if self._error is not None:
            raise self._error

    def step(self):
        """A step of all texts that the decoder has, or a moment's rest where it has none."""
        self._texts += self._mender.mended(wait=0.0 if self._texts else 0.05)
        if not self._texts:
            return
        begin, asked = time.monotonic(), self._texts
        appends = [Append(t.sequence, 0, t.tokens, *t.rows(t.tokens, t.tokens + 1)) for t in asked]
        items = [Item(t.sequence, 0, t.queries) for t in asked]
        step = self._client.step(appends, items, Attention(tail=False), on_error="return", exact=True)
        if step.error is not None:
            count_failure(self.counts, step.error)
            return
        answered = [self._take(*each) for each in zip(asked, step.append_errors, step.attended)]
        self._service.answered([text for text, good in zip(asked, answered) if good], begin)
        self._texts = [text for text, good in zip(asked, answered) if good and text.tokens < MOST]
        self._mender.take([text for text in asked if text not in self._texts])
        self.decoding = sum(answered)
        self.counts["steps"] += 1

    def _take(self, text, error, attended):
        """Whether a text's part of a step was answered."""
        failure = error or attended.error
        if error is None:
            text.tokens += 1
        if failure is not None:
            count_failure(self.counts, failure)
            if failure.code == "NOT_FOUND":
                text.sequence = None
        elif attended.num_tokens != text.tokens or not text.agrees(attended):
            self.counts["wrong"] += 1
            told = f"{text.id} on {text.node}: {attended.num_tokens} tokens, {text.tokens} appended"
            print(f"wrong: {told}", file=sys.stderr)
        self.counts["answers"] += failure is None
        route = self._client.router.known(text.sequence) if failure is None else None
        text.node = route.node if route else text.node  # a drain may have moved it
        return failure is None

    def twice(self):
        """How many families more than one node holds."""
        held = []
        for node in self._client.describe()["nodes"]:
            try:
                infos = self._client.node(node["name"]).list_sequences("m")
            except SeineError as error:
                if error.code != "NOT_FOUND":  # a node that was started again and has got no family yet
                    raise
                continue
            held += {family_of(info.handle.id) for info in infos}
        return len(held) - len(set(held))
