// Service code without a network: tensors, halves, errors, executor, sizes, addresses, configuration.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <latch>
#include <limits>
#include <string>
#include <vector>

#include "profile/field_error.h"
#include "profile/spelling.h"
#include "seine/v1/eviction.pb.h"
#include "seine/v1/retrieval_service.pb.h"
#include "seine/v1/subspace.pb.h"
#include "service/access/credentials.h"
#include "service/calls/announcing_moment.h"
#include "service/calls/convert/convert.h"
#include "service/calls/convert/validate.h"
#include "service/config/config.h"
#include "service/fields/error.h"
#include "service/fields/names.h"
#include "service/scheduling/executor.h"
#include "service/scheduling/sharing.h"
#include "service/snapshots/files/exit_files.h"
#include "service/snapshots/files/snapshot_folder.h"
#include "service/transport/sockets/address.h"

namespace seine {
namespace {

v1::Tensor Tensor(v1::DType dtype, const std::vector<int64_t>& shape, size_t bytes) {
  v1::Tensor tensor;
  tensor.set_dtype(dtype);
  for (const int64_t dim : shape) tensor.add_shape(dim);
  tensor.set_raw(std::string(bytes, '\0'));
  return tensor;
}

// Every combination of awkward dimensions against the product done in 128 bits: accepted when the bytes match, else
// refused.
TEST(CheckTensor, EveryCombinationOfAwkwardDimensions) {
  const int64_t dims[] = {0,
                          1,
                          2,
                          64,
                          (int64_t{1} << 31) - 1,
                          int64_t{1} << 31,
                          (int64_t{1} << 31) + 1,
                          int64_t{1} << 32,
                          int64_t{1} << 62,
                          std::numeric_limits<int64_t>::max(),
                          -1,
                          std::numeric_limits<int64_t>::min()};
  int checked = 0, accepted = 0;
  for (const auto dtype : {v1::D_TYPE_FLOAT16, v1::D_TYPE_FLOAT32}) {
    for (const int64_t a : dims) {
      for (const int64_t b : dims) {
        for (const int64_t c : dims) {
          for (const size_t bytes : {size_t{0}, size_t{2}, size_t{256}, size_t{8192}}) {
            bool right = true;
            unsigned __int128 product = dtype == v1::D_TYPE_FLOAT32 ? 4 : 2;
            for (const int64_t dim : {a, b, c}) {
              right = right && dim >= 0 && dim <= kMaxDim;
              product *= right ? static_cast<uint64_t>(dim) : 0;
              right = right && product >> 64 == 0;  // 64 bits must hold every step of the way
            }
            right = right && product == bytes;
            const bool ok = CheckTensor(Tensor(dtype, {a, b, c}, bytes), {kAnyDim, kAnyDim, kAnyDim}, "t").ok();
            ASSERT_EQ(ok, right) << a << " " << b << " " << c << " " << bytes;
            ++checked;
            accepted += ok;
          }
        }
      }
    }
  }
  EXPECT_EQ(checked, 2 * 12 * 12 * 12 * 4);
  EXPECT_GT(accepted, 100);
}

TEST(CheckTensor, HugeShapeGivesAShortMessage) {
  const absl::Status status =
      CheckTensor(Tensor(v1::D_TYPE_FLOAT16, std::vector<int64_t>(100000, 7), 2), {kAnyDim}, "t");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_LT(status.message().size(), 200u) << status;
}

// All 65,536 halves and all bfloat16 against arithmetic in double.
TEST(QueriesView, EverySixteenBitPattern) {
  const Geometry geometry{.num_layers = 1, .num_q_heads = 1024, .num_kv_heads = 1, .head_dim = 64};
  std::vector<float> scratch;
  int64_t prompt_tokens = -1;
  for (const auto dtype : {v1::D_TYPE_FLOAT16, v1::D_TYPE_BFLOAT16}) {
    v1::Tensor tensor = Tensor(dtype, {1024, 64}, 65536 * 2);
    for (int i = 0; i < 65536; ++i) {
      const auto pattern = static_cast<uint16_t>(i);
      memcpy(tensor.mutable_raw()->data() + 2 * i, &pattern, 2);
    }
    const auto values = QueriesView(tensor, geometry, "queries", &scratch, &prompt_tokens);
    ASSERT_TRUE(values.ok()) << values.status();
    for (int i = 0; i < 65536; ++i) {
      const bool half = dtype == v1::D_TYPE_FLOAT16;
      const int exponent_bits = half ? 5 : 8, mantissa_bits = half ? 10 : 7, bias = half ? 15 : 127;
      const int exponent = i >> mantissa_bits & ((1 << exponent_bits) - 1), mantissa = i & ((1 << mantissa_bits) - 1);
      const float got = (*values)[i];
      if (exponent == (1 << exponent_bits) - 1) {
        ASSERT_FALSE(std::isfinite(got)) << i;
        continue;
      }
      const double whole = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
      const double magnitude = std::ldexp(whole, std::max(exponent, 1) - bias - mantissa_bits);
      ASSERT_EQ(static_cast<double>(got), i >> 15 ? -magnitude : magnitude) << i;
      ASSERT_EQ(std::signbit(got), i >> 15 != 0) << i;
    }
  }
}

TEST(QueriesView, FloatsAreUsedInPlace) {
  const Geometry geometry{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 64};
  const v1::Tensor tensor = Tensor(v1::D_TYPE_FLOAT32, {2, 64}, 512);
  std::vector<float> scratch;
  int64_t prompt_tokens = -1;
  const auto values = QueriesView(tensor, geometry, "queries", &scratch, &prompt_tokens);
  ASSERT_TRUE(values.ok());
  EXPECT_EQ(static_cast<const void*>(*values), tensor.raw().data());
  EXPECT_TRUE(scratch.empty());
  EXPECT_EQ(prompt_tokens, 0);
}

TEST(QueriesView, ThreeDimensionsAreAPrompts) {
  const Geometry geometry{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 64};
  std::vector<float> scratch;
  int64_t prompt_tokens = -1;
  EXPECT_TRUE(
      QueriesView(Tensor(v1::D_TYPE_FLOAT32, {3, 2, 64}, 1536), geometry, "queries", &scratch, &prompt_tokens).ok());
  EXPECT_EQ(prompt_tokens, 3);
  EXPECT_TRUE(
      QueriesView(Tensor(v1::D_TYPE_FLOAT32, {1, 2, 64}, 512), geometry, "queries", &scratch, &prompt_tokens).ok());
  EXPECT_EQ(prompt_tokens, 1);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{0, 2, 64}, {3, 1, 64}, {1, 3, 2, 64}, {128}}) {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    const v1::Tensor tensor = Tensor(v1::D_TYPE_FLOAT32, shape, static_cast<size_t>(count) * 4);
    EXPECT_FALSE(QueriesView(tensor, geometry, "queries", &scratch, &prompt_tokens).ok());
  }
}

