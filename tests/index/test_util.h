// Small indexes and repeatable tokens for the tests of the index.
#ifndef SEINE_TESTS_INDEX_TEST_UTIL_H_
#define SEINE_TESTS_INDEX_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "index/calls/index_impl.h"
#include "index/index.h"
#include "kernels/backend.h"
#include "kernels/math.h"

namespace seine::testing {

// A backend whose allocations can be made to fail: the n-th from now on, counted down.
class TestBackend : public Backend {
 public:
  explicit TestBackend(int threads = 1) : inner_(MakeCpuBackend(threads)) {}
  std::string name() const override { return inner_->name(); }
  std::string simd_target() const override { return inner_->simd_target(); }
  int num_threads() const override { return inner_->num_threads(); }
  bool codes_on_device() const override { return apart; }
  std::string loss() const override { return lost ? "planted" : ""; }
  Buffer Allocate(size_t bytes, MemorySpace space) override {
    ++allocations;
    if (fail_after >= 0 && fail_after-- == 0) return Buffer();
    return Buffer(this, space, static_cast<uint8_t*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)), bytes);
  }
  void Free(uint8_t* data, size_t, MemorySpace) override {
    ++freed;
    std::free(data);
  }
  Outcome Copy(const CopyTask* tasks, int count) override {
    const Outcome outcome = Next();
    return outcome == Outcome::kDone ? inner_->Copy(tasks, count) : outcome;
  }
  Outcome Zero(uint8_t* data, size_t bytes) override {
    const Outcome outcome = Next();
    return outcome == Outcome::kDone ? inner_->Zero(data, bytes) : outcome;
  }
  Outcome CountCodes(const CountTask* tasks, int count) override {
    const Outcome outcome = Next();
    return outcome == Outcome::kDone ? inner_->CountCodes(tasks, count) : outcome;
  }
  Outcome Encode(const EncodeTask* tasks, int count) override {
    const Outcome outcome = Next();
    if (outcome != Outcome::kDone) return outcome;
    for (int i = 0; i < count; ++i) encoded_keys += tasks[i].num_keys;
    return inner_->Encode(tasks, count);
  }
  Outcome Search(const SearchTask* tasks, int count, const SearchParams& params, SearchOutput* outputs,
                 const ProgressCallback& progress) override {
    const Outcome outcome = Next();
    return outcome == Outcome::kDone ? inner_->Search(tasks, count, params, outputs, progress) : outcome;
  }
  Outcome Sum(const SumTask* tasks, int count) override {
    const Outcome outcome = Next();
    return outcome == Outcome::kDone ? inner_->Sum(tasks, count) : outcome;
  }
  Outcome Score(const ScoreTask* tasks, int count) override {
    const Outcome outcome = Next();
    return outcome == Outcome::kDone ? inner_->Score(tasks, count) : outcome;
  }
  Outcome Select(const SelectTask* tasks, int count) override {
    const Outcome outcome = Next();
    return outcome == Outcome::kDone ? inner_->Select(tasks, count) : outcome;
  }
  Outcome Project(const ProjectTask* tasks, int count) override {
    const Outcome outcome = Next();
    return outcome == Outcome::kDone ? inner_->Project(tasks, count) : outcome;
  }
  Outcome Rebuild(const RebuildTask* tasks, int count) override {
    const Outcome outcome = Next();
    return outcome == Outcome::kDone ? inner_->Rebuild(tasks, count) : outcome;
  }
  Outcome Learn(const LearnTask* tasks, int count) override {
    const Outcome outcome = Next();
    return outcome == Outcome::kDone ? inner_->Learn(tasks, count) : outcome;
  }
  void Run(int count, const std::function<void(int)>& fn) override { inner_->Run(count, fn); }

  std::atomic<int> allocations{0}, freed{0};
  std::atomic<int> fail_after{-1};  // -1: never
  std::atomic<int64_t> encoded_keys{0};
  bool apart = false;                    // codes in a memory of their own
  std::atomic<int> fail_operation{-1};   // the n-th operation from now on fails, counted down; -1: none
  Outcome failure = Outcome::kNoMemory;  // how
  std::atomic<bool> lost{false};

 private:
  Outcome Next() {
    if (lost) return Outcome::kLost;
    if (fail_operation < 0 || fail_operation-- > 0) return Outcome::kDone;
    lost = failure == Outcome::kLost;
    return failure;
  }

  std::unique_ptr<Backend> inner_;
};

// Zones small enough that a hundred tokens already reach the index: sink 16, local 32, update buffer 64.
inline IndexConfig SmallConfig(KvStore store = KvStore::kKeys) {
  IndexConfig config;
  config.name = "test";
  config.geometry = {.num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64, .dtype = DType::kFloat16};
  config.zones = {.sink = 16, .local = 32, .update_buffer = 64, .dense_threshold = 0};
  config.search.candidate_fraction = .05;  // the codes are searched, however short the zone
  config.kv_store = store;
  return config;
}

