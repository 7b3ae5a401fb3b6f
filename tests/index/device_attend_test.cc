// Attend on a device against the CPU's, through a sequence's life, and every call of the device failing once.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "kernels/backends/cuda/cuda_backend.h"
#include "tests/index/device_memory.h"
#include "tests/index/subspace/low_rank_simulation.h"
#include "tests/index/test_util.h"
#include "tests/kernels/cuda/host_device.h"

namespace seine {
namespace {

using cuda::Device;
using cuda::HostDeviceControl;
using testing::AppendNames;
using testing::DeviceMemory;
using testing::MakeIndex;
using testing::Names;
using testing::Queries;
using testing::SameAnswers;
using testing::SmallConfig;

constexpr Device::Error kPlantedError = 719;

IndexConfig Config(int head_dim = 64, int group = 3) {
  IndexConfig config = SmallConfig(KvStore::kKeysValues);
  config.geometry.num_layers = 1;
  config.geometry.num_q_heads = 2 * group;
  config.geometry.head_dim = head_dim;
  return config;
}

SearchParams Params(Scope scope, int top_k) {
  SearchParams params;
  params.scope = scope;
  params.top_k = top_k;
  params.rescore_k = 2 * top_k;
  return params;
}

void ExpectNear(const AttendAnswer& got, const AttendAnswer& want) {
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_TRUE(got.on_device);
  EXPECT_FALSE(want.on_device);
  EXPECT_EQ(got.path, want.path);
  EXPECT_EQ(got.num_tokens, want.num_tokens);
  EXPECT_EQ(got.tail, want.tail);
  EXPECT_EQ(got.attended_tokens, want.attended_tokens);
  EXPECT_TRUE(SameAnswers({got.selected}, {want.selected}));
  ASSERT_EQ(got.output.size(), want.output.size());
  for (size_t i = 0; i < want.output.size(); ++i) ASSERT_NEAR(got.output[i], want.output[i], 1e-5) << i;
  for (size_t h = 0; h < want.log_sum_exp.size(); ++h) {
    if (std::isinf(want.log_sum_exp[h])) {
      ASSERT_EQ(got.log_sum_exp[h], want.log_sum_exp[h]);
    } else {
      ASSERT_NEAR(got.log_sum_exp[h], want.log_sum_exp[h], 1e-5) << h;
    }
  }
}

// An index on the CPU and one on a device, which are told the same.
class DeviceAttendTest : public ::testing::Test {
 protected:
  void Make(const IndexConfig& config) {
    config_ = config;
    indexes_.clear();
    for (Backend* backend : {cpu_.get(), device_.get()}) indexes_.push_back(MakeIndex(config, backend));
  }
  template <typename Fn>
  void OnBoth(Fn fn) {
    for (const auto& index : indexes_) {
      const absl::Status status = fn(index.get());
      ASSERT_TRUE(status.ok()) << status;
    }
  }
  void Append(const SequenceHandle& s, int64_t count) {
    const int64_t n = indexes_[0]->GetSequence(s)->layer_tokens[0];
    OnBoth(
        [&](Index* index) { return AppendNames(index, s, 0, n, Names(1 + static_cast<uint64_t>(n), count)).status(); });
  }
  // One item of each sequence, every way of asking.
  void ExpectSame(const std::vector<SequenceHandle>& sequences) {
    std::vector<std::vector<float>> queries;
    std::vector<RetrieveItem> items;
    for (size_t i = 0; i < sequences.size(); ++i) queries.push_back(Queries(config_.geometry, ++seed_));
    for (size_t i = 0; i < sequences.size(); ++i) items.push_back({sequences[i], 0, queries[i].data()});
    for (const Scope scope : {Scope::kPerQHead, Scope::kPerKvHead}) {
      for (const bool tail : {false, true}) {
        for (const float cap : {0.0f, 2.0f}) {
          const AttentionParams attention = {.tail = tail, .scale = .1f, .softcap = cap, .with_positions = true};
          const SearchParams params = Params(scope, cap > 0 ? 15 : 40);
          const auto want = indexes_[0]->Attend(items, params, attention);
          const auto got = indexes_[1]->Attend(items, params, attention);
          ASSERT_TRUE(want.ok() && got.ok()) << got.status();
          for (size_t i = 0; i < items.size(); ++i) {
            SCOPED_TRACE(::testing::Message()
                         << "item " << i << " scope " << static_cast<int>(scope) << " tail " << tail << " cap " << cap);
            ExpectNear((*got)[i], (*want)[i]);
          }
        }
      }
    }
  }

