"""Prints the translation units that a build folder compiles of the named rooms, most sources first: the order in which to share
them out. Units that only declare flags are left out: CLI11's headers take longer than all the rest of a room. It ends with 1 if a
source of the rooms is in no unit at all.

usage: translation_units.py BUILD_DIR ROOM...
"""
import json
import pathlib
import re
import sys

DECLARES_FLAGS = re.compile(r'^#include .*(<CLI/|_command\.h"|/(commands|names)\.h")', re.MULTILINE)


def sources_of(unit: pathlib.Path, tree: pathlib.Path) -> list[str]:
    """Paths in the tree: the unit itself, or, where CMake made it, the sources that it includes."""
    files = [unit]
    if unit.name.startswith("unity_"):
        files = [pathlib.Path(name) for name in re.findall(r'^#include "(.*)"$', unit.read_text(), re.MULTILINE)]
    return [str(file.relative_to(tree)) for file in files if file.is_relative_to(tree)]


def main() -> int:
    build, rooms = pathlib.Path(sys.argv[1]), sys.argv[2:]
    tree = pathlib.Path(__file__).resolve().parents[2]
    units = {}
    for command in json.loads((build / "compile_commands.json").read_text()):
        sources = [s for s in sources_of(pathlib.Path(command["file"]), tree) if s.split("/")[0] in rooms]
        if sources:
            units[command["file"]] = sources
    for unit in sorted(units, key=lambda name: -len(units[name])):
        if not all(DECLARES_FLAGS.search((tree / source).read_text()) for source in units[unit]):
            print(unit)
    compiled = {source for sources in units.values() for source in sources}
    left = {str(file.relative_to(tree)) for room in rooms for file in (tree / room).rglob("*.cc")} - compiled
    for source in sorted(left):
        print(f"{source}: {build} does not compile it", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
