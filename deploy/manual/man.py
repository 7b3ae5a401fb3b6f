"""Writes a program's pages as one man page."""
import gzip
import re

from program import EXAMPLE_INDENT

# The backslash comes first, for the others' escapes have one.
ESCAPES = {"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti"}


def escape(text):
    for plain, roff in ESCAPES.items():
        text = text.replace(plain, roff)
    return "\\&" + text if text.startswith((".", "\\(aq")) else text


def paragraphs(text):
    """roff of a text whose lines are filled, but for those that are set in."""
    out, verbatim = [], False
    for line in text.split("\n"):
        indented = line.startswith(EXAMPLE_INDENT)
        if indented != verbatim:
            out.append(".RS\n.nf" if indented else ".fi\n.RE")
            verbatim = indented
        if indented:
            out.append(escape(line[len(EXAMPLE_INDENT):]))
        else:
            out.append(escape(line) if line.strip() else ".PP")
            if line.endswith(":"):
                out.append(".br")
    if verbatim:
        out.append(".fi\n.RE")
    return out


def entries_of(page):
    out = []
    for title, entries in page.sections:
        if title == "Subcommands":
            continue
        if title not in ("Options", "Positionals"):
            out += [".PP", escape(title) + ":"]
        for entry in entries:
            if entry.flags() != ["-h", "--help"] or not page.path:
                head, _, tail = entry.name.partition(" ")
                out += [".TP", f"\\fB{escape(head)}\\fR {escape(tail)}".rstrip(), escape(entry.description) or "."]
    return out


def write(name, section, version, program, see_also, path):
    out = [f'.TH {name.upper()} {section} "" "Seine {version}" "Seine"', ".SH NAME"]
    summary, *rest = re.split(r"\.\s", program.description, maxsplit=1)
    summary = " ".join(summary.split()).removeprefix(f"{name}: ").removeprefix(f"{name} ").rstrip(".")
    out += [f"{escape(name)} \\- {escape(summary)}", ".SH SYNOPSIS", f".B {escape(program.usage)}"]
    if rest:
        out += [".SH DESCRIPTION", *paragraphs(rest[0])]
    out += [".SH OPTIONS", *entries_of(program)]
    commands = [page for page in program.walk() if page.path]
    if commands:
        out.append(".SH COMMANDS")
    for page in commands:
        if page.commands:
            continue
        out += [f".SS {escape(page.usage)}", *paragraphs(page.description), *entries_of(page)]
        if page.footer:
            out += [".PP", *paragraphs(page.footer)]
    if program.footer:
        out += [".SH NOTES", *paragraphs(program.footer)]
    out += [".SH SEE ALSO", ",\n".join(f".BR {escape(other)} ({number})" for other, number in see_also)]
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(("\n".join(out) + "\n").encode())
