// Times decoding through the plug-in beside llama.cpp alone, by turns in one process, and compares their distributions.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/report/plot.h"
#include "engines/llama.cpp/bench/decode_measure.h"
#include "engines/llama.cpp/bench/hole_measure.h"
#include "engines/llama.cpp/bench/needles.h"
#include "engines/llama.cpp/bench/peer.h"
#include "engines/llama.cpp/bench/prompt_measure.h"
#include "engines/llama.cpp/bench/setup/bench_options.h"
#include "engines/llama.cpp/bench/setup/contexts.h"
#include "engines/llama.cpp/bench/setup/row_file.h"
#include "engines/llama.cpp/bench/sparse_measure.h"
#include "engines/llama.cpp/bench/whole_measure.h"
#include "engines/llama.cpp/random_model.h"
#include "ggml-backend.h"
#include "llama.h"

namespace {

using namespace seine::llama;

// All texts at one length.
struct Row {
  int cells = 0;
  std::vector<TextRow> texts;
};

// What visit(text) gives of every text, one behind another.
template <typename Visit>
std::vector<double> OfAll(const Row& row, Visit visit) {
  std::vector<double> all;
  for (const TextRow& text : row.texts) {
    const std::vector<double> part = visit(text);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

// The figures of a length and the c-th top_k, over all texts.
Json Figures(const Options& o, const Row& row, size_t c) {
  const auto plain = OfAll(row, [](const TextRow& t) { return t.plain_ms; });
  const auto exact = OfAll(row, [](const TextRow& t) { return t.exact_ms; });
  const auto ms = OfAll(row, [&](const TextRow& t) { return t.chosen[c].ms; });
  const auto attention = OfAll(row, [&](const TextRow& t) { return t.chosen[c].attention_ms; });
  double plain_loss = 0, exact_loss = 0, exact_kl = 0, loss = 0, kl = 0, worst_kl = 0, code_bytes = 0, cache_bytes = 0;
  double kl_to_exact = 0;
  int agreed = 0;
  std::vector<double> ratios, prompt_plain, prompt_seine, first, kl_of_texts;
  for (const TextRow& text : row.texts) {
    const Chosen& of = text.chosen[c];
    plain_loss += text.plain_loss, loss += of.loss, kl += of.kl;
    exact_loss += text.exact.loss, exact_kl += text.exact.kl;
    kl_to_exact += of.kl_to_exact;
    worst_kl = std::max(worst_kl, of.worst_kl);
    agreed += of.agreed;
    code_bytes += text.code_bytes, cache_bytes += text.cache_bytes;
    prompt_plain.push_back(text.prompt_plain_ms), prompt_seine.push_back(text.prompt_seine_ms);
    ratios.push_back(text.prompt_seine_ms / text.prompt_plain_ms);
    first.push_back(text.first_ms);
    kl_of_texts.push_back(of.kl / static_cast<double>(of.ms.size()));
  }
  const auto positions = static_cast<double>(plain.size());
  Json json = {{"cells", row.cells},
               {"threads", o.threads},
               {"top_k", row.texts.front().chosen[c].top_k},
               {"positions", plain.size()},
               {"plain_ms", Median(plain)},
               {"exact_ms", Median(exact)},
               {"seine_ms", Median(ms)},
               {"attention_ms", Median(attention)},
               {"first_ms", Mean(first)},
               {"prompt_plain_ms", Median(prompt_plain)},
               {"prompt_seine_ms", Median(prompt_seine)},
               {"prompt_ratio", Mean(ratios)},
               {"extra_bytes", code_bytes},
               {"cache_bytes", cache_bytes}};
  if (o.repeat > 0 || o.random) return json;  // times alone
  json["kl"] = kl / positions;
  json["kl_exact"] = exact_kl / positions;
  json["kl_to_exact"] = kl_to_exact / positions;
  json["worst_kl"] = worst_kl;
  json["ppl_plain"] = std::exp(plain_loss / positions);
  json["ppl_exact"] = std::exp(exact_loss / positions);
  json["ppl_seine"] = std::exp(loss / positions);
  json["agreement"] = agreed / positions;
  json["kl_of_texts"] = kl_of_texts;
  return json;
}

void PrintTable(const Json& rows) {
  const bool peer = rows.front().contains("peer_ms");
  std::printf("%8s %6s %9s %9s %9s %6s %6s %9s %7s %7s", "cells", "top k", "plain ms", "exact ms", "seine ms", "ratio",
              "/exact", "attention", "prompt", "memory");
  if (peer) {
    std::printf(" %8s %12s %12s %11s %11s", "peer ms", "plain prompt", "seine prompt", "peer prompt", "peer tokens");
  }
  std::printf(" %8s %8s %8s %8s %9s %9s %6s\n", "kl", "kl exact", "between", "ppl", "ppl exact", "ppl seine", "agree");
  for (const Json& row : rows) {
    const auto number = [&](const char* name) { return row.at(name).get<double>(); };
    const auto said = [&](const char* name, int decimals) {  // by the peer
      return row.at(name).is_null() ? "-" : absl::StrFormat("%.*f", decimals, number(name));
    };
    const double memory = number("cache_bytes") > 0 ? number("extra_bytes") / number("cache_bytes") : 0;
    std::printf("%8.0f %6.0f %9.2f %9.2f %9.2f %6.2f %6.2f %9.2f %7.3f %7.3f", number("cells"), number("top_k"),
                number("plain_ms"), number("exact_ms"), number("seine_ms"), number("plain_ms") / number("seine_ms"),
                number("exact_ms") / number("seine_ms"), number("attention_ms"), number("prompt_ratio"), memory);
    if (peer) {
      std::printf(" %8s %12.0f %12.0f %11s %11s", said("peer_ms", 2).c_str(), number("prompt_plain_ms"),
                  number("prompt_seine_ms"), said("peer_prompt_ms", 0).c_str(), said("peer_prompt_tokens", 0).c_str());
    }
    if (row.contains("kl")) {
      std::printf(" %8.4f %8.4f %8.4f %8.3f %9.3f %9.3f %6.3f", number("kl"), number("kl_exact"), number("kl_to_exact"),
                  number("ppl_plain"), number("ppl_exact"), number("ppl_seine"), number("agreement"));
    }
    std::printf("\n");
  }
}

// Any rows, under the names of their values.
void PrintRows(const Json& rows) {
  for (const auto& [name, value] : rows.front().items())
    std::printf("%*s ", static_cast<int>(name.size()), name.c_str());
  std::printf("\n");
  for (const Json& row : rows) {
    for (const auto& [name, value] : row.items()) {
      const int width = static_cast<int>(name.size());
      std::string text = value.is_string() ? value.get<std::string>() : value.dump();
      if (value.is_null()) text = "-";
      if (value.is_number_float()) text = absl::StrFormat("%.4g", value.get<double>());
      std::printf("%*s ", width, text.c_str());
    }
    std::printf("\n");
  }
}

std::vector<int> TopKs(const Options& o, const Plugin& plugin) {
  std::vector<int> top_k;
  for (const int k : o.top_k) top_k.push_back(k > 0 ? k : static_cast<int>(plugin.Number("top_k")));
  return top_k;
}

std::vector<Row> MeasureAll(llama_model* model, const Plugin& plugin, const Options& o,
                            const std::vector<std::vector<llama_token>>& texts, RowFile* file) {
  std::vector<Row> rows;
  size_t done = 0;
  for (const int cells : o.cells) {
    Row& row = rows.emplace_back();
    row.cells = cells;
    for (size_t t = 0; t < texts.size(); ++t) {
      Json key = KeyOf(o);
      key["measure"] = "decode";
      key["cells"] = cells;
      key["text"] = o.texts[t];
      ++done;
      if (const Json* known = file->Find(key)) {
        row.texts.push_back(TextRowFrom(*known));
        continue;
      }
      std::fprintf(stderr, "seine-llama-bench: %d cells, %s (%zu of %zu)\n", cells, o.texts[t].c_str(), done,
                   o.cells.size() * texts.size());
      row.texts.push_back(MeasureText(model, plugin, o, texts[t], cells, TopKs(o, plugin)));
      file->Add(key, ToJson(row.texts.back()));
    }
  }
  return rows;
}

void Draw(const Options& o, const std::vector<Row>& rows) {
  seine::bench::Plot plot;
  plot.title = "Tokens a second while a long context is decoded";
  plot.subtitle = std::to_string(o.threads) + " threads, " + o.model.substr(o.model.rfind('/') + 1);
  plot.x_label = "tokens in the context";
  plot.y_label = "tokens/s";
  plot.log_x = true;
  const std::vector<Chosen>& chosen = rows.front().texts.front().chosen;
  plot.series.resize(2 + chosen.size());
  plot.series[0].name = "llama.cpp";
  plot.series[1].name = "exact attention of Seine's";
  for (const Row& row : rows) {
    const auto add = [&](size_t series, const std::vector<double>& ms) {
      plot.series[series].points.emplace_back(row.cells, 1000 / Median(ms));
    };
    add(0, OfAll(row, [](const TextRow& t) { return t.plain_ms; }));
    add(1, OfAll(row, [](const TextRow& t) { return t.exact_ms; }));
    for (size_t c = 0; c < chosen.size(); ++c) {
      plot.series[2 + c].name = "Seine, top " + std::to_string(chosen[c].top_k);
      add(2 + c, OfAll(row, [&](const TextRow& t) { return t.chosen[c].ms; }));
    }
  }
  std::ofstream file(o.plot);
  file << RenderSvg(plot);
  if (!file.flush()) Fail(o.plot + ": cannot be written");
}

// Llama-3.2-1B's shape: of its config.json.
void WriteLargeModel(const Options& o) {
  if (std::ifstream(o.model).good()) return;  // written before, or somebody's
  std::fprintf(stderr, "seine-llama-bench: writing %s\n", o.model.c_str());
  const ModelShape shape = {.layers = 16,
                            .embedding = 2048,
                            .feed_forward = 8192,
                            .q_heads = 32,
                            .kv_heads = 8,
                            .head_dim = 64,
                            .vocabulary = 128256,
                            .context = 131072,
                            .rope_base = 500000,
                            .weights = o.weights};
  if (!WriteRandomModel(shape, 1, o.model)) Fail(o.model + ": cannot be written");
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

std::vector<std::vector<llama_token>> ReadTexts(const llama_model* model, const Options& o) {
  std::vector<std::vector<llama_token>> texts;
  const int most = *std::max_element(o.cells.begin(), o.cells.end());
  const int wanted = (o.repeat > 0 ? std::min(most, o.repeat) : most) + o.steps + 1;
  for (const std::string& path : o.texts) {
    texts.push_back(o.random ? RandomText(model, wanted) : ReadText(model, path, wanted));
  }
  return texts;
}

}  // namespace

int main(int argc, char** argv) {
  const Options o = ParseOptions(argc, argv);
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  const std::string prompt = o.shares.empty() ? o.prompt : "sparse";
  if (!prompt.empty()) setenv("SEINE_PROMPT", prompt.c_str(), /*overwrite=*/1);
  RowFile file(o.rows);
  const Plugin plugin = LoadPlugin(o.plugin);
  llama_backend_init();
  if (o.random) WriteLargeModel(o);
  llama_model* model = llama_model_load_from_file(o.model.c_str(), llama_model_default_params());
  if (model == nullptr) Fail(o.model + ": llama.cpp cannot read it");
  const std::vector<std::vector<llama_token>> texts = ReadTexts(model, o);
  if (o.prompt.empty() && o.prompts == 0 && !o.whole) plugin.set_prompt_mass(1);  // what differs is then decoding's
  Json rows = Json::array(), peer;
  if (!o.peer.empty()) peer = MeasurePeer(model, o, texts);  // first, so that one that does not answer costs little
  if (o.prompts > 0) {
    rows = MeasurePrompts(model, plugin, o, texts, &file);
  } else if (o.hole > 0) {
    rows = MeasureHoles(model, plugin, o, texts[0]);
  } else if (o.whole) {
    rows = MeasureWhole(model, plugin, o, texts[0]);
  } else if (!o.shares.empty()) {
    rows = MeasureSparse(model, plugin, o, texts, &file);
  } else if (o.needles > 0) {
    rows = MeasureNeedles(model, plugin, o, texts, TopKs(o, plugin), &file);
  } else {
    const std::vector<Row> all = MeasureAll(model, plugin, o, texts, &file);
    for (const Row& row : all) {
      for (size_t c = 0; c < row.texts.front().chosen.size(); ++c) rows.push_back(Figures(o, row, c));
    }
    if (!o.plot.empty()) Draw(o, all);
  }
  if (!o.peer.empty()) AddPeer(peer, o, &rows);
  if (o.json) {
    Json all = {{"texts", texts.size()}, {"steps", o.steps}, {"yarn", o.yarn}, {"rows", rows}};
    if (!o.peer.empty()) all["peer"] = peer;
    all["plugin"] = Json::parse(plugin.report());
    std::cout << all << std::endl;
  } else {
    rows.front().contains("seine_ms") && rows.front().contains("top_k") ? PrintTable(rows) : PrintRows(rows);
    std::printf("%s\n", plugin.report());
  }
  llama_model_free(model);
}