inline std::unique_ptr<Index> MakeIndex(const IndexConfig& config, Backend* backend,
                                        std::shared_ptr<MemoryBudget> budget = nullptr) {
  auto index = Index::Create(config, backend, std::move(budget));
  EXPECT_TRUE(index.ok()) << index.status();
  return *std::move(index);
}

// Returns once what calls have left to the background is done.
inline void WaitForBackground(const Index& index) { static_cast<const IndexImpl&>(index).WaitForBackground(); }

inline void PutFloat(DType dtype, float value, std::string* out) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  const uint16_t half = FloatToHalf(value);
  const uint16_t top = static_cast<uint16_t>(bits >> 16);
  if (dtype == DType::kFloat32) out->append(reinterpret_cast<const char*>(&value), 4);
  if (dtype == DType::kFloat16) out->append(reinterpret_cast<const char*>(&half), 2);
  if (dtype == DType::kBFloat16) out->append(reinterpret_cast<const char*>(&top), 2);
}

// One token's rows [num_kv_heads, head_dim], a function of its name alone; some coordinates have a mean, as real keys
// have.
inline std::string TokenRow(const Geometry& g, uint64_t name) {
  std::string row;
  row.reserve(g.num_kv_heads * g.head_dim * SizeOf(g.dtype));
  uint64_t state = name * 0x9e3779b97f4a7c15u + 1;
  for (int i = 0; i < g.num_kv_heads * g.head_dim; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint64_t mixed = state ^ (state >> 29);
    float sum = 0;  // of four uniform numbers: near to Gaussian
    for (int j = 0; j < 4; ++j) sum += static_cast<float>(mixed >> (16 * j) & 0xffff) / 65536 - 0.5f;
    PutFloat(g.dtype, sum * 1.7f + (i % 7 == 0 ? 1.0f : 0.0f), &row);
  }
  return row;
}

// Tokens named `names`, joined.
inline std::string Rows(const Geometry& g, const std::vector<uint64_t>& names) {
  std::string rows;
  for (const uint64_t name : names) rows += TokenRow(g, name);
  return rows;
}

// Names first, first + 1, ...
inline std::vector<uint64_t> Names(uint64_t first, int64_t count) {
  std::vector<uint64_t> names(count);
  for (int64_t i = 0; i < count; ++i) names[i] = first + i;
  return names;
}

// Values of a token differ from its keys.
inline constexpr uint64_t kValueNames = uint64_t{1} << 40;

inline TensorView View(const Geometry& g, const std::string& rows) {
  const int64_t token_bytes = int64_t{g.num_kv_heads} * g.head_dim * SizeOf(g.dtype);
  return {rows.data(), static_cast<int64_t>(rows.size()) / token_bytes, rows.size()};
}

// Appends tokens named `names`, with values where the index keeps them.
inline absl::StatusOr<int64_t> AppendNames(Index* index, const SequenceHandle& handle, int layer, int64_t position,
                                           const std::vector<uint64_t>& names) {
  const Geometry& g = index->config().geometry;
  const std::string keys = Rows(g, names);
  if (index->config().kv_store != KvStore::kKeysValues)
    return index->Append(handle, layer, position, View(g, keys), {});
  std::vector<uint64_t> value_names = names;
  for (uint64_t& name : value_names) name += kValueNames;
  const std::string values = Rows(g, value_names);
  return index->Append(handle, layer, position, View(g, keys), View(g, values));
}

inline std::vector<float> Queries(const Geometry& g, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> queries(g.num_q_heads * g.head_dim);
  for (float& x : queries) x = normal(random);
  return queries;
}

// A retrieval that shows every code of the zone: all keys are returned, with their estimates where no keys are stored,
// and a small candidate set beside it, which shows the coarse plane where they are.
inline std::vector<ItemAnswer> Probe(const Index& index, const SequenceHandle& handle, int layer) {
  std::vector<ItemAnswer> answers;
  const std::vector<float> queries = Queries(index.config().geometry, 17);
  SearchParams params = index.config().search;
  params.with_candidates = true;
  params.scope = Scope::kPerQHead;
  for (const int top_k : {65536, 10}) {
    params.top_k = top_k;
    auto answer = index.Retrieve({{handle, layer, queries.data()}}, params);
    EXPECT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE((*answer)[0].status.ok()) << (*answer)[0].status;
    answers.push_back((*answer)[0]);
  }
  return answers;
}

// Bit-equal, but for times.
inline bool SameAnswers(const std::vector<ItemAnswer>& a, const std::vector<ItemAnswer>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].status != b[i].status || a[i].path != b[i].path || a[i].num_tokens != b[i].num_tokens ||
        a[i].zone_begin != b[i].zone_begin || a[i].zone_end != b[i].zone_end ||
        a[i].all_returned != b[i].all_returned || a[i].positions != b[i].positions || a[i].scores != b[i].scores ||
        a[i].candidates != b[i].candidates) {
      return false;
    }
  }
  return true;
}

}  // namespace seine::testing

#endif  // SEINE_TESTS_INDEX_TEST_UTIL_H_
