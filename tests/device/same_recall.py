#!/usr/bin/env python3
"""Whether two `seine-bench recall -o json` are equal to the digit, but for times and the machine's names.

usage: same_recall.py CPU.json DEVICE.json    prints the first that differ; exit code 0 where none does, 1, or 2 for no JSON
"""

import json
import sys

# Fields that tell of the machine and the clock, not of the answers.
PASSED_OVER = ("_us", "_ns", "_s", "us", "backend", "simd", "target", "threads", "machine", "gb_s", "version", "faiss")


def values(node, path=""):
    """Every leaf of a JSON with its path."""
    if isinstance(node, dict):
        for name, value in node.items():
            if not any(name == word or name.endswith(word) for word in PASSED_OVER):
                yield from values(value, f"{path}.{name}")
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from values(value, f"{path}[{i}]")
    else:
        yield path, node


def differences(one, other):
    """(path, value, value) wherever the two differ; None for what is not there."""
    one, other = dict(values(one)), dict(values(other))
    return [(p, one.get(p), other.get(p)) for p in sorted(one.keys() | other.keys()) if one.get(p) != other.get(p)]


def main(paths):
    try:
        one, other = (json.load(open(path, encoding="utf-8")) for path in paths)
    except (OSError, ValueError) as error:
        print(f"same_recall: {error}", file=sys.stderr)
        return 2
    compared = len(dict(values(one)))
    if compared == 0:
        print("same_recall: nothing to compare, which shows nothing", file=sys.stderr)
        return 2
    found = differences(one, other)
    for path, left, right in found[:20]:
        print(f"{path}: {left} and {right}")
    print(f"{compared} values, {len(found)} differ")
    return 1 if found else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
