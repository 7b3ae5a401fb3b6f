#!/usr/bin/env bash
# The device suite on a machine with a GPU: small sizes under compute-sanitizer (memcheck, racecheck), then every check at
# full size and the timings. One JSON says machine, driver, commit, what passed and the figures.
# usage: run.sh RESULTS.json
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
results=${1:?usage: run.sh RESULTS.json}
suite=$here/seine-device-suite
commit=$(cat "$here/commit" 2>/dev/null || echo unknown)
failed=0
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
verdicts=
for tool in memcheck racecheck; do
  if [[ -z $sanitizer ]]; then
    verdict="not run: compute-sanitizer is not on this machine"
  elif "$sanitizer" --tool "$tool" --error-exitcode 9 "$suite" --small --no-timings >"$here/$tool.log" 2>&1; then
    verdict=clean
  else
    verdict="failed, exit code $?: see $tool.log"
    failed=1
    tail -n 30 "$here/$tool.log" >&2
  fi
  echo "compute-sanitizer, $tool: $verdict" >&2
  verdicts+=${verdicts:+, }"\"$tool\": \"$verdict\""
done
"$suite" --json "$results" --commit "$commit" >/dev/null || failed=1
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
[[ ! -s $results ]] || sed -i "1s|{|{\n \"sanitizer\": {$verdicts},\n \"driver_version\": \"$driver\",|" "$results"
exit "$failed"
