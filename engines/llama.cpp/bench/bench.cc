// Times decoding through the plug-in beside llama.cpp alone, by turns in one process, and compares their distributions.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/report/plot.h"
#include "engines/llama.cpp/bench/bench_options.h"
#include "engines/llama.cpp/random_model.h"
#include "ggml-backend.h"
#include "llama.h"

namespace {

using namespace seine::llama;

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
  void (*set_top_k)(int) = nullptr;
  const char* (*report)() = nullptr;
  // A number of the report's.
  double Number(const std::string& name) const {
    const std::string json = report();
    const size_t at = json.find("\"" + name + "\": ");
    return at == std::string::npos ? 0 : std::atof(json.c_str() + at + name.size() + 4);
  }
};

Plugin Load(const std::string& path) {
  ggml_backend_reg_t registry = ggml_backend_load(path.c_str());
  if (registry == nullptr) Fail(path + ": llama.cpp does not take it (another version of its interface?)");
  Plugin plugin;
  plugin.set_mode = reinterpret_cast<void (*)(int)>(ggml_backend_reg_get_proc_address(registry, "seine_set_mode"));
  plugin.set_top_k = reinterpret_cast<void (*)(int)>(ggml_backend_reg_get_proc_address(registry, "seine_set_top_k"));
  plugin.report = reinterpret_cast<const char* (*)()>(ggml_backend_reg_get_proc_address(registry, "seine_report"));
  if (plugin.set_mode == nullptr || plugin.set_top_k == nullptr || plugin.report == nullptr)
    Fail(path + ": not Seine's plug-in");
  return plugin;
}

using Context = std::unique_ptr<llama_context, decltype(&llama_free)>;

