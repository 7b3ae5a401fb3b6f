// Projection, reconstruction and learning on a device, their kernels' bodies run on the host: the CPU backend's bits,
// and every call of the device failing once.
#include "kernels/ops/low_rank/low_rank.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <tuple>

#include "kernels/backends/cuda/cuda_backend.h"
#include "kernels/codecs/kinds/rsq.h"
#include "tests/device/zone.h"
#include "tests/kernels/cuda/host_device.h"
#include "tests/kernels/low_rank_data.h"

namespace seine {
namespace {

using cuda::Device;
using cuda::HostDevice;
using cuda::HostDeviceControl;

// What one backend makes of heads of several lengths and ranks, one call for all.
struct Projections {
  Projections(Backend* backend, int dim, DType dtype) {
    std::vector<ProjectTask> tasks;
    for (const int count : {0, 1, 15, 16, 17, 100}) {
      const int rank = count % 2 == 0 ? dim * 3 / 5 : count == 1 ? dim : 1;
      bases.push_back(RandomBasis(dim, rank, 3 + count));
      rows.push_back(Gaussian(static_cast<size_t>(count) * dim, 5 + count));
      codes.emplace_back(count * rank * SizeOf(dtype), 0x5A);
      residuals.emplace_back(count % 2 == 0 ? count * dim : 0, -7.0f);
      tasks.push_back({nullptr, dim, rank, nullptr, count, dtype, nullptr, nullptr});
    }
    for (size_t i = 0; i < tasks.size(); ++i) {
      tasks[i].basis = bases[i].data();
      tasks[i].rows = rows[i].data();
      tasks[i].codes = codes[i].data();
      if (!residuals[i].empty()) tasks[i].residuals = residuals[i].data();
    }
    outcome = backend->Project(tasks.data(), static_cast<int>(tasks.size()));
  }
  std::vector<std::vector<float>> bases, rows, residuals;
  std::vector<std::vector<uint8_t>> codes;
  Outcome outcome;
};

bool SameBits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size()) return false;
    if (!a[i].empty() && memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) return false;
  }
  return a.size() == b.size();
}

TEST(CudaLowRank, ProjectionsAreTheCpus) {
  auto control = std::make_shared<HostDeviceControl>();
  {
    const auto cpu = MakeCpuBackend(1), gpu = cuda::BackendOn(control);
    for (const int dim : kTestHeadDims) {
      for (const DType dtype : kDTypes) {
        const Projections want(cpu.get(), dim, dtype), got(gpu.get(), dim, dtype);
        ASSERT_EQ(want.outcome, Outcome::kDone);
        ASSERT_EQ(got.outcome, Outcome::kDone);
        EXPECT_EQ(got.codes, want.codes) << dim << " " << static_cast<int>(dtype);
        EXPECT_TRUE(SameBits(got.residuals, want.residuals)) << dim << " " << static_cast<int>(dtype);
      }
    }
  }
  EXPECT_EQ(control->device_bytes, 0);
  EXPECT_EQ(control->host_bytes, 0);
}

// Rows of two heads, in any order and by all kinds of RoPE.
std::vector<std::vector<float>> RowsOn(Backend* backend, int dim, int rank, DType dtype, int turns) {
  const std::vector<double> frequencies = Frequencies(dim);
  LowRankHead a(backend, dim, rank, dtype, {3, 70, 40, 6, 9}, 7, 11), b(backend, dim, rank, dtype, {33}, 0, 12);
  std::vector<std::vector<int32_t>> places(2), positions(2);
  for (int32_t place = 7; place < a.end; ++place)
    places[0].push_back((place * 37 - 7) % (static_cast<int>(a.end) - 7) + 7);
  for (int32_t place = 0; place < 33; ++place) places[1].push_back(place);
  std::vector<RebuildTask> tasks;
  std::vector<Buffer> outs;
  for (int i = 0; i < 2; ++i) {
    LowRankHead& head = i == 0 ? a : b;
    if (turns > 0) head.rows.rope = {frequencies.data(), turns == 2};
    for (const int32_t place : places[i]) positions[i].push_back(place * 977 + 3);
    outs.push_back(backend->Allocate(places[i].size() * dim * sizeof(float), MemorySpace::kStore));
    tasks.push_back({head.rows, places[i].data(), turns > 0 ? positions[i].data() : nullptr,
                     static_cast<int64_t>(places[i].size()), reinterpret_cast<float*>(outs[i].data())});
  }
  EXPECT_EQ(backend->Rebuild(tasks.data(), 2), Outcome::kDone);
  std::vector<std::vector<float>> rows;
  for (const RebuildTask& t : tasks) rows.emplace_back(t.out, t.out + t.count * dim);
  return rows;
}

