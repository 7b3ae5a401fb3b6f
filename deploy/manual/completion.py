"""Writes a program's shell completion for bash and zsh: commands, flags, and values where --help lists them."""

BASH = """# bash completion of {name}: made from its --help.
_{function}() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} path='' words='' i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$path ${{COMP_WORDS[i]}}" in
      {paths}) path="$path ${{COMP_WORDS[i]}}" ;;
    esac
  done
  case "$path $previous" in
{values}
    *)
      case "$path" in
{words}
      esac
      ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}}
complete -o default -F _{function} {name}
"""

ZSH = """#compdef {name}
# zsh completion of {name}: made from its --help.
local given='' i
local -a entries
for ((i = 2; i < CURRENT; i++)); do
  case "$given $words[i]" in
    ({paths}) given="$given $words[i]" ;;
  esac
done
case "$given $words[CURRENT-1]" in
{values}
esac
case "$given" in
{words}
esac
if [[ $words[CURRENT] == -* ]]; then
  _describe -o option entries
else
  _describe command entries || _files
fi
"""


def joined(path):
    return "".join(f" {word}" for word in path)


def inherited(page, program):
    """Options of a command: its own, and the program's, which are taken after every command."""
    own = page.options()
    return own + [entry for entry in program.options() if page.path and entry.flags()[0] not in {o.flags()[0] for o in own}]


def paths_of(program):
    return "|".join(f'"{joined(page.path)}"' for page in program.walk() if page.path) or '""'


def values_of(program, line):
    return "\n".join(line(f"{joined(page.path)} {flag}", entry) for page in program.walk() for entry in inherited(page, program)
                     if entry.takes_value() for flag in entry.flags())


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def write_bash(name, program, path):
    def value(key, entry):
        return f'    "{key}") words="{" ".join(entry.choices())}" ;;'

    def words(page):
        names = [command.path[-1] for command in page.commands]
        names += [flag for entry in inherited(page, program) for flag in entry.flags() if flag.startswith("--")]
        return f'        "{joined(page.path)}") words="{" ".join(names)}" ;;'

    text = BASH.format(name=name, function=name.replace("-", "_"), paths=paths_of(program), values=values_of(program, value),
                       words="\n".join(map(words, program.walk())))
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def write_zsh(name, program, path):
    def value(key, entry):
        choices = " ".join(map(quoted, entry.choices()))
        return f'  ("{key}") {"compadd -- " + choices if choices else "_files"}; return ;;'

    def words(page):
        entries = [(command.path[-1], command.description) for command in page.commands]
        entries += [(flag, entry.description) for entry in inherited(page, program) for flag in entry.flags() if flag.startswith("--")]
        listed = " ".join(quoted(f"{word}:{text.splitlines()[0] if text else ''}") for word, text in entries)
        return f'  ("{joined(page.path)}") entries=({listed}) ;;'

    text = ZSH.format(name=name, paths=paths_of(program), values=values_of(program, value),
                      words="\n".join(map(words, program.walk())))
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
