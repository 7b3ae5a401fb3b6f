#!/usr/bin/env python3
"""What the page costs and how soon it is there, on a machine that does nothing else; prints JSON.

usage: page_figures.py steps CHROMIUM SEINED SEINE SEINE_BENCH [PAIRS]    steps' p99 with a view open over p99 with none, by turns
       page_figures.py large CHROMIUM SEINED SEINE                       a server of 1,000 sequences and 64 layers
"""

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time

from browser_test import Browser, server

STEPS = ["--steps", "3000", "--num-keys", "32768", "--layers", "2"]


def list_indexes(cli):
    return json.loads(cli("index", "list", "-o", "json"))


def shown_view(cli, url, view):
    """The address of a view of the sequence that seine-bench steps in, once it is filled."""
    while True:
        names = [one["spec"]["name"] if "spec" in one else one["name"] for one in indexes_of(cli)]
        for name in names:
            sequences = json.loads(cli("call", "ListSequences", json.dumps({"index": name}))).get("sequences", [])
            if sequences and all(int(tokens) >= 32768 for tokens in sequences[0]["layer_tokens"]):
                return f"{url}#/index/{name}/seq/{sequences[0]['handle']['id']}/layer/0" if view == "layer" else f"{url}#/"
        time.sleep(0.05)


def indexes_of(cli):
    said = list_indexes(cli)
    return said["indexes"] if isinstance(said, dict) else said


def one_run(bench, address, browser, cli, url, view):
    command = [bench, "service", "--server", address, *STEPS, "-o", "json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    looks = len(browser.asked)
    if view != "closed":
        where = shown_view(cli, url, view)
        time.sleep(0.5)  # steps have begun, so that there is one to show
        browser.open(where)
    said = json.loads(process.communicate()[0])
    looks = len(browser.asked) - looks
    browser.send("Page.navigate", url="about:blank")
    assert process.returncode == 0
    return said, looks


def steps(chromium, seined, seine, bench, pairs="9"):
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        browser = Browser(chromium, folder + "/profile")
        ends.callback(browser.close)
        socket = f"{folder}/s.sock"
        cli, url, _ = ends.enter_context(server(seined, seine, "--quality-sample", "0", "--threads", "1", socket=socket))
        p99 = {"closed": [], "layer": [], "indexes": []}
        asked = {"layer": 0, "indexes": 0}
        for view in ("layer", "indexes"):
            closed = []
            for pair in range(int(pairs)):
                for turn in ((view, "closed") if pair % 2 else ("closed", view)):
                    said, looks = one_run(bench, socket, browser, cli, url, turn)
                    (closed if turn == "closed" else p99[view]).append(said["remote"]["p99_us"] if "remote" in said else said["p99_us"])
                    if turn != "closed":
                        asked[view] += looks
                print(f"{view}: pair {pair + 1}: {closed[-1]:.0f} us closed, {p99[view][-1]:.0f} open", file=sys.stderr, flush=True)
            ratios = sorted(shown / none for shown, none in zip(p99[view], closed, strict=True))
            result = {"view": view, "closed_p99_us": closed, "open_p99_us": p99[view], "ratios": ratios, "requests": asked[view]}
            print(json.dumps({**result, "median_ratio": statistics.median(ratios)}), flush=True)


def large(chromium, seined, seine):
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        browser = Browser(chromium, folder)
        ends.callback(browser.close)
        cli, url, _ = ends.enter_context(server(seined, seine))
        cli("index", "create", "large", "--layers", "64", "--q-heads", "32", "--kv-heads", "8", "--head-dim", "128", "--dtype", "fp16")
        lines = "".join(json.dumps({"index": "large", "id": f"chat-{i:04}"}) + "\n" for i in range(1000))
        for line in lines.splitlines():
            cli("call", "CreateSequence", line)
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
