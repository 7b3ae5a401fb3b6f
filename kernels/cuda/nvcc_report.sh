#!/usr/bin/env bash
# The build's view of ptxas: runs the compiler for CMake, keeps what the assembler says of each kernel, and fails the
# compilation where a kernel spills registers or needs a stack.
# usage: nvcc_report.sh COMPILER ARGUMENT...    as a launcher: leaves OBJECT.ptxas beside the object
#        nvcc_report.sh --table DIR TABLE       the reports below DIR as one table
set -euo pipefail

# One line a kernel: name, architecture, registers, static shared memory, stack, spilled bytes.
rows() {
  awk '
    /Compiling entry function/ { match($0, /\047[^\047]+\047/); name = substr($0, RSTART + 1, RLENGTH - 2); arch = $NF; gsub(/\047/, "", arch) }
    /bytes stack frame/ && name != "" { stack = $1; spill = $5 + $9 }
    /Used [0-9]+ registers/ && name != "" {
      match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5, RLENGTH - 5)
      shared = 0; if (match($0, /[0-9]+ bytes smem/)) shared = substr($0, RSTART, RLENGTH - 11)
      print name, arch, registers, shared, stack, spill
      name = ""
    }' "$@"
}

if [[ ${1:-} == --table ]]; then
  {
    printf '%-8s %9s %13s %6s %7s  %s\n' target registers 'static shared' stack spilled kernel
    find "$2" -name '*.ptxas' -print0 | sort -z | xargs -0 -r cat | rows | c++filt -p | awk '{
      n = NF; printf "%-8s %9s %13s %6s %7s  ", $(n-4), $(n-3), $(n-2), $(n-1), $n
      for (i = 1; i < n - 4; ++i) printf "%s%s", $i, i < n - 5 ? " " : "\n" }'
  } >"$3"
  exit
fi

object=
for ((i = 1; i < $#; ++i)); do
  [[ ${!i} != -o ]] || { j=$((i + 1)) && object=${!j}; }
done
report=$(mktemp)
trap 'rm -f "$report"' EXIT
status=0
"$@" 2>"$report" || status=$?
grep -vE '^ptxas info|bytes stack frame|^[[:space:]]*[0-9]+ bytes (stack|gmem)' "$report" >&2 || true
((status == 0)) || exit "$status"
[[ $object == *.o ]] || exit 0
cp "$report" "$object.ptxas"
spilled=$(rows "$report" | awk '$5 + $6 > 0 { printf "  %s (%s): %s bytes of stack, %s spilled\n", $1, $2, $5, $6 }')
[[ -z $spilled ]] || {
  printf 'kernels that do not stay in registers:\n%s\n' "$spilled" >&2
  exit 1
}