  const std::unique_ptr<Backend> cpu_ = MakeCpuBackend(1);
  const std::shared_ptr<HostDeviceControl> control_ = std::make_shared<HostDeviceControl>();
  const std::unique_ptr<Backend> device_ = cuda::BackendOn(control_);
  IndexConfig config_;
  std::vector<std::unique_ptr<Index>> indexes_;
  uint32_t seed_ = 0;
};

TEST_F(DeviceAttendTest, HeadsOf512InAGroupOf16EqualTheCpus) {
  IndexConfig config = Config(512, 16);
  config.geometry.dtype = DType::kBFloat16;
  Make(config);
  OnBoth([&](Index* index) { return index->CreateSequence("s").status(); });
  Append({"s", 0}, 700);
  ExpectSame({{"s", 0}});
}

TEST_F(DeviceAttendTest, EqualsTheCpuThroughALife) {
  for (const auto& [dim, group, dtype] :
       {std::tuple{64, 3, DType::kFloat16}, std::tuple{128, 4, DType::kBFloat16}, std::tuple{80, 9, DType::kFloat32}}) {
    SCOPED_TRACE(dim);
    IndexConfig config = Config(dim, group);
    config.geometry.dtype = dtype;
    Make(config);
    std::vector<SequenceHandle> sequences;
    for (const char* id : {"empty", "one", "short", "long", "whole"}) {
      OnBoth([&](Index* index) { return index->CreateSequence(id).status(); });
      sequences.push_back({id, 0});
    }
    Append(sequences[1], 1);
    Append(sequences[2], 47);
    Append(sequences[3], 1500);
    Append(sequences[4], 300);  // read whole, unlike the longer one
    ExpectSame(sequences);
    OnBoth([&](Index* index) { return index->Fork(sequences[3], "fork", 700).status(); });
    sequences.push_back({"fork", 0});
    OnBoth([&](Index* index) { return index->Truncate(sequences[3], 333); });
    Append(sequences[3], 600);
    ExpectSame(sequences);
    EvictParams evict;
    evict.scorer.name = "knorm";
    evict.budget.tokens = 400;
    OnBoth([&](Index* index) { return index->Evict(sequences[3], 0, evict, {}).status(); });
    ExpectSame(sequences);
    Append(sequences[3], 130);
    ExpectSame({sequences[3], sequences[3], sequences[5]});
  }
}

// Positions that come with an item, tokens that are dense for it alone, and items that are wrong beside others.
TEST_F(DeviceAttendTest, GivenPositionsAndPartsOfAZone) {
  Make(Config());
  OnBoth([&](Index* index) { return index->CreateSequence("s").status(); });
  Append({"s", 0}, 900);
  const std::vector<float> queries = Queries(config_.geometry, 4);
  std::vector<std::vector<int32_t>> given(6);
  for (int h = 0; h < 6; ++h) {
    for (int i = 0; i < h * 11; ++i) given[h].push_back(20 + 7 * i);
  }
  std::vector<RetrieveItem> items(4, {{"s", 0}, 0, queries.data()});
  items[0].positions = &given;
  items[1].dense_from = 400;
  items[2].sequence.id = "unknown";
  for (const std::optional<bool> tail : {std::optional<bool>(), std::optional<bool>(true)}) {
    const AttentionParams attention = {.tail = tail};
    const auto want = *indexes_[0]->Attend(items, Params(Scope::kPerQHead, 30), attention);
    const auto got = *indexes_[1]->Attend(items, Params(Scope::kPerQHead, 30), attention);
    EXPECT_EQ(got[2].status, want[2].status);
    EXPECT_FALSE(got[2].status.ok());
    for (const int i : {0, 1, 3}) ExpectNear(got[i], want[i]);
  }
}

// The device has pieces of 2,048 rows that hold dense ones, whatever it reads of others in the host's memory.
TEST_F(DeviceAttendTest, DenseRowsAndMeansLieOnTheDevice) {
  constexpr int64_t kPiece = 2048, kTokenBytes = 2 * 2 * 64 * 2, kRecords = 2 * (2 * 64 + 8);
  Make(Config());
  OnBoth([&](Index* index) { return index->CreateSequence("s").status(); });
  const auto copies = [&] { return indexes_[1]->stats().code_bytes - indexes_[0]->stats().code_bytes; };
  for (const int64_t count : {6500, 1, 1, 498}) Append({"s", 0}, count);
  ExpectSame({{"s", 0}});
  EXPECT_GE(copies(), kPiece * kTokenBytes + 7000 / 64 * kRecords);
  EXPECT_LE(copies(), 2 * kPiece * kTokenBytes + 7000 / 60 * kRecords);
  EXPECT_EQ(indexes_[1]->GetSequence({"s", 0})->code_bytes, indexes_[1]->stats().code_bytes);
  EXPECT_EQ(indexes_[1]->stats().store_bytes, indexes_[0]->stats().store_bytes);
  OnBoth([&](Index* index) { return index->Fork({"s", 0}, "f", 4500).status(); });  // local tokens without a copy
  OnBoth([&](Index* index) { return index->Truncate({"s", 0}, 3000); });
  ExpectSame({{"s", 0}, {"f", 0}});
  Append({"s", 0}, 100);
  Append({"f", 0}, 1800);  // another piece
  ExpectSame({{"s", 0}, {"f", 0}});
  OnBoth([&](Index* index) { return index->DeleteSequence({"s", 0}); });
  ExpectSame({{"f", 0}});
  OnBoth([&](Index* index) { return index->DeleteSequence({"f", 0}); });
  EXPECT_EQ(copies(), 0);
}

TEST_F(DeviceAttendTest, AFullDeviceRefusesAnAppend) {
  IndexConfig config = Config();
  config.device_memory_limit_bytes = 300000;
  Make(config);
  OnBoth([&](Index* index) { return index->CreateSequence("s").status(); });
  Append({"s", 0}, 200);
  const auto refused = AppendNames(indexes_[1].get(), {"s", 0}, 0, 200, Names(201, 1500));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("device memory limit of the index"), absl::string_view::npos);
  ExpectSame({{"s", 0}});
  Append({"s", 0}, 20);
  ExpectSame({{"s", 0}});
}

// Queries, outputs and log-sum-exps in the device's memory: none of them is copied, and the rest of a call is the same.
TEST_F(DeviceAttendTest, TensorsOfTheCallersOnTheDevice) {
  Make(Config());
  OnBoth([&](Index* index) { return index->CreateSequence("s").status(); });
  Append({"s", 0}, 800);
  const Index& index = *indexes_[1];
  const int64_t heads = config_.geometry.num_q_heads, dim = config_.geometry.head_dim;
  const std::vector<float> queries = Queries(config_.geometry, 9), none(heads * dim, 7.0f);
  const AttentionParams attention = {.tail = true, .with_positions = true};
  const SearchParams params = Params(Scope::kPerQHead, 30);
  DeviceAttention* const device = device_->attention();
  const auto sent = [&](const RetrieveItem& item, AttendAnswer* answer) {
    const DeviceAttention::Copied before = device->copied();
    *answer = (*index.Attend({&item, 1}, params, attention))[0];
    const DeviceAttention::Copied after = device->copied();
    return std::pair(after.to_device - before.to_device, after.to_host - before.to_host);
  };
  AttendAnswer want, got;
  const auto by_host = sent({{"s", 0}, 0, queries.data()}, &want);
  const size_t bytes = queries.size() * sizeof(float);
  const DeviceMemory on_device(device_.get(), queries.data(), bytes), output(device_.get(), none.data(), bytes);
  const DeviceMemory log_sum_exp(device_.get(), none.data(), heads * sizeof(float));
  int stream = 0;  // its address stands for one
  DeviceTensors tensors;
  tensors.queries = on_device.floats();
  tensors.stream = &stream;
  RetrieveItem item;
  item.sequence = {"s", 0};
  item.device = &tensors;
  const auto queries_there = sent(item, &got);
  EXPECT_EQ(got.output, want.output);
  EXPECT_EQ(by_host.first - queries_there.first, static_cast<int64_t>(bytes));
  EXPECT_EQ(by_host.second, queries_there.second);
  tensors.output = output.floats();
  tensors.log_sum_exp = log_sum_exp.floats();
  const auto all_there = sent(item, &got);
  EXPECT_TRUE(got.output.empty() && got.log_sum_exp.empty());
  EXPECT_EQ(output.Read(), want.output);
  EXPECT_EQ(log_sum_exp.Read(), want.log_sum_exp);
  EXPECT_EQ(got.attended_tokens, want.attended_tokens);
  EXPECT_EQ(got.selected.positions, want.selected.positions);
  EXPECT_GE(by_host.second - all_there.second, static_cast<int64_t>(bytes + heads * sizeof(float)));
  EXPECT_EQ(control_->awaited, std::vector<void*>(3, &stream));  // of queries twice, of outputs once
  const auto found = *index.Retrieve({&item, 1}, params);
  EXPECT_EQ(found[0].positions, want.selected.positions);
}

// Nobody looks at queries on the device. One that is not a number makes its head's answer none, and no other KV head's.
TEST_F(DeviceAttendTest, ANaNOnTheDeviceIsNotHidden) {
  Make(Config());
  OnBoth([&](Index* index) { return index->CreateSequence("s").status(); });
  Append({"s", 0}, 900);
  const int dim = config_.geometry.head_dim, group = config_.geometry.group();
  std::vector<float> queries = Queries(config_.geometry, 5);
  const std::vector<float> right = queries;
  for (const float wrong : {NAN, INFINITY}) {
    queries[dim + 7] = wrong;  // of the second head
    const DeviceMemory memory(device_.get(), queries.data(), queries.size() * sizeof(float));
    DeviceTensors tensors;
    tensors.queries = memory.floats();
    RetrieveItem item;
    item.sequence = {"s", 0};
    item.device = &tensors;
    const RetrieveItem whole = {{"s", 0}, 0, right.data()};
    for (const Scope scope : {Scope::kPerQHead, Scope::kPerKvHead}) {
      for (const Method method : {Method::kIndex, Method::kExact}) {
        SearchParams params = Params(scope, 30);
        params.method = method;
        const float cap = method == Method::kIndex ? 2.0f : 0.0f;
        const AttentionParams attention = {.tail = true, .scale = .1f, .softcap = cap};
        const AttendAnswer want = (*indexes_[1]->Attend({&whole, 1}, params, attention))[0];
        const AttendAnswer got = (*indexes_[1]->Attend({&item, 1}, params, attention))[0];
        ASSERT_TRUE(want.status.ok() && got.status.ok()) << got.status;
        if (std::isnan(wrong)) {
          EXPECT_TRUE(std::isnan(got.log_sum_exp[1])) << got.log_sum_exp[1];
          for (int j = 0; j < dim; ++j) ASSERT_TRUE(std::isnan(got.output[dim + j])) << j;
        }
        for (size_t i = static_cast<size_t>(group) * dim; i < want.output.size(); ++i) {
          ASSERT_EQ(got.output[i], want.output[i]) << i;
        }
      }
    }
  }
  EXPECT_EQ(device_->loss(), "");
}

TEST_F(DeviceAttendTest, AppendsFromTheDevice) {
  Make(Config());
  OnBoth([&](Index* index) { return index->CreateSequence("s").status(); });
  const int64_t token_bytes = 2 * 64 * 2;
  for (const auto& [first, count] : {std::pair{0, 700}, {700, 1}, {701, 64}}) {
    std::string keys, values;
    for (int i = 0; i < count; ++i) {
      keys += testing::TokenRow(config_.geometry, 1 + first + i);
      values += testing::TokenRow(config_.geometry, 1 + first + i + testing::kValueNames);
    }
    ASSERT_EQ(static_cast<int64_t>(keys.size()), count * token_bytes);
    const DeviceMemory k(device_.get(), keys.data(), keys.size()), v(device_.get(), values.data(), values.size());
    int stream = 0;
    TensorView key_view = {k.data(), count, keys.size(), true, &stream};
    TensorView value_view = {v.data(), count, values.size(), true, &stream};
    const DeviceAttention::Copied before = device_->attention()->copied();
    ASSERT_TRUE(indexes_[1]->Append({"s", 0}, 0, first, key_view, value_view).ok());
    EXPECT_EQ(device_->attention()->copied().to_host - before.to_host, 2 * count * token_bytes);
    ASSERT_TRUE(AppendNames(indexes_[0].get(), {"s", 0}, 0, first, Names(1 + first, count)).ok());
    // Bad input is refused as from the host, and without a device at all; none of it is read.
    const int64_t read = device_->attention()->copied().to_host;
    for (const size_t bytes : {keys.size() + (size_t{1} << 20), keys.size() - 2}) {
      key_view.bytes = bytes;
      EXPECT_EQ(indexes_[1]->Append({"s", 0}, 0, first + count, key_view, value_view).status().code(),
                absl::StatusCode::kInvalidArgument);
    }
    EXPECT_EQ(device_->attention()->copied().to_host, read);
    const absl::Status status = indexes_[0]->Append({"s", 0}, 0, first + count, key_view, value_view).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message().substr(0, 6), "keys: ");
  }
  ExpectSame({{"s", 0}});
}

