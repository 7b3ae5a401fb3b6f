#include "engines/llama.cpp/bench/decode_measure.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "bench/report/progress.h"

namespace seine::llama {

namespace {

auto Likeliest(const std::vector<double>& x) { return std::max_element(x.begin(), x.end()) - x.begin(); }

// KL(p, q) of two distributions' logarithms.
double Divergence(const std::vector<double>& p, const std::vector<double>& q) {
  double kl = 0;
  for (size_t t = 0; t < p.size(); ++t) kl += std::exp(p[t]) * (p[t] - q[t]);
  return kl;
}

}  // namespace

void Compare(const std::vector<double>& p, const std::vector<double>& q, llama_token next, Likeness* ours) {
  const double kl = Divergence(p, q);
  ours->kl += kl;
  ours->worst_kl = std::max(ours->worst_kl, kl);
  ours->loss -= q[next];
  ours->agreed += Likeliest(p) == Likeliest(q) ? 1 : 0;
}

TextRow MeasureText(llama_model* model, const Plugin& plugin, const Options& o, const std::vector<llama_token>& tokens,
                    int cells, const std::vector<int>& top_k) {
  TextRow row;
  for (const int k : top_k) row.chosen.emplace_back().top_k = k;
  const double codes_before = plugin.Number("code_bytes"), cache_before = plugin.Number("cache_bytes");
  ContextPair pair = MakePair(plugin, model, o, cells);
  const int read = o.repeat > 0 ? std::min(cells, o.repeat) : cells;
  const PromptTimes prompt = Read(plugin, pair, tokens, read);
  row.prompt_plain_ms = prompt.plain_ms, row.prompt_seine_ms = prompt.seine_ms;
  if (read < cells) {
    plugin.set_mode(kPlain);
    Repeat(pair.plain.get(), read, cells);
    plugin.set_mode(kSeine);
    Repeat(pair.seine.get(), read, cells);
  }
  bench::Progress progress(o.steps);
  for (int i = 0; i < o.steps; ++i) {
    const llama_token* token = tokens.data() + read + i;
    const auto decode = [&](llama_context* context, Mode mode) {
      plugin.set_mode(mode);
      const double begin = Now();
      Decode(context, token, 1);
      return Now() - begin;
    };
    row.plain_ms.push_back(decode(pair.plain.get(), kPlain));
    const std::vector<double> p = LogProbabilities(pair.plain.get(), NumTokens(model));
    row.plain_loss -= p[token[1]];
    row.exact_ms.push_back(decode(pair.seine.get(), kExact));
    const std::vector<double> exact = LogProbabilities(pair.seine.get(), NumTokens(model));
    Compare(p, exact, token[1], &row.exact);
    for (Chosen& chosen : row.chosen) {
      llama_memory_seq_rm(llama_get_memory(pair.seine.get()), 0, cells + i, -1);  // the same token again
      plugin.set_top_k(chosen.top_k);
      const double before = plugin.Number("ms_answering");
      chosen.ms.push_back(decode(pair.seine.get(), kSeine));
      chosen.attention_ms.push_back(plugin.Number("ms_answering") - before);
      const std::vector<double> ours = LogProbabilities(pair.seine.get(), NumTokens(model));
      Compare(p, ours, token[1], &chosen);
      chosen.kl_to_exact += Divergence(exact, ours);
    }
    progress.Step("tokens decoded");
  }
  row.first_ms = row.chosen.front().ms.front();
  pair.seine.reset();  // it then says how large its codes were
  row.code_bytes = plugin.Number("code_bytes") - codes_before;
  row.cache_bytes = plugin.Number("cache_bytes") - cache_before;
  return row;
}

namespace {

Json ToJson(const Likeness& of) {
  return {{"loss", of.loss}, {"kl", of.kl}, {"worst_kl", of.worst_kl}, {"agreed", of.agreed}};
}

void Read(const Json& json, Likeness* of) {
  json.at("loss").get_to(of->loss);
  json.at("kl").get_to(of->kl);
  json.at("worst_kl").get_to(of->worst_kl);
  json.at("agreed").get_to(of->agreed);
}

}  // namespace

Json ToJson(const TextRow& row) {
  Json chosen = Json::array();
  for (const Chosen& c : row.chosen) {
    Json one = ToJson(static_cast<const Likeness&>(c));
    one["top_k"] = c.top_k;
    one["kl_to_exact"] = c.kl_to_exact;
    one["ms"] = c.ms;
    one["attention_ms"] = c.attention_ms;
    chosen.push_back(std::move(one));
  }
  return {{"plain_ms", row.plain_ms},
          {"exact_ms", row.exact_ms},
          {"prompt_plain_ms", row.prompt_plain_ms},
          {"prompt_seine_ms", row.prompt_seine_ms},
          {"first_ms", row.first_ms},
          {"plain_loss", row.plain_loss},
          {"code_bytes", row.code_bytes},
          {"cache_bytes", row.cache_bytes},
          {"exact", ToJson(row.exact)},
          {"chosen", chosen}};
}

TextRow TextRowFrom(const Json& json) {
  TextRow row;
  json.at("plain_ms").get_to(row.plain_ms);
  json.at("exact_ms").get_to(row.exact_ms);
  json.at("prompt_plain_ms").get_to(row.prompt_plain_ms);
  json.at("prompt_seine_ms").get_to(row.prompt_seine_ms);
  json.at("first_ms").get_to(row.first_ms);
  json.at("plain_loss").get_to(row.plain_loss);
  json.at("code_bytes").get_to(row.code_bytes);
  json.at("cache_bytes").get_to(row.cache_bytes);
  Read(json.at("exact"), &row.exact);
  for (const Json& of : json.at("chosen")) {
    Chosen& c = row.chosen.emplace_back();
    Read(of, &c);
    of.at("top_k").get_to(c.top_k);
    of.at("kl_to_exact").get_to(c.kl_to_exact);
    of.at("ms").get_to(c.ms);
    of.at("attention_ms").get_to(c.attention_ms);
  }
  return row;
}

}  // namespace seine::llama
