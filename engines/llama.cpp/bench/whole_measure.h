// Whole answers: a prompt and the tokens behind it, by llama.cpp alone, with decoding through the plug-in, with the
// prompt through it as well, and by the plug-in's exact attention.
#ifndef SEINE_ENGINES_LLAMA_CPP_BENCH_WHOLE_MEASURE_H_
#define SEINE_ENGINES_LLAMA_CPP_BENCH_WHOLE_MEASURE_H_

#include <vector>

#include "engines/llama.cpp/bench/setup/contexts.h"
#include "engines/llama.cpp/bench/setup/row_file.h"

namespace seine::llama {

// A row a length: {cells, prompt, timed, decoded, first_plain_ms, first_decode_ms, first_both_ms, first_exact_ms,
// whole_plain_ms, whole_decode_ms, whole_both_ms, whole_exact_ms, first_ratio, whole_ratio, prompt_attention_ms,
// decode_attention_ms, compared_plain_ms, compared_ms, compared_ratio, compared_difference, taken}. `first`: to the
// first token. The four contexts read block by block, by turns. `timed`: prompt tokens that are timed: with --repeat
// the last 2,048, behind copied cells. `compared`: attention of the prompt's last 2,048 tokens, read again, each node
// by llama.cpp's own kernel and by the plug-in. `taken`: the share of runs of keys that the plug-in attended to of what
// a prompt's blocks saw.
Json MeasureWhole(llama_model* model, const Plugin& plugin, const Options& o, const std::vector<llama_token>& tokens);

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_BENCH_WHOLE_MEASURE_H_
