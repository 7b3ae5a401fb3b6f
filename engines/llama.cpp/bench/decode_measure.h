// Decoding one text on, token after token, plain, exactly and by the index: times and distributions.
#ifndef SEINE_ENGINES_LLAMA_CPP_BENCH_DECODE_MEASURE_H_
#define SEINE_ENGINES_LLAMA_CPP_BENCH_DECODE_MEASURE_H_

#include <vector>

#include "engines/llama.cpp/bench/setup/contexts.h"
#include "engines/llama.cpp/bench/setup/row_file.h"

namespace seine::llama {

// Distributions beside others. Losses and divergences are sums over the steps, in nats.
struct Likeness {
  double loss = 0, kl = 0, worst_kl = 0;
  int agreed = 0;  // steps whose likeliest token is the same
};

// Adds one step's log probabilities `q`, beside those of plain llama.cpp, or of what else is compared with, `p`;
// `next` is the token that is given then.
void Compare(const std::vector<double>& p, const std::vector<double>& q, llama_token next, Likeness* ours);

// What one top_k gave.
struct Chosen : Likeness {
  int top_k = 0;
  double kl_to_exact = 0;  // from our exact attention's distributions: what the index alone makes different
  std::vector<double> ms, attention_ms;  // a token
};

// What one text gave at one length of the context.
struct TextRow {
  std::vector<double> plain_ms, exact_ms;  // a token
  double prompt_plain_ms = 0, prompt_seine_ms = 0;
  double first_ms = 0;  // Seine's first token
  double plain_loss = 0, code_bytes = 0, cache_bytes = 0;
  Likeness exact;  // our exact attention's: what arithmetic alone makes different
  std::vector<Chosen> chosen;
};

// Reads the text up to `cells` (or o.repeat tokens of it, whose cells are copied) and decodes o.steps tokens of it.
// Each step is decoded by all: llama.cpp, our exact attention, and each of `top_k`.
TextRow MeasureText(llama_model* model, const Plugin& plugin, const Options& o, const std::vector<llama_token>& tokens,
                    int cells, const std::vector<int>& top_k);

// As a row of a file keeps it.
Json ToJson(const TextRow& row);
TextRow TextRowFrom(const Json& json);

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_BENCH_DECODE_MEASURE_H_
