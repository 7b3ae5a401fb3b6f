// Times decoding through the plug-in beside llama.cpp alone, by turns in one process, and compares their distributions.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

namespace {

constexpr const char* kHelp =
    R"(Decodes one token after another with llama.cpp alone, with Seine's plug-in, and with the plug-in's exact attention

Usage: seine-llama-bench --model FILE.gguf --text FILE [options]

  --model FILE      a GGUF
  --text FILE       read as the context, and decoded on from it (teacher-forced)
  --plugin FILE     libggml-seine.so (default: beside this program)
  --cells N,N,...   lengths of the context (default: 2048,4096,8192)
  --steps N         tokens decoded at each length (default: 64)
  --threads N       (default: 2)
  --yarn FACTOR     stretch the context by so much, by YaRN (default: 1)
  --repeat N        longer contexts repeat cells: read N tokens, copy them (times alone; quality is not printed)
  -o json           rows as one JSON object

Settings of the plug-in are environment variables: SEINE_TOP_K, SEINE_PROFILE, ... (docs/engines.md).
)";

struct Options {
  std::string model, text, plugin;
  std::vector<int> cells = {2048, 4096, 8192};
  int steps = 64, threads = 2, repeat = 0;
  float yarn = 1;
  bool json = false;
};

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "seine-llama-bench: %s\n", why.c_str());
  std::exit(1);
}

Options Parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "-h" || flag == "--help") {
      std::fputs(kHelp, stdout);
      std::exit(0);
    }
    if (i + 1 == argc) Fail(flag + ": has no value, or is no flag (--help)");
    const std::string value = argv[++i];
    if (flag == "--model") {
      o.model = value;
    } else if (flag == "--text") {
      o.text = value;
    } else if (flag == "--plugin") {
      o.plugin = value;
    } else if (flag == "--steps") {
      o.steps = std::atoi(value.c_str());
    } else if (flag == "--threads") {
      o.threads = std::atoi(value.c_str());
    } else if (flag == "--yarn") {
      o.yarn = static_cast<float>(std::atof(value.c_str()));
    } else if (flag == "--repeat") {
      o.repeat = std::atoi(value.c_str());
    } else if (flag == "-o") {
      o.json = value == "json";
    } else if (flag == "--cells") {
      o.cells.clear();
      std::stringstream list(value);
      for (std::string one; std::getline(list, one, ',');) o.cells.push_back(std::atoi(one.c_str()));
    } else {
      Fail(flag + ": no such flag (--help)");
    }
  }
  if (o.model.empty() || o.text.empty()) Fail("--model and --text must be given (--help)");
  if (o.plugin.empty()) {
    const std::string program = argv[0];
    const size_t slash = program.rfind('/');
    o.plugin = (slash == std::string::npos ? "." : program.substr(0, slash)) + "/libggml-seine.so";
  }
  if (o.steps < 1 || o.threads < 1 || o.cells.empty()) Fail("--steps, --threads and --cells must be positive");
  return o;
}

double Now() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

enum Mode { kSeine = 0, kPlain = 1, kExact = 2 };  // settings.h

struct Plugin {
  void (*set_mode)(int) = nullptr;
  const char* (*report)() = nullptr;
};

Plugin Load(const std::string& path) {
  ggml_backend_reg_t registry = ggml_backend_load(path.c_str());
  if (registry == nullptr) Fail(path + ": llama.cpp does not take it (another version of its interface?)");
  Plugin plugin;
  plugin.set_mode = reinterpret_cast<void (*)(int)>(ggml_backend_reg_get_proc_address(registry, "seine_set_mode"));
  plugin.report = reinterpret_cast<const char* (*)()>(ggml_backend_reg_get_proc_address(registry, "seine_report"));
  if (plugin.set_mode == nullptr || plugin.report == nullptr) Fail(path + ": not Seine's plug-in");
  return plugin;
}

using Context = std::unique_ptr<llama_context, decltype(&llama_free)>;

