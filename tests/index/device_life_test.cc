// Random lives of sequences on a device, each call beside the CPU's: whatever came before, what is dense, the means and
// the codes that the device keeps for itself are those of the rows that are held.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/backends/cuda/cuda_backend.h"
#include "tests/index/test_util.h"
#include "tests/kernels/cuda/host_device.h"

namespace seine {
namespace {

using cuda::HostDeviceControl;
using testing::MakeIndex;

class DeviceLife {
 public:
  DeviceLife(int seed, const IndexConfig& config)
      : config_(config),
        random_(seed),
        cpu_index_(MakeIndex(config, cpu_.get())),
        device_index_(MakeIndex(config, device_.get())) {}

  void Step() {
    const int64_t op = lengths_.empty() ? 0 : Below(24);
    if (op == 0) return Create("s" + std::to_string(Below(4)));
    const std::string id = std::next(lengths_.begin(), Below(static_cast<int64_t>(lengths_.size())))->first;
    if (op == 1) return Delete(id);
    if (op <= 4) return Fork(id, "f" + std::to_string(Below(4)));
    if (op <= 8) return Truncate(id);
    if (op == 9) return Evict(id);
    if (op <= 11) return AppendShortOfMemory(id);
    Append(id);
  }

  // A call of one to three items, each asked in a way of its own.
  void Compare() {
    if (lengths_.empty()) return;
    const Geometry& g = config_.geometry;
    std::vector<std::string> ids;
    std::vector<std::vector<float>> queries;
    for (int64_t i = 1 + Below(3); i > 0; --i) {
      ids.push_back(std::next(lengths_.begin(), Below(static_cast<int64_t>(lengths_.size())))->first);
      queries.push_back(testing::Queries(g, static_cast<uint32_t>(random_())));
    }
    std::vector<RetrieveItem> items, of_device;
    std::vector<Buffer> memory;
    std::vector<DeviceTensors> tensors(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      RetrieveItem& item = items.emplace_back();
      item.sequence = {ids[i], 0};
      item.queries = queries[i].data();
      if (Below(4) == 0) item.dense_from = Below(lengths_[ids[i]] + 1);
      of_device.push_back(item);
      if (Below(2) == 0) continue;
      memory.push_back(ToDevice(queries[i].data(), queries[i].size() * sizeof(float)));
      tensors[i].queries = reinterpret_cast<const float*>(memory.back().data());
      of_device[i].queries = nullptr;
      of_device[i].device = &tensors[i];
    }
    SearchParams params = config_.search;
    params.scope = Below(2) == 0 ? Scope::kPerQHead : Scope::kPerKvHead;
    params.top_k = 1 + static_cast<int>(Below(60));
    params.rescore_k = 2 * params.top_k;
    params.method = Below(5) == 0 ? Method::kExact : Method::kIndex;
    AttentionParams attention;
    if (Below(2) == 0) attention.tail = Below(2) == 0;
    attention.scale = .1f;
    attention.softcap = Below(3) == 0 ? 2.0f : 0.0f;
    attention.with_positions = true;
    const auto want = cpu_index_->Attend(items, params, attention);
    const auto got = device_index_->Attend(of_device, params, attention);
    ASSERT_TRUE(want.ok() && got.ok()) << want.status() << got.status();
    for (size_t i = 0; i < ids.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << ids[i] << " of " << lengths_[ids[i]] << " tokens");
      ExpectClose((*got)[i], (*want)[i]);
      if (::testing::Test::HasFatalFailure()) return;
    }
    const auto found = device_index_->Retrieve(of_device, params), found_want = cpu_index_->Retrieve(items, params);
    ASSERT_TRUE(found.ok() && found_want.ok()) << found.status();
    ASSERT_TRUE(testing::SameAnswers(*found, *found_want));
    compared_ += static_cast<int>(ids.size());
  }

  void End() {
    for (const int count : {forked_, truncated_, evicted_, appended_, refused_, compared_}) EXPECT_GE(count, 1);
    for (const auto& [id, length] : lengths_) ASSERT_TRUE(device_index_->DeleteSequence({id, 0}).ok());
    EXPECT_EQ(device_index_->stats().code_bytes, 0);
    EXPECT_EQ(device_index_->stats().store_bytes, 0);
    EXPECT_EQ(device_->loss(), "");
  }

