// What sparse prompts change: the same given tokens behind prompts that were read exactly and over fewer keys.
#ifndef SEINE_ENGINES_LLAMA_CPP_BENCH_SPARSE_MEASURE_H_
#define SEINE_ENGINES_LLAMA_CPP_BENCH_SPARSE_MEASURE_H_

#include <vector>

#include "engines/llama.cpp/bench/setup/contexts.h"
#include "engines/llama.cpp/bench/setup/row_file.h"

namespace seine::llama {

// Rows {model, cells, text, share, taken, kl, worst_kl, agreement, ppl_exact, ppl_sparse, prompt_ms, attention_ms,
// exact_prompt_ms, exact_attention_ms} of each length, text and share of o.shares; model and text are their
// files' names, `taken` is the share of the keys that were attended. o.steps tokens are decoded behind each prompt by
// exact attention, so that all that differs comes from the prompt.
Json MeasureSparse(llama_model* model, const Plugin& plugin, const Options& o,
                   const std::vector<std::vector<llama_token>>& texts, RowFile* rows);

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_BENCH_SPARSE_MEASURE_H_
