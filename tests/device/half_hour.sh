#!/usr/bin/env bash
# The first half hour on a machine with a GPU, in six parts. Each is one short command with a time limit, and each of its
# steps has one of its own; results lie in OUT as soon as they are there, and a step that fails stops nothing. Figures are
# marked by the checks that ran before, in other parts too.
# usage: half_hour.sh PART OUT     PART: 1 alive and right, 2 sanitizers, 3 exact attention, 4 profile, 5 all checks and
#                                  figures, 6 the index; all: one after another. OUT: a folder
# `./dev device` builds what it needs into build/device, which is carried there with the tree.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
part=${1:-} out=${2:-}
[[ $part =~ ^([1-6]|all)$ && -n $out ]] || { sed -n '5,8s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2; }
if [[ $part == all ]]; then
  failed=0
  for part in 1 2 3 4 5 6; do "${BASH_SOURCE[0]}" "$part" "$out" || failed=1; done
  exit "$failed"
fi
tools=$(cd "${SEINE_DEVICE_TOOLS:-$here/../../build/device}" 2>/dev/null && pwd) || { echo "half_hour: no build/device: ./dev device builds it" >&2; exit 2; }
suite=$tools/seine-device-suite
[[ -x $suite ]] || { echo "half_hour: no $suite: ./dev device builds it" >&2; exit 2; }
mkdir -p "$out"
out=$(cd "$out" && pwd)
commit=$(cat "$tools/commit" 2>/dev/null || echo unknown)
before=$tools/summary.json # of parts that ran before, perhaps into another folder
[[ ! -f $before ]] || cp "$before" "$out/summary.json"
failed=0 begin=$SECONDS

# step LIMIT NAME COMMAND...: says how it ended, and keeps what it printed.
step() {
  local limit=$1 name=$2 from=$SECONDS status
  timeout --kill-after=10 "$limit" "${@:3}" >"$out/$name.log" 2>&1
  status=$?
  [[ ! -f $out/summary.json ]] || cp "$out/summary.json" "$before"
  ((status == 0 || status == 77)) || failed=1
  case $status in
    0) echo "$name: done" ;;
    77) echo "$name: $(tail -n 1 "$out/$name.log")" ;; # skipped, and why
    124 | 137) echo "$name: FAILED: its $limit s are over" ;;
    127) echo "$name: FAILED: $3 is not on this machine" ;;
    *) echo "$name: FAILED: exit code $status" && tail -n 5 "$out/$name.log" ;;
  esac | sed "s/\$/ ($((SECONDS - from)) s)/" | tee -a "$out/steps.txt"
}
check() { step "$1" "$2" "$suite" -o "$out" --commit "$commit" "${@:3}"; } # LIMIT NAME FLAG...
find_tool() { # NAME: its path, or the name itself
  local path
  for path in "$(command -v "$1")" /usr/local/cuda/bin/"$1" /opt/nvidia/nsight-compute/*/"$1"; do
    [[ ! -x $path ]] || { echo "$path" && return; }
  done
  echo "$1"
}

export LD_LIBRARY_PATH=$tools/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} # of seine-bench
nvidia-smi >"$out/nvidia-smi.txt" 2>&1
case $part in
  1) # 3 minutes
    check 60 alive --small --only checks
    check 60 right --items 500 --limit 50 --only items
    check 60 first-figures --only time-copy,time-131072x1 --limit 25
    ;;
  2) # 7 minutes, an item of every check at least
    sanitizer=$(find_tool compute-sanitizer)
    for tool in memcheck racecheck synccheck; do
      # In a folder of its own: a sanitizer's verdict is its exit code, and its parts mark no figure.
      step 130 "$tool" "$sanitizer" --tool "$tool" --error-exitcode 9 --print-limit 20 \
        "$suite" --in-process --small --items 4 --limit 12 --only checks -o "$out/$tool"
    done
    ;;
  3) step 240 exact-attention python3 "$here/exact_attention.py" -o "$out/exact-attention.json" --limit 230 ;; # 4 minutes
  4) # 6 minutes: one launch of each kernel
    ncu=$(find_tool ncu)
    for keys in 131072 1048576; do
      step 170 "ncu-$keys" "$ncu" --csv --page raw --kernel-name-base demangled \
        --kernel-name "regex:(Prepare|Scan|Choose|Dot|Combine)Body" --launch-count 10 --metrics \
        gpu__time_duration.sum,launch__grid_size,launch__registers_per_thread,launch__shared_mem_per_block_static,launch__shared_mem_per_block_dynamic,sm__warps_active.avg.pct_of_peak_sustained_active,dram__throughput.avg.pct_of_peak_sustained_elapsed,l1tex__data_bank_conflicts_pipe_lsu.sum \
        "$suite" --in-process --only time-default-${keys}x1 --keys "$keys" --limit 60
    done
    ;;
  5) # 9 minutes
    check 170 items --only items --limit 150
    check 190 checks --only defaults,exact,long,repeats,streams,lowrank,codes,sums,scores,learn,attend,graphs,memory --limit 12
    check 190 figures --only timings --limit 15
    ;;
  6) # 2 minutes: the same answers to the digit, and a step end to end
    data=$here/../../bench/data
    for backend in cpu cuda; do
      step 60 "recall-$backend" "$tools/seine-bench" recall \
        --trace "$data/smollm2-135m-kjv-8k.safetensors" --profile "$data/smollm2-135m.profile.safetensors" --horizon 4096 \
        --refine 300 --num-queries 64 --candidates 1%,2%,5%,10% --backend "$backend" -o json
    done
    # A model of torch's on the GPU, end to end, with the package that ./dev device --index puts there.
    PYTHONPATH=$tools/python step 100 hugging-face python3 "$here/hugging_face.py"
    step 10 recall-equal python3 "$here/same_recall.py" "$out/recall-cpu.log" "$out/recall-cuda.log"
    ;;
esac
echo "part $part: $((SECONDS - begin)) s" | tee -a "$out/steps.txt"
exit "$failed"