TEST(CudaLowRank, RebuiltRowsAreTheCpus) {
  auto control = std::make_shared<HostDeviceControl>();
  {
    const auto cpu = MakeCpuBackend(1), gpu = cuda::BackendOn(control);
    for (const int dim : kTestHeadDims) {
      for (const int rank : {1, 33, dim}) {
        for (const DType dtype : DTypesOf(dim)) {
          for (const int turns : {0, 1, 2}) {
            EXPECT_TRUE(
                SameBits(RowsOn(gpu.get(), dim, rank, dtype, turns), RowsOn(cpu.get(), dim, rank, dtype, turns)))
                << dim << " " << rank << " " << static_cast<int>(dtype) << " " << turns;
          }
        }
      }
    }
  }
  EXPECT_EQ(control->device_bytes, 0);
  EXPECT_EQ(control->host_bytes, 0);
}

struct Learnt {
  std::vector<float> basis;
  OjaStats stats;
};

// Bases of several ranks that learn from `rows`, one call for all, then another.
std::vector<Learnt> LearntOn(Backend* backend, int dim, const OjaOptions& options, const std::vector<int>& ranks,
                             const std::vector<float>& rows) {
  std::vector<Learnt> learnt;
  for (const int rank : ranks) learnt.push_back({OrthonormalBasis(dim, rank, 3 + rank), {}});
  for (int call = 0; call < 2; ++call) {
    std::vector<LearnTask> tasks;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const int64_t count = static_cast<int64_t>(rows.size()) / dim / options.interval * options.interval;
      tasks.push_back(
          {options, dim, ranks[i], learnt[i].basis.data(), rows.data(), i == 1 ? 0 : count, &learnt[i].stats});
    }
    EXPECT_EQ(backend->Learn(tasks.data(), static_cast<int>(tasks.size())), Outcome::kDone);
  }
  return learnt;
}

void ExpectSameLearnt(const std::vector<Learnt>& got, const std::vector<Learnt>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(memcmp(got[i].basis.data(), want[i].basis.data(), want[i].basis.size() * sizeof(float)), 0) << i;
    const OjaStats &a = got[i].stats, &b = want[i].stats;
    EXPECT_EQ(std::tie(a.rows, a.intervals, a.updates, a.since_update, a.large_steps),
              std::tie(b.rows, b.intervals, b.updates, b.since_update, b.large_steps));
    EXPECT_EQ(std::tie(a.energy, a.residual_energy, a.last_ratio), std::tie(b.energy, b.residual_energy, b.last_ratio));
  }
}

#ifdef __SANITIZE_ADDRESS__
constexpr int kLearntDims[] = {64, 80};  // 128 takes half of the time
#else
constexpr int kLearntDims[] = {64, 80, 128};
#endif

TEST(CudaLowRank, LearntBasesAreTheCpus) {
  auto control = std::make_shared<HostDeviceControl>();
  {
    const auto cpu = MakeCpuBackend(1), gpu = cuda::BackendOn(control);
    for (const int dim : kLearntDims) {
      const std::vector<float> rows = Keys(140, dim, 5);
      for (const int interval : {1, 9, 32, 33}) {
        for (const double threshold : {0.0, .3}) {
          SCOPED_TRACE(testing::Message() << dim << " " << interval << " " << threshold);
          OjaOptions options;
          options.interval = interval;
          options.error_threshold = threshold;
          options.min_spacing = threshold > 0 ? 40 : 0;
          const std::vector<int> ranks = {1, 7, 33, dim * 3 / 5};
          const auto want = LearntOn(cpu.get(), dim, options, ranks, rows);
          ExpectSameLearnt(LearntOn(gpu.get(), dim, options, ranks, rows), want);
          EXPECT_EQ(want[1].stats.rows, 0);
          EXPECT_GT(want[3].stats.updates, 0);
          EXPECT_GT(want[3].stats.residual_energy, 0);
        }
      }
    }
  }
  EXPECT_EQ(control->device_bytes, 0);
  EXPECT_EQ(control->host_bytes, 0);
}

TEST(CudaLowRank, TheLongestIntervalIsTheCpus) {
  const auto cpu = MakeCpuBackend(1), gpu = cuda::BackendOn(std::make_shared<HostDeviceControl>());
  OjaOptions options;
  options.interval = 256;
  const std::vector<float> rows = Keys(512, 64, 5);
  const std::vector<int> ranks = {38};
  const auto want = LearntOn(cpu.get(), 64, options, ranks, rows);
  ExpectSameLearnt(LearntOn(gpu.get(), 64, options, ranks, rows), want);
}

