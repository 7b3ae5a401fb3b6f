"""Adds the generated stubs to the package; everything else stands in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from generate_stubs import generate  # noqa: E402


class BuildWithStubs(build_py):
    def run(self):
        super().run()
        generate(HERE.parent.parent / "proto", self.build_lib)


setup(cmdclass={"build_py": BuildWithStubs})