TEST(Errors, TheFieldOfAnIndexErrorStandsInsideTheRequests) {
  const auto text = [&](const absl::Status& s) { return std::string(Explain(s, "item").message()); };
  EXPECT_EQ(text(BadField("keys", "NaN")), "item.keys: NaN");
  EXPECT_EQ(text(FieldError(absl::StatusCode::kNotFound, "handle", "not found")), "item.handle: not found");
  EXPECT_EQ(text(absl::InvalidArgumentError("keys: NaN")), "item: keys: NaN");  // text is not searched for a field
  EXPECT_EQ(text(absl::InternalError("two words: here")), "item: two words: here");
  EXPECT_EQ(text(absl::ResourceExhaustedError("memory limit: 5")), "memory limit: 5");
  EXPECT_TRUE(Explain(absl::OkStatus(), "item").ok());
  const absl::Status once = Explain(BadField("keys", "NaN"), "item");
  EXPECT_EQ(Explain(once, "batch").message(), once.message());
  v1::Status wire;
  ToProto(once, &wire);
  EXPECT_EQ(wire.code(), 3);
  EXPECT_EQ(wire.details_size(), 2);
}

TEST(Executor, RefusesBeyondCapacityAndRunsWhatItTook) {
  std::atomic<int> ran{0};
  {
    Sharing sharing;
    Executor executor(2, 3, sharing, "test");
    std::latch running(2), release(1);
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(executor.Submit([&] {
        running.count_down();
        release.wait();
        ++ran;
      }));
    }
    running.wait();
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(executor.Submit([&] { ++ran; }));
    EXPECT_FALSE(executor.Submit([&] { ran += 100; }));
    release.count_down();
  }
  EXPECT_EQ(ran.load(), 5);
}

TEST(Executor, WhatIsDueFirstBeginsFirst) {
  std::vector<int> order;
  {
    Sharing sharing;
    Executor executor(1, 4, sharing, "test");
    std::latch running(1), release(1);
    ASSERT_TRUE(executor.Submit([&] {
      running.count_down();
      release.wait();
    }));
    running.wait();
    const auto now = std::chrono::steady_clock::now();
    for (const int milliseconds : {300, 20, 20, 1}) {
      ASSERT_TRUE(executor.Submit([&, milliseconds] { order.push_back(milliseconds); },
                                  now + std::chrono::milliseconds(milliseconds)));
    }
    release.count_down();
  }
  EXPECT_EQ(order, (std::vector<int>{1, 20, 20, 300}));
}

