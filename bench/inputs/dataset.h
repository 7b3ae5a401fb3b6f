// What a bench runs on: heads of keys with the queries of their group, from a recorded trace or synthetic.
//
// As an index would hold them: of n tokens, the zone is positions [sink, n - local), cut to a multiple of
// `granule`; queries are those of the last `local` positions that the trace holds. Heads are loaded one at a time.
#ifndef SEINE_BENCH_INPUTS_DATASET_H_
#define SEINE_BENCH_INPUTS_DATASET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/types.h"
#include "profile/rope.h"

namespace seine::bench {

// All tokens of one KV head, and the queries of its group.
struct Head {
  int layer = 0;
  int kv_head = 0;
  int64_t num_tokens = 0;
  int64_t zone_begin = 0, zone_end = 0;
  std::vector<uint8_t> tokens;  // [num_tokens, head_dim] in the data set's dtype: what an index is given
  std::vector<float> keys;      // [num_tokens, head_dim] the same in fp32: what every exact computation reads
  std::vector<float> queries;   // [num_positions, group, head_dim]
  std::vector<uint8_t> values;  // as tokens, of a trace and if asked for (DatasetOptions::values)
  // Queries that are not asked, to measure moments on (DatasetOptions::own_queries). [own_positions, group, head_dim]
  std::vector<float> own_queries;
  std::vector<int64_t> own_positions;

  int64_t num_keys() const { return zone_end - zone_begin; }
};

struct DatasetInfo {
  std::string source;  // the trace's path, or the generator's name
  bool synthetic = false;
  std::string model, text;  // of a trace
  std::string rope_json;    // config.json's rope_parameters of the vectors; empty: not stated
  Rope::Style rope_style = Rope::Style::kHalfSplit;
  std::vector<int> layers;
  int num_kv_heads = 1;
  int group = 1;
  int head_dim = 0;
  DType dtype = DType::kFloat32;
  int64_t num_tokens = 0;
  int64_t zone_begin = 0, zone_end = 0;
  int64_t num_positions = 0;  // queries a query head
  int64_t query_start = 0;    // of a trace: the position of its first query

  int num_heads() const { return static_cast<int>(layers.size()) * num_kv_heads; }
  int64_t num_keys() const { return zone_end - zone_begin; }
};

struct DatasetOptions {
  std::string trace;          // a path, or
  std::string synthetic;      // a generator
  std::vector<int> layers;    // of a trace; empty: all that it holds
  int64_t tokens = 0;         // of a trace, its first ones, as if it ended there; 0: all
  int64_t num_keys = 131072;  // synthetic
  int head_dim = 128;         // synthetic
  int64_t num_queries = 0;    // at most so many a query head, evenly spread; 0: all of a trace, 64 synthetic
  uint64_t seed = 1;          // synthetic
  bool own_queries = false;   // keep queries aside that are not asked: a trace's every other one, 512 more synthetic
  bool values = false;        // of a trace, which must then hold them
  std::string dtype;          // fp32, fp16 or bf16; empty: the trace's own, or fp32
  int64_t sink = 16, local = 512;  // of a trace
  bool all_queries = false;        // of a trace, those of every position that it holds, whatever `local` is
  int granule = 64;
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  // One line naming the flag, or the file and what is wrong with it.
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(const DatasetOptions& options);
  const DatasetInfo& info() const { return info_; }
  virtual absl::StatusOr<Head> Load(int head) const = 0;  // head in [0, info().num_heads())
  // fp32 [num_tokens, head_dim]; empty where the data are synthetic.
  virtual absl::StatusOr<std::vector<float>> LoadValues(int head) const = 0;

 protected:
  DatasetInfo info_;
};

const char* NameOf(DType dtype);
// Rounds to nearest even; the fp32 values come back as what the rounded ones say.
std::vector<uint8_t> ToDType(DType dtype, std::vector<float>* values);

}  // namespace seine::bench

#endif  // SEINE_BENCH_INPUTS_DATASET_H_
