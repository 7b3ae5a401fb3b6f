#!/usr/bin/env python3
"""The flags of `./dev fleet`, which reads them with this file before it builds: the standard library alone."""

import argparse
import random

ABOUT = """Decodes on a fleet while it is killed, and checks every answer.

Four servers under Ray, each on a raylet of its own on this machine, and N sequences that decode: each step appends a token
to every one and attends. The answers are compared with exact attention in float64 over the tokens that the client knows
it has appended. Meanwhile servers, supervisors, raylets and the control process of Ray's head (GCS) are killed with -9. A
node is drained by Fleet.drain and taken back, once while it or another is killed. One is added, and families move there."""

PRINTS = """Prints a line of JSON: steps; wrong (answers that differ, and families that live twice); unstated_errors (errors
other than those that a caller is told to expect); kills, and those of each kind; drains, undrains, added; moved (families
that drains and the new node took elsewhere); moves (families made again on another node). by_kind has the longest seconds after a kill of that kind: first_answer_s and last_answer_s of
the families that the node held, new_family_s until a family could be created, others_stall_s between two steps that answered
other families. Ends with 1 where wrong or unstated_errors is not 0."""


class Parser(argparse.ArgumentParser):
    """Tells what is wrong in one line, by the name of the command that users call."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n")


def positive(kind):
    def read(text):
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
        return value

    read.__name__ = kind.__name__  # for what argparse says of words that are no numbers
    return read


def parse(arguments=None):
    parser = Parser(
        prog="./dev fleet", description=ABOUT, epilog=PRINTS, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=positive(float), default=1.0, help="(default 1)")
    parser.add_argument("--sequences", type=positive(int), default=64, help="(default 64)")
    parser.add_argument("--seed", type=int, help="of what is killed when (default: another each time; the JSON has it)")
    parser.add_argument("--seined", default="", help="the server's program (default: the one that is built)")
    read = parser.parse_args(arguments)
    if read.seed is None:
        read.seed = random.SystemRandom().randrange(1 << 31)
    elif read.seed < 0:
        parser.error(f"argument --seed: must be at least 0, not {read.seed}")
    return read


if __name__ == "__main__":
    parse()
