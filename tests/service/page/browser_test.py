#!/usr/bin/env python3
"""The page in a headless Chromium, against a running server: what it shows is what the command line says.

usage: browser_test.py test CHROMIUM SEINED SEINE
       browser_test.py pictures CHROMIUM URL FOLDER VIEW    a view's picture: desktop, dark and phone
"""

import base64
import contextlib
import json
import math
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import time
import urllib.parse

LAYERS, Q_HEADS, KV_HEADS, DIM, TOKENS = 3, 4, 2, 64, 700
GEOMETRY = ["--layers", str(LAYERS), "--q-heads", str(Q_HEADS), "--kv-heads", str(KV_HEADS), "--head-dim", str(DIM)]
ZONES = ["--sink", "64", "--local", "64", "--update-buffer", "64", "--dense-threshold", "128"]
OWNED = "\"><img/src=x/onerror=document.title='owned'>/../%2e%2e#?"  # the id of a sequence
WAIT = 20  # seconds


class Browser:
    """Chromium by its debugging pipe: messages of JSON, each ended by a zero byte."""

    def __init__(self, chromium: str, folder: str) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--hide-scrollbars", "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "_", chromium, *flags],
            pass_fds=(to_read, to_write),
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._bytes, self._next, self._session = b"", 0, None
        self.wrong: list[str] = []  # what the console, the policy or the network complain of
        self.asked: list[str] = []  # addresses
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(WAIT)

    def send(self, method: str, **params: object) -> dict:
        self._next += 1
        message = {"id": self._next, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") != self._next:
                self._event(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def _receive(self) -> dict:
        while b"\0" not in self._bytes:
            more = os.read(self._read, 1 << 16)
            assert more, "Chromium has ended"
            self._bytes += more
        message, self._bytes = self._bytes.split(b"\0", 1)
        return json.loads(message)

    def _event(self, event: dict) -> None:
        kind, params = event.get("method"), event.get("params", {})
        if kind == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])
        elif kind == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.wrong.append(params["entry"]["text"])
        elif kind == "Runtime.exceptionThrown":
            self.wrong.append(json.dumps(params["exceptionDetails"]))

    def run(self, script: str) -> object:
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, url: str) -> None:
        """Goes there, and waits until the view is drawn."""
        self.send("Page.navigate", url=url)
        self.wait_for(f"document.getElementById('main')?.dataset.drawn === {json.dumps('#' + url.partition('#')[2])}")

    def wait_for(self, script: str) -> None:
        until = time.monotonic() + WAIT
        while not self.run(script):
            assert time.monotonic() < until, (script, self.run("document.body.innerText"), self.wrong)
            time.sleep(0.02)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def look_like(self, dark: bool, width: int, height: int) -> None:
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=scheme)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def fields(self, selector: str) -> dict:
        """data-field and data-value of what is inside."""
        found = f"[...document.querySelector({json.dumps(selector)}).querySelectorAll('[data-value]')]"
        return self.run(f"Object.fromEntries({found}.map(e => [e.dataset.field, e.dataset.value]))")


@contextlib.contextmanager
def server(seined, seine):
    """A server that is asked and sampled: its command line as a function, and where its page is."""
    with tempfile.TemporaryDirectory() as folder:
        address, log = f"unix:{folder}/s.sock", pathlib.Path(folder, "log")
        flags = ["--metrics-listen", "127.0.0.1:0", "--metrics-page", "--quality-sample", "1", "--quality-share", "1"]
        with log.open("w") as out:
            process = subprocess.Popen([seined, "--listen", address, *flags], stderr=out)

        def cli(*words, given=None):
            command = [seine, *words, "--server", address]
            return subprocess.run(command, input=given, check=True, capture_output=True, text=True).stdout

        try:
            cli("health", "--wait", "20")
            url = re.search(r"page: (http://\S+)", log.read_text())
            assert url, log.read_text()
            yield cli, url[1]
        finally:
            process.terminate()
            assert process.wait(timeout=20) == 0


def tensor(dtype, shape, values):
    kind = {"D_TYPE_FLOAT16": "e", "D_TYPE_FLOAT32": "f"}[dtype]
    raw = struct.pack(f"<{len(values)}{kind}", *values)
    return {"dtype": dtype, "shape": shape, "raw": base64.b64encode(raw).decode()}


def fill(cli):
    """Indexes, sequences and a few steps."""
    draw = random.Random(5)
    cli("index", "create", "demo", *GEOMETRY, "--dtype", "fp16", *ZONES, "--kv-store", "keys", "--top-k", "40")
    cli("index", "create", "empty", *GEOMETRY, "--dtype", "fp16")
    for name in ["chat", OWNED, *(f"more-{i:03}" for i in range(110))]:
        cli("seq", "create", "demo", name)
    for layer in range(2):
        keys = [draw.gauss(0, 1) for _ in range(TOKENS * KV_HEADS * DIM)]
        item = {"handle": {"index": "demo", "id": "chat"}, "layer": layer, "position": 0}
        item["keys"] = tensor("D_TYPE_FLOAT16", [TOKENS, KV_HEADS, DIM], keys)
        cli("call", "Append", "-", given=json.dumps({"item": item}))
    retrieve(cli, draw, 3)


