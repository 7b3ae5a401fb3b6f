"""Runs docs/python.md's lines for llama.cpp: in a llama-cpp-python that is built of PyPI's sources, with the plug-in for it.

Standard library only; pip fetches what llama-cpp-python itself needs.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from pydoc_data.topics import topics

BUILD = Path("build/llama")
PACKAGE = Path("client/python/seine_kv")
MARK = "from llama_cpp import"  # the block that has it is the one
PROMPT = 10000  # characters, of some 2,300 tokens: more than SEINE_MIN_KV's default, 2,048
SWITCHED_OFF = ["-DLLAVA_BUILD=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_CURL=OFF"]

EPILOG = """\
what it does:
  1. installs llama-cpp-python from --sources into --venv, unless it is there: some ten minutes on two cores
  2. takes the Python block of docs/python.md that imports llama_cpp, as it stands
  3. runs it in a folder with model.gguf, prompt.txt, and seine_kv with the plug-in, as a wheel has both
  4. fails unless the block ends well, prints a text, and the plug-in's report says that it answered

example:
  ./dev llama --python     # fetches the sources and the model, and builds the plug-in
"""


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description="Run docs/python.md's lines for llama.cpp in llama-cpp-python.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--sources", type=Path, required=True, metavar="FOLDER", help="llama-cpp-python's sources, as PyPI has them")
    add("--model", type=Path, required=True, metavar="FILE", help="a GGUF")
    add("--plugin", default=BUILD / "seine/bin/libggml-seine.so", type=Path, metavar="FILE",
        help="built for the llama.cpp of these sources (default: %(default)s)")  # fmt: skip
    add("--venv", default=BUILD / "llama-cpp-python", type=Path, metavar="FOLDER",
        help="virtual environment to install into (default: %(default)s)")  # fmt: skip
    add("--page", default=Path("docs/python.md"), type=Path, metavar="FILE", help="(default: %(default)s)")
    args = parser.parse_args(argv)
    for path in (args.sources, args.model, args.plugin, args.page):
        if not path.exists():
            parser.error(f"{path}: no such file; ./dev llama --python makes all that is needed")
    return args


def block_of(page):
    """The one Python block that imports llama_cpp."""
    blocks = [part.split("\n```\n")[0] for part in page.split("\n```python\n")[1:]]
    found = [block for block in blocks if MARK in block]
    if len(found) != 1:
        raise SystemExit(f"readme_test: {len(found)} Python blocks have a line with '{MARK}'; one must")
    return found[0] + "\n"


def install(args):
    """Returns the Python that has llama-cpp-python."""
    python = args.venv.resolve() / "bin/python"
    has = [python, "-c", "import llama_cpp"]
    if python.exists() and subprocess.run(has, stderr=subprocess.DEVNULL, check=False).returncode == 0:
        return python
    print(f"readme_test: building llama-cpp-python in {args.venv}", file=sys.stderr)
    venv.create(args.venv, with_pip=True)
    options = " ".join([os.environ.get("CMAKE_ARGS", ""), *SWITCHED_OFF])
    build = f"build-dir={args.venv.resolve()}-build"  # kept, so that a build that was ended goes on
    subprocess.run(
        [python, "-m", "pip", "-q", "install", "--config-settings", build, args.sources.resolve()],
        env=os.environ | {"CMAKE_ARGS": options},
        check=True,
    )
    return python


def run_block(python, block, args, folder):
    """The block's output and the plug-in's report, of a process with none of this one's settings."""
    (folder / "model.gguf").symlink_to(args.model.resolve())
    (folder / "prompt.txt").write_text("\n\n".join(topics[name] for name in sorted(topics))[:PROMPT])
    (folder / "block.py").write_text(block)
    shutil.copytree(PACKAGE, folder / "seine_kv")
    shutil.copy(args.plugin, folder / "seine_kv/llama")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SEINE_", "GGML_", "PYTHON"))}
    environment |= {"SEINE_REPORT": str(folder / "report.json")}
    done = subprocess.run(
        [python, "block.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"readme_test: the block ended with {done.returncode}:\n{done.stderr[-3000:]}")
    report = folder / "report.json"
    if not report.exists():
        raise SystemExit("readme_test: the plug-in wrote no report: it was not loaded")
    return done.stdout, json.loads(report.read_text())


def main(argv):
    args = parse_args(argv)
    block = block_of(args.page.read_text())
    python = install(args)
    with tempfile.TemporaryDirectory() as folder:
        printed, report = run_block(python, block, args, Path(folder))
    print(f"printed {printed.strip()!r}\nanswered {report['answered']}, declined {report['declined']}")
    if not printed.strip():
        raise SystemExit("readme_test: the block printed nothing")
    if report["answered"] <= 0:
        raise SystemExit("readme_test: the plug-in answered nothing")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