TEST(Config, Bytes) {
  const std::pair<const char*, int64_t> right[] = {{"0", 0},         {"17", 17},       {"8GiB", int64_t{8} << 30},
                                                   {"64KiB", 65536}, {"2MB", 2000000}, {"1TiB", int64_t{1} << 40}};
  for (const auto& [text, bytes] : right) {
    ASSERT_TRUE(ParseBytes(text).ok()) << text;
    EXPECT_EQ(*ParseBytes(text), bytes);
    EXPECT_EQ(*ParseBytes(FormatBytes(bytes)), bytes);
  }
  for (const char* wrong : {"", "GiB", "-1", "1.5GiB", "8 GiB", "8GiBs", "99999999999GiB", "0x10"}) {
    EXPECT_FALSE(ParseBytes(wrong).ok()) << wrong;
  }
}

// profile/spelling.h's numbers are the wire's, and the wire's own names are among its spellings.
TEST(Config, TheWiresNamesAreSpellings) {
  const google::protobuf::EnumDescriptor* const types[] = {
      v1::DType_descriptor(),      v1::Scope_descriptor(),       v1::GqaReduce_descriptor(),
      v1::Coarse_descriptor(),     v1::Centre_descriptor(),      v1::RopeStyle_descriptor(),
      v1::KvStore_descriptor(),    v1::KeyFrame_descriptor(),    v1::Anchor_descriptor(),
      v1::Similarity_descriptor(), v1::Metric_descriptor(),      v1::HeadBudget_descriptor(),
      v1::SearchMode_descriptor(), v1::ValueWeight_descriptor(), v1::RetainedReport_descriptor()};
  EXPECT_EQ(AllValueSpellings().size(), std::size(types));
  for (const auto* type : types) {
    const std::string zero = type->value(0)->name(), prefix = zero.substr(0, zero.rfind("UNSPECIFIED"));
    for (int i = 1; i < type->value_count(); ++i) {
      const auto* value = type->value(i);
      if (value->number() == v1::D_TYPE_INT32 && type == v1::DType_descriptor()) continue;  // of positions, no setting
      EXPECT_EQ(FindValue(type->name(), value->name().substr(prefix.size())), value->number()) << value->name();
    }
  }
}

TEST(Config, Addresses) {
  const std::pair<const char*, const char*> right[] = {
      {"unix:/a/b", "unix:/a/b"},     {"unix:///a/b", "unix:/a/b"}, {"127.0.0.1:50051", "127.0.0.1:50051"},
      {"/a/b", "unix:/a/b"},          {"./a/b", "unix:./a/b"},      {"localhost:0", "localhost:0"},
      {"127.9.9.9:1", "127.9.9.9:1"}, {"[::1]:443", "[::1]:443"},   {"//a", "unix:////a"}};
  for (const auto& [text, address] : right) {
    ASSERT_TRUE(ParseAddress(text).ok()) << text << ParseAddress(text).status();
    EXPECT_EQ(ParseAddress(text)->ToString(), address);
    EXPECT_EQ(ParseAddress(address)->ToString(), address);
  }
  for (const char* wrong : {"", "unix:", "nowhere", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1", ":1",
                            "[//a:1", "a b:1", "\xff:1"}) {
    EXPECT_FALSE(ParseAddress(wrong).ok()) << wrong;
  }
  EXPECT_FALSE(ParseAddress("unix:/" + std::string(120, 'x')).ok());
  for (const char* text : {"unix:/a!b", "a!b:1"}) {
    std::string zero(text);
    zero[zero.find('!')] = '\0';
    EXPECT_FALSE(ParseAddress(zero).ok()) << text;
  }
  for (const char* beyond : {"0.0.0.0:1", "192.168.0.1:1", "[::]:1", "example.org:1"}) {
    ASSERT_TRUE(ParseAddress(beyond).ok()) << beyond;
    EXPECT_TRUE(ParseAddress(beyond)->beyond_loopback) << beyond;
  }
  for (const char* within : {"/a/b", "127.9.9.9:1", "[::1]:1", "localhost:1"}) {
    EXPECT_FALSE(ParseAddress(within)->beyond_loopback) << within;
  }
}

// The number of tasks left when the moment of a step of `count` tasks came; 0: never. Each of `threads` takes the next.
int MomentOf(int count, std::chrono::microseconds task, int threads = 1) {
  AnnouncingMoment moment;
  AnnouncingMoment::Time now{};
  int came = 0;
  for (int begun = 0; begun < count; begun += threads, now += task) {
    if (!moment.IsDue(now, count - begun)) continue;
    EXPECT_EQ(came, 0) << "twice";
    came = count - begun;
  }
  return came;
}

