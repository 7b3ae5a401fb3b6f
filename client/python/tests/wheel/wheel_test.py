"""The wheel of seine-kv as a user has it: in an environment with nothing else, without compiler, tree or PYTHONPATH.

    python client/python/tests/wheel/wheel_test.py WHEEL

installs the wheel and numpy into a bare virtual environment of this Python, looks at what it holds, makes an index in
process, asks the programs for their versions, and calls a seined of the wheel. Then it runs docs/python.md's Python block
against that server. Libraries must be the wheel's own, but for those of the system that manylinux names. Needs PyPI
(numpy, grpcio). `./dev wheel test` calls it."""

import json
import os
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
PROGRAMS = ("seined", "seine", "seine-bench")
BENCH = ["recall", "--synthetic", "rope", "--num-keys", "4096", "--head-dim", "64", "--num-queries", "2", "-o", "json"]
IN_PROCESS = """
import sys
from importlib.metadata import distributions, version
import numpy as np
from seine_kv import _native
from seine_kv.messages import Append, Attention, Item, Sequence

assert {d.metadata["Name"].lower() for d in distributions()} <= {"seine-kv", "numpy", "pip", "setuptools"}
assert _native.version() == version("seine-kv")
remote = len(sys.argv) > 1
connection = _native.Connection.connect(sys.argv[1]) if remote else _native.Connection.in_process()
geometry = {"num_layers": 1, "num_q_heads": 8, "num_kv_heads": 2, "head_dim": 64, "dtype": "float16"}
connection.call("CreateIndex", {"spec": {"name": "wheel", "geometry": geometry, "kv_store": "keys_values"}})
chat = Sequence(**connection.call("CreateSequence", {"index": "wheel"})["handle"])
rows = np.random.default_rng(0).normal(size=(8192, 2, 64)).astype("float16")
assert connection.append(chat.index, chat.id, chat.generation, 0, 0, rows, rows)[0] == 8192
stream = connection.open_stream()
append, item = Append(chat, 0, 8192, rows[:1], rows[:1]), Item(chat, 0, np.ones((8, 64), "float32"))
errors, _, (attended,), _, _, _ = stream.step([append], [item], {"top_k": 50}, Attention())
assert errors == [None] and attended["error"] is None and attended["path"] == "index"
assert attended["output"].shape == (8, 64)
stream.close()
connection.call("DeleteIndex", {"name": "wheel"})
print(connection.endpoint, connection.call("GetServerInfo")["simd_target"])
"""


def run(*command, **more):
    """Output of a command; SystemExit with all of it where it fails."""
    folder, environment = more.pop("cwd", None), {**os.environ, **more}
    done = subprocess.run(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode != 0:
        raise SystemExit(f"wheel: {' '.join(command)[:200]} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout.strip()


def pip(*arguments):
    return run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments)


def check_contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for wanted in (
        r"seine_kv/_native\.[^/]*\.so",
        r"seine_kv/_native\.pyi",
        r"seine_kv/py\.typed",
        r"seine_kv/bin/seined?",
        r"seine_kv/bin/seine-bench",
        r"seine_kv/llama/libggml-seine\.so",
        r"seine_kv/llama/libggml-seine-remote\.so",
        r"seine/v1/.*_pb2\.py",
    ):
        assert any(re.fullmatch(wanted, name) for name in names), f"{wanted} is missing"
    return f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {len(names)} files"


def check_libraries(files):
    """Every library that the loader finds for these files."""
    system = r"(lib(c|m|z|dl|rt|pthread|stdc\+\+|gcc_s)\.so\.\d+|ld-linux[^/]*|linux-vdso\.so\.1)"
    own = 0
    for file in files:
        for name, found in re.findall(r"^\s*(\S+) => (.*?)(?: \(0x\w+\))?$", run("ldd", str(file)), re.MULTILINE):
            own += "seine_kv.libs" in found
            assert "seine_kv.libs" in found or re.fullmatch(system, name), f"{file.name} takes {name} from {found}"
    assert own > 0
    return f"{own} libraries of its own for {', '.join(file.name for file in files)}"


def page_block():
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return next(block for block in blocks if "seine.connect()" in block)


def try_server(bin_folder, python, folder):
    """The wheel's own seined on a socket, called by the native module and by what docs/python.md says."""
    address = f"unix://{folder}/seine.sock"
    server = subprocess.Popen([str(bin_folder / "seined"), "--listen", address, "--log-level", "error"])
    try:
        run(str(bin_folder / "seine"), "health", "--server", address, "--wait", "10")
        lines = [run(python, "-c", IN_PROCESS, address, cwd=folder)]
        said = run(python, "-c", page_block(), cwd=folder, SEINE_SERVER=address)
        lines.append("docs/python.md: " + said.replace("\n", " ")[:60])
    finally:
        server.terminate()
        assert server.wait(timeout=20) == 0, "seined did not end cleanly"
    return lines


def main(arguments):
    if len(arguments) != 1:
        raise SystemExit(__doc__)
    wheel = Path(arguments[0]).resolve(strict=True)
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH"):  # what is tested is what is installed
        os.environ.pop(name, None)
    print(f"wheel: {check_contents(wheel)}")
    with tempfile.TemporaryDirectory() as folder:
        venv.create(Path(folder) / "venv", with_pip=False)
        bin_folder = Path(folder) / "venv" / "bin"
        python = str(bin_folder / "python")
        pip("--python", python, "install", "--quiet", "--no-compile", str(wheel))
        package = next((Path(folder) / "venv" / "lib").glob("python*/site-packages/seine_kv"))
        lines = [
            check_libraries(
                [*package.glob("_native.*.so"), *package.glob("llama/*.so"), *(package / "bin" / name for name in PROGRAMS)]
            )
        ]
        lines.append(run(python, "-c", IN_PROCESS, cwd=folder))
        for program in PROGRAMS:
            said = run(str(bin_folder / program), "--version", cwd=folder)
            assert re.fullmatch(rf"{program} \d+\.\d+\.\d+", said), said
            lines.append(said)
        rows = json.loads(run(str(bin_folder / "seine-bench"), *BENCH, cwd=folder))["rows"]
        assert all(row["recall_at_k"] > 0.5 for row in rows), rows
        without = subprocess.run(
            [bin_folder / "seine-bench", *BENCH, "--baseline", "faiss_flat"], capture_output=True, text=True
        )
        assert without.returncode != 0 and "faiss_flat needs FAISS" in without.stderr, without
        lines.append(f"seine-bench recall: {len(rows)} rows; {without.stderr.strip()[:80]}")
        for line in lines + try_server(bin_folder, python, folder):
            print(f"wheel: {line}")


if __name__ == "__main__":
    main(sys.argv[1:])