 private:
  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  Buffer ToDevice(const void* data, size_t bytes) {
    Buffer host = device_->Allocate(bytes, MemorySpace::kStore), there = device_->Allocate(bytes, MemorySpace::kCodes);
    EXPECT_TRUE(host && there);
    std::memcpy(host.data(), data, bytes);
    const CopyTask copy = {there.data(), host.data(), bytes};
    EXPECT_EQ(device_->Copy(&copy, 1), Outcome::kDone);
    return there;
  }

  void ExpectClose(const AttendAnswer& got, const AttendAnswer& want) {
    ASSERT_TRUE(got.status.ok() && want.status.ok()) << got.status << want.status;
    ASSERT_TRUE(got.on_device);
    ASSERT_EQ(got.path, want.path);
    ASSERT_EQ(got.num_tokens, want.num_tokens);
    ASSERT_EQ(got.attended_tokens, want.attended_tokens);
    ASSERT_TRUE(testing::SameAnswers({got.selected}, {want.selected}));
    ASSERT_EQ(got.output.size(), want.output.size());
    for (size_t i = 0; i < want.output.size(); ++i) ASSERT_NEAR(got.output[i], want.output[i], 1e-5) << i;
    for (size_t h = 0; h < want.log_sum_exp.size(); ++h) {
      if (got.log_sum_exp[h] == want.log_sum_exp[h]) continue;  // -infinity of nothing
      ASSERT_NEAR(got.log_sum_exp[h], want.log_sum_exp[h], 1e-5) << h;
    }
  }

  template <typename Fn>
  void OnBoth(Fn fn) {
    const absl::Status want = fn(cpu_index_.get()), got = fn(device_index_.get());
    ASSERT_TRUE(want.ok() && got.ok()) << want << got;
  }
  void Create(const std::string& id) {
    if (lengths_.count(id) != 0) return;
    OnBoth([&](Index* index) { return index->CreateSequence(id).status(); });
    lengths_[id] = 0;
  }
  void Delete(const std::string& id) {
    OnBoth([&](Index* index) { return index->DeleteSequence({id, 0}); });
    lengths_.erase(id);
  }
  void Fork(const std::string& id, const std::string& fork) {
    if (lengths_.count(fork) != 0) return;
    const int64_t cut = Below(2) == 0 ? lengths_[id] : Below(lengths_[id] + 1);
    OnBoth([&](Index* index) { return index->Fork({id, 0}, fork, cut).status(); });
    lengths_[fork] = cut;
    ++forked_;
  }
  void Truncate(const std::string& id) {
    const int64_t n = lengths_[id], cut = Below(3) == 0 ? Below(n + 1) : std::max<int64_t>(0, n - Below(150));
    OnBoth([&](Index* index) { return index->Truncate({id, 0}, cut); });
    lengths_[id] = cut;
    ++truncated_;
  }
  void Evict(const std::string& id) {
    if (lengths_[id] < 100) return;
    EvictParams evict;
    evict.scorer.name = "knorm";
    evict.budget.tokens = 60 + Below(lengths_[id]);
    OnBoth([&](Index* index) { return index->Evict({id, 0}, 0, evict, {}).status(); });
    ++evicted_;
  }
  // A decode step, some tokens, or a prompt that may begin another piece of rows.
  std::vector<uint64_t> Tokens() {
    const int64_t kind = Below(30), count = kind < 16 ? 1 + Below(3) : kind < 29 ? 1 + Below(150) : 1000 + Below(1500);
    std::vector<uint64_t> names = testing::Names(next_name_, count);
    next_name_ += count;
    return names;
  }
  void Append(const std::string& id) {
    const std::vector<uint64_t> names = Tokens();
    const int64_t n = lengths_[id];
    ASSERT_TRUE(testing::AppendNames(cpu_index_.get(), {id, 0}, 0, n, names).ok());
    if (Below(2) == 0) {
      ASSERT_TRUE(testing::AppendNames(device_index_.get(), {id, 0}, 0, n, names).ok());
    } else {
      std::string rows[2];
      for (const uint64_t name : names) {
        rows[0] += testing::TokenRow(config_.geometry, name);
        rows[1] += testing::TokenRow(config_.geometry, name + testing::kValueNames);
      }
      const Buffer keys = ToDevice(rows[0].data(), rows[0].size()), values = ToDevice(rows[1].data(), rows[1].size());
      const auto count = static_cast<int64_t>(names.size());
      const auto appended = device_index_->Append({id, 0}, 0, n, {keys.data(), count, rows[0].size(), true, nullptr},
                                                  {values.data(), count, rows[1].size(), true, nullptr});
      ASSERT_TRUE(appended.ok()) << appended.status();
    }
    lengths_[id] += static_cast<int64_t>(names.size());
    ++appended_;
  }
  // Leaves a little of one memory or the other: all of the tokens come, or none.
  void AppendShortOfMemory(const std::string& id) {
    const std::vector<uint64_t> names = Tokens();
    const int64_t n = lengths_[id], device_limit = control_->device_limit, host_limit = control_->host_limit;
    const int64_t left = Below(3) == 0 ? Below(300000) : 0;
    if (Below(2) == 0) {
      control_->device_limit = control_->device_bytes + left;
    } else {
      control_->host_limit = control_->host_bytes + left;
    }
    const auto got = testing::AppendNames(device_index_.get(), {id, 0}, 0, n, names);
    control_->device_limit = device_limit;
    control_->host_limit = host_limit;
    ASSERT_TRUE(got.ok() || got.status().code() == absl::StatusCode::kResourceExhausted) << got.status();
    ASSERT_EQ(device_index_->GetSequence({id, 0})->layer_tokens[0],
              got.ok() ? n + static_cast<int64_t>(names.size()) : n);
    refused_ += got.ok() ? 0 : 1;
    if (!got.ok()) return;
    ASSERT_TRUE(testing::AppendNames(cpu_index_.get(), {id, 0}, 0, n, names).ok());
    lengths_[id] += static_cast<int64_t>(names.size());
  }

