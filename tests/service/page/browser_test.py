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
import signal
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
def server(seined, seine, *more, socket=None, sample="1"):
    """A server that is asked and sampled: its command line as a function, where its page is, and its process."""
    with tempfile.TemporaryDirectory() as folder:
        address, log = f"unix:{socket or folder + '/s.sock'}", pathlib.Path(folder, "log")
        flags = ["--metrics-listen", "127.0.0.1:0", "--metrics-page", "--quality-sample", sample, "--quality-share", "1"]
        with log.open("w") as out:
            process = subprocess.Popen([seined, "--listen", address, *flags, *more], stderr=out)

        def cli(*words, given=None):
            command = [seine, *words, "--server", address]
            return subprocess.run(command, input=given, check=True, capture_output=True, text=True).stdout

        try:
            cli("health", "--wait", "20")
            until = time.monotonic() + WAIT
            while not (url := re.search(r"page: (http://\S+)\n", log.read_text())):  # a line of the log may come later
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.02)
            yield cli, url[1], process
        finally:
            process.terminate()
            assert process.wait(timeout=20) in (0, -signal.SIGKILL), (process.returncode, log.read_text())


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
    browser.run(LOOK)
    browser.wait_for("document.querySelector('[aria-label=Recall]').dataset.points >= 1")
    metrics = json.loads(cli("call", "GetMetrics"))["indexes"][0]
    recall = 100 * metrics["quality_recall_sum"] / float(metrics["quality_sets"])
    assert f"Since the server began: recall {recall:.2f} %" in browser.run("document.body.innerText")


def check_families(browser, cli, url):
    cli("call", "SetFamilyState", '{"index": "demo", "family": "chat", "state": "FAMILY_STATE_FROZEN"}')
    browser.open(f"{url}#/fleet")
    assert "frozen" in browser.run("document.querySelector('[data-family=chat]').textContent")


def check_nothing_yet(browser, url):
    browser.open(f"{url}#/")
    assert "There is no index yet." in browser.run("document.body.innerText")
    browser.open(f"{url}#/fleet")
    (row,) = rows(browser, "Servers")
    assert row["health"] == "SERVER_HEALTH_SERVING" and "itself" in row["text"] and not row["page"]


def check_what_goes(browser, cli, url):
    """A sequence that is deleted while it is shown, and comes back."""
    cli("seq", "create", "demo", "short")
    browser.open(f"{url}#/index/demo/seq/short")
    assert browser.run("document.querySelector('h1').textContent") == "short"
    cli("seq", "delete", "demo", "short")
    browser.run(LOOK)
    browser.wait_for("document.querySelector('.error')?.textContent.includes('not found')")
    cli("seq", "create", "demo", "short")
    browser.run(LOOK)
    browser.wait_for("document.querySelector('h1').textContent === 'short' && !document.querySelector('.error')")


def rows(browser, label):
    """What a table of servers shows."""
    found = f"[...document.querySelectorAll('[aria-label={label}] tbody tr')]"
    page = "e.querySelector('a')?.href || ''"
    return browser.run(f"{found}.map(e => ({{...e.dataset, text: e.innerText, page: {page}}}))")


def by_name(browser):
    return {row["server"]: row for row in rows(browser, "Servers")}


LOOK = "document.getElementById('pause').click(), document.getElementById('pause').click(), 0"  # at once


def wait_for_health(browser, name, health):
    until = time.monotonic() + WAIT
    while by_name(browser)[name]["health"] != f"SERVER_HEALTH_{health}":
        assert time.monotonic() < until, (name, health, browser.run("document.body.innerText"))
        time.sleep(0.3)
        browser.run(LOOK)


