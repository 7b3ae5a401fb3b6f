"""Creates families that nobody else uses, and deletes them: whether new ones find a place."""

import itertools
import threading
import time

from chaos.text import count_failure

from seine_kv.messages import SeineError


class Visitor(threading.Thread):
    """One family after another, until stop()."""

    def __init__(self, client, service):
        super().__init__(daemon=True, name="visitor")
        self._client, self._service, self._over, self._error = client, service, threading.Event(), None
        self.counts = dict.fromkeys(("lost", "unstated_errors"), 0)

    def run(self):
        try:
            for number in itertools.count():
                if self._over.wait(0.05):
                    return
                self._visit(f"visitor-{number}")
        except Exception as error:  # what a client may not raise is a finding
            self._error = error

    def stop(self):
        """Ends the thread, and raises what it met that is no error of a call."""
        self._over.set()
        self.join()
        if self._error is not None:
            raise self._error

    def _visit(self, family):
        begin = time.monotonic()
        try:
            sequence = self._client.create_sequence("m", family)
            self._service.made(begin)
            self._client.delete_sequence(sequence)
        except SeineError as error:
            count_failure(self.counts, error)