Context MakeContext(llama_model* model, const Options& o, int cells) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>((std::max(cells, 2 * o.repeat) + o.steps + 8 + 255) / 256 * 256);
  params.n_batch = params.n_ubatch = 512;
  params.n_seq_max = 2;  // --repeat copies one sequence's cells behind it
  params.kv_unified = true;
  params.n_threads = params.n_threads_batch = o.threads;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.no_perf = true;
  if (o.yarn > 1) {
    params.rope_scaling_type = LLAMA_ROPE_SCALING_TYPE_YARN;
    params.rope_freq_scale = 1 / o.yarn;
    params.yarn_orig_ctx = static_cast<uint32_t>(llama_model_n_ctx_train(model));
  }
  llama_context* made = llama_init_from_model(model, params);
  if (made == nullptr) Fail("llama.cpp makes no context of " + std::to_string(params.n_ctx) + " cells");
  return {made, &llama_free};
}

void Decode(llama_context* context, llama_token* tokens, int count) {
  if (llama_decode(context, llama_batch_get_one(tokens, count)) != 0) Fail("llama_decode failed");
}

// Reads tokens [0, count) and returns the milliseconds that it took.
double Read(llama_context* context, std::vector<llama_token>* tokens, int count) {
  const double begin = Now();
  for (int i = 0; i < count; i += 512) Decode(context, tokens->data() + i, std::min(512, count - i));
  return Now() - begin;
}

// Cells [0, held) again behind themselves, and so on until there are `wanted`.
void Repeat(llama_context* context, int held, int wanted) {
  llama_memory_t memory = llama_get_memory(context);
  while (held < wanted) {
    std::vector<uint8_t> state(llama_state_seq_get_size(context, 0));
    llama_state_seq_get_data(context, state.data(), state.size(), 0);
    if (llama_state_seq_set_data(context, state.data(), state.size(), 1) == 0) Fail("--repeat: cells cannot be copied");
    if (held > wanted - held) llama_memory_seq_rm(memory, 1, wanted - held, -1);
    llama_memory_seq_add(memory, 1, 0, -1, held);
    llama_memory_seq_cp(memory, 1, 0, -1, -1);
    llama_memory_seq_rm(memory, 1, -1, -1);
    held += std::min(held, wanted - held);
  }
}

std::vector<double> LogProbabilities(llama_context* context, int vocabulary) {
  const float* logits = llama_get_logits_ith(context, -1);
  const double most = *std::max_element(logits, logits + vocabulary);
  double sum = 0;
  for (int i = 0; i < vocabulary; ++i) sum += std::exp(logits[i] - most);
  std::vector<double> out(vocabulary);
  for (int i = 0; i < vocabulary; ++i) out[i] = logits[i] - most - std::log(sum);
  return out;
}

struct Row {
  int cells = 0;
  double plain_ms = 0, seine_ms = 0, exact_ms = 0, first_ms = 0;  // a token; first_ms: Seine's first
  double plain_prompt_ms = 0, seine_prompt_ms = 0;
  double kl = 0, worst_kl = 0, plain_perplexity = 0, seine_perplexity = 0, agreement = 0;
};

Row Measure(llama_model* model, const Plugin& plugin, const Options& o, std::vector<llama_token>* tokens, int cells) {
  Row row;
  row.cells = cells;
  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  plugin.set_mode(kPlain);
  const Context plain = MakeContext(model, o, cells);
  plugin.set_mode(kSeine);
  const Context seine = MakeContext(model, o, cells);
  const int read = o.repeat > 0 ? std::min(cells, o.repeat) : cells;
  plugin.set_mode(kPlain);
  row.plain_prompt_ms = Read(plain.get(), tokens, read);
  plugin.set_mode(kSeine);
  row.seine_prompt_ms = Read(seine.get(), tokens, read);
  if (read < cells) {
    plugin.set_mode(kPlain);
    Repeat(plain.get(), read, cells);
    plugin.set_mode(kSeine);
    Repeat(seine.get(), read, cells);
  }
  std::vector<double> plain_ms, seine_ms, exact_ms;
  double plain_loss = 0, seine_loss = 0;
  for (int i = 0; i < o.steps; ++i) {
    llama_token* token = tokens->data() + cells + i;
    const auto decode = [&](llama_context* context, Mode mode) {
      plugin.set_mode(mode);
      const double begin = Now();
      Decode(context, token, 1);
      return Now() - begin;
    };
    plain_ms.push_back(decode(plain.get(), kPlain));
    exact_ms.push_back(decode(seine.get(), kExact));
    llama_memory_seq_rm(llama_get_memory(seine.get()), 0, cells + i, -1);
    seine_ms.push_back(decode(seine.get(), kSeine));
    if (i == 0) row.first_ms = seine_ms.back();
    const std::vector<double> p = LogProbabilities(plain.get(), vocabulary),
                              q = LogProbabilities(seine.get(), vocabulary);
    double kl = 0;
    for (int t = 0; t < vocabulary; ++t) kl += std::exp(p[t]) * (p[t] - q[t]);
    row.kl += kl / o.steps;
    row.worst_kl = std::max(row.worst_kl, kl);
    plain_loss -= p[token[1]] / o.steps;
    seine_loss -= q[token[1]] / o.steps;
    const auto best = [](const std::vector<double>& x) { return std::max_element(x.begin(), x.end()) - x.begin(); };
    row.agreement += best(p) == best(q) ? 1.0 / o.steps : 0;
  }
  row.plain_ms = Median(plain_ms);
  row.seine_ms = Median(seine_ms);
  row.exact_ms = Median(exact_ms);
  row.plain_perplexity = std::exp(plain_loss);
  row.seine_perplexity = std::exp(seine_loss);
  return row;
}

