// What seine-llama-bench is told.
#ifndef SEINE_ENGINES_LLAMA_CPP_BENCH_SETUP_BENCH_OPTIONS_H_
#define SEINE_ENGINES_LLAMA_CPP_BENCH_SETUP_BENCH_OPTIONS_H_

#include <string>
#include <vector>

namespace seine::llama {

inline constexpr int kMostNeedles = 32;  // in a text

struct Options {
  std::string model, plugin, plot, rows, weights, peer;
  std::string prompt;  // empty: as the environment says
  std::string cache_type_k = "f16", cache_type_v = "f16";
  std::vector<std::string> texts;
  std::vector<int> cells = {2048, 4096, 8192};
  std::vector<int> top_k;  // empty: the plug-in's setting
  int steps = 64, threads = 2, repeat = 0, prompts = 0, needles = 0, hole = 0;
  bool whole = false;
  std::vector<double>
      shares;       // of attention that sparse prompts keep, whose quality is measured; empty: something else
  int context = 0;  // cells that a context has room for; 0: as many as are needed
  float yarn = 1;
  bool json = false, random = false;
};

// Prints one line and ends the program with 1.
[[noreturn]] void Fail(const std::string& why);

// --help prints and ends the program; what is wrong is one line that names the flag.
Options ParseOptions(int argc, char** argv);

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_BENCH_SETUP_BENCH_OPTIONS_H_