TEST_F(DeviceAttendTest, WhatNeedsTheHostsQueriesIsRefused) {
  IndexConfig sums = Config();
  sums.eviction.emplace();
  sums.eviction->scorer.name = "h2o";
  sums.eviction->scorer.accumulate = true;
  sums.eviction->budget.tokens = 500;
  const std::vector<float> queries = Queries(sums.geometry, 4);
  const DeviceMemory memory(device_.get(), queries.data(), queries.size() * sizeof(float));
  const auto expect_refused = [&](const Index& index, const DeviceTensors& tensors, int64_t prompt_tokens) {
    RetrieveItem item;
    item.sequence = {"s", 0};
    item.device = &tensors;
    item.prompt_tokens = prompt_tokens;
    const AttendAnswer answer = (*index.Attend({&item, 1}, Params(Scope::kPerQHead, 30), AttentionParams{}))[0];
    EXPECT_EQ(answer.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(answer.status.message().substr(0, 8), "device: ") << answer.status;
  };
  DeviceTensors tensors;
  tensors.queries = memory.floats();
  for (const IndexConfig& config : {testing::LowRankConfig(.1, KeyFrame::kPostRope), sums}) {
    Make(config);
    OnBoth([&](Index* index) { return index->CreateSequence("s").status(); });
    expect_refused(*indexes_[1], tensors, 0);
  }
  Make(Config());
  OnBoth([&](Index* index) { return index->CreateSequence("s").status(); });
  expect_refused(*indexes_[0], tensors, 0);  // there is no device
  expect_refused(*indexes_[1], {}, 0);
  expect_refused(*indexes_[1], tensors, 1);
  tensors.output = memory.floats();
  expect_refused(*indexes_[1], tensors, 0);
  tensors.output = nullptr;
  int stream = 0;
  tensors.stream = &stream;
  control_->captured = &stream;  // as under torch.cuda.graph
  expect_refused(*indexes_[1], tensors, 0);
  const TensorView view = {memory.data(), 1, 256, true, &stream};
  const absl::Status status = indexes_[1]->Append({"s", 0}, 0, 0, view, view).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().substr(0, 6), "keys: ");
  EXPECT_EQ(device_->loss(), "");
}