def retrieve(cli, draw, times):
    for _ in range(times):
        queries = tensor("D_TYPE_FLOAT32", [Q_HEADS, DIM], [draw.gauss(0, 1.5) for _ in range(Q_HEADS * DIM)])
        items = [{"handle": {"index": "demo", "id": "chat"}, "layer": layer, "queries": queries} for layer in range(2)]
        cli("call", "Retrieve", "-", given=json.dumps({"items": items}))


def same(shown, said, what):
    assert set(shown) <= set(said), (what, shown, said)
    for field, value in shown.items():
        assert math.isclose(float(value), float(said[field]), rel_tol=1e-9), (what, field, value, said[field])


def check_heads(browser, cli, url):
    for layer in range(2):
        browser.open(f"{url}#/index/demo/seq/chat/layer/{layer}")
        for head in range(KV_HEADS):
            place = ["demo", "chat", "--layer", str(layer), "--kv-head", str(head)]
            said = json.loads(cli("head", "describe", *place, "-o", "json"))
            shown = browser.fields(f"[aria-label=Heads] [data-kv-head='{head}']")
            assert len(shown) >= 9 and int(shown["num_tokens"]) == TOKENS, shown
            same(shown, said, f"layer {layer}, head {head}")
        request = {"handle": {"index": "demo", "id": "chat"}, "layer": layer}
        check_step(browser, json.loads(cli("call", "DescribeStep", json.dumps(request))))
    browser.open(f"{url}#/index/demo/seq/chat/layer/2")
    assert "no query of it was seen" in browser.run("document.body.innerText")


