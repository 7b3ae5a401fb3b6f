#!/usr/bin/env python3
"""Lints the protos under a folder by the rules of buf's STANDARD set that matter to a contract, with Python alone.

usage: proto_lint.py ROOT        e.g. proto_lint.py proto; prints "file: what is wrong" and ends with 1 if anything is

Rules, by buf's names: PACKAGE_DEFINED, PACKAGE_DIRECTORY_MATCH, PACKAGE_VERSION_SUFFIX, FILE_LOWER_SNAKE_CASE, SYNTAX_SPECIFIED,
IMPORT_NO_PUBLIC, IMPORT_NO_WEAK, IMPORT_USED, MESSAGE_PASCAL_CASE, FIELD_LOWER_SNAKE_CASE, ONEOF_LOWER_SNAKE_CASE,
ENUM_PASCAL_CASE, ENUM_VALUE_UPPER_SNAKE_CASE, ENUM_VALUE_PREFIX, ENUM_ZERO_VALUE_SUFFIX, ENUM_FIRST_VALUE_ZERO, ENUM_NO_ALLOW_ALIAS,
SERVICE_PASCAL_CASE, SERVICE_SUFFIX, RPC_PASCAL_CASE, RPC_REQUEST_STANDARD_NAME, RPC_RESPONSE_STANDARD_NAME, RPC_REQUEST_RESPONSE_UNIQUE.
"""

import collections
import pathlib
import re
import sys

PASCAL = re.compile(r"[A-Z][A-Za-z0-9]*\Z")
LOWER_SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*\Z")
UPPER_SNAKE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*\Z")
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[A-Za-z_.][\w.]*|[-+]?\d[\w.]*|\S', re.DOTALL)
FIELD_SKIPS = {"reserved", "extensions", "option"}


