#include "engines/llama.cpp/bench/sparse_measure.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "bench/report/progress.h"
#include "engines/llama.cpp/bench/decode_measure.h"

namespace seine::llama {

namespace {

struct PromptRead {
  Context context{nullptr, &llama_free};
  double ms = 0, attention_ms = 0, taken = 1;
};

// The whole prompt, over `share` of each block's attention; 1: exactly.
PromptRead ReadPrompt(llama_model* model, const Plugin& plugin, const Options& o,
                      const std::vector<llama_token>& tokens, int cells, double share) {
  plugin.set_mode(kSeine);
  plugin.set_prompt_mass(share);
  PromptRead read;
  read.context = MakeContext(model, o, cells);
  const double seen = plugin.Number("prompt_runs_seen"), taken = plugin.Number("prompt_runs_taken");
  read.attention_ms = plugin.Number("ms_prompt");
  bench::Progress progress(cells);
  for (int i = 0; i < cells; i += kBlock) {
    const int block = std::min(kBlock, cells - i);
    const double begin = Now();
    Decode(read.context.get(), tokens.data() + i, block);
    read.ms += Now() - begin;
    progress.Step("tokens of a prompt", block);
  }
  read.attention_ms = plugin.Number("ms_prompt") - read.attention_ms;
  read.taken = (plugin.Number("prompt_runs_taken") - taken) / std::max(1.0, plugin.Number("prompt_runs_seen") - seen);
  return read;
}

// A row of each share, without what is the caller's.
Json MeasureText(llama_model* model, const Plugin& plugin, const Options& o, const std::vector<llama_token>& tokens,
                 int cells) {
  const PromptRead exact = ReadPrompt(model, plugin, o, tokens, cells, 1);
  std::vector<PromptRead> sparse;
  for (const double share : o.shares) sparse.push_back(ReadPrompt(model, plugin, o, tokens, cells, share));
  std::vector<Likeness> like(o.shares.size());
  double exact_loss = 0;
  plugin.set_mode(kExact);
  bench::Progress progress(o.steps);
  for (int i = 0; i < o.steps; ++i) {
    const llama_token* token = tokens.data() + cells + i;
    const auto next = [&](llama_context* context) {
      Decode(context, token, 1);
      return LogProbabilities(context, NumTokens(model));
    };
    const std::vector<double> p = next(exact.context.get());
    exact_loss -= p[token[1]];
    for (size_t s = 0; s < sparse.size(); ++s) Compare(p, next(sparse[s].context.get()), token[1], &like[s]);
    progress.Step("tokens decoded");
  }
  Json rows = Json::array();
  for (size_t s = 0; s < sparse.size(); ++s) {
    rows.push_back({{"share", o.shares[s]},
                    {"taken", sparse[s].taken},
                    {"kl", like[s].kl / o.steps},
                    {"worst_kl", like[s].worst_kl},
                    {"agreement", static_cast<double>(like[s].agreed) / o.steps},
                    {"ppl_exact", std::exp(exact_loss / o.steps)},
                    {"ppl_sparse", std::exp(like[s].loss / o.steps)},
                    {"prompt_ms", sparse[s].ms},
                    {"attention_ms", sparse[s].attention_ms},
                    {"exact_prompt_ms", exact.ms},
                    {"exact_attention_ms", exact.attention_ms}});
  }
  return rows;
}

std::string Stem(const std::string& path) { return std::filesystem::path(path).stem().string(); }

}  // namespace

Json MeasureSparse(llama_model* model, const Plugin& plugin, const Options& o,
                   const std::vector<std::vector<llama_token>>& texts, RowFile* rows) {
  Json out = Json::array();
  for (const int cells : o.cells) {
    for (size_t t = 0; t < texts.size(); ++t) {
      Json key = KeyOf(o);
      key["measure"] = "sparse";
      key["cells"] = cells;
      key["text"] = o.texts[t];
      key["shares"] = o.shares;
      const Json* known = rows->Find(key);
      Json measured;
      if (known == nullptr) {
        std::fprintf(stderr, "seine-llama-bench: %d cells, sparse prompts, %s\n", cells, o.texts[t].c_str());
        measured = MeasureText(model, plugin, o, texts[t], cells);
        rows->Add(key, measured);
      } else {
        measured = *known;
      }
      for (const Json& row : measured) {
        Json with_text = {{"model", Stem(o.model)}, {"cells", cells}, {"text", Stem(o.texts[t])}};
        with_text.update(row);
        out.push_back(std::move(with_text));
      }
    }
  }
  return out;
}

}  // namespace seine::llama
