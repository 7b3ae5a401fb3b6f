"""Makes the sequences that texts need, anew where they were lost, beside a decoder that goes on."""

import queue
import threading
import time

from chaos.text import MOST, PROMPT, count_failure

from seine_kv.messages import SeineError, Sequence


THREADS = 4  # a call that waits for a node or for Ray keeps one


class Mender:
    """Takes texts that lack a sequence, failed a step, or are full; gives them back when they can decode."""

    def __init__(self, client, texts):
        self._client = client
        self._broken, self._mended, self._over = queue.SimpleQueue(), queue.SimpleQueue(), threading.Event()
        self.counts, self._lock = dict.fromkeys(("lost", "unstated_errors", "moves"), 0), threading.Lock()
        self._error = None
        self._threads = [threading.Thread(target=self._run, daemon=True, name="mender") for _ in range(THREADS)]
        self.take(texts)

    def start(self):
        for thread in self._threads:
            thread.start()

    def take(self, texts):
        for text in texts:
            self._broken.put(text)

    def mended(self, wait):
        """The texts that can decode again; waits so many seconds for a first one."""
        texts = []
        try:
            texts.append(self._mended.get(timeout=wait) if wait else self._mended.get_nowait())
            while True:
                texts.append(self._mended.get_nowait())
        except queue.Empty:
            if self._error is not None:
                raise self._error
            return texts

    def stop(self):
        """Ends the threads, and raises what they met that is no error of a call."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def _run(self):
        while not self._over.is_set():
            try:
                text = self._broken.get(timeout=0.05)
            except queue.Empty:
                continue
            try:
                self._mend(text)
            except Exception as error:  # what a client may not raise is a finding
                self._error = error
                return

    def _mend(self, text):
        try:
            if text.tokens >= MOST and text.sequence is not None:
                self._client.delete_sequence(text.sequence)
                text.renew()
            if text.sequence is None:
                self._make(text)
            else:
                self._client.get_sequence(text.sequence)  # it answers again, or is lost
        except SeineError as error:
            self._failed(text, error)
        else:
            self._mended.put(text)

    def _failed(self, text, error):
        with self._lock:
            count_failure(self.counts, error)
        if error.code == "NOT_FOUND":
            text.sequence = None
        self._over.wait(0.02)
        self._broken.put(text)

    def _make(self, text):
        """Creates a text's sequence and appends all tokens that it had."""
        if text.tokens >= MOST:
            text.renew()
        text.made = time.monotonic()
        sequence = self._created(text)
        tokens = max(PROMPT, text.tokens)
        self._client.append(sequence, 0, 0, *text.rows(0, tokens))
        node = self._client.node_of(sequence)
        with self._lock:
            self.counts["moves"] += text.node not in ("", node)
        text.sequence, text.tokens, text.node = sequence, tokens, node

    def _created(self, text):
        try:
            return self._client.create_sequence("m", text.id)
        except SeineError as error:
            if error.code != "ALREADY_EXISTS":  # an earlier attempt that was not answered had come through
                raise
            return self._client.get_sequence(Sequence("m", text.id)).handle