def check_fleet(browser, seined, seine, folder):
    """Three servers that name each other by a file: one drains, one ends, and is started again."""
    sockets = {name: f"{folder}/{name}.sock" for name in ("n0", "n1", "n2")}
    nodes = [{"name": name, "address": socket} for name, socket in sockets.items()]
    nodes += [{"name": f"far-{i:03}", "address": f"192.0.2.1:{5000 + i}"} for i in range(120)]  # RFC 5737: nobody's
    file = pathlib.Path(folder, "fleet.json")
    file.write_text(json.dumps({"fleet": "three", "version": 1, "nodes": nodes[:3]}))
    with contextlib.ExitStack() as ends:
        start = {name: ends.enter_context(server(seined, seine, "--fleet-file", str(file), socket=sockets[name])) for name in sockets}
        (cli, url, _), (cli1, url1, _), (cli2, _, process2) = start["n0"], start["n1"], start["n2"]
        cli1("index", "create", "there", *GEOMETRY, "--dtype", "fp16")
        cli1("seq", "create", "there", "chat")
        cli2("call", "SetDraining", '{"draining": true}')
        browser.open(f"{url}#/fleet")
        wait_for_health(browser, "n1", "SERVING")
        wait_for_health(browser, "n2", "DRAINING")
        shown = by_name(browser)
        said = {one["name"]: one for one in json.loads(cli("call", "ListServers"))["servers"]}
        assert shown.keys() == said.keys() == set(sockets), shown
        for name, row in shown.items():
            same(browser.fields(f"[data-server={name}]"), {"families": 0, "num_sequences": 0, "memory_bytes": 0, **said[name], **said[name]["info"]}, name)
            assert said[name]["info"]["version"] in row["text"] and "fleet.file" in row["text"], row
        assert shown["n1"]["page"] == url1 + "#/" and not shown["n0"]["page"], "a link to the other's page, none to this"
        assert "(this page)" in shown["n0"]["text"]
        browser.run("document.querySelector('[data-server=n1] a').click()")
        browser.wait_for("document.querySelector('[data-index=there]') !== null")  # it leads there

        browser.open(f"{url}#/fleet")
        process2.kill()
        process2.wait()
        wait_for_health(browser, "n2", "UNREACHABLE")
        row = by_name(browser)["n2"]
        assert "unreachable" in row["text"], row
        assert browser.run("document.querySelector('[data-server=n2] .error').textContent"), "it says why"
        assert by_name(browser)["n1"]["health"] == "SERVER_HEALTH_SERVING"
        again = ends.enter_context(server(seined, seine, socket=sockets["n2"]))
        wait_for_health(browser, "n2", "SERVING")
        again[2].terminate()

        file.write_text(json.dumps({"fleet": "three", "version": 1, "nodes": nodes}))
        began = time.monotonic()
        browser.run(LOOK)
        browser.wait_for("document.querySelectorAll('[aria-label=Servers] tbody tr').length === 100")
        assert time.monotonic() - began < 1, "it waits for servers that do not answer"
        browser.run("[...document.querySelectorAll('a')].find(a => a.textContent === 'Next 100').click()")
        browser.wait_for("document.querySelectorAll('[aria-label=Servers] tbody tr').length === 23")
        wait_for_health(browser, "n1", "SERVING")
        check_fleets_looks(browser, url)
        check_false_pages(browser, url)
        file.write_text("no JSON")
        browser.open(f"{url}#/fleet")
        browser.wait_for("document.querySelector('p.error')?.textContent.startsWith('fleet.file: ')")


def check_fleets_looks(browser, url):
    for dark in (False, True):
        browser.look_like(dark, 390, 844)
        browser.open(f"{url}#/fleet")
        assert browser.run("document.documentElement.scrollWidth") <= 390
    browser.look_like(False, 1280, 900)
    for _ in range(4):  # the header's links and its button, then the first server that has a page of its own, or a page more
        browser.send("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
    assert browser.run("document.getElementById('main').contains(document.activeElement)")
    browser.press("h")
    browser.wait_for("document.getElementById('main').dataset.drawn === '#/'")


def check_false_pages(browser, url):
    """A server that tells another page than one on loopback: no link is made of it, and nothing of it runs."""
    wrong = ["javascript:document.title='owned'", "http://evil.example/page/", "//evil.example/page/", "http://127.0.0.1:1/page/#x",
             "http://127.0.0.1:1@evil.example:1/page/", "data:text/html,x", " http://127.0.0.1:1/page/", "http://localhost.evil:1/page/"]  # fmt: skip
    names = json.dumps([f"<img src=x onerror=alert({i})>" + "n" * 90 for i in range(len(wrong))])
    script = f"""const real = fetch, wrong = {json.dumps(wrong)}, names = {names};
        window.fetch = async (url, options) => {{
          if (!String(url).includes('ListServers')) return real(url, options);
          const servers = wrong.map((page, i) => ({{name: names[i], address: '127.0.0.1:1', known_by: 'KNOWN_BY_FILE',
            itself: false, health: '<b>HEALTH</b>', error: '<i>error</i>', families: '0', state: 'up', info: {{page, version: '<u>1</u>',
            num_sequences: '1', memory_bytes: '1', memory_limit_bytes: '0'}}}}));
          return new Response(JSON.stringify({{fleet: '<h6>', file_error: '', servers, next_page_token: '', num_servers: '8'}}));
        }};"""
    added = browser.send("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"]
    browser.send("Page.navigate", url="about:blank")
    browser.open(f"{url}#/fleet")
    shown = rows(browser, "Servers")
    assert len(shown) == len(wrong) and not any(row["page"] for row in shown), shown
    assert browser.run("document.querySelectorAll('main img, main b, main i, main u, main h6').length") == 0
    assert browser.run("document.documentElement.scrollWidth") <= 1280, "long names are wrapped"
    browser.send("Page.removeScriptToEvaluateOnNewDocument", identifier=added)
    browser.send("Page.navigate", url="about:blank")


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
        with server(seined, seine) as (cli, url, _):
            browser.look_like(False, 1280, 900)
            check_nothing_yet(browser, url)
            fill(cli)
            check_first_look(browser, url)
            check_lists(browser, cli, url)
            check_heads(browser, cli, url)
            check_keys(browser, url)
            check_looks(browser, url)
            check_quality(browser, cli, url)
            check_families(browser, cli, url)
            check_what_goes(browser, cli, url)
            expected = ("status of 400", "status of 404", "status of 409")  # of what is not there, and nothing else
            assert all(any(part in text for part in expected) for text in browser.wrong), browser.wrong
            check_names(browser, url)
            assert all(any(part in text for part in expected) for text in browser.wrong), browser.wrong
            assert browser.asked and all(one.startswith((url, "data:,")) for one in browser.asked), set(browser.asked)
        browser.run("dispatchEvent(new Event('hashchange'))")
        browser.wait_for("document.querySelector('.error') !== null")  # the server has ended
        check_fleet(browser, seined, seine, folder)


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
