"""Makes PyPI's torch run on a CPU without most of the CUDA libraries that it links: 4 of 5.7 GB that no test needs.

    pip install --no-deps torch
    pip install nvidia-cuda-runtime filelock fsspec jinja2 networkx sympy typing_extensions
    python tests/client/cpu_torch.py          # with the same python; needs a C compiler, nm and readelf

torch for the CPU alone is not on PyPI. Its libraries name those of CUDA as needed, so the loader refuses them where these
are missing, though nothing on the CPU calls them but the runtime, which is small and says that there is no device. For each
of the others this puts a stand-in beside torch's own, where the loader looks: the symbols that torch wants, each a function
that fails.
"""

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

CUDA = re.compile(r"lib(cu|nv|nccl)")  # sonames of CUDA's libraries
UNVERSIONED = re.compile(r"(__cuda|cu|nv|nccl)")  # names of their symbols that carry no version
NO_DEVICE = 100  # cudaErrorNoDevice
SOURCE = "long {name}(void) {{ return {value}; }}\n"


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def wanted(library):
    """(sonames needed, version -> soname, [(symbol, version or None)]) of one of torch's libraries, of CUDA alone."""
    needed = {name for name in re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", library)) if CUDA.match(name)}
    versions, soname = {}, ""
    for line in run("readelf", "-V", "--wide", library).splitlines():
        if found := re.search(r"File: (\S+)", line):
            soname = found[1]
        if (found := re.search(r"Name: (\S+)", line)) and CUDA.match(soname):
            versions[found[1]] = soname
    symbols = re.findall(r"^\s+U ([^@\s]+)(?:@(\S+))?$", run("nm", "-D", "--undefined-only", library), re.MULTILINE)
    return needed, versions, symbols


def stand_in(soname, by_version, folder):
    """Compiles the library `soname`. by_version: version, or "" for none -> its symbols."""
    with tempfile.TemporaryDirectory() as scratch:
        source, script = Path(scratch, "s.c"), Path(scratch, "s.map")
        # Registration of kernels, in constructors, must seem to succeed; calls must say that there is no device.
        names = sorted(set().union(*by_version.values())) if by_version else []
        functions = (SOURCE.format(name=name, value=0 if name.startswith("_") else NO_DEVICE) for name in names)
        source.write_text("".join(functions) + "int stand_in;\n")
        script.write_text("".join(
            f"{version} {{ {'global: ' + '; '.join(sorted(some)) + ';' if some else ''} }};\n"
            for version, some in by_version.items() if version
        ))  # fmt: skip
        versioned = [f"-Wl,--version-script={script}"] if script.stat().st_size else []
        run("cc", "-w", "-fno-builtin", "-shared", "-fPIC", f"-Wl,-soname,{soname}", *versioned,
            "-o", str(folder / soname), str(source))  # fmt: skip


def main():
    folder = Path(importlib.util.find_spec("torch").origin).parent / "lib"
    needed, unversioned = set(), set()
    symbols = defaultdict(lambda: defaultdict(set))  # soname -> version -> symbols
    for library in sorted(folder.glob("*.so")):
        more, versions, undefined = wanted(library)
        needed |= more
        for version, soname in versions.items():
            symbols[soname][version] |= set()
        for name, version in undefined:
            if version in versions:
                symbols[versions[version]][version].add(name)
            elif not version and UNVERSIONED.match(name):
                unversioned.add(name)
    missing = [soname for soname in sorted(needed) if not any(folder.parent.parent.glob(f"nvidia/*/lib/{soname}"))]
    for n, soname in enumerate(missing):
        if n == 0:  # any would do: the loader looks in all of them
            symbols[soname][""] = unversioned
        stand_in(soname, symbols[soname], folder)
    print(run(sys.executable, "-c", "import torch; print('torch', torch.__version__, 'on the CPU:', torch.ones(3).sum())"))


if __name__ == "__main__":
    main()
