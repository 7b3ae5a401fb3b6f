// What a step costs that fills a hole near the beginning of a long text, beside one of a text in a row: the processor's
// time, through the plug-in, by turns.
#ifndef SEINE_ENGINES_LLAMA_CPP_BENCH_HOLE_MEASURE_H_
#define SEINE_ENGINES_LLAMA_CPP_BENCH_HOLE_MEASURE_H_

#include <vector>

#include "engines/llama.cpp/bench/setup/contexts.h"
#include "engines/llama.cpp/bench/setup/row_file.h"

namespace seine::llama {

// Rows of all lengths: {cells, hole, row_cpu_ms, hole_cpu_ms, ratio, row_encoded_keys, hole_encoded_keys}. Times:
// medians a token; ratio: the median of the steps' own. As many tokens are decoded as the hole has cells.
Json MeasureHoles(llama_model* model, const Plugin& plugin, const Options& o, const std::vector<llama_token>& tokens);

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_BENCH_HOLE_MEASURE_H_
