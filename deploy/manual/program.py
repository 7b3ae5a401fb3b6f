"""Reads what a program of ours says of itself: the --help of the program and of every command below it."""
import os
import re
import subprocess
from dataclasses import dataclass, field

DESCRIPTION_COLUMN = 30  # where --help begins an option's description
EXAMPLE_INDENT = "  "


@dataclass
class Entry:
    """An option, a positional or a command with its description."""
    name: str
    description: str = ""

    def flags(self):
        """["-o", "--output"] of "-o,--output TEXT"."""
        return [flag for flag in self.name.split()[0].split(",") if flag.startswith("-")]

    def takes_value(self):
        rest = self.name.split()[1:]
        return bool(rest) and not rest[0].startswith(("Excludes:", "Needs:", "(Env:"))

    def choices(self):
        """["table", "json"] of the names "TEXT:{table,json}" and "table|json", and of the description "table or json"."""
        listed = re.search(r"\{([^}]+)\}", self.name)
        if listed:
            return listed.group(1).split(",")
        described = re.search(r"(?:^|: )(\w+(?:, \w+)* or \w+)(?= \(|$)", self.description)
        if described:
            return re.split(r", | or ", described.group(1))
        words = self.name.split()[1:2]
        return words[0].split("|") if words and "|" in words[0] else []


@dataclass
class Page:
    """One command's help. `path` is empty for the program itself, else ("index", "create")."""
    path: tuple
    description: str
    usage: str
    sections: list = field(default_factory=list)  # (title, [Entry])
    footer: str = ""
    commands: list = field(default_factory=list)  # [Page]

    def options(self):
        return [entry for _, entries in self.sections for entry in entries if entry.name.startswith("-")]

    def walk(self):
        yield self
        for command in self.commands:
            yield from command.walk()


def run(program, *arguments):
    """Standard output of a program, without what this machine and user put into it."""
    environment = {key: value for key, value in os.environ.items() if key != "XDG_RUNTIME_DIR" and not key.startswith("SEINE")}
    text = subprocess.run([program, *arguments], check=True, capture_output=True, text=True, env=environment).stdout
    return text.replace(f"/tmp/seine-{os.getuid()}/", "/tmp/seine-UID/")


def split_row(line):
    """(name, description or "") of a row that begins with two spaces."""
    name, description = line[:DESCRIPTION_COLUMN], line[DESCRIPTION_COLUMN:]
    beside = description and description[0] != " " and name.endswith(" ")
    if beside and (name.endswith("  ") or re.fullmatch(r"-\S+( [^\s\[]+)?", name.strip())):
        return name.strip(), description.strip()
    return line.strip(), ""


def parse_entries(lines):
    """Entries of a section, up to the first line that is not indented. Takes the lines that it reads."""
    entries = []
    while lines and lines[0].startswith(EXAMPLE_INDENT):
        line = lines.pop(0)
        indent = len(line) - len(line.lstrip())
        if indent == 2:
            entries.append(Entry(*split_row(line)))
        elif indent < DESCRIPTION_COLUMN and not entries[-1].description:
            entries[-1].name += " " + line.strip()
        else:
            entries[-1].description = f"{entries[-1].description} {line.strip()}".strip()
    return entries


def parse(path, text):
    description, _, rest = text.partition("Usage: ")
    lines = rest.split("\n")
    page = Page(path, description.strip(), "")
    usage = [lines.pop(0)]
    while lines and lines[0].strip():
        usage.append(lines.pop(0).strip())
    page.usage = " ".join(usage)
    while lines:
        if not lines[0].strip():
            lines.pop(0)
        # A title, or the footer: an example's title is a footer's, for what follows it is no option and no command.
        elif re.fullmatch(r"\S.*:", lines[0]) and len(lines) > 1 and is_row(lines[1], page.path):
            title = lines.pop(0)[:-1]
            page.sections.append((title, parse_entries(lines)))
        else:
            page.footer = "\n".join(lines).strip("\n")
            break
    return page


def is_row(line, path):
    """Whether a line names an option, a positional or a command; an example begins with the program's name."""
    return re.match(r"  (-|[A-Z]|[a-z][a-z-]*(  |$))", line) is not None and not re.match(r"  seine", line)


def read(program, path=()):
    """The page of a command with those of all commands below it."""
    page = parse(path, run(program, *path, "--help"))
    for title, entries in page.sections:
        if title == "Subcommands":
            page.commands = [read(program, (*path, entry.name.split()[0])) for entry in entries]
    return page
