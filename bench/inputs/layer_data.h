// Whole layers to measure decode steps on: fp16 keys and values, queries of some positions, the exact answers to a few
// of them, and a profile made for these very heads.
#ifndef SEINE_BENCH_INPUTS_LAYER_DATA_H_
#define SEINE_BENCH_INPUTS_LAYER_DATA_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/inputs/dataset.h"
#include "bench/inputs/exact_attention.h"
#include "bench/inputs/truth.h"
#include "kernels/backend.h"
#include "profile/profile.h"
#include "profile/rope.h"

namespace seine::bench {

struct LayerDataOptions {
  std::string trace;                            // a path; empty: synthetic, by
  std::string synthetic = "rope";               // a generator (synthetic.h)
  int layers = 1;                               // of a trace, its first ones
  int kv_heads = 8, group = 4, head_dim = 128;  // of synthetic layers; a trace has its own
  int sink = 128, local = 512;                  // dense tokens before and after the zone
  uint64_t seed = 1;
  bool profile = true;  // whether one is measured
  // Of the exact answers: how many keys, for a query head or a KV head, and to how many positions' queries.
  int top_k = 100;
  Scope scope = Scope::kPerQHead;
  int64_t truth_positions = 8;
};

struct LayerData {
  LayerRows rows;
  std::vector<float> queries;                          // [num_positions][num_q_heads][head_dim]
  std::vector<std::vector<std::vector<int32_t>>> top;  // [truth_positions][sets] positions, ascending
};

struct LayerSet {
  int64_t num_keys = 0, num_tokens = 0;  // of the zone; with sink and local
  std::vector<LayerData> layers;
  std::shared_ptr<const Profile> profile;
};

class LayerSource {
 public:
  // One line naming the flag, or the file and what is wrong with it.
  static absl::StatusOr<std::unique_ptr<LayerSource>> Open(const LayerDataOptions& options);

  // What was asked for, with the trace's own shape where there is one.
  const LayerDataOptions& options() const { return options_; }
  const DatasetInfo& info() const { return info_; }
  const Rope& rope() const { return rope_; }
  int64_t most_keys() const { return most_keys_; }  // that a zone can have
  int64_t num_positions() const { return kPositions; }

  // Layers with zones of num_keys, a multiple of 64. `made` is called after each head. One head at a time is held in
  // fp32 beside them. RESOURCE_EXHAUSTED.
  absl::StatusOr<LayerSet> Make(int64_t num_keys, Backend* backend, const std::function<void()>& made) const;

 private:
  static constexpr int64_t kPositions = 64;

  explicit LayerSource(const LayerDataOptions& options) : options_(options) {}
  absl::Status OpenTrace();
  absl::Status OpenSynthetic();
  absl::StatusOr<Head> LoadHead(int layer, int kv_head, int64_t num_keys) const;
  absl::Status AddHead(Head head, LayerData* layer, LayerProfile* profile) const;
  void AddTruth(Head* head, LayerData* layer) const;

  LayerDataOptions options_;
  DatasetInfo info_;
  Rope rope_;
  std::unique_ptr<Dataset> trace_;
  int64_t most_keys_ = 0;
};

}  // namespace seine::bench

#endif  // SEINE_BENCH_INPUTS_LAYER_DATA_H_
