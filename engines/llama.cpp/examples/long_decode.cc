// A host program of llama.cpp's that decodes a long text with a small cache: a seined holds the keys and values of all
// positions, and the oldest cells are removed from llama.cpp's own cache as new tokens come.
//
//   SEINE_ENDPOINT=unix:///tmp/seine.sock seine-long-decode MODEL.gguf TEXT TOKENS STEPS [--cells N] [--check]
//       [--state FILE]
//
// Reads TOKENS tokens of the file TEXT, then decodes STEPS. --check compares each step's logits with those of a context
// that holds everything. --state keeps the engine's few cells in a file. Another run with it goes on behind them, and
// the server's part is found by them: SEINE_INDEX must name an index that stays.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

namespace {

constexpr int kBlock = 256;  // tokens read at once

using SetMode = void(int);  // 0: the plug-in, 1: llama.cpp alone
using Report = const char*();

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "seine-long-decode: %s\n", why.c_str());
  std::exit(1);
}

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A number of the plug-in's report.
double Number(Report* report, const std::string& name) {
  const std::string json = report();
  const size_t at = json.find("\"" + name + "\": ");
  return at == std::string::npos ? 0 : std::atof(json.c_str() + at + name.size() + 4);
}

llama_context* MakeContext(llama_model* model, int cells) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = cells;
  params.n_batch = params.n_ubatch = kBlock;
  params.n_threads = params.n_threads_batch = 1;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;  // the plug-in needs it
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) Fail("no context can be made");
  return context;
}

// Tokens at [position, position + count). Cells that leave too little room for them are removed first, the oldest ones.
void Decode(llama_context* context, const llama_token* tokens, int count, llama_pos position) {
  const llama_pos cells = static_cast<llama_pos>(llama_n_ctx(context)), first_kept = position + count - cells;
  if (first_kept > 0) llama_memory_seq_rm(llama_get_memory(context), 0, 0, first_kept);
  llama_batch batch = llama_batch_init(count, 0, 1);
  batch.n_tokens = count;
  for (int i = 0; i < count; ++i) {
    batch.token[i] = tokens[i];
    batch.pos[i] = position + i;  // of the text: not where cells lie
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = i == count - 1;
  }
  if (llama_decode(context, batch) != 0) Fail("position " + std::to_string(position) + ": decoding failed");
  llama_batch_free(batch);
}

void Read(llama_context* context, const std::vector<llama_token>& tokens, int begin, int end) {
  for (int i = begin; i < end; i += kBlock) Decode(context, &tokens[i], std::min(kBlock, end - i), i);
}

// Loads what an earlier run has left. Returns how many tokens it is behind; 0: there is no file.
int Load(llama_context* context, const std::string& state, const std::vector<llama_token>& tokens, int most) {
  if (!std::filesystem::exists(state)) return 0;
  std::vector<llama_token> held(tokens.size());
  size_t count = 0;
  if (llama_state_seq_load_file(context, state.c_str(), 0, held.data(), held.size(), &count) == 0)
    Fail(state + ": no state of this model and cache, or of more tokens than the text has");
  if (!std::equal(held.begin(), held.begin() + static_cast<int64_t>(count), tokens.begin()))
    Fail(state + ": a state of another text");
  if (static_cast<int>(count) > most) Fail(state + ": has " + std::to_string(count) + " tokens already");
  return static_cast<int>(count);
}

// KL divergence of b from a, of their softmax distributions [size].
double Divergence(const float* a, const float* b, int size) {
  double sum_a = 0, sum_b = 0, kl = 0;
  for (int i = 0; i < size; ++i) sum_a += std::exp(a[i]), sum_b += std::exp(b[i]);
  for (int i = 0; i < size; ++i) kl += std::exp(a[i]) / sum_a * (a[i] - b[i] - std::log(sum_a) + std::log(sum_b));
  return kl;
}

}  // namespace

