// Flags, and their help.
#include "engines/llama.cpp/bench/setup/bench_options.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace seine::llama {

namespace {

constexpr const char* kHelp =
    R"(Decodes one token after another with llama.cpp alone, with Seine's plug-in, and with the plug-in's exact attention

Usage: seine-llama-bench --model FILE.gguf --text FILE [options]

  --model FILE      a GGUF
  --text FILE,...   read as the context, and decoded on from it (teacher-forced); each in its turn
  --plugin FILE     libggml-seine.so (default: beside this program)
  --cells N,N,...   lengths of the context (default: 2048,4096,8192)
  --context N       cells that a context has room for (default: what a length and its steps need)
  --steps N         tokens decoded of each text at each length (default: 64)
  --top-k N,N,...   tokens chosen a query head (default: SEINE_TOP_K)
  --threads N       (default: 2)
  -ctk, -ctv TYPE   of the caches of keys and of values: f16, bf16, q8_0 or q4_0 (default: f16)
  --yarn FACTOR     stretch the context by so much, by YaRN (default: 1)
  --repeat N        longer contexts repeat cells: read N tokens, copy them (times alone; quality is not printed)
  --random          instead of a text: write a model of Llama-3.2-1B's geometry with random weights to --model unless it is
                    there, and read random tokens (times alone)
  --weights TYPE    of that model: q4_K (default), q4_0 or q8_0
  --prompts N       time to the first token alone: N pairs of contexts at each length read the texts in turn
  --needles N       needles alone: N (at most 32) numbers hidden in each text at even depths, and asked for behind it
  --hole N          processor's time a token alone: N cells near the beginning are freed, and filled again by decoding,
                    beside a text in a row
  --whole           whole answers alone: a prompt of each length and --steps tokens behind it, by llama.cpp, with decoding
                    through the plug-in, with both, and by its exact attention; and attention of the prompt's last 2,048
                    tokens beside llama.cpp's. With --repeat those alone are timed, behind copied cells
  --shares N,N,...  what sparse prompts change alone: each text is read exactly and over each share of its blocks' attention,
                    as .9,.95; then --steps tokens are decoded behind each by exact attention
  --prompt MODE     how the plug-in attends prompts: exact, sparse or off (default: exact; of --whole and --prompts what
                    SEINE_PROMPT says)
  --peer COMMAND    times another server as well, over the same prompts: COMMAND is given --prompts FILE, as peer.py is,
                    and prints what each took. Of whole answers, and of decoding as it is measured by default
  --rows FILE       keeps each measured row there, a line of JSON each; a run that was cut off goes on from there
  --plot FILE.svg   draws tokens a second against the context's length
  -o json           rows as one JSON object

Settings of the plug-in are environment variables: SEINE_TOP_K, SEINE_PROFILE, ... (docs/engines.md).
)";

template <typename Use>
void ForEachOf(const std::string& list, Use use) {
  std::stringstream stream(list);
  for (std::string one; std::getline(stream, one, ',');) use(one);
}

}  // namespace

void Fail(const std::string& why) {
  std::fprintf(stderr, "seine-llama-bench: %s\n", why.c_str());
  std::exit(1);
}