TEST(CudaLowRank, LargeStepsAreTheCpus) {
  const auto cpu = MakeCpuBackend(1), gpu = cuda::BackendOn(std::make_shared<HostDeviceControl>());
  constexpr int kDim = 64;
  OjaOptions options;
  options.relative = false;
  options.learning_rate = 1.5;
  const auto want = LearntOn(cpu.get(), kDim, options, {38}, Keys(96, kDim, 5));
  ExpectSameLearnt(LearntOn(gpu.get(), kDim, options, {38}, Keys(96, kDim, 5)), want);
  EXPECT_GT(want[0].stats.large_steps, 1);
  const int stride = cpu::PaddedColumns(38);
  for (int a = 0; a < 38; ++a) {
    for (int b = 0; b <= a; ++b) {
      double dot = 0;
      for (int j = 0; j < kDim; ++j) dot += double{want[0].basis[j * stride + a]} * want[0].basis[j * stride + b];
      ASSERT_NEAR(dot, a == b ? 1 : 0, 1e-5);
    }
  }
}

// More rows than are brought to the device at once.
TEST(CudaLowRank, LongTasksGoInPieces) {
  const auto cpu = MakeCpuBackend(1), gpu = cuda::BackendOn(std::make_shared<HostDeviceControl>());
  constexpr int kDim = 16, kCount = (1 << 15) + 100;
  std::vector<std::vector<float>> rows;
  std::vector<uint8_t> codes[2];
  std::vector<Learnt> learnt[2];
  const std::vector<float> basis = RandomBasis(kDim, 2, 1), input = Gaussian(size_t{kCount} * kDim, 2);
  for (Backend* backend : {cpu.get(), gpu.get()}) {
    codes[backend == gpu.get()].resize(kCount * 4);
    const ProjectTask project = {
        basis.data(), kDim, 2, input.data(), kCount, DType::kFloat16, codes[backend == gpu.get()].data(), nullptr};
    ASSERT_EQ(backend->Project(&project, 1), Outcome::kDone);
    LowRankHead head(backend, kDim, 2, DType::kFloat16, {20000, kCount - 20000}, 0, 1);
    std::vector<int32_t> places(kCount);
    std::iota(places.begin(), places.end(), 0);
    const Buffer out = backend->Allocate(places.size() * kDim * sizeof(float), MemorySpace::kStore);
    const RebuildTask rebuild = {head.rows, places.data(), nullptr, kCount, reinterpret_cast<float*>(out.data())};
    ASSERT_EQ(backend->Rebuild(&rebuild, 1), Outcome::kDone);
    rows.emplace_back(rebuild.out, rebuild.out + size_t{kCount} * kDim);
    OjaOptions options;
    options.interval = 31;
    Learnt& one = learnt[backend == gpu.get()].emplace_back(Learnt{OrthonormalBasis(kDim, 2, 3), {}});
    const LearnTask learn = {options, kDim, 2, one.basis.data(), input.data(), kCount / 31 * 31, &one.stats};
    ASSERT_EQ(backend->Learn(&learn, 1), Outcome::kDone);
  }
  ExpectSameLearnt(learnt[1], learnt[0]);
  EXPECT_EQ(codes[0], codes[1]);
  EXPECT_EQ(rows[0], rows[1]);
}

// Searches that score keys as codes, or rebuild those that turn, some items with keys as they came beside them in the
// batch.
class CudaLowRankSearch : public ::testing::TestWithParam<bool> {};

