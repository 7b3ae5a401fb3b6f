"""seine_kv.grpc beside the oldest and the newest versions of what it needs, and some that are common.

    python client/python/tests/wheel/versions.py SEINED [WHEEL]

builds ./client/python once without its native module, where no wheel is given, installs it into a virtual environment for
each, and runs test_client.py, test_arguments.py and test_grpc_call.py there against the seined program, with the grpcio
client alone: calls of every service, steps, arrays, words and JSON.
Needs PyPI and a Python with pip; nothing beyond the standard library. About a minute on two idle cores.
"""

import os
import subprocess
import sys
import tempfile
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
# The oldest that pyproject.toml allows, of those with wheels for the Python at hand.
if sys.version_info < (3, 13):
    OLDEST = ["grpcio==1.60.0", "protobuf==4.25.0", "numpy==1.24.0" if sys.version_info < (3, 12) else "numpy==1.26.0"]
    BETWEEN = [["grpcio==1.66.0", "protobuf==5.29.1"]]
else:
    OLDEST = ["grpcio==1.75.1", "protobuf==6.31.1", "numpy==2.3.2"]
    BETWEEN = []
VERSIONS = [OLDEST, *BETWEEN, ["grpcio", "protobuf", "numpy"]]
CHECK = """
import warnings
from importlib.metadata import version
from importlib.resources import files
warnings.simplefilter("error")  # protobuf warns of code that its next version may refuse
import seine_kv.grpc
assert version("seine-kv") == seine_kv.__version__
assert files("seine_kv").joinpath("py.typed").is_file()
print(", ".join(f"{name} {version(name)}" for name in ("grpcio", "protobuf", "numpy")))
"""


def run(*command, **more):
    """Output of a command; RuntimeError with all of it where it fails."""
    folder, environment = more.pop("cwd", None), {**os.environ, **more}
    done = subprocess.run(command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout.strip()


def pip(*arguments):
    return run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments)


def try_versions(wanted, wheel, seined):
    """One line on what was installed and how its tests went."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=False)
        python = str(Path(folder) / "bin" / "python")
        pip("--python", python, "install", "--quiet", "--no-compile", *wanted, str(wheel), "pytest")
        installed = run(python, "-c", CHECK, cwd=folder)
        tests = [str(TESTS / name) for name in ("test_client.py", "test_arguments.py", "test_grpc_call.py")]
        tests = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, cwd=folder, SEINED=seined, SEINE_TEST_CLIENTS="grpc")
    return f"{installed}: {tests.splitlines()[-1]}; {time.monotonic() - begun:.0f} s with the installation"


def main(arguments):
    if len(arguments) not in (1, 2):
        raise SystemExit(__doc__)
    seined = str(Path(arguments[0]).resolve(strict=True))
    os.environ.pop("PYTHONPATH", None)  # what is tested is what is installed
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max_workers=2) as pool:
        if len(arguments) == 2:
            wheel = Path(arguments[1]).resolve(strict=True)
        else:
            without = "--config-settings=cmake.define.SEINE_KV_NATIVE=OFF"
            pip("wheel", "--quiet", "--no-deps", without, "--wheel-dir", folder, str(TESTS.parent))
            (wheel,) = Path(folder).glob("*.whl")
        failed = 0
        for wanted, tried in [(wanted, pool.submit(try_versions, wanted, wheel, seined)) for wanted in VERSIONS]:
            try:
                print(f"versions: {tried.result()}", flush=True)
            except RuntimeError as error:
                print(f"versions: {' '.join(wanted)}: {error}", flush=True)
                failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
