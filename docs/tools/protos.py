"""Reads proto/seine/v1 as docs need it: services, messages and enums with their comments. One declaration a line, as
the protos are written; a line that is not understood is an error, so that nothing is left out in silence."""

import re

FIELD = re.compile(r"(?:(repeated|optional) )?([\w.]+|map<[^>]*>) (\w+) = (\d+)(?: \[(.*)\])?;\s*(?://\s*(.*))?$")
FLAG = re.compile(r'\b(help|usual): ((?:"(?:[^"\\]|\\.)*"\s*)+)')
OLDER = re.compile(r'json_name = "(\w+)"')
VALUE = re.compile(r"(\w+) = (\d+);\s*(?://\s*(.*))?$")
RPC = re.compile(r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);$")
OPEN = re.compile(r"(service|message|enum|oneof|extend) ([\w.]+) \{(\})?$")
SKIPPED = re.compile(r"(syntax|package|import|option|reserved) [^;]*;\s*(//.*)?$")


def flag_text(options):
    """What a field's flag says of it (proto/seine/v1/flag.proto): its help, and what it stands for where it is not given."""
    said = {key: "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', text)) for key, text in FLAG.findall(options)}
    if "help" in said:
        yield said["help"] + "."
    if "usual" in said:
        yield f"Not given: {said['usual']}."
    if older := OLDER.search(options):
        yield f"Its older name is taken as well: {older[1]}."


class Block:
    """A service, message or enum: its comment, and rows (name, type, comment)."""

    def __init__(self, kind, name, comment):
        self.kind, self.name, self.comment, self.rows = kind, name, comment, []


class File:
    """One .proto: its opening comment, and its blocks in order."""

    def __init__(self, path):
        self.name, self.blocks, self.comment = path.name, [], ""
        self.stack, self.pending = [], []
        open_field = ""  # a field whose options go on in the next line
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            line = f"{open_field} {line.strip()}".strip()
            open_field = line if "[(" in line and not re.search(r"\];\s*(//.*)?$", line) else ""
            if open_field:
                continue
            try:
                self.line(line)
            except ValueError:
                raise ValueError(f"{path}:{number}: not understood: {line.strip()}") from None

    def take_comment(self, behind=None):
        comment = " ".join([*self.pending, behind or ""]).strip()
        self.pending = []
        return comment

    def line(self, line):
        if line.startswith("//"):
            self.pending.append(line[2:].strip())
        elif not line:
            if not self.stack:
                self.pending = []
        elif line.startswith("syntax"):
            self.comment = self.take_comment()
        elif line == "}":
            self.stack.pop()
            self.pending = []
        elif SKIPPED.match(line):
            self.pending = []
        else:
            self.declaration(line)

    def declaration(self, line):
        if match := OPEN.match(line):
            kind, name, closed = match.groups()
            if kind == "oneof":
                self.stack.append(("oneof", name, self.stack[-1][2]))
                self.pending = []
                return
            outer = [block.name for _, _, block in self.stack]
            block = Block(kind, ".".join([*outer, name]), self.take_comment())
            if kind != "extend":
                self.blocks.append(block)
            if not closed:
                self.stack.append((kind, name, block))
            return
        if not self.stack:
            raise ValueError
        kind, name, block = self.stack[-1]
        if match := RPC.match(line):
            rpc, asks, request, answers, response = match.groups()
            arrow = f"{'stream of ' if asks else ''}{request} → {'stream of ' if answers else ''}{response}"
            block.rows.append((rpc, arrow, self.take_comment()))
        elif match := VALUE.match(line) if kind == "enum" else None:
            block.rows.append((match[1], match[2], self.take_comment(match[3])))
        elif match := FIELD.match(line) if kind in ("message", "oneof", "extend") else None:
            label, of, field, _, options, behind = match.groups()
            self.pending = [*flag_text(options or ""), *self.pending]
            of = f"repeated {of}" if label == "repeated" else of
            of += f" (one of `{name}`)" if kind == "oneof" else ""
            block.rows.append((field, of, self.take_comment(behind)))
        else:
            raise ValueError


def read(folder):
    return [File(path) for path in sorted(folder.glob("*.proto"))]
