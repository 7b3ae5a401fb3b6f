// Contexts of llama.cpp, with the plug-in and without, and what the measures ask of them.
#ifndef SEINE_ENGINES_LLAMA_CPP_BENCH_SETUP_CONTEXTS_H_
#define SEINE_ENGINES_LLAMA_CPP_BENCH_SETUP_CONTEXTS_H_

#include <memory>
#include <string>
#include <vector>

#include "engines/llama.cpp/bench/setup/bench_options.h"
#include "llama.h"

namespace seine::llama {

enum Mode { kSeine = 0, kPlain = 1, kExact = 2, kDecode = 3, kCompare = 4 };  // settings.h

struct Plugin {
  void (*set_mode)(int) = nullptr;
  void (*set_top_k)(int) = nullptr;
  void (*set_prompt_mass)(double) = nullptr;
  const char* (*report)() = nullptr;
  // A number of the report's.
  double Number(const std::string& name) const;
};

// Fails where llama.cpp does not take it.
Plugin LoadPlugin(const std::string& path);

using Context = std::unique_ptr<llama_context, decltype(&llama_free)>;

// Two contexts of one model and length. Each is called in the mode that it was made in.
Context MakeContext(llama_model* model, const Options& o, int cells);  // in the mode that is set
struct ContextPair {
  Context plain, seine;
};
ContextPair MakePair(const Plugin& plugin, llama_model* model, const Options& o, int cells);

constexpr int kBlock = 512;  // tokens of a prompt that are read at once

double Now();  // milliseconds, of a steady clock

// Fails where llama.cpp does.
void Decode(llama_context* context, const llama_token* tokens, int count);

// Cells [0, held) of sequence 0 again behind themselves, and so on until there are `wanted`. Fails where llama.cpp
// does.
void Repeat(llama_context* context, int held, int wanted);

struct PromptTimes {
  double plain_ms = 0, seine_ms = 0;
};
// Reads tokens [0, count) into both, block by block by turns; each is first in every other block.
PromptTimes Read(const Plugin& plugin, const ContextPair& pair, const std::vector<llama_token>& tokens, int count);

// Returns those after the last token that was decoded.
std::vector<double> LogProbabilities(llama_context* context, int vocabulary);

int NumTokens(const llama_model* model);  // of its vocabulary

// 0 of none.
double Median(std::vector<double> values);
double Mean(const std::vector<double>& values);

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_BENCH_SETUP_CONTEXTS_H_
