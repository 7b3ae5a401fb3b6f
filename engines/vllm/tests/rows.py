"""Lines for people, on stderr, and rows that are kept in a file as they are measured, so that a run that was cut off goes on from there."""

import json
import sys


def say(text):
    print(f"vllm: {text}", file=sys.stderr, flush=True)


def kept(path):
    """Rows of the file; none where there is no such file, or none is asked for."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path and path.exists() else []


def keep(path, row):
    say(json.dumps(row))
    if path:
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
