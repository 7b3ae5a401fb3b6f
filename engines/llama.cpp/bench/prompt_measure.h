// Time to the first token of a prompt, by llama.cpp alone and with the plug-in, over several pairs of contexts: where a
// context's memory lies changes its times by some per cent.
#ifndef SEINE_ENGINES_LLAMA_CPP_BENCH_PROMPT_MEASURE_H_
#define SEINE_ENGINES_LLAMA_CPP_BENCH_PROMPT_MEASURE_H_

#include <vector>

#include "engines/llama.cpp/bench/setup/contexts.h"
#include "engines/llama.cpp/bench/setup/row_file.h"

namespace seine::llama {

// Rows of all lengths: {cells, pairs, plain_ms, seine_ms, ratio, ratio_least, ratio_most, first_step_plain_ms,
// first_step_seine_ms}. Times to the first token, medians over the pairs; ratio: the median of the pairs' own. Pairs
// take the texts in turn. A pair that `rows` holds is not measured again.
Json MeasurePrompts(llama_model* model, const Plugin& plugin, const Options& o,
                    const std::vector<std::vector<llama_token>>& texts, RowFile* rows);

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_BENCH_PROMPT_MEASURE_H_
