#!/usr/bin/env bash
# Lints the tree: format, clang-tidy, protos, Python, shell, and words that must not be committed. Runs every linter, then ends
# with 1 if one complained. `./dev lint` calls it; it wants a configured build folder with the protos generated.
# usage: lint.sh BUILD_DIR | lint.sh --format
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit

# Files of the tree by pattern: those that git knows or would know, or, without git, all but build/ and .git/.
tree_files() {
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files --cached --others --exclude-standard -- "$@" | while IFS= read -r file; do
      [[ ! -f $file ]] || echo "$file"
    done
  else
    local names=() pattern
    for pattern in "$@"; do names+=(-o -path "./$pattern"); done
    find . \( -path ./build -o -path ./.git \) -prune -o -type f \( "${names[@]:1}" \) -print | sed 's|^\./||'
  fi
}

check_format() { tree_files '*.cc' '*.h' '*.cu' | xargs -r clang-format --dry-run -Werror; }

# What the build folder compiles of the rooms' sources; what headers hold is checked through them. Headers take most of the
# time, so a build folder whose sources share translation units (CMAKE_UNITY_BUILD) is linted several times faster.
# What the compiler's own warnings are g++ says, for which clang has other names; omp.h is g++'s.
check_tidy() {
  local args=(--extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-deprecated-declarations --extra-arg=-fno-openmp
    --extra-arg=-idirafter"$(g++ -print-file-name=include)")
  python3 tests/house/translation_units.py "$build" profile kernels index proto service client bench |
    xargs -r -n 1 -P "$(nproc)" clang-tidy -p "$build" --quiet "${args[@]}" \
      2> >(grep -vE '^[0-9]+ warnings? (generated|treated)' >&2)
}

check_protos() { python3 tests/house/proto_lint_test.py --quiet && python3 tests/house/proto_lint.py proto; }

check_python() { tree_files '*.py' | PYTHONPYCACHEPREFIX=$build/pycache xargs -r python3 -m py_compile; }

check_shell() { { echo dev; echo .ci/run; tree_files '*.sh'; } | xargs shellcheck; }

# No file may name a folder of the machine that it was written on, or carry a note to its writer.
check_words() {
  ! tree_files '*' | xargs grep -nIE '(^|[^[:alnum:]_.-])/(work|root)/|\b(TO[D]O|FIX[M]E|XX[X])\b'
}

if [[ ${1:-} == --format ]]; then
  tree_files '*.cc' '*.h' '*.cu' | xargs -r clang-format -i
  exit
fi
build=${1:-}
if [[ ! -f $build/compile_commands.json ]]; then
  echo "usage: tests/house/lint.sh BUILD_DIR | --format; BUILD_DIR is a configured build folder, as ./dev lint makes it" >&2
  exit 2
fi
failed=()
for linter in format protos python shell words tidy; do
  begin=$SECONDS
  "check_$linter" || failed+=("$linter")
  echo "lint: $linter, $((SECONDS - begin)) s" >&2
done
if ((${#failed[@]})); then
  echo "lint: failed: ${failed[*]}" >&2
  exit 1
fi
echo "lint: clean" >&2