def check_step(browser, step):
    size = int(browser.run("document.getElementById('heat').dataset.bin"))
    assert len(step["sets"]) == KV_HEADS
    for one in step["sets"]:
        row = f"[data-kv-head='{one['kv_head']}'][data-q-head='{one['q_head']}']"
        rects = f'[...document.querySelectorAll("#heat {row} rect")]'
        cells = browser.run(f"{rects}.map(r => [r.dataset.position, r.dataset.found].map(Number))")
        wanted = {}
        for position in one["positions"]:
            wanted[position // size * size] = wanted.get(position // size * size, 0) + 1
        assert dict(map(tuple, cells)) == wanted and sum(wanted.values()) == 40, (cells, wanted)
        shown = browser.fields(f"[data-set='{one['kv_head']},{one['q_head']}']")
        same(shown, {**one, "positions": len(one["positions"])}, row)
        assert {"sink", "local", "found", "tail", "recall"} < set(shown)
        assert math.isclose(sum(float(shown[kind]) for kind in ("sink", "local", "found", "tail")), 1, rel_tol=1e-5)


def check_lists(browser, cli, url):
    browser.open(f"{url}#/")
    said = json.loads(cli("index", "get", "demo", "-o", "json"))
    same(browser.fields("[data-index=demo]"), said, "index demo")
    assert browser.run("document.querySelectorAll('[data-index]').length") == 2
    browser.open(f"{url}#/index/demo")
    assert browser.run("document.querySelectorAll('[data-sequence]').length") == 100
    ids = browser.run("[...document.querySelectorAll('[data-sequence]')].map(e => e.dataset.sequence)")
    browser.run("[...document.querySelectorAll('a')].find(a => a.textContent === 'Next 100').click()")
    browser.wait_for("document.querySelectorAll('[data-sequence]').length === 12")
    ids += browser.run("[...document.querySelectorAll('[data-sequence]')].map(e => e.dataset.sequence)")
    listed = json.loads(cli("call", "ListSequences", '{"index": "demo"}'))["sequences"]
    assert ids == [sequence["handle"]["id"] for sequence in listed]


def check_names(browser, url):
    """An id that is markup, a path and an escape is shown as the text that it is, and leads to its own view."""
    browser.open(f"{url}#/index/demo")
    shown = f"[...document.querySelectorAll('[data-sequence] a')].find(a => a.textContent === {json.dumps(OWNED)})"
    browser.run(f"{shown}.click()")
    browser.wait_for(f"document.querySelector('h1').textContent === {json.dumps(OWNED)}")
    assert browser.run("document.images.length + document.querySelectorAll('main script, iframe').length") == 0
    assert browser.run("document.title") == f"Seine · demo · {OWNED}"
    encoded = urllib.parse.quote(OWNED, safe="!'()*~")
    assert browser.run("location.hash") == f"#/index/demo/seq/{encoded}"
    nowhere = ("index/nobody", "index/demo/seq/nobody", "index/demo/seq/chat/layer/99", "nothing")
    for wrong in (*nowhere, "index/%E0%A4%A", "index/%3Cb%3Ex"):
        browser.open(f"{url}#/{wrong}")
        assert "Nothing to show" in browser.run("document.querySelector('h1').textContent"), wrong


def check_keys(browser, url):
    browser.open(f"{url}#/index/demo/seq/chat/layer/0")
    browser.press("ArrowRight")
    browser.wait_for("document.getElementById('main').dataset.drawn === '#/index/demo/seq/chat/layer/1'")
    browser.press("ArrowLeft")
    browser.wait_for("document.getElementById('main').dataset.drawn === '#/index/demo/seq/chat/layer/0'")
    for drawn in ("#/index/demo/seq/chat", "#/index/demo", "#/"):
        browser.press("u")
        browser.wait_for(f"document.getElementById('main').dataset.drawn === {json.dumps(drawn)}")
    for _ in range(4):  # the header's two links and its button, then the first index
        browser.send("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
    assert browser.run("document.activeElement.textContent") == "demo", browser.run("document.activeElement.outerHTML")
    browser.run("document.activeElement.dataset.old = 1")
    browser.press("p")
    browser.press("p")
    browser.wait_for("!document.querySelector('[data-old]')")  # drawn anew, and still in focus
    assert browser.run("document.activeElement.textContent") == "demo", browser.run("document.activeElement.outerHTML")
    assert browser.run("typeof ask") == "undefined", "the script is a module: nothing of it is the window's"


def check_looks(browser, url):
    browser.open(f"{url}#/index/demo/seq/chat/layer/0")
    backs = []
    for dark in (False, True):
        browser.look_like(dark, 390, 844)
        backs.append(browser.run("getComputedStyle(document.body).backgroundColor"))
        for view in ("#/", "#/index/demo", "#/index/demo/seq/chat", "#/index/demo/seq/chat/layer/0", "#/fleet"):
            browser.open(url + view)
            assert browser.run("document.documentElement.scrollWidth") <= 390, view
    assert backs == ["rgb(255, 255, 255)", "rgb(13, 17, 23)"], backs
    browser.look_like(False, 1280, 900)


def check_quality(browser, cli, url):
    browser.open(f"{url}#/index/demo")
    retrieve(cli, random.Random(9), 4)
    until = time.monotonic() + WAIT
    while json.loads(cli("call", "GetMetrics"))["indexes"][0]["quality_sets"] != str(7 * 2 * KV_HEADS):
        assert time.monotonic() < until
    browser.run("document.getElementById('pause').click(), document.getElementById('pause').click()")
    browser.wait_for("document.querySelector('[aria-label=Recall]').dataset.points >= 1")
    metrics = json.loads(cli("call", "GetMetrics"))["indexes"][0]
    recall = 100 * metrics["quality_recall_sum"] / float(metrics["quality_sets"])
    assert f"Since the server began: recall {recall:.2f} %" in browser.run("document.body.innerText")


def check_fleet(browser, cli, url):
    cli("call", "SetFamilyState", '{"index": "demo", "family": "chat", "state": "FAMILY_STATE_FROZEN"}')
    browser.open(f"{url}#/fleet")
    assert "frozen" in browser.run("document.querySelector('[data-family=chat]').textContent")


def check_first_look(browser, url):
    browser.open(f"{url}#/")
    paint = browser.run("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    read = browser.run(
        "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
        ".filter(e => !e.name.includes('/api/')).reduce((sum, e) => sum + e.transferSize, 0)"
    )
    print(f"first paint after {paint:.0f} ms, {read} bytes")
    assert 0 < read <= 100_000


def test(chromium, seined, seine):
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        browser = Browser(chromium, folder)
        ends.callback(browser.close)
        with server(seined, seine) as (cli, url):
            fill(cli)
            browser.look_like(False, 1280, 900)
            check_first_look(browser, url)
            check_lists(browser, cli, url)
            check_heads(browser, cli, url)
            check_keys(browser, url)
            check_looks(browser, url)
            check_quality(browser, cli, url)
            check_fleet(browser, cli, url)
            expected = ("status of 400", "status of 404", "status of 409")  # of what is not there, and nothing else
            assert all(any(part in text for part in expected) for text in browser.wrong), browser.wrong
            check_names(browser, url)
            assert all(any(part in text for part in expected) for text in browser.wrong), browser.wrong
            assert browser.asked and all(one.startswith((url, "data:,")) for one in browser.asked), set(browser.asked)
        browser.run("dispatchEvent(new Event('hashchange'))")
        browser.wait_for("document.querySelector('.error') !== null")  # the server has ended


def pictures(chromium, url, folder, view):
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(chromium, profile)
        looks = {"desktop": (False, 1100, 900), "dark": (True, 1100, 900), "phone": (False, 390, 844)}
        for name, look in looks.items():
            browser.look_like(*look)
            browser.open(f"{url}#{view}")
            shot = browser.send("Page.captureScreenshot", format="png")["data"]
            pathlib.Path(folder, f"page-{name}.png").write_bytes(base64.b64decode(shot))
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    {"test": test, "pictures": pictures}[sys.argv[1]](*sys.argv[2:])
