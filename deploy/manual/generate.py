"""Makes man pages, shell completion and the service's settings file from what the programs say of themselves.

usage: generate.py VERSION FOLDER PROGRAM...
"""
import os
import sys

import completion
import man
import program
import settings

SECTIONS = {"seine": 1, "seine-bench": 1, "seined": 8}


def main(version, folder, *programs):
    for part in ("man", "bash", "zsh"):
        os.makedirs(os.path.join(folder, part), exist_ok=True)
    names = [os.path.basename(path) for path in programs]
    for name, path in zip(names, programs):
        page = program.read(path)
        section = SECTIONS[name]
        see_also = [(other, SECTIONS[other]) for other in names if other != name]
        man.write(name, section, version, page, see_also, os.path.join(folder, "man", f"{name}.{section}.gz"))
        completion.write_bash(name, page, os.path.join(folder, "bash", name))
        completion.write_zsh(name, page, os.path.join(folder, "zsh", f"_{name}"))
        if name == "seined":
            settings.write(page, program.run(path, "--check-config"), os.path.join(folder, "seined.yaml"))


if __name__ == "__main__":
    main(*sys.argv[1:])
