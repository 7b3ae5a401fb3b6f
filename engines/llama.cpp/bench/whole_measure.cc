#include "engines/llama.cpp/bench/whole_measure.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "bench/report/progress.h"

namespace seine::llama {

namespace {

constexpr int kCompared = 2048;
constexpr std::array<Mode, 4> kModes = {kPlain, kDecode, kSeine, kExact};

// What the plug-in counts. Of a context: what its decodes have added.
struct Counts {
  double attention_ms = 0, answering_ms = 0, runs_seen = 0, runs_taken = 0;

  void Add(const Plugin& plugin, double sign) {
    attention_ms += sign * plugin.Number("ms_prompt"), answering_ms += sign * plugin.Number("ms_answering");
    runs_seen += sign * plugin.Number("prompt_runs_seen"), runs_taken += sign * plugin.Number("prompt_runs_taken");
  }
};

struct AnswerTimes {
  double prompt_ms = 0, first_ms = 0, rest_ms = 0;
  double first() const { return prompt_ms + first_ms; }
  double whole() const { return first() + rest_ms; }
};

Json MeasureAnswer(llama_model* model, const Plugin& plugin, const Options& o, const std::vector<llama_token>& tokens,
                   int cells) {
  std::vector<Context> contexts;
  for (const Mode mode : kModes) {
    plugin.set_mode(mode);
    contexts.push_back(MakeContext(model, o, cells));
  }
  std::array<Counts, kModes.size()> counts;
  const auto decode = [&](size_t which, const llama_token* from, int count) {
    plugin.set_mode(kModes[which]);
    counts[which].Add(plugin, -1);
    const double begin = Now();
    Decode(contexts[which].get(), from, count);
    const double ms = Now() - begin;
    counts[which].Add(plugin, 1);
    return ms;
  };
  const int timed = o.repeat > 0 && o.repeat < cells ? std::min(kCompared, cells) : cells;
  std::vector<llama_token> text(tokens.begin(), tokens.begin() + std::min<size_t>(tokens.size(), cells));
  while (static_cast<int>(text.size()) < cells + o.steps + 1) text.push_back(tokens[text.size() % tokens.size()]);
  if (timed < cells) {  // behind copies of what is read once
    const int before = cells - timed, read = std::min(o.repeat, before);
    for (size_t w = 0; w < kModes.size(); ++w) {
      for (int i = 0; i < read; i += kBlock) decode(w, text.data() + i, std::min(kBlock, read - i));
      Repeat(contexts[w].get(), read, before);
    }
  }
  std::array<AnswerTimes, kModes.size()> times;
  counts = {};  // of what is timed
  bench::Progress progress(timed);
  for (int i = 0; i < timed; i += kBlock) {
    const int count = std::min(kBlock, timed - i);
    for (size_t turn = 0; turn < kModes.size(); ++turn) {
      const size_t w = (turn + i / kBlock) % kModes.size();
      times[w].prompt_ms += decode(w, text.data() + cells - timed + i, count);
    }
    progress.Step("tokens of a prompt, by all four", count);
  }
  for (int i = 0; i < o.steps; ++i) {
    for (size_t turn = 0; turn < kModes.size(); ++turn) {
      const size_t w = (turn + i) % kModes.size();
      (i == 0 ? times[w].first_ms : times[w].rest_ms) += decode(w, text.data() + cells + i, 1);
    }
  }
  const int again = std::min(kCompared, timed);
  llama_memory_seq_rm(llama_get_memory(contexts[2].get()), 0, cells - again, -1);
  double ours = plugin.Number("ms_prompt_compared"), plain = plugin.Number("ms_prompt_plain");
  plugin.set_mode(kCompare);
  for (int i = 0; i < again; i += kBlock) {
    Decode(contexts[2].get(), text.data() + cells - again + i, std::min(kBlock, again - i));
  }
  ours = plugin.Number("ms_prompt_compared") - ours, plain = plugin.Number("ms_prompt_plain") - plain;
  return {{"cells", cells},
          {"prompt", o.prompt},
          {"timed", timed},
          {"decoded", o.steps},
          {"first_plain_ms", times[0].first()},
          {"first_decode_ms", times[1].first()},
          {"first_both_ms", times[2].first()},
          {"first_exact_ms", times[3].first()},
          {"whole_plain_ms", times[0].whole()},
          {"whole_decode_ms", times[1].whole()},
          {"whole_both_ms", times[2].whole()},
          {"whole_exact_ms", times[3].whole()},
          {"first_ratio", times[0].first() / times[2].first()},
          {"whole_ratio", times[0].whole() / times[2].whole()},
          {"prompt_attention_ms", counts[2].attention_ms},
          {"decode_attention_ms", (counts[1].answering_ms + counts[2].answering_ms) / 2},
          {"compared_plain_ms", plain},
          {"compared_ms", ours},
          {"compared_ratio", plain / ours},
          {"compared_difference", plugin.Number("worst_prompt_difference")},
          {"taken", counts[2].runs_taken / std::max(1.0, counts[2].runs_seen)}};
}

}  // namespace

Json MeasureWhole(llama_model* model, const Plugin& plugin, const Options& o, const std::vector<llama_token>& tokens) {
  Json rows = Json::array();
  for (const int cells : o.cells) {
    std::fprintf(stderr, "seine-llama-bench: %d cells, whole answers\n", cells);
    rows.push_back(MeasureAnswer(model, plugin, o, tokens, cells));
  }
  return rows;
}

}  // namespace seine::llama