void Print(const Options& o, const std::vector<Row>& rows, const char* report) {
  if (!o.json) {
    std::printf("%8s %10s %10s %10s %7s %7s %9s %9s %9s %9s %9s\n", "cells", "plain ms", "exact ms", "seine ms",
                "ratio", "/exact", "prompt", "kl", "ppl", "ppl seine", "agree");
    for (const Row& r : rows) {
      std::printf("%8d %10.2f %10.2f %10.2f %7.2f %7.2f %9.3f %9.4f %9.3f %9.3f %9.3f\n", r.cells, r.plain_ms,
                  r.exact_ms, r.seine_ms, r.plain_ms / r.seine_ms, r.exact_ms / r.seine_ms,
                  r.seine_prompt_ms / r.plain_prompt_ms, r.kl, r.plain_perplexity, r.seine_perplexity, r.agreement);
    }
    std::printf("%s\n", report);
    return;
  }
  std::printf("{\"threads\": %d, \"steps\": %d, \"yarn\": %g, \"rows\": [", o.threads, o.steps, o.yarn);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& r = rows[i];
    std::printf(
        "%s{\"cells\": %d, \"threads\": %d, \"plain_ms\": %.3f, \"exact_ms\": %.3f, \"seine_ms\": %.3f, "
        "\"first_ms\": %.3f, \"plain_prompt_ms\": %.1f, \"seine_prompt_ms\": %.1f, \"kl\": %.5f, "
        "\"worst_kl\": %.5f, \"ppl_plain\": %.4f, \"ppl_seine\": %.4f, \"agreement\": %.4f}",
        i == 0 ? "" : ", ", r.cells, o.threads, r.plain_ms, r.exact_ms, r.seine_ms, r.first_ms, r.plain_prompt_ms,
        r.seine_prompt_ms, r.kl, r.worst_kl, r.plain_perplexity, r.seine_perplexity, r.agreement);
  }
  std::printf("], \"plugin\": %s}\n", report);
}

}  // namespace

int main(int argc, char** argv) {
  Options o = Parse(argc, argv);
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  const Plugin plugin = Load(o.plugin);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(o.model.c_str(), llama_model_default_params());
  if (model == nullptr) Fail(o.model + ": llama.cpp cannot read it");
  std::ifstream file(o.text);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  if (text.empty()) Fail(o.text + ": no text");
  const int most = *std::max_element(o.cells.begin(), o.cells.end()) + o.steps + 1;
  std::vector<llama_token> tokens(text.size() + 16);
  const int count = llama_tokenize(llama_model_get_vocab(model), text.data(), static_cast<int32_t>(text.size()),
                                   tokens.data(), static_cast<int32_t>(tokens.size()), true, false);
  if (count < most)
    Fail(o.text + ": " + std::to_string(count) + " tokens, where " + std::to_string(most) + " are needed");
  std::vector<Row> rows;
  for (const int cells : o.cells) {
    std::fprintf(stderr, "seine-llama-bench: %d cells\n", cells);
    rows.push_back(Measure(model, plugin, o, &tokens, cells));
  }
  Print(o, rows, plugin.report());
  llama_model_free(model);
}
