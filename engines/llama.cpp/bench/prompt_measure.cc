#include "engines/llama.cpp/bench/prompt_measure.h"

#include <algorithm>
#include <cstdio>

namespace seine::llama {

namespace {

// One pair of contexts: {prompt_plain_ms, prompt_seine_ms, first_plain_ms, first_seine_ms}.
Json MeasurePair(llama_model* model, const Plugin& plugin, const Options& o, const std::vector<llama_token>& tokens,
                 int cells) {
  const ContextPair pair = MakePair(plugin, model, o, cells);
  const PromptTimes prompt = Read(plugin, pair, tokens, cells);
  const auto first = [&](llama_context* context, Mode mode) {
    plugin.set_mode(mode);
    const double begin = Now();
    Decode(context, tokens.data() + cells, 1);
    return Now() - begin;
  };
  return {{"prompt_plain_ms", prompt.plain_ms},
          {"prompt_seine_ms", prompt.seine_ms},
          {"first_plain_ms", first(pair.plain.get(), kPlain)},
          {"first_seine_ms", first(pair.seine.get(), kSeine)}};
}

Json Summary(int cells, const std::vector<Json>& pairs) {
  std::vector<double> plain, seine, ratios, first_plain, first_seine;
  for (const Json& pair : pairs) {
    first_plain.push_back(pair.at("first_plain_ms"));
    first_seine.push_back(pair.at("first_seine_ms"));
    plain.push_back(pair.at("prompt_plain_ms").get<double>() + first_plain.back());
    seine.push_back(pair.at("prompt_seine_ms").get<double>() + first_seine.back());
    ratios.push_back(seine.back() / plain.back());
  }
  return {{"cells", cells},
          {"pairs", pairs.size()},
          {"plain_ms", Median(plain)},
          {"seine_ms", Median(seine)},
          {"ratio", Median(ratios)},
          {"ratio_least", *std::min_element(ratios.begin(), ratios.end())},
          {"ratio_most", *std::max_element(ratios.begin(), ratios.end())},
          {"first_step_plain_ms", Median(first_plain)},
          {"first_step_seine_ms", Median(first_seine)}};
}

}  // namespace

Json MeasurePrompts(llama_model* model, const Plugin& plugin, const Options& o,
                    const std::vector<std::vector<llama_token>>& texts, RowFile* rows) {
  Json out = Json::array();
  for (const int cells : o.cells) {
    std::vector<Json> pairs;
    for (int i = 0; i < o.prompts; ++i) {
      Json key = KeyOf(o);
      key["measure"] = "prompt";
      key["cells"] = cells;
      key["pair"] = i;
      if (const Json* known = rows->Find(key)) {
        pairs.push_back(*known);
        continue;
      }
      std::fprintf(stderr, "seine-llama-bench: %d cells, pair %d of %d\n", cells, i + 1, o.prompts);
      pairs.push_back(MeasurePair(model, plugin, o, texts[i % texts.size()], cells));
      rows->Add(key, pairs.back());
    }
    out.push_back(Summary(cells, pairs));
  }
  return out;
}

}  // namespace seine::llama
