// Needles: sentences with a number each, hidden in a text, and asked for behind it. Which of them are found by
// llama.cpp alone, by our exact attention and by the index.
#ifndef SEINE_ENGINES_LLAMA_CPP_BENCH_NEEDLES_H_
#define SEINE_ENGINES_LLAMA_CPP_BENCH_NEEDLES_H_

#include <vector>

#include "engines/llama.cpp/bench/setup/contexts.h"
#include "engines/llama.cpp/bench/setup/row_file.h"

namespace seine::llama {

// Rows of all lengths and each of `top_k`: {cells, top_k, needles, plain_found, exact_found, seine_found, same}. found:
// every token of the number was the likeliest, given those before it; same: the likeliest tokens are plain's in all of
// an answer. The needles of a length lie in one text, at even depths. A text that `rows` holds is not measured again.
Json MeasureNeedles(llama_model* model, const Plugin& plugin, const Options& o,
                    const std::vector<std::vector<llama_token>>& texts, const std::vector<int>& top_k, RowFile* rows);

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_BENCH_NEEDLES_H_