def upper_snake(name):
    """DType -> D_TYPE, KvStore -> KV_STORE: as buf does, so that an enum's prefix is a function of its name."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).upper()


class File:
    """One parsed .proto: what it declares and refers to, and the breaches found while reading it."""

    def __init__(self, name, text):
        self.name, self.breaches = name, []
        self.package, self.imports, self.declared, self.used = "", [], set(), set()
        self.rpcs = []  # (rpc, request, response)
        self.tokens = [t for t in TOKEN.findall(text) if not t.startswith(("//", "/*"))]
        self.at = 0
        self.read()

    def breach(self, text):
        self.breaches.append(f"{self.name}: {text}")

    def expect(self, pattern, name, what):
        if not pattern.match(name):
            self.breach(f"{what} {name} is not in the right case")

    def next(self):
        if self.at == len(self.tokens):
            raise ValueError(f"{self.name}: ends in the middle of a declaration")
        self.at += 1
        return self.tokens[self.at - 1]

    def statement(self):
        """Tokens up to a ';' or an opening '{', and which of the two ended them. '{' after '=' is part of an option's value."""
        tokens, depth = [], 0
        while True:
            token = self.next()
            if token == "{" and "=" in tokens:
                depth += 1
            elif token == "}" and depth:
                depth -= 1
            elif token in ";{" and not depth:
                return tokens, token
            tokens.append(token)

    def body(self, handle):
        """Calls handle(tokens, end) for every statement up to the closing brace."""
        while self.tokens[self.at : self.at + 1] != ["}"]:
            tokens, end = self.statement()
            if tokens:
                handle(tokens, end)
        self.next()

    def read(self):
        syntax = None
        while self.at < len(self.tokens):
            tokens, end = self.statement()
            if not tokens:
                continue
            kind = tokens[0]
            if kind == "syntax":
                syntax = tokens[-1].strip("\"'")
            elif kind == "package":
                self.package = tokens[1]
            elif kind == "import":
                if len(tokens) > 2:
                    self.breach(f"import is {tokens[1]}")
                self.imports.append(tokens[-1].strip("\"'"))
            elif end == "{":
                self.block(tokens)
        if syntax != "proto3":
            self.breach("syntax is not proto3")
        self.check_place()

    def check_place(self):
        path = pathlib.PurePosixPath(self.name)
        self.expect(LOWER_SNAKE, path.stem, "file name")
        if not self.package:
            self.breach("package is missing")
        elif str(path.parent) != self.package.replace(".", "/"):
            self.breach(f"package {self.package} does not match the folder {path.parent}")
        if self.package and not re.search(r"\.v[1-9]\d*((alpha|beta)\d+)?\Z", self.package):
            self.breach(f"package {self.package} ends in no version")

    def block(self, tokens):
        kind, name = tokens[0], tokens[1]
        if kind == "message":
            self.declared.add(name)
            self.expect(PASCAL, name, "message")
            self.body(self.field)
        elif kind == "enum":
            self.declared.add(name)
            self.enum(name)
        elif kind == "service":
            self.service(name)
        elif kind == "extend" and name.startswith("google.protobuf."):
            self.used.add("Descriptor")
            self.body(self.extension)
        else:
            raise ValueError(f"{self.name}: cannot read '{' '.join(tokens)}'")

    def extension(self, tokens, end):
        self.declared.add(tokens[tokens.index("=") - 1])
        self.field(tokens, end)

    def field(self, tokens, end):
        if tokens[0] in ("message", "enum") and end == "{":
            self.block(tokens)
        elif tokens[0] == "oneof" and end == "{":
            self.expect(LOWER_SNAKE, tokens[1], "oneof")
            self.body(self.field)
        elif tokens[0] not in FIELD_SKIPS:
            declaration = tokens[: tokens.index("=")]
            self.expect(LOWER_SNAKE, declaration[-1], "field")
            self.used.update(declaration[:-1])
            self.used.update(after for before, after in zip(tokens, tokens[1:]) if before == "(")  # options of extensions

    def enum(self, name):
        self.expect(PASCAL, name, "enum")
        values, prefix = [], upper_snake(name) + "_"

        def value(tokens, _):
            if tokens[:2] == ["option", "allow_alias"]:
                self.breach(f"enum {name} allows aliases")
            elif tokens[0] not in FIELD_SKIPS:
                values.append((tokens[0], tokens[2]))

        self.body(value)
        for label, _ in values:
            self.expect(UPPER_SNAKE, label, "enum value")
            if not label.startswith(prefix):
                self.breach(f"enum value {label} does not begin with {prefix}")
        if not values or values[0][1] != "0":
            self.breach(f"enum {name} does not begin with value 0")
        elif values[0][0] != prefix + "UNSPECIFIED":
            self.breach(f"enum value {values[0][0]} is 0 and not {prefix}UNSPECIFIED")

    def service(self, name):
        self.expect(PASCAL, name, "service")
        if not name.endswith("Service"):
            self.breach(f"service {name} does not end in Service")

        def rpc(tokens, end):
            if tokens[0] != "rpc":
                return
            self.expect(PASCAL, tokens[1], "rpc")
            request, response = (t for t in tokens[2:] if t not in ("(", ")", "returns", "stream"))
            for suffix, message in (("Request", request), ("Response", response)):
                if message not in (tokens[1] + suffix, name + tokens[1] + suffix):
                    self.breach(f"rpc {tokens[1]} takes or gives {message}, not {tokens[1]}{suffix}")
            self.rpcs.append((f"{name}.{tokens[1]}", request, response))
            self.used.update((request, response))
            if end == "{":
                self.body(lambda *_: None)

        self.body(rpc)


def lint(root):
    """Breaches of every .proto under `root`, and the number of files read."""
    root = pathlib.Path(root)
    files = {}
    breaches = []
    for path in sorted(root.rglob("*.proto")):
        name = path.relative_to(root).as_posix()
        try:
            files[name] = File(name, path.read_text())
        except (ValueError, IndexError) as error:
            breaches.append(f"{name}: cannot be read: {error}")
    users = collections.defaultdict(list)
    for file in files.values():
        breaches += file.breaches
        used = {name.rsplit(".", 1)[-1] for name in file.used}
        for imported in file.imports:
            stem = pathlib.PurePosixPath(imported).stem
            names = files[imported].declared if imported in files else {"".join(p.title() for p in stem.split("_"))}
            if not names & used:
                breaches.append(f"{file.name}: import {imported} is not used")
        for rpc, request, response in file.rpcs:
            users[request].append(rpc)
            users[response].append(rpc)
    for message, rpcs in users.items():
        if len(rpcs) > 1:
            breaches.append(f"{message} serves more than one rpc: {', '.join(rpcs)}")
    return breaches, len(files)


def main(argv):
    if len(argv) != 2:
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 2
    breaches, count = lint(argv[1])
    if not count:
        breaches.append(f"{argv[1]}: holds no .proto that can be read")
    for text in breaches:
        print(text)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
