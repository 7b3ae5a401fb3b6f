#include "engines/llama.cpp/bench/setup/contexts.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>

#include "bench/report/progress.h"
#include "ggml-backend.h"

namespace seine::llama {

double Plugin::Number(const std::string& name) const {
  const std::string json = report();
  const size_t at = json.find("\"" + name + "\": ");
  return at == std::string::npos ? 0 : std::atof(json.c_str() + at + name.size() + 4);
}

Plugin LoadPlugin(const std::string& path) {
  ggml_backend_reg_t registry = ggml_backend_load(path.c_str());
  if (registry == nullptr) Fail(path + ": llama.cpp does not take it (another version of its interface?)");
  Plugin plugin;
  const auto find = [&](const char* name, auto* function) {
    *function = reinterpret_cast<std::decay_t<decltype(*function)>>(ggml_backend_reg_get_proc_address(registry, name));
    if (*function == nullptr) Fail(path + ": not Seine's plug-in");
  };
  find("seine_set_mode", &plugin.set_mode);
  find("seine_set_top_k", &plugin.set_top_k);
  find("seine_set_prompt_mass", &plugin.set_prompt_mass);
  find("seine_report", &plugin.report);
  return plugin;
}

namespace {

ggml_type TypeOf(const std::string& name) {
  return name == "bf16"   ? GGML_TYPE_BF16
         : name == "q8_0" ? GGML_TYPE_Q8_0
         : name == "q4_0" ? GGML_TYPE_Q4_0
                          : GGML_TYPE_F16;
}

}  // namespace

Context MakeContext(llama_model* model, const Options& o, int cells) {
  llama_context_params params = llama_context_default_params();
  int held = std::max(o.repeat, 1);
  while (o.repeat > 0 && held < cells) held *= 2;  // --repeat doubles what is held, and cuts off what is too much
  const int needed = (std::max(cells, held) + o.steps + 64 + 255) / 256 * 256;
  if (o.context > 0 && o.context < needed)
    Fail("--context " + std::to_string(o.context) + ": " + std::to_string(needed) + " are needed");
  params.n_ctx = static_cast<uint32_t>(o.context > 0 ? o.context : needed);
  params.n_batch = params.n_ubatch = kBlock;
  params.n_seq_max = 2;  // --repeat copies one sequence's cells behind it
  params.kv_unified = true;
  params.swa_full = o.repeat > 0;  // else as llama.cpp's programs; copies are of whole caches
  params.n_threads = params.n_threads_batch = o.threads;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.type_k = TypeOf(o.cache_type_k), params.type_v = TypeOf(o.cache_type_v);
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

ContextPair MakePair(const Plugin& plugin, llama_model* model, const Options& o, int cells) {
  plugin.set_mode(kPlain);
  Context plain = MakeContext(model, o, cells);
  plugin.set_mode(kSeine);
  return {std::move(plain), MakeContext(model, o, cells)};
}

double Now() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Decode(llama_context* context, const llama_token* tokens, int count) {
  // llama.cpp reads them alone.
  if (llama_decode(context, llama_batch_get_one(const_cast<llama_token*>(tokens), count)) != 0)
    Fail("llama_decode failed");
}

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

PromptTimes Read(const Plugin& plugin, const ContextPair& pair, const std::vector<llama_token>& tokens, int count) {
  PromptTimes times;
  bench::Progress progress(count);
  for (int i = 0; i < count; i += kBlock) {
    const int block = std::min(kBlock, count - i);
    const auto read = [&](llama_context* context, Mode mode, double* ms) {
      plugin.set_mode(mode);
      const double begin = Now();
      Decode(context, tokens.data() + i, block);
      *ms += Now() - begin;
    };
    const bool plain_first = i / kBlock % 2 == 0;
    if (plain_first) read(pair.plain.get(), kPlain, &times.plain_ms);
    read(pair.seine.get(), kSeine, &times.seine_ms);
    if (!plain_first) read(pair.plain.get(), kPlain, &times.plain_ms);
    progress.Step("tokens of a prompt, by both", block);
  }
  return times;
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

int NumTokens(const llama_model* model) { return llama_vocab_n_tokens(llama_model_get_vocab(model)); }

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

double Mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

}  // namespace seine::llama
