"""Writes /etc/seine/seined.yaml: every setting with its explanation and default as a comment, and where a service listens."""
import re
import textwrap

SOCKET = "unix:/run/seine/seine.sock"
HEAD = """\
# Settings of the service seined, as its package installs them. What is commented out shows the default.
# `seined --config /etc/seine/seined.yaml --check-config` prints what is in force; seined(8) explains.
# After a change: systemctl restart seined (log.level and profiles alone: systemctl reload seined).
"""
INDEXES = """
# Indexes that exist from the start; others are created by calls.
# indexes:
#   - name: llama
#     geometry: {num_layers: 32, num_q_heads: 32, num_kv_heads: 8, head_dim: 128, dtype: bfloat16}
#     kv_store: keys
"""


def write(program, defaults, path):
    """`defaults`: what --check-config prints without any settings."""
    helps = {entry.flags()[-1]: re.sub(r" \[[^\]]*\]$", "", entry.description) for entry in program.options()}
    out, section = [HEAD.rstrip()], None
    for line in defaults.split("\n"):
        if re.fullmatch(r"\w+:", line):
            section = line[:-1]
            out.append(f"\n{line}" if section == "server" else "" if section == "indexes" else f"\n# {line}")
            continue
        setting = re.fullmatch(r"  (\w+): (.*)", line)
        if not setting or section == "indexes":
            continue
        key, value = setting.groups()
        flag = "--" + (key if section == "server" else f"{section}_{key}").replace("_", "-")
        indent = "  # " if section == "server" else "#   # "
        out += textwrap.wrap(helps[flag], 110, initial_indent=indent, subsequent_indent=indent)
        default = f"  # {key}: {value}" if section == "server" else f"#   {key}: {value}"
        out.append(f"  listen: {SOCKET}" if (section, key) == ("server", "listen") else default)
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(out).rstrip("\n") + "\n" + INDEXES)