  const IndexConfig config_;
  std::mt19937 random_;
  const std::unique_ptr<Backend> cpu_ = MakeCpuBackend(1);
  const std::shared_ptr<HostDeviceControl> control_ = std::make_shared<HostDeviceControl>();
  const std::unique_ptr<Backend> device_ = cuda::BackendOn(control_);
  const std::unique_ptr<Index> cpu_index_, device_index_;
  std::map<std::string, int64_t> lengths_;
  uint64_t next_name_ = 1;
  int forked_ = 0, truncated_ = 0, evicted_ = 0, appended_ = 0, refused_ = 0, compared_ = 0;
};

class DeviceLifeTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Seeds, DeviceLifeTest, ::testing::Range(1, 5));

TEST_P(DeviceLifeTest, EqualsTheCpus) {
  const int seed = GetParam();
  IndexConfig config = testing::SmallConfig(KvStore::kKeysValues);
  config.geometry.num_layers = 1;
  config.geometry.num_q_heads = 2 * (1 + seed % 3);
  config.geometry.head_dim = seed % 2 == 0 ? 64 : 128;
  config.geometry.dtype = static_cast<DType>(seed % 3);
  config.zones.dense_threshold = seed % 4 == 0 ? 300 : 0;
  config.codec.centre = seed % 3 == 0 ? Centre::kNone : Centre::kWindow;
  config.search.coarse = seed % 3 == 0 ? Coarse::kCollision : Coarse::kSignIp;
  if (seed % 2 == 0) config.search.candidate_fraction = 0;  // short zones and few candidates are exact
  if (seed % 4 == 1) {                                      // appends evict by themselves, and come in parts
    config.eviction.emplace();
    config.eviction->scorer.name = "knorm";
    config.eviction->budget.tokens = 300;
  }
  DeviceLife life(seed, config);
  for (int step = 0; step < 150; ++step) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", step " << step);
    life.Step();
    if (!HasFatalFailure() && step % 4 == 0) life.Compare();
    if (HasFatalFailure()) return;
  }
  life.End();
}

}  // namespace
}  // namespace seine
