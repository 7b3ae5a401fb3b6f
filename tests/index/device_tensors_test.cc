// Tensors of a caller in a device's memory: those that lie elsewhere are refused, each call of the device fails once,
// and two devices stand beside each other.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/index/device_memory.h"
#include "tests/index/test_util.h"
#include "tests/kernels/cuda/host_device.h"

namespace seine {
namespace {

using cuda::Device;
using cuda::HostDeviceControl;
using testing::DeviceMemory;
using testing::MakeIndex;
using testing::Queries;
using testing::SmallConfig;

constexpr int kTokens = 700;  // beyond the zones that are read whole

IndexConfig OneLayer() {
  IndexConfig config = SmallConfig(KvStore::kKeysValues);
  config.geometry.num_layers = 1;
  config.geometry.num_q_heads = 6;
  config.geometry.head_dim = 64;
  return config;
}

SearchParams EachHead() {
  SearchParams params;
  params.scope = Scope::kPerQHead;
  params.top_k = 30;
  params.rescore_k = 60;
  return params;
}

// A caller's tensors on a device: keys and values of some tokens, a query, and room for the answer.
struct Caller {
  Caller(Backend* backend, const Geometry& g)
      : token_bytes(int64_t{g.num_kv_heads} * g.head_dim * SizeOf(g.dtype)),
        keys(backend, Rows(g, 0).data(), (kTokens + 1) * token_bytes),
        values(backend, Rows(g, testing::kValueNames).data(), (kTokens + 1) * token_bytes),
        queries(backend, Queries(g, 9).data(), sizeof(float) * g.num_q_heads * g.head_dim),
        output(backend, std::vector<float>(g.num_q_heads * g.head_dim).data(),
               sizeof(float) * g.num_q_heads * g.head_dim),
        log_sum_exp(backend, std::vector<float>(g.num_q_heads).data(), sizeof(float) * g.num_q_heads) {
    tensors.queries = queries.floats();
    tensors.output = output.floats();
    tensors.log_sum_exp = log_sum_exp.floats();
    item.sequence = {"s", 0};
    item.device = &tensors;
  }
  Caller(const Caller&) = delete;
  static std::string Rows(const Geometry& g, uint64_t first) {
    return testing::Rows(g, testing::Names(first + 1, kTokens + 1));
  }

  TensorView Part(const DeviceMemory& rows, int64_t first, int64_t count) const {
    return {static_cast<const uint8_t*>(rows.data()) + first * token_bytes, count,
            static_cast<size_t>(count * token_bytes), true, nullptr};
  }
  absl::Status Append(Index* index, int64_t first, int64_t count) const {
    return index->Append({"s", 0}, 0, first, Part(keys, first, count), Part(values, first, count)).status();
  }
  absl::Status Attend(Index* index) const {
    const auto answers = index->Attend({&item, 1}, EachHead(), AttentionParams{});
    return answers.ok() ? (*answers)[0].status : answers.status();
  }
  // A prompt, a token, and the token's attention.
  absl::Status Live(Index* index) const {
    absl::Status status = index->CreateSequence("s").status();
    if (status.ok()) status = Append(index, 0, kTokens);
    if (status.ok()) status = Append(index, kTokens, 1);
    return status.ok() ? Attend(index) : status;
  }