// Low-rank rows, and weights that are added up, are attended by the host, and the answer says so.
TEST_F(DeviceAttendTest, WhatIsTheHosts) {
  IndexConfig low_rank = testing::LowRankConfig(.1, KeyFrame::kPostRope);
  IndexConfig sums = Config();
  sums.eviction.emplace();
  sums.eviction->scorer.name = "h2o";
  sums.eviction->scorer.accumulate = true;
  sums.eviction->budget.tokens = 500;
  for (const IndexConfig& config : {low_rank, sums}) {
    Make(config);
    OnBoth([&](Index* index) { return index->CreateSequence("s").status(); });
    Append({"s", 0}, 300);
    const std::vector<float> queries = Queries(config.geometry, 4);
    const RetrieveItem item = {{"s", 0}, 0, queries.data()};
    const auto want = *indexes_[0]->Attend({&item, 1}, Params(Scope::kPerQHead, 30), AttentionParams{});
    const auto got = *indexes_[1]->Attend({&item, 1}, Params(Scope::kPerQHead, 30), AttentionParams{});
    ASSERT_TRUE(got[0].status.ok()) << got[0].status;
    EXPECT_FALSE(got[0].on_device);
    EXPECT_EQ(got[0].output, want[0].output);
  }
}

// Each call of the device fails once: the item is refused or the device lost, and what is held stays.
TEST_F(DeviceAttendTest, EveryCallOfTheDeviceFailsOnce) {
  const IndexConfig config = Config();
  const std::vector<float> queries = Queries(config.geometry, 4);
  const auto attend = [&](Index* index) {
    const RetrieveItem item = {{"s", 0}, 0, queries.data()};
    return index->Attend({&item, 1}, Params(Scope::kPerQHead, 30), AttentionParams{.with_positions = true});
  };
  Make(config);
  OnBoth([&](Index* index) { return index->CreateSequence("s").status(); });
  Append({"s", 0}, 700);
  const auto want = *attend(indexes_[0].get());
  for (const Device::Error error : {Device::kOutOfMemory, kPlantedError}) {
    int failed = 0;
    for (int fail = 0;; ++fail) {
      SCOPED_TRACE(::testing::Message() << "error " << error << " at call " << fail);
      auto control = std::make_shared<HostDeviceControl>();
      control->error = error;
      const auto backend = cuda::BackendOn(control);
      auto index = MakeIndex(config, backend.get());
      ASSERT_TRUE(index->CreateSequence("s").ok());
      ASSERT_TRUE(AppendNames(index.get(), {"s", 0}, 0, 0, Names(1, 700)).ok());
      const int before = control->calls;
      control->fail_call = before + fail;
      auto got = attend(index.get());
      if (control->calls <= before + fail) {
        ASSERT_TRUE(got.ok());
        ExpectNear((*got)[0], want[0]);
        break;
      }
      control->fail_call = -1;
      if (got.ok()) {
        ExpectNear((*got)[0], want[0]);
        continue;
      }
      ++failed;
      EXPECT_EQ(got.status().code(),
                error == kPlantedError ? absl::StatusCode::kUnavailable : absl::StatusCode::kResourceExhausted);
      EXPECT_EQ(index->GetSequence({"s", 0})->layer_tokens[0], 700);
      got = attend(index.get());
      EXPECT_EQ(got.ok(), error != kPlantedError) << got.status();
      if (got.ok()) ExpectNear((*got)[0], want[0]);
    }
    EXPECT_GE(failed, 5);
  }
}

}  // namespace
}  // namespace seine
