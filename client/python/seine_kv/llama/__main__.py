"""`python -m seine_kv.llama`: runs llama.cpp's programs with the plug-in, and says what it would do."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from seine_kv import llama
from seine_kv.llama import gguf

EPILOG = """\
what is added to a command, unless it says otherwise:
  GGML_BACKEND_PATH  the plug-in (--path)
  -fa on             flash attention: without it llama.cpp attends by itself (llama-bench: -fa 1)
  -ot zzz=CPU        overrides no tensor, for none has such a name, and makes the program load plug-ins
stderr says what was added; then the plug-in says from how many cells on it answers, and by which code at its first
answer. A program that does not take it runs without, and stderr says why.

SEINE_PROFILE names the model's profile, SEINE_REPORT=- counts what was answered; docs/engines.md has all settings.

examples:
  # a server, with llama-server's own options
  python -m seine_kv.llama -- llama-server -m model.gguf -c 32768
  # whether a program loads it, and which layers of a model would be answered
  python -m seine_kv.llama --check llama-server model.gguf
  # by hand, in a shell of your own
  export GGML_BACKEND_PATH=$(python -m seine_kv.llama --path)
"""

# llama.cpp's programs that attend and read its common options; others get the environment alone.
COMMON = ("llama-batched-bench", "llama-cli", "llama-completion", "llama-imatrix", "llama-mtmd-cli",
          "llama-parallel", "llama-perplexity", "llama-server", "llama-server-vulkan", "llama-server-cuda")  # fmt: skip
FLASH_ATTENTION = ("-fa", "--flash-attn")
OVERRIDE = ("-ot", "--override-tensor")
OFF = ("off", "auto", "0", "false", "disabled", "-1")


def say(line):
    print(f"seine: {line}", file=sys.stderr, flush=True)


def value_of(command, names):
    """What a command gives an option; None: nothing."""
    for at, word in enumerate(command):
        if word in names:
            return command[at + 1] if at + 1 < len(command) else ""
        if word.split("=")[0] in names and "=" in word:
            return word.split("=", 1)[1]
    return None


def missing_options(command, environment):
    """Options that this program needs and nobody gave."""
    name, more = Path(command[0]).name, []
    if name == "llama-bench":
        return [] if value_of(command, FLASH_ATTENTION) is not None else ["-fa", "1"]
    if name in COMMON or name == "llama-cpp-server":
        if value_of(command, FLASH_ATTENTION) is None and "LLAMA_ARG_FLASH_ATTN" not in environment:
            more += ["-fa", "on"]
        if value_of(command, OVERRIDE) is None and "LLAMA_ARG_OVERRIDE_TENSOR" not in environment:
            more += ["-ot", "zzz=CPU"]
    if name == "llama-cpp-server" and more and "--" not in command:  # it hands on what is behind that
        more.insert(0, "--")
    return more


def with_plugin(environment):
    return {**environment, "GGML_BACKEND_PATH": environment.get("GGML_BACKEND_PATH") or str(llama.path())}


def ask_program(program):
    """Whether a program of llama.cpp loads the plug-in: it is asked for its devices."""
    found = shutil.which(program)
    if found is None:
        return {"program": program, "loads": False, "why": "there is no such program"}
    lists = os.path.basename(found) in COMMON or os.path.basename(found) == "llama-bench"
    if not lists:
        return {"program": found, "loads": None, "why": "it is none that lists its devices, so it cannot be asked"}
    try:
        done = subprocess.run([found, "--list-devices"], env=with_plugin(os.environ), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=120, errors="replace", check=False)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"program": found, "loads": False, "why": f"{found} --list-devices: {error}"}
    lines = (done.stdout + done.stderr).splitlines()
    answer = {"program": found, "loads": any(line.strip().startswith("Seine:") for line in lines), "why": ""}
    for line in lines:
        said = re.match(r"seine: ggml (\S+), interface (\d+)", line)
        if said:
            answer |= {"ggml": said[1], "interface": int(said[2])}
    if not answer["loads"]:
        reasons = [line for line in lines if "not take the plug-in" in line or "failed to" in line]
        reasons += [f"{found} --list-devices ended with {done.returncode}"] if done.returncode != 0 else []
        answer["why"] = (reasons or ["it loads no plug-ins: GGML_BACKEND_PATH names none for it"])[0].removeprefix("seine: ")
    return answer


def ask_python():
    """The same of llama-cpp-python, in a process of its own; None: it is not installed."""
    script = "import json, llama_cpp; from seine_kv import llama; llama.load(); print(json.dumps(llama.about() | {'of': llama_cpp.__version__}))"
    has = [sys.executable, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('llama_cpp') is None)"]
    if subprocess.run(has, check=False).returncode != 0:
        return None
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"program": "llama-cpp-python", "loads": False, "why": (done.stderr.strip().splitlines() or ["?"])[-1]}
    said = json.loads(done.stdout.splitlines()[-1])
    return {"program": f"llama-cpp-python {said['of']}", "loads": True, "why": "", "ggml": said["ggml"], "interface": said["interface"]}


def ask_model(file):
    """Which of a model's layers would be answered, of a cache of llama.cpp's default type."""
    model = gguf.describe(file)
    shapes = []
    for heads in model.attending:
        why = model.whole_reason or llama.unfit(heads.head_dim, heads.value_head_dim, heads.num_q_heads, heads.num_kv_heads)
        shapes.append({**vars(heads), "answered": not why, "why": why or ""})
    return {
        "model": str(file), "architecture": model.architecture, "name": model.name, "layers": model.layers,
        "context_length": model.context, "answered_layers": sum(s["layers"] for s in shapes if s["answered"]),
        "attending": shapes, "why": model.whole_reason,
    }  # fmt: skip


def check(things):
    """What is asked about: programs, GGUFs; of nothing, what is found here. ValueError: a file that is neither."""
    answer = {"plugin": {"path": str(llama.path()), **{k: llama.about()[k] for k in ("version", "interfaces", "min_kv")}},
              "programs": [], "models": []}  # fmt: skip
    for thing in things:
        if thing.endswith(".gguf") or (os.path.isfile(thing) and not os.access(thing, os.X_OK)):
            try:
                answer["models"].append(ask_model(thing))
            except (OSError, gguf.GgufError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                raise ValueError(f"{thing}: {reason}") from None
        else:
            answer["programs"].append(ask_program(thing))
    if not things:
        answer["programs"] += [ask_program(name) for name in ("llama-server", "llama-cli") if shutil.which(name)]
        python = ask_python()
        answer["programs"] += [python] if python else []
    return answer


def counted(number, word):
    return f"{number} {word}{'' if number == 1 else 's'}"


def lines_of(answer):
    plugin = answer["plugin"]
    versions = " and ".join(map(str, plugin["interfaces"]))
    yield f"plug-in  {plugin['path']}: version {plugin['version']}, for versions {versions} of ggml's backend interface"
    for program in answer["programs"]:
        of = f" (ggml {program['ggml']}, interface {program['interface']})" if "interface" in program else ""
        does = {True: "loads it", False: f"does not load it: {program['why']}", None: program["why"]}[program["loads"]]
        yield f"program  {program['program']}{of} {does}" if program["loads"] else f"program  {program['program']}{of}: {does}"
    if not answer["programs"] and not answer["models"]:
        yield "program  none found: llama-server and llama-cli are not on PATH, and llama-cpp-python is not installed"
    for model in answer["models"]:
        trained = f", trained for {model['context_length']:,} tokens" if model["context_length"] else ""
        yield f"model    {model['model']}: {model['architecture']}, {counted(model['layers'], 'layer')}{trained}"
        for shape in model["attending"]:
            heads = ", ".join([counted(shape["num_q_heads"], "query head"), counted(shape["num_kv_heads"], "KV head")])
            heads = f"{counted(shape['layers'], 'layer')} of {heads}, head_dim {shape['head_dim']}"
            does = f"answered from {plugin['min_kv']:,} cells on" if shape["answered"] else f"left to llama.cpp: {shape['why']}"
            yield f"         {heads}: {does}"
        if not model["attending"]:
            yield f"         nothing is answered: {model['why']}"


def run(command):
    environment = dict(os.environ)
    own = environment.get("GGML_BACKEND_PATH")
    if own and Path(own).name != llama.LIBRARY:
        say(f"GGML_BACKEND_PATH is {own}, which stays: Seine is not loaded")
    asked = ask_program(command[0])
    if asked["loads"] is False and asked["why"] == "there is no such program":
        raise ValueError(f"{command[0]}: there is no such program")
    more = missing_options(command, environment)
    added = [] if own else [f"GGML_BACKEND_PATH={llama.path()}"]
    if asked["loads"] is False:
        say(f"{command[0]} runs without the plug-in: {asked['why']}")
        more, added = [], []
    elif (value_of(command, FLASH_ATTENTION) or environment.get("LLAMA_ARG_FLASH_ATTN", "on")) in OFF:
        say("flash attention is not turned on, by the command's own word: where it is off, llama.cpp attends by itself")
    elif asked["loads"] is None and not more:
        say(f"{command[0]} must turn flash attention on by itself, and load plug-ins")
    if added or more:
        say("added " + " ".join([*added, *more]))
    sys.stdout.flush()
    os.execvpe(command[0], [*command, *more], with_plugin(environment) if asked["loads"] is not False else environment)


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m seine_kv.llama",
        usage="%(prog)s [-h] (--path | --check [PROGRAM or MODEL.gguf ...] [-o FORMAT] | -- COMMAND ...)",
        description="Run a program of llama.cpp so that it decodes through Seine, or say what it would do.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--path", action="store_true", help="print where the plug-in is")
    parser.add_argument("--check", nargs="*", metavar="THING",
                        help="whether programs load it, and what of models (GGUFs) is answered; of nothing: what is installed")  # fmt: skip
    parser.add_argument("-o", choices=("text", "json"), default="text", help="how --check prints (default: %(default)s)")
    own, command = arguments, []
    if "--" in arguments:
        at = arguments.index("--")
        own, command = arguments[:at], arguments[at + 1 :]
    args = parser.parse_args(own)
    if args.path + (args.check is not None) + bool(command) != 1:
        parser.error("give one of --path, --check and -- COMMAND")
    args.command = command
    return args


def main(arguments):
    args = parse(arguments)
    try:
        if args.path:
            print(llama.path())
            return 0
        if args.command:
            run(args.command)
        answer = check(args.check)
    except (OSError, ValueError) as error:
        print(f"seine_kv.llama: {error}", file=sys.stderr)
        return 2
    print(json.dumps(answer, indent=2) if args.o == "json" else "\n".join(lines_of(answer)))
    good = [p["loads"] is not False for p in answer["programs"]] + [m["answered_layers"] > 0 for m in answer["models"]]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