int main(int argc, char** argv) {
  int cells = 1024, left = 0;
  bool check = false;
  std::string state;
  const char* named[4] = {};
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--check") == 0)
      check = true;
    else if (std::strcmp(argv[i], "--cells") == 0 && i + 1 < argc)
      cells = std::atoi(argv[++i]);
    else if (std::strcmp(argv[i], "--state") == 0 && i + 1 < argc)
      state = argv[++i];
    else if (left < 4)
      named[left++] = argv[i];
  }
  if (left < 4) Fail("MODEL.gguf TEXT TOKENS STEPS [--cells N] [--check] [--state FILE]");
  if (cells < 2 * kBlock) Fail("--cells: must be at least " + std::to_string(2 * kBlock));
  if (std::getenv("SEINE_ENDPOINT") == nullptr) Fail("SEINE_ENDPOINT must name a seined");
  if (!state.empty() && std::getenv("SEINE_INDEX") == nullptr)
    Fail("--state: SEINE_INDEX must name an index that stays");
  const int count = std::atoi(named[2]), steps = std::atoi(named[3]);

  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  ggml_backend_load_all();
  ggml_backend_reg_t plugin = ggml_backend_load((here / "libggml-seine.so").c_str());
  if (plugin == nullptr) Fail("libggml-seine.so does not lie beside this program, or is of another llama.cpp");
  auto* set_mode = reinterpret_cast<SetMode*>(ggml_backend_reg_get_proc_address(plugin, "seine_set_mode"));
  auto* report = reinterpret_cast<Report*>(ggml_backend_reg_get_proc_address(plugin, "seine_report"));

  llama_model* model = llama_model_load_from_file(named[0], llama_model_default_params());
  if (model == nullptr) Fail(std::string(named[0]) + ": no model");
  const llama_vocab* vocabulary = llama_model_get_vocab(model);
  std::ifstream file(named[1]);
  const std::string text = {std::istreambuf_iterator<char>(file), {}};
  const auto tokenize = [&](std::vector<llama_token>* into) {  // negative: so many do not fit
    return llama_tokenize(vocabulary, text.data(), static_cast<int32_t>(text.size()), into->data(),
                          static_cast<int32_t>(into->size()), /*add_special=*/true, /*parse_special=*/false);
  };
  std::vector<llama_token> tokens;
  tokens.resize(-tokenize(&tokens));
  const int known = tokenize(&tokens);
  if (count < 1 || steps < 1 || known < count + steps) Fail("the text has " + std::to_string(known) + " tokens");

  llama_context* context = MakeContext(model, cells);
  const int held = state.empty() ? 0 : Load(context, state, tokens, count);
  double begin = Now();
  Read(context, tokens, held, count);
  std::printf("read     %d tokens, %.1f a second\n", count - held, (count - held) / (Now() - begin));
  if (held > 0) std::printf("found    %d tokens of an earlier run\n", held);

  llama_context* whole = nullptr;
  if (check) {
    set_mode(1);
    whole = MakeContext(model, (count + steps + 255) / 256 * 256);
    Read(whole, tokens, 0, count);
  }
  double seconds = 0, divergence = 0;
  int same = 0;
  for (int i = count; i < count + steps; ++i) {  // the text's own tokens, so that both contexts read the same
    set_mode(0);
    begin = Now();
    Decode(context, &tokens[i], 1, i);
    seconds += Now() - begin;
    if (!check) continue;
    set_mode(1);
    Decode(whole, &tokens[i], 1, i);
    const int size = llama_vocab_n_tokens(vocabulary);
    const float *a = llama_get_logits_ith(whole, -1), *b = llama_get_logits_ith(context, -1);
    divergence += Divergence(a, b, size);
    same += std::max_element(a, a + size) - a == std::max_element(b, b + size) - b;
  }
  std::printf("decoded  %d tokens, %.1f a second\n", steps, steps / seconds);
  if (check)
    std::printf("checked  KL %.4f from a cache of all cells, the same best token %d of %d times\n", divergence / steps,
                same, steps);
  const double row = 2.0 * llama_model_n_embd(model) / llama_model_n_head(model) * llama_model_n_head_kv(model);
  std::printf("memory   %.1f MiB of llama.cpp's cache, %d cells\n",
              2 * row * llama_model_n_layer(model) * cells / (1 << 20), cells);
  if (!state.empty() && llama_state_seq_save_file(context, state.c_str(), 0, tokens.data(), count + steps) == 0)
    Fail(state + ": cannot be written");
  llama_free(context);  // counts what the server held
  std::printf("         %.1f MiB of the server's: %.1f keys and values, %.1f codes\n",
              (Number(report, "cache_bytes") + Number(report, "code_bytes")) / (1 << 20),
              Number(report, "cache_bytes") / (1 << 20), Number(report, "code_bytes") / (1 << 20));
  std::printf("sent     %.1f MiB in %.0f messages, %.1f s waited for answers\n",
              Number(report, "remote_bytes") / (1 << 20), Number(report, "remote_steps"),
              Number(report, "ms_remote_waiting") / 1000);
  if (whole != nullptr) llama_free(whole);
  llama_model_free(model);
  return 0;
}
