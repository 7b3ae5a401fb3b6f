"""Times another server over the prompts that seine-llama-bench has: prompt, and milliseconds a token.

    peer.py --server PATH|URL --model FILE --prompts FILE

Prints one JSON object. `./dev llama --peer-server` calls it. Standard library only.
"""

import argparse
import contextlib
import http.client
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

TIMEOUT = 3600  # seconds, of one prompt
TO_START = 600  # seconds, until a server has read its model

EPILOG = """\
--server is
  PATH   a llama-server, as of llama.cpp or ik_llama.cpp: it is started with --model, and ended. Options of its own may
         follow in the same argument: "llama-server -rtr"
  URL    a server that runs with the same model. One that answers /props is asked as llama-server is, by tokens;
         any other as OpenAI's /v1/completions is, by text, and timed from here: a prompt ends with the first piece
What a server does not say is null: nothing is derived from what others say.
"""


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description="Time another server over prompts.", epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--server", required=True, metavar="PATH|URL", help="the server")
    add("--model", required=True, metavar="FILE", help="a GGUF, or a model's name at a URL; another than it lists is its first")
    add("--prompts", required=True, metavar="FILE",
        help='JSON: {"steps": N, "prompts": [{"cells": N, "tokens": [...], "text": "..."}, ...]}')  # fmt: skip
    add("--threads", type=int, default=2, metavar="N", help="of a server that is started (default: %(default)s)")
    add("-ctk", default="f16", metavar="TYPE", help="of its cache of keys (default: %(default)s)")
    add("-ctv", default="f16", metavar="TYPE", help="of its cache of values (default: %(default)s)")
    return parser.parse_args(argv)


class Failure(Exception):
    """One line for stderr."""


def post(url, body):
    """An answer that is read while it comes."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        raise Failure(f"{url}: {error.code} {error.read()[:200].decode(errors='replace')}") from None
    except OSError as error:
        raise Failure(f"{url}: {error}") from None


def flash_attention(program):
    """As this version's option is written: it takes a value since 2025."""
    said = subprocess.run([program, "--help"], capture_output=True, text=True, errors="replace", timeout=60, check=False).stdout
    line = next((line for line in said.splitlines() if line.lstrip().startswith("-fa,")), "")
    return ["-fa", "on"] if "on|off" in line.replace("'", "") else ["-fa"]


@contextlib.contextmanager
def started(args, cells):
    """The address of a server that runs meanwhile, with no plug-in."""
    program, *own = shlex.split(args.server)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    options = ["-m", args.model, "-c", str(cells), "-np", "1", "-t", str(args.threads), "-tb", str(args.threads), "-b", "512", "-ub", "512",
               "-ctk", args.ctk, "-ctv", args.ctv, "--host", "127.0.0.1", "--port", str(port)]  # fmt: skip
    with tempfile.TemporaryFile() as log:
        try:
            options += flash_attention(program)
            environment = {name: value for name, value in os.environ.items() if name != "GGML_BACKEND_PATH"}
            process = subprocess.Popen([program, *options, *own], stdout=log, stderr=log, env=environment)
        except OSError as error:
            raise Failure(f"{program}: {error.strerror}") from None
        try:
            url, end = f"http://127.0.0.1:{port}", time.monotonic() + TO_START
            while True:
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    last = log.read().decode(errors="replace").strip().splitlines()[-1:]
                    ended = "does not answer" if process.poll() is None else f"ended with {process.returncode}"
                    raise Failure(f"{program} {ended}: {' '.join(last)}")
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
                    if answer.status == 200:
                        break
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def is_llama_server(url):
    try:
        with urllib.request.urlopen(f"{url}/props", timeout=30) as answer:
            return isinstance(json.load(answer), dict)
    except (urllib.error.HTTPError, ValueError):
        return False
    except OSError as error:
        raise Failure(f"{url}: {error}") from None


def by_tokens(url, prompt, steps):
    """The server's own timings, of all tokens of the prompt and of `steps` behind the first one."""
    body = {"prompt": prompt["tokens"], "n_predict": steps + 1, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    with post(f"{url}/completion", body) as answer:
        timings = json.load(answer).get("timings", {})
    read, decoded = timings.get("prompt_n"), timings.get("predicted_n") or 0
    whole = read == len(prompt["tokens"])  # and nothing of it from a cache
    return {
        "prompt_tokens": read,
        "prompt_ms": timings.get("prompt_ms") if whole else None,
        "ms": timings["predicted_ms"] / (decoded - 1) if decoded > 1 and "predicted_ms" in timings else None,
    }


def served_model(url, model):
    """`model` where the server lists it or lists none; else the first that it lists."""
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as answer:
            names = [one["id"] for one in json.load(answer)["data"]]
    except (urllib.error.HTTPError, ValueError, KeyError, TypeError):
        names = []
    return model if model in names or not names else names[0]


def by_text(url, model, prompt, steps):
    """Times from here. A number at random before the text, so that no server has its first tokens in a cache, not of an earlier run."""
    body = {"model": model, "prompt": f"{secrets.token_hex(8)}\n{prompt['text']}", "max_tokens": steps + 1, "temperature": 0,
            "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip
    begin, first, last, pieces, usage = time.monotonic(), None, None, 0, {}
    with post(f"{url}/v1/completions", body) as answer:
        for line in answer:
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            piece = json.loads(line[5:])
            usage = piece.get("usage") or usage
            pieces += bool(piece.get("choices"))
            if any(choice.get("text") for choice in piece.get("choices", [])):
                last = time.monotonic()
                first = first or last
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    decoded = usage.get("completion_tokens") or 0
    one_by_one = 1 < decoded <= pieces  # else the first piece may hold several tokens, whose time is not between pieces
    return {
        "prompt_tokens": usage.get("prompt_tokens"),
        "prompt_ms": (first - begin) * 1000 if first is not None and cached == 0 else None,
        "ms": (last - first) * 1000 / (decoded - 1) if one_by_one and first is not None else None,
    }


def measure(args, asked):
    prompts, steps = asked["prompts"], asked["steps"]
    is_url = args.server.startswith(("http://", "https://"))
    cells = max(len(prompt["tokens"]) for prompt in prompts) + steps + 64
    with contextlib.nullcontext(args.server.rstrip("/").removesuffix("/v1")) if is_url else started(args, cells) as url:
        tokens = is_llama_server(url)
        if not tokens and not all(prompt.get("text") for prompt in prompts):
            raise Failure(f"{url} is asked by text, and these prompts have none")
        model, rows = None if tokens else served_model(url, args.model), []
        for i, prompt in enumerate(prompts):
            print(f"peer: {prompt['cells']} cells ({i + 1} of {len(prompts)})", file=sys.stderr)
            one = by_tokens(url, prompt, steps) if tokens else by_text(url, model, prompt, steps)
            rows.append({"cells": prompt["cells"], **one})
    ours = {"threads": args.threads, "cache_type_k": args.ctk, "cache_type_v": args.ctv}
    of_peer = dict.fromkeys(ours) if is_url else ours  # of a server that was started by others nobody knows
    return {"server": args.server, "asked_by": "tokens" if tokens else "text", **of_peer, "rows": rows}


def main(argv):
    args = parse_args(argv)
    with open(args.prompts, encoding="utf-8") as file:
        asked = json.load(file)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that a server that was started is ended
    try:
        print(json.dumps(measure(args, asked)))
    except (Failure, OSError, ValueError, http.client.HTTPException, subprocess.TimeoutExpired) as failure:
        print(f"--peer-server: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
