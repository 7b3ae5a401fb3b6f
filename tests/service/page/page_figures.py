#!/usr/bin/env python3
"""What the page costs and how soon it is there, on a machine that does nothing else; prints JSON.

usage: page_figures.py steps CHROMIUM SEINED SEINE [PAIRS [SECONDS [VIEW]]]    p99 of decode steps while a view is open, over that while none is
       page_figures.py large CHROMIUM SEINED SEINE                      a server of 1,000 sequences and 64 layers

Needs numpy and seine_kv with its native module (a build's folder python). In `steps` one process decodes all the time, a sequence of two
layers; the view is open for some seconds, then none is, by turns.
"""

import contextlib
import json
import statistics
import sys
import tempfile
import threading
import time

from browser_test import Browser, server

LAYERS, KV_HEADS, GROUP, DIM, HELD = 2, 8, 4, 128, 16384


def decode(client, timed, ends):
    """Steps until `ends` is set: (when it began, how long it took) of each, in seconds."""
    import numpy as np
    from seine_kv.messages import Append, Item

    draw = np.random.default_rng(3)
    client.create_index("steps", num_layers=LAYERS, num_q_heads=KV_HEADS * GROUP, num_kv_heads=KV_HEADS, head_dim=DIM)
    chat = client.create_sequence("steps", "chat")
    for layer in range(LAYERS):
        client.append(chat, layer, 0, draw.standard_normal((HELD, KV_HEADS, DIM), "float32").astype("float16"))
    keys = draw.standard_normal((64, 1, KV_HEADS, DIM), "float32").astype("float16")
    queries = draw.standard_normal((64, KV_HEADS * GROUP, DIM), "float32")
    position = HELD
    while not ends.is_set():
        for layer in range(LAYERS):
            began = time.perf_counter()
            client.step([Append(chat, layer, position, keys[position % 64])], [Item(chat, layer, queries[position % 64])])
            timed.append((began, time.perf_counter() - began))
        position += 1


def steps(chromium, seined, seine, pairs="9", seconds="20", only=""):
    import numpy as np
    import seine_kv

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        browser = Browser(chromium, folder + "/profile")
        stack.callback(browser.close)
        socket = f"{folder}/s.sock"
        _, url, _ = stack.enter_context(server(seined, seine, "--threads", "1", socket=socket, sample="0"))
        views = {"layer": f"{url}#/index/steps/seq/chat/layer/0", "indexes": f"{url}#/"}
        timed, ends = [], threading.Event()
        client = stack.enter_context(seine_kv.Client(f"unix://{socket}"))
        worker = threading.Thread(target=decode, args=(client, timed, ends))
        worker.start()
        while len(timed) < 500:
            time.sleep(0.1)
        for name, view in [(name, view) for name, view in views.items() if only in ("", name)]:
            p99, asked = {"closed": [], "open": []}, 0
            for pair in range(int(pairs)):
                for turn in ("open", "closed") if pair % 2 else ("closed", "open"):
                    before = len(browser.asked)
                    if turn == "open":
                        browser.open(view)
                    else:
                        browser.send("Page.navigate", url="about:blank")
                    began = time.perf_counter()
                    time.sleep(float(seconds))
                    browser.run("0")  # takes in what was asked meanwhile
                    asked += len(browser.asked) - before if turn == "open" else 0
                    p99[turn].append(float(np.percentile([took for at, took in timed if at >= began], 99)) * 1e6)
                print(f"{name}, pair {pair + 1}: {p99['closed'][-1]:.0f} us closed, {p99['open'][-1]:.0f} open", file=sys.stderr, flush=True)
            ratios = [shown / none for shown, none in zip(p99["open"], p99["closed"], strict=True)]
            summary = {"view": name, "p99_us": p99, "ratios": ratios, "median_ratio": statistics.median(ratios), "requests": asked}
            print(json.dumps(summary), flush=True)
        ends.set()
        worker.join()


def large(chromium, seined, seine):
    import seine_kv

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        browser = Browser(chromium, folder)
        ends.callback(browser.close)
        socket = f"{folder}/s.sock"
        _, url, _ = ends.enter_context(server(seined, seine, socket=socket))
        with seine_kv.Client(f"unix://{socket}") as client:
            client.create_index("large", num_layers=64, num_q_heads=32, num_kv_heads=8, head_dim=128)
            for i in range(1000):
                client.create_sequence("large", f"chat-{i:04}")
        times, paints = {}, []
        for view in ("#/", "#/index/large", "#/index/large/seq/chat-0500", "#/index/large/seq/chat-0500/layer/63"):
            taken = []
            for _ in range(5):
                browser.send("Page.navigate", url="about:blank")
                began = time.monotonic()
                browser.open(url + view)
                taken.append(time.monotonic() - began)
                paints.append(browser.run("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1"))
            times[view] = [round(one, 3) for one in sorted(taken)]
        assert "1,000" in (browser.open(f"{url}#/"), browser.run("document.querySelector('[data-index=large]').innerText"))[1]
        size = browser.run(
            "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
            ".filter(e => !e.name.includes('/api/')).reduce((sum, e) => sum + e.transferSize, 0)"
        )
        print(json.dumps({"seconds": times, "first_paint_ms": sorted(paints), "bytes": size}))


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    {"steps": steps, "large": large}[sys.argv[1]](*sys.argv[2:])