TEST(AnnouncingMoment, ComesBeforeTheLastTaskThatLeavesTimeToWakeUp) {
  using us = std::chrono::microseconds;
  EXPECT_EQ(MomentOf(8, us(190)), 1);
  EXPECT_EQ(MomentOf(100, us(20)), 6);     // 120 us ahead: after another task a wake-up would no longer fit
  EXPECT_EQ(MomentOf(16, us(190), 2), 2);  // one each
  EXPECT_EQ(MomentOf(8, us(60)), 2);
  EXPECT_EQ(MomentOf(8, us(30)), 0);    // 240 us: nobody sleeps deeply
  EXPECT_EQ(MomentOf(1, us(2000)), 0);  // nothing to foresee it from
  EXPECT_EQ(MomentOf(8, us(2000)), 0);  // 2 ms to spin
}

TEST(AnnouncingMoment, IsOneForAllBatchesOfAStep) {
  AnnouncingMoment moment;
  AnnouncingMoment::Time now{};
  int times = 0;
  for (int batch = 0; batch < 3; ++batch) {
    for (int left = 8; left > 0; --left, now += std::chrono::microseconds(100))
      times += moment.IsDue(now, left) ? 1 : 0;
  }
  EXPECT_EQ(times, 1);
}

TEST(Config, YamlThatItPrintsIsYamlThatItReads) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("seine-config-" + std::to_string(getpid()) + ".yaml");
  std::ofstream(path)
      << "server: {listen: 'unix:/tmp/x.sock', threads: 3, memory_limit: 5GiB, polling: yes}\n"
         "log: {format: json}\n"
         "indexes:\n"
         "  - name: a\n"
         "    geometry: {num_layers: 2, num_q_heads: 8, num_kv_heads: 2, head_dim: 128, dtype: bfloat16}\n"
         "    zones: {sink: 4}\n"
         "    retrieval: {beta: 0.1, coarse: collision}\n"
         "    kv_store: KV_STORE_KEYS_VALUES\n";
  ServerConfig config;
  ASSERT_TRUE(ApplyYaml(path, &config).ok()) << ApplyYaml(path, &config);
  ASSERT_TRUE(Resolve(&config).ok());
  EXPECT_EQ(config.server.core.threads, 3);
  EXPECT_TRUE(config.server.polling);
  EXPECT_EQ(config.server.core.memory_limit_bytes, int64_t{5} << 30);
  ASSERT_EQ(config.server.indexes.size(), 1u);
  const IndexConfig& index = config.server.indexes[0];
  EXPECT_EQ(index.geometry.dtype, DType::kBFloat16);
  EXPECT_EQ(index.zones.sink, 4);
  EXPECT_EQ(index.zones.local, 512);
  EXPECT_EQ(index.codec.centre, Centre::kNone);
  EXPECT_EQ(index.search.coarse, Coarse::kCollision);
  EXPECT_EQ(index.search.candidate_fraction, .1);
  EXPECT_EQ(index.kv_store, KvStore::kKeysValues);
  const std::string printed = ToYaml(config);
  std::ofstream(path) << printed;
  ServerConfig again;
  ASSERT_TRUE(ApplyYaml(path, &again).ok());
  ASSERT_TRUE(Resolve(&again).ok());
  EXPECT_EQ(ToYaml(again), printed);
  std::filesystem::remove(path);
}

// Each name, wherever it is given: the longest is taken, and one more character is refused.
TEST(NamesTest, AreAsLongEverywhere) {
  for (const size_t length : {kMaxNameLength, kMaxNameLength + 1}) {
    const bool fits = length == kMaxNameLength;
    const std::string name(length, 'n');
    EXPECT_EQ(CheckName(name, "name").ok(), fits);
    EXPECT_EQ(CheckId(name, "id").ok(), fits);
    EXPECT_EQ(IsSequenceId(name), fits);
    EXPECT_EQ(CheckTenantName(name).ok(), fits);
    EXPECT_EQ(Validate(SnapshotOptions{.folder = "f", .node = name}).ok(), fits);
    IndexConfig config;
    config.geometry = {.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 64};
    ASSERT_TRUE(Validate(config).ok()) << Validate(config);
    for (std::string* const field : {&config.name, &config.model}) {
      *field = name;
      EXPECT_EQ(Validate(config).ok(), fits) << Validate(config);
      *field = "";
    }
  }
}

}  // namespace
}  // namespace seine
