#!/usr/bin/env python3
"""Writes docs/cli.md and docs/configuration.md from the programs' --help, docs/grpc.md from the protos' comments.

usage: reference.py [--check] BIN [ROOT]     BIN holds seined, seine, seine-demo and seine-bench; --check writes nothing,
                                             names each page that is out of date, and ends with 1 if one is
"""

import os
import pathlib
import re
import subprocess
import sys

import protos

PROGRAMS = {
    "seine": "The command line: inspects and steers a running server.",
    "seined": "The server. [server.md](server.md) says how to run it, [configuration.md](configuration.md) lists its settings.",
    "seine-demo": "Replays a recorded decode through a server. `./dev demo` runs it.",
    "seine-bench": "Measures retrieval, eviction, subspaces and the service. `./dev bench` runs it.",
}
WRITTEN = "`./dev docs` writes this page from {source}; do not edit it by hand.\n"
COMMAND = re.compile(r"  ([a-z][a-z-]*)(?:\s.*)?$")
OPTION = re.compile(r"^  (--[a-z-]+)(?: (\S+))?\s+(.*) \[([^\]]*)\]$", re.MULTILINE)
ENUM_WORDS = "An enum's word is its value's name without the prefix, in lower case: `KV_STORE_KEYS` is `keys`."


def run(command, *arguments):
    """What a program prints, the same for every user and terminal."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SEINE") and key != "XDG_RUNTIME_DIR"}
    done = subprocess.run([command, *arguments], capture_output=True, text=True, env=environment, timeout=60)
    if done.returncode:
        sys.exit(f"reference: {command} {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
    return re.sub(r"/tmp/seine-\d+/", "/tmp/seine-<uid>/", done.stdout)


def commands(program, words=()):
    """(words, help) of a program and of every command below it."""
    text = run(program, *words, "--help")
    yield words, text
    listed = text.partition("\nSubcommands:\n")[2].partition("\n\n")[0]
    for line in listed.splitlines():
        if match := COMMAND.match(line):
            yield from commands(program, (*words, match[1]))


def cli(folder):
    out = ["# Commands\n", WRITTEN.format(source="the programs' `--help`")]
    for name, what in PROGRAMS.items():
        out.append(f"## {name}\n\n{what}\n")
        for words, text in commands(folder / name):
            if words:
                out.append(f"### {' '.join((name, *words))}\n")
            out.append(f"```text\n{text.strip()}\n```\n")
    return "\n".join(out)


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def settings(folder):
    """(key, flag, hint, help, default) of every setting, keys as --check-config has them."""
    options = {match[0]: match[1:] for match in OPTION.findall(run(folder / "seined", "--help"))}
    section, found = "", []
    for line in run(folder / "seined", "--check-config").splitlines():
        if not line.startswith(" "):
            section = line.rstrip(":")
        elif section != "indexes":
            key = line.strip().partition(":")[0]
            flag = "--" + ("" if section == "server" else section + "-") + key.replace("_", "-")
            if flag not in options:
                sys.exit(f"reference: seined --help says nothing of {section}.{key}")
            hint, text, default = options[flag]
            found.append((f"{section}.{key}", flag, hint, text, default))
    return found


def spec_messages(files):
    """IndexSpec and every message that it holds, in the order in which it names them."""
    known = {block.name: block for file in files for block in file.blocks}
    order, queue = [], ["IndexSpec"]
    while queue:
        block = known[queue.pop(0)]
        order.append(block)
        for _, of, _ in block.rows:
            inner = re.sub(r"^repeated | \(one of.*", "", of)
            if inner in known and known[inner].kind == "message" and inner != "Tensor" and known[inner] not in order:
                queue.append(inner)
    return order, {name for name, block in known.items() if block.kind == "enum"}, known


def configuration(folder, files):
    out = ["# Configuration\n", WRITTEN.format(source="`seined --help` and the protos' comments")]
    out.append("Settings come from a YAML file (`--config`), then the environment, then flags; the last one counts.")
    out.append("`seined --check-config` prints the result. [server.md](server.md) says what they are for.\n")
    out.append("## Settings of the server\n\n| file | flag | environment | what | default |\n|---|---|---|---|---|")
    for key, flag, hint, text, default in settings(folder):
        variable = "SEINE__" + key.replace(".", "__").upper()
        flag = flag + (f" {hint}" if hint else "")
        out.append(f"| `{key}` | `{cell(flag)}` | `{variable}` | {cell(text)} | {f'`{default}`' if default else 'none'} |")
    out.append("\n## Indexes\n\nEntries of `indexes` in the file, and `CreateIndex` on the wire, have the fields below.")
    out.append("`seine index create` has a flag for most of them ([cli.md](cli.md)).")
    out.append(ENUM_WORDS + "\n")
    order, enums, known = spec_messages(files)
    for block in order:
        out.append(f"### {block.name}\n")
        out += [block.comment + "\n"] if block.comment else []
        out.append("| field | type | |\n|---|---|---|")
        out += [f"| `{name}` | {cell(of)} | {cell(comment)} |" for name, of, comment in block.rows]
        out.append("")
        for enum in dict.fromkeys(of for _, of, _ in block.rows if of in enums):
            prefix = len(known[enum].rows[0][0]) - len("UNSPECIFIED")
            words = [f"`{name[prefix:].lower()}`" for name, number, _ in known[enum].rows if number != "0"]
            out.append(f"{enum}: {', '.join(words)}.\n")
    return "\n".join(out)


def grpc(files):
    out = ["# gRPC\n", WRITTEN.format(source="the comments of [proto/seine/v1](../proto/seine/v1)")]
    out.append("Package `seine.v1`. Every call answers canonical gRPC codes with `google.rpc.ErrorInfo` and `BadRequest` details.\n")
    for file in files:
        out.append(f"## {file.name}\n\n{file.comment}\n")
        for block in file.blocks:
            out.append(f"### {block.name}\n")
            out += [block.comment + "\n"] if block.comment else []
            heads = {"service": "| call | request → answer | |", "message": "| field | type | |", "enum": "| value | number | |"}
            if block.rows:
                out.append(heads[block.kind] + "\n|---|---|---|")
            out += [f"| `{name}` | {cell(of)} | {cell(comment)} |" for name, of, comment in block.rows]
            out.append("")
    return "\n".join(out)


def main(arguments):
    check = arguments[:1] == ["--check"]
    folders = [pathlib.Path(argument).resolve() for argument in arguments[check:]]
    if len(folders) not in (1, 2):
        sys.exit(__doc__)
    root = folders[1] if folders[1:] else pathlib.Path(__file__).resolve().parents[2]
    files = protos.read(root / "proto" / "seine" / "v1")
    written = {"cli.md": cli(folders[0]), "configuration.md": configuration(folders[0], files), "grpc.md": grpc(files)}
    differ = False
    for name, text in written.items():
        path = root / "docs" / name
        text = re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        differ = True
        if check:
            print(f"reference: docs/{name} is out of date; run ./dev docs", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"reference: wrote docs/{name}")
    sys.exit(1 if check and differ else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