TEST_P(CudaLowRankSearch, ScoresKeysAsTheCpuDoes) {
  const auto cpu = MakeCpuBackend(1), gpu = cuda::BackendOn(std::make_shared<HostDeviceControl>());
  constexpr int kKeys = 1024;
  for (const int dim : {64, 80, 128}) {
    const std::vector<double> frequencies = Frequencies(dim);
    const auto codec = MakeRsqCodec({.head_dim = dim});
    const std::vector<float> keys = Keys(kKeys, dim, 9), queries = Gaussian(size_t{6} * dim, 4);
    for (const Scope scope : {Scope::kPerKvHead, Scope::kPerQHead}) {
      for (const Method method : {Method::kIndex, Method::kExact}) {
        SearchParams params;
        params.top_k = 20;
        params.scope = scope;
        params.method = method;
        std::vector<SearchOutput> outputs[2];
        for (Backend* backend : {cpu.get(), gpu.get()}) {
          const Buffer store = LowRankHead::InStore(backend, LowRankHead::Halves(keys));
          device::Zone zone(backend, codec, kKeys, store.data());
          ASSERT_EQ(zone.Encode(), Outcome::kDone);
          const LowRankZone low(backend, dim, 33, DType::kFloat16, kKeys,
                                {GetParam() ? frequencies.data() : nullptr, dim == 80}, 1);
          std::vector<SearchTask> tasks(2, zone.Task(queries.data(), 6, false, 40));
          low.AddTo(&tasks[0]);
          tasks[1] = zone.Task(queries.data(), 3, true, 0);
          std::vector<SearchOutput>& out = outputs[backend == gpu.get()];
          out.resize(2);
          ASSERT_EQ(backend->Search(tasks.data(), 2, params, out.data()), Outcome::kDone);
        }
        for (int i = 0; i < 2; ++i) {
          EXPECT_EQ(outputs[1][i].positions, outputs[0][i].positions) << dim << " " << i;
          EXPECT_TRUE(SameBits(outputs[1][i].scores, outputs[0][i].scores)) << dim << " " << i;
          EXPECT_EQ(outputs[1][i].stats.refined, outputs[0][i].stats.refined);
          EXPECT_GT(outputs[0][i].positions[0].size(), 0u);
        }
        EXPECT_NE(outputs[0][0].positions, outputs[0][1].positions);  // other keys were scored
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Turns, CudaLowRankSearch, ::testing::Bool());

TEST(CudaLowRank, EveryCallOfTheDeviceFailsOnce) {
  for (const Device::Error error : {Device::kOutOfMemory, 719}) {
    int failures = 0;
    for (int fail = 0;; ++fail) {
      SCOPED_TRACE(testing::Message() << "error " << error << " at call " << fail);
      auto control = std::make_shared<HostDeviceControl>();
      auto gpu = cuda::BackendOn(control);
      constexpr int kDim = 64, kCount = 2000;  // more than a lane holds at first
      {
        LowRankHead head(gpu.get(), kDim, 33, DType::kFloat16, {1500, 500}, 0, 1);
        std::vector<int32_t> places(kCount);
        std::iota(places.begin(), places.end(), 0);
        const Buffer out = gpu->Allocate(size_t{kCount} * kDim * sizeof(float), MemorySpace::kStore);
        const std::vector<float> basis = RandomBasis(kDim, 33, 1), rows = Gaussian(size_t{kCount} * kDim, 2);
        std::vector<uint8_t> codes(kCount * 66);
        std::vector<float> residuals(size_t{kCount} * kDim);
        const ProjectTask project = {basis.data(),    kDim, 33, rows.data(), kCount, DType::kFloat16, codes.data(),
                                     residuals.data()};
        const RebuildTask rebuild = {head.rows, places.data(), nullptr, kCount, reinterpret_cast<float*>(out.data())};
        control->error = error;
        OjaStats stats;
        std::vector<float> learnt = OrthonormalBasis(kDim, 33, 2);
        const LearnTask learn = {OjaOptions(), kDim, 33, learnt.data(), rows.data(), 64, &stats};
        control->fail_call = control->calls + fail;
        const int before = control->calls;
        Outcome outcome = gpu->Learn(&learn, 1);
        if (outcome == Outcome::kDone) outcome = gpu->Project(&project, 1);
        if (outcome == Outcome::kDone) outcome = gpu->Rebuild(&rebuild, 1);
        if (control->calls - before <= fail) {
          EXPECT_EQ(outcome, Outcome::kDone);
          break;
        }
        // What a lane outgrows is freed first; that this fails for want of memory hurts nobody.
        if (outcome == Outcome::kDone) continue;
        ++failures;
        if (gpu->loss().empty()) {
          EXPECT_EQ(outcome, Outcome::kNoMemory);
          EXPECT_EQ(gpu->Project(&project, 1), Outcome::kDone);  // the next try has memory
          EXPECT_EQ(gpu->Rebuild(&rebuild, 1), Outcome::kDone);
        } else {
          EXPECT_EQ(error, 719);
          EXPECT_EQ(outcome, Outcome::kLost);
          EXPECT_EQ(gpu->Rebuild(&rebuild, 1), Outcome::kLost);
          EXPECT_NE(gpu->loss().find("on host: planted error 719"), std::string::npos);
        }
      }
    }
    EXPECT_GE(failures, 12);
  }
}

}  // namespace
}  // namespace seine