Options ParseOptions(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "-h" || flag == "--help") {
      std::fputs(kHelp, stdout);
      std::exit(0);
    }
    if (flag == "--random") {
      o.random = true;
      continue;
    }
    if (flag == "--whole") {
      o.whole = true;
      continue;
    }
    if (i + 1 == argc) Fail(flag + ": has no value, or is no flag (--help)");
    const std::string value = argv[++i];
    if (flag == "--model") {
      o.model = value;
    } else if (flag == "--text") {
      ForEachOf(value, [&](const std::string& one) { o.texts.push_back(one); });
    } else if (flag == "--plugin") {
      o.plugin = value;
    } else if (flag == "--plot") {
      o.plot = value;
    } else if (flag == "--prompt") {
      o.prompt = value;
      if (value != "exact" && value != "sparse" && value != "off") Fail("--prompt " + value + ": exact, sparse or off");
    } else if (flag == "-ctk" || flag == "-ctv") {
      (flag == "-ctk" ? o.cache_type_k : o.cache_type_v) = value;
      if (value != "f16" && value != "bf16" && value != "q8_0" && value != "q4_0") {
        Fail(flag + " " + value + ": f16, bf16, q8_0 or q4_0");
      }
    } else if (flag == "--peer") {
      o.peer = value;
    } else if (flag == "--rows") {
      o.rows = value;
    } else if (flag == "--weights") {
      o.weights = value;
      if (value != "q4_K" && value != "q4_0" && value != "q8_0") Fail("--weights " + value + ": q4_K, q4_0 or q8_0");
    } else if (flag == "--prompts") {
      o.prompts = std::atoi(value.c_str());
      if (o.prompts < 1) Fail("--prompts must be a positive number");
    } else if (flag == "--needles") {
      o.needles = std::atoi(value.c_str());
      if (o.needles < 1 || o.needles > kMostNeedles) Fail("--needles must be in [1, 32]");
    } else if (flag == "--hole") {
      o.hole = std::atoi(value.c_str());
      if (o.hole < 1) Fail("--hole must be a positive number");
    } else if (flag == "--shares") {
      ForEachOf(value, [&](const std::string& one) { o.shares.push_back(std::atof(one.c_str())); });
    } else if (flag == "--context") {
      o.context = std::atoi(value.c_str());
      if (o.context < 1) Fail("--context must be a positive number");
    } else if (flag == "--steps") {
      o.steps = std::atoi(value.c_str());
    } else if (flag == "--threads") {
      o.threads = std::atoi(value.c_str());
    } else if (flag == "--yarn") {
      o.yarn = static_cast<float>(std::atof(value.c_str()));
    } else if (flag == "--repeat") {
      o.repeat = std::atoi(value.c_str());
    } else if (flag == "-o") {
      if (value != "json" && value != "text") Fail("-o " + value + ": json or text");
      o.json = value == "json";
    } else if (flag == "--cells") {
      o.cells.clear();
      ForEachOf(value, [&](const std::string& one) { o.cells.push_back(std::atoi(one.c_str())); });
    } else if (flag == "--top-k") {
      ForEachOf(value, [&](const std::string& one) { o.top_k.push_back(std::atoi(one.c_str())); });
    } else {
      Fail(flag + ": no such flag (--help)");
    }
  }
  if (!o.weights.empty() && !o.random) Fail("--weights are of the model that --random writes");
  if (o.weights.empty()) o.weights = "q4_K";
  if (o.random) o.texts = {"random tokens"};
  if (o.model.empty() || o.texts.empty()) Fail("--model and --text must be given (--help)");
  if (o.plugin.empty()) {
    const std::string program = argv[0];
    const size_t slash = program.rfind('/');
    o.plugin = (slash == std::string::npos ? "." : program.substr(0, slash)) + "/libggml-seine.so";
  }
  const auto positive = [](const std::vector<int>& values) {
    return std::all_of(values.begin(), values.end(), [](int value) { return value > 0; });
  };
  if (o.steps < 1 || o.threads < 1) Fail("--steps and --threads must be positive numbers");
  if (o.cells.empty() || !positive(o.cells) || !positive(o.top_k)) Fail("--cells and --top-k must be positive numbers");
  if (o.repeat < 0 || o.yarn < 1) Fail("--repeat must not be negative, --yarn not below 1");
  if (o.prompts > 0 && o.needles > 0) Fail("--prompts and --needles are two measures: give one");
  if (o.hole > 0 && (o.prompts > 0 || o.needles > 0 || o.repeat > 0)) {
    Fail("--hole is a measure of its own, without --prompts, --needles and --repeat");
  }
  if (o.whole && (o.prompts > 0 || o.needles > 0 || o.hole > 0)) {
    Fail("--whole is a measure of its own, without --prompts, --needles and --hole");
  }
  for (const double share : o.shares) {
    if (share <= 0 || share >= 1) Fail("--shares must be numbers above 0 and below 1, as .9,.95");
    if (o.prompts > 0 || o.needles > 0 || o.hole > 0 || o.whole || o.repeat > 0 || !o.prompt.empty()) {
      Fail("--shares is a measure of its own, without --prompts, --needles, --hole, --whole, --repeat and --prompt");
    }
  }
  if (o.prompts > 0 && o.repeat > 0) Fail("--repeat copies cells, which --prompts would not time");
  if (o.needles > 0 && (o.repeat > 0 || o.random)) Fail("--needles wants a text, neither --repeat nor --random");
  if ((o.prompts > 0 || o.needles > 0 || o.hole > 0 || o.whole || !o.shares.empty()) && !o.plot.empty()) {
    Fail("--plot draws neither --prompts nor --needles nor --hole nor --whole nor --shares");
  }
  if (!o.peer.empty() &&
      (o.prompts > 0 || o.needles > 0 || o.hole > 0 || !o.shares.empty() || o.repeat > 0 || o.yarn > 1)) {
    Fail("--peer reads texts as they are: without --prompts, --needles, --hole, --shares, --repeat and --yarn");
  }
  if (o.top_k.empty()) o.top_k = {0};
  return o;
}

}  // namespace seine::llama
