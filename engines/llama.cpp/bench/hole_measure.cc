#include "engines/llama.cpp/bench/hole_measure.h"

#include <algorithm>
#include <cstdio>
#include <ctime>

namespace seine::llama {

namespace {

constexpr int kPromptBlock = 512;  // of a prompt
constexpr int kHoleBegin = 300;

double CpuMs() {  // of all threads of the process
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return time.tv_sec * 1e3 + time.tv_nsec * 1e-6;
}

Json MeasureHole(llama_model* model, const Plugin& plugin, const Options& o, const std::vector<llama_token>& tokens,
                 int cells) {
  // The second of a pair is the plug-in's: that of the first pair reads in a row, that of the second has the hole.
  const int most = cells + 1 + o.hole;
  ContextPair row = MakePair(plugin, model, o, most), holed = MakePair(plugin, model, o, most);
  row.plain.reset(), holed.plain.reset();
  plugin.set_mode(kSeine);
  for (llama_context* context : {row.seine.get(), holed.seine.get()}) {
    for (int i = 0; i < cells; i += kPromptBlock) Decode(context, tokens.data() + i, std::min(kPromptBlock, cells - i));
    Decode(context, tokens.data() + cells, 1);  // the first step encodes what the prompt's blocks left
  }
  llama_memory_seq_rm(llama_get_memory(holed.seine.get()), 0, kHoleBegin, kHoleBegin + o.hole);
  std::vector<double> ms[2], ratios;
  double encoded[2] = {};
  for (int i = 0; i < o.hole; ++i) {
    for (const int first : {0, 1}) {
      const int which = i % 2 ^ first;
      const double keys = plugin.Number("encoded_keys"), begin = CpuMs();
      Decode((which == 0 ? row : holed).seine.get(), tokens.data() + 1 + i, 1);
      ms[which].push_back(CpuMs() - begin);
      encoded[which] += plugin.Number("encoded_keys") - keys;
    }
    ratios.push_back(ms[1].back() / ms[0].back());
  }
  return {{"cells", cells},
          {"hole", o.hole},
          {"row_cpu_ms", Median(ms[0])},
          {"hole_cpu_ms", Median(ms[1])},
          {"ratio", Median(ratios)},
          {"row_encoded_keys", encoded[0]},
          {"hole_encoded_keys", encoded[1]}};
}

}  // namespace

Json MeasureHoles(llama_model* model, const Plugin& plugin, const Options& o, const std::vector<llama_token>& tokens) {
  Json rows = Json::array();
  for (const int cells : o.cells) {
    std::fprintf(stderr, "seine-llama-bench: %d cells, a hole of %d\n", cells, o.hole);
    rows.push_back(MeasureHole(model, plugin, o, tokens, cells));
  }
  return rows;
}

}  // namespace seine::llama
