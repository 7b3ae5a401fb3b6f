// What `seine-bench recall --candidates` prints: a table for people, a JSON object for programs (its keys are a
// contract).
#ifndef SEINE_BENCH_TABLES_EQUAL_REPORT_H_
#define SEINE_BENCH_TABLES_EQUAL_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/inputs/dataset.h"
#include "bench/measures/equal.h"

namespace seine::bench {

struct EqualReport {
  DatasetInfo data;
  int top_k = 100;
  std::string profile;                // a path, or "own"
  std::string faiss;                  // in words; empty: none ran
  std::vector<std::string> left_out;  // "NAME: WHY"
  std::vector<EqualRow> rows;
};

std::string RenderText(const EqualReport& report);

// source, synthetic, model, text, layers, num_kv_heads, num_q_heads, head_dim, dtype, num_keys, key_positions, top_k,
// profile, faiss, left_out, and rows of: method, share (of the keys, in percent; "own" where the method's own schedule
// says), candidates_asked (null there), candidates, candidates_fewest, candidates_most, beta, rho (or null),
// recall_at_k, recall_at_k_worst_head, recall_exact, attention_mass, tokens_held, tokens_attended, head_dim,
// bytes_per_key, bytes_read, answers. EqualRow has what they mean; tokens_held are the keys that a method searches.
nlohmann::ordered_json ToJson(const EqualReport& report);

}  // namespace seine::bench

#endif  // SEINE_BENCH_TABLES_EQUAL_REPORT_H_