  const int64_t token_bytes;
  DeviceMemory keys, values, queries, output, log_sum_exp;
  DeviceTensors tensors;
  RetrieveItem item;
};

TEST(DeviceTensorsTest, WhatLiesElsewhereIsRefused) {
  const IndexConfig config = OneLayer();
  const auto backend = cuda::BackendOn(std::make_shared<HostDeviceControl>());
  const auto other = cuda::BackendOn(std::make_shared<HostDeviceControl>());
  const auto index = MakeIndex(config, backend.get());
  Caller caller(backend.get(), config.geometry);
  const Caller astray(other.get(), config.geometry);
  ASSERT_TRUE(caller.Live(index.get()).ok());
  const std::vector<float> want = caller.output.Read();
  std::vector<float> host(6 * 64);
  const auto refused = [&](const char* name) {
    const absl::Status status = caller.Attend(index.get());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    const std::string begin = std::string("device: ") + name + " is not in the memory of the device that searches";
    EXPECT_EQ(status.message().substr(0, begin.size()), begin);
  };
  const Buffer page_locked = backend->Allocate(host.size() * sizeof(float), MemorySpace::kStore);
  auto* const locked = reinterpret_cast<float*>(page_locked.data());
  for (float* elsewhere : {host.data(), astray.queries.floats(), locked}) {
    const DeviceTensors whole = caller.tensors;
    caller.tensors.queries = elsewhere;
    refused("queries");
    caller.tensors = whole;
    caller.tensors.output = elsewhere;
    refused("output");
    caller.tensors = whole;
    caller.tensors.log_sum_exp = elsewhere;
    refused("log_sum_exp");
    caller.tensors = whole;
  }
  // Rows that begin on the device and end beyond what is allocated there.
  const DeviceTensors whole = caller.tensors;
  caller.tensors.queries += 64 * 64 * 1024;
  refused("queries");
  caller.tensors = whole;
  for (const TensorView& wrong : {TensorView{host.data(), 1, static_cast<size_t>(caller.token_bytes), true, nullptr},
                                  astray.Part(astray.keys, 0, 1)}) {
    const TensorView right = caller.Part(caller.keys, kTokens, 1);
    for (const bool of_values : {false, true}) {
      const absl::Status status =
          index->Append({"s", 0}, 0, kTokens + 1, of_values ? right : wrong, of_values ? wrong : right).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      const std::string begin = std::string(of_values ? "values" : "keys") + ": not in the memory of the device";
      EXPECT_EQ(status.message().substr(0, begin.size()), begin);
    }
  }
  EXPECT_EQ(backend->loss(), "");
  ASSERT_TRUE(caller.Attend(index.get()).ok());
  EXPECT_EQ(caller.output.Read(), want);
}

// Each is given its own tensors, by turns, and answers as the other does.
TEST(DeviceTensorsTest, TwoDevicesBesideEachOther) {
  const IndexConfig config = OneLayer();
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<std::unique_ptr<Index>> indexes;
  std::vector<std::unique_ptr<Caller>> callers;
  for (int ordinal = 0; ordinal < 2; ++ordinal) {
    backends.push_back(cuda::BackendOn(std::make_shared<HostDeviceControl>()));
    indexes.push_back(MakeIndex(config, backends.back().get()));
    callers.push_back(std::make_unique<Caller>(backends.back().get(), config.geometry));
    ASSERT_TRUE(indexes.back()->CreateSequence("s").ok());
  }
  for (const auto& [first, count] : {std::pair{0, kTokens}, {kTokens, 1}}) {
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(callers[1 - i]->Append(indexes[i].get(), first, count).code(), absl::StatusCode::kInvalidArgument);
      ASSERT_TRUE(callers[i]->Append(indexes[i].get(), first, count).ok());
    }
  }
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(callers[1 - i]->Attend(indexes[i].get()).code(), absl::StatusCode::kInvalidArgument);
    ASSERT_TRUE(callers[i]->Attend(indexes[i].get()).ok());
  }
  EXPECT_EQ(callers[0]->output.Read(), callers[1]->output.Read());
  EXPECT_EQ(callers[0]->log_sum_exp.Read(), callers[1]->log_sum_exp.Read());
}

// Memory that runs out refuses a call, and the next try goes well; any other error loses the device, and says why.
TEST(DeviceTensorsTest, EveryCallOfTheDeviceFailsOnce) {
  const IndexConfig config = OneLayer();
  std::vector<float> want;
  for (const Device::Error error : {Device::kOutOfMemory, 719}) {
    int failed = 0;
    for (int fail = -1;; ++fail) {
      SCOPED_TRACE(::testing::Message() << "error " << error << " at call " << fail);
      auto control = std::make_shared<HostDeviceControl>();
      control->error = error;
      const auto backend = cuda::BackendOn(control);
      const auto index = MakeIndex(config, backend.get());
      const Caller caller(backend.get(), config.geometry);
      const int before = control->calls;
      if (fail >= 0) control->fail_call = before + fail;
      const absl::Status status = caller.Live(index.get());
      const bool over = fail >= 0 && control->calls <= before + fail;
      control->fail_call = -1;
      if (fail < 0) want = caller.output.Read();
      if (status.ok()) {
        EXPECT_EQ(caller.output.Read(), want);
        if (over) break;
        continue;
      }
      ++failed;
      if (error == Device::kOutOfMemory && backend->loss().empty()) {
        ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
        ASSERT_TRUE(index->DeleteSequence({"s", 0}).ok());
        ASSERT_TRUE(caller.Live(index.get()).ok());
        EXPECT_EQ(caller.output.Read(), want);
      } else {
        EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
        EXPECT_NE(status.message().find("planted error"), absl::string_view::npos) << status;
      }
    }
    EXPECT_GE(failed, 20);
  }
}

}  // namespace
}  // namespace seine