Context MakeContext(llama_model* model, const Options& o, int cells) {
  llama_context_params params = llama_context_default_params();
  int held = std::max(o.repeat, 1);
  while (o.repeat > 0 && held < cells) held *= 2;  // --repeat doubles what is held, and cuts off what is too much
  params.n_ctx = static_cast<uint32_t>((std::max(cells, held) + o.steps + 8 + 255) / 256 * 256);
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

// Reads tokens [0, count) into both, block by block by turns; Seine's time over llama.cpp's.
double Read(const Plugin& plugin, llama_context* plain, llama_context* seine, std::vector<llama_token>* tokens,
            int count) {
  double plain_ms = 0, seine_ms = 0;
  for (int i = 0; i < count; i += 512) {
    const auto read = [&](llama_context* context, Mode mode, double* ms) {
      plugin.set_mode(mode);
      const double begin = Now();
      Decode(context, tokens->data() + i, std::min(512, count - i));
      *ms += Now() - begin;
    };
    read(plain, kPlain, &plain_ms);
    read(seine, kSeine, &seine_ms);
  }
  return seine_ms / plain_ms;
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

// What the steps of all texts gave, at one length of the context.
struct Samples {
  std::vector<double> plain_ms, exact_ms;  // a token
  std::vector<double> prompt_ratios;       // of a text's prompt: Seine's milliseconds beside llama.cpp's
  std::vector<double> first_ms;            // Seine's first token of a text
  double plain_loss = 0, code_bytes = 0, cache_bytes = 0;
};

// The same of one top_k.
struct Chosen {
  int top_k = 0;
  std::vector<double> ms, attention_ms;
  double loss = 0, worst_kl = 0;
  std::vector<double> kl;  // a text, over its steps
  int agreed = 0;
};

struct Row {
  int cells = 0;
  Samples all;
  std::vector<Chosen> chosen;
};

void Measure(llama_model* model, const Plugin& plugin, const Options& o, std::vector<llama_token>* tokens, Row* row) {
  const int cells = row->cells;
  Samples& all = row->all;
  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  const double codes_before = plugin.Number("code_bytes"), cache_before = plugin.Number("cache_bytes");
  plugin.set_mode(kPlain);
  const Context plain = MakeContext(model, o, cells);
  plugin.set_mode(kSeine);
  Context seine = MakeContext(model, o, cells);
  const int read = o.repeat > 0 ? std::min(cells, o.repeat) : cells;
  all.prompt_ratios.push_back(Read(plugin, plain.get(), seine.get(), tokens, read));
  if (read < cells) {
    plugin.set_mode(kPlain);
    Repeat(plain.get(), read, cells);
    plugin.set_mode(kSeine);
    Repeat(seine.get(), read, cells);
  }
  for (Chosen& chosen : row->chosen) chosen.kl.push_back(0);
  for (int i = 0; i < o.steps; ++i) {
    llama_token* token = tokens->data() + read + i;
    const auto decode = [&](llama_context* context, Mode mode) {
      plugin.set_mode(mode);
      const double begin = Now();
      Decode(context, token, 1);
      return Now() - begin;
    };
    const auto again = [&] { llama_memory_seq_rm(llama_get_memory(seine.get()), 0, cells + i, -1); };
    const auto best = [](const std::vector<double>& x) { return std::max_element(x.begin(), x.end()) - x.begin(); };
    all.plain_ms.push_back(decode(plain.get(), kPlain));
    const std::vector<double> p = LogProbabilities(plain.get(), vocabulary);
    all.plain_loss -= p[token[1]];
    all.exact_ms.push_back(decode(seine.get(), kExact));
    for (size_t c = 0; c < row->chosen.size(); ++c) {
      Chosen& chosen = row->chosen[c];
      again();
      plugin.set_top_k(chosen.top_k);
      const double before = plugin.Number("ms_answering");
      chosen.ms.push_back(decode(seine.get(), kSeine));
      chosen.attention_ms.push_back(plugin.Number("ms_answering") - before);
      if (i == 0 && c == 0) all.first_ms.push_back(chosen.ms.back());
      const std::vector<double> q = LogProbabilities(seine.get(), vocabulary);
      double kl = 0;
      for (int t = 0; t < vocabulary; ++t) kl += std::exp(p[t]) * (p[t] - q[t]);
      chosen.kl.back() += kl / o.steps;
      chosen.worst_kl = std::max(chosen.worst_kl, kl);
      chosen.loss -= q[token[1]];
      chosen.agreed += best(p) == best(q) ? 1 : 0;
    }
  }
  seine.reset();  // it then says how large its codes were
  all.code_bytes = plugin.Number("code_bytes") - codes_before;
  all.cache_bytes = plugin.Number("cache_bytes") - cache_before;
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

void Print(const Options& o, const std::vector<Row>& rows, const char* report) {
  if (o.json) {
    std::printf("{\"texts\": %zu, \"steps\": %d, \"yarn\": %g, \"rows\": [", o.texts.size(), o.steps, o.yarn);
  } else {
    std::printf("%8s %6s %9s %9s %9s %6s %6s %9s %7s %7s %8s %8s %9s %6s\n", "cells", "top k", "plain ms", "exact ms",
                "seine ms", "ratio", "/exact", "attention", "prompt", "memory", "kl", "ppl", "ppl seine", "agree");
  }
  const char* between = "";
  for (const Row& row : rows) {
    const Samples& all = row.all;
    const auto positions = static_cast<double>(all.plain_ms.size());
    const double plain = Median(all.plain_ms), exact = Median(all.exact_ms), prompt = Mean(all.prompt_ratios);
    const double perplexity = std::exp(all.plain_loss / positions);
    const double memory = all.cache_bytes > 0 ? all.code_bytes / all.cache_bytes : 0;
    for (const Chosen& c : row.chosen) {
      const double ms = Median(c.ms), kl = Mean(c.kl), of_seine = std::exp(c.loss / positions);
      const bool times_alone = o.repeat > 0 || o.random;
      if (!o.json) {
        std::printf("%8d %6d %9.2f %9.2f %9.2f %6.2f %6.2f %9.2f %7.3f %7.3f", row.cells, c.top_k, plain, exact, ms,
                    plain / ms, exact / ms, Median(c.attention_ms), prompt, memory);
        if (!times_alone) {
          std::printf(" %8.4f %8.3f %9.3f %6.3f", kl, perplexity, of_seine, c.agreed / positions);
        }
        std::printf("\n");
        continue;
      }
      std::printf(
          "%s{\"cells\": %d, \"threads\": %d, \"top_k\": %d, \"positions\": %.0f, \"plain_ms\": %.3f, "
          "\"exact_ms\": %.3f, \"seine_ms\": %.3f, \"attention_ms\": %.3f, \"first_ms\": %.3f, "
          "\"prompt_ratio\": %.4f, \"extra_bytes\": %.0f, \"cache_bytes\": %.0f",
          between, row.cells, o.threads, c.top_k, positions, plain, exact, ms, Median(c.attention_ms),
          Mean(all.first_ms), prompt, all.code_bytes, all.cache_bytes);
      if (!times_alone) {
        std::printf(
            ", \"kl\": %.5f, \"worst_kl\": %.5f, \"ppl_plain\": %.4f, \"ppl_seine\": %.4f, \"agreement\": %.4f, "
            "\"kl_of_texts\": [",
            kl, c.worst_kl, perplexity, of_seine, c.agreed / positions);
        for (size_t t = 0; t < c.kl.size(); ++t) std::printf("%s%.5f", t == 0 ? "" : ", ", c.kl[t]);
        std::printf("]");
      }
      std::printf("}");
      between = ", ";
    }
  }
  if (o.json) {
    std::printf("], \"plugin\": %s}\n", report);
  } else {
    std::printf("%s\n", report);
  }
}

void Draw(const Options& o, const std::vector<Row>& rows) {
  seine::bench::Plot plot;
  plot.title = "Tokens a second while a long context is decoded";
  plot.subtitle = std::to_string(o.threads) + " threads, " + o.model.substr(o.model.rfind('/') + 1);
  plot.x_label = "tokens in the context";
  plot.y_label = "tokens/s";
  plot.log_x = true;
  plot.series.resize(2 + rows.front().chosen.size());
  plot.series[0].name = "llama.cpp";
  plot.series[1].name = "exact attention of Seine's";
  for (const Row& row : rows) {
    plot.series[0].points.emplace_back(row.cells, 1000 / Median(row.all.plain_ms));
    plot.series[1].points.emplace_back(row.cells, 1000 / Median(row.all.exact_ms));
    for (size_t c = 0; c < row.chosen.size(); ++c) {
      plot.series[2 + c].name = "Seine, top " + std::to_string(row.chosen[c].top_k);
      plot.series[2 + c].points.emplace_back(row.cells, 1000 / Median(row.chosen[c].ms));
    }
  }
  std::ofstream file(o.plot);
  file << RenderSvg(plot);
  if (!file.flush()) Fail(o.plot + ": cannot be written");
}

// Llama-3.2-1B's shape: of its config.json.
void WriteLargeModel(const std::string& path) {
  if (std::ifstream(path).good()) return;  // written before, or somebody's
  std::fprintf(stderr, "seine-llama-bench: writing %s\n", path.c_str());
  const ModelShape shape = {.layers = 16,
                            .embedding = 2048,
                            .feed_forward = 8192,
                            .q_heads = 32,
                            .kv_heads = 8,
                            .head_dim = 64,
                            .vocabulary = 128256,
                            .context = 131072,
                            .rope_base = 500000,
                            .quantised = true};
  if (!WriteRandomModel(shape, 1, path)) Fail(path + ": cannot be written");
}

std::vector<llama_token> RandomText(const llama_model* model, int wanted) {
  std::mt19937 rng(5);
  std::vector<llama_token> tokens(wanted);
  for (llama_token& token : tokens)
    token = static_cast<llama_token>(rng() % llama_vocab_n_tokens(llama_model_get_vocab(model)));
  return tokens;
}

std::vector<llama_token> ReadText(const llama_model* model, const std::string& path, int wanted) {
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  if (text.empty()) Fail(path + ": no text");
  std::vector<llama_token> tokens(text.size() + 16);
  const int count = llama_tokenize(llama_model_get_vocab(model), text.data(), static_cast<int32_t>(text.size()),
                                   tokens.data(), static_cast<int32_t>(tokens.size()), true, false);
  if (count < wanted) {
    Fail(path + ": " + std::to_string(count) + " tokens, where " + std::to_string(wanted) + " are needed");
  }
  return tokens;
}

}  // namespace

int main(int argc, char** argv) {
  const Options o = ParseOptions(argc, argv);
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  if (o.random) unsetenv("SEINE_PROFILE");  // of another model
  const Plugin plugin = Load(o.plugin);
  llama_backend_init();
  if (o.random) WriteLargeModel(o.model);
  llama_model* model = llama_model_load_from_file(o.model.c_str(), llama_model_default_params());
  if (model == nullptr) Fail(o.model + ": llama.cpp cannot read it");
  std::vector<std::vector<llama_token>> texts;
  const int most = *std::max_element(o.cells.begin(), o.cells.end());
  const int read = o.repeat > 0 ? std::min(most, o.repeat) : most;
  for (const std::string& path : o.texts) {
    texts.push_back(o.random ? RandomText(model, read + o.steps + 1) : ReadText(model, path, read + o.steps + 1));
  }
  std::vector<Row> rows;
  for (const int cells : o.cells) {
    Row& row = rows.emplace_back();
    row.cells = cells;
    for (const int k : o.top_k) row.chosen.emplace_back().top_k = k > 0 ? k : static_cast<int>(plugin.Number("top_k"));
    for (size_t t = 0; t < texts.size(); ++t) {
      std::fprintf(stderr, "seine-llama-bench: %d cells, %s\n", cells, o.texts[t].c_str());
      Measure(model, plugin, o, &texts[t], &row);
    }
  }
  Print(o, rows, plugin.report());
  if (!o.plot.empty()) Draw(o, rows);
  llama_model_free(model);
}
