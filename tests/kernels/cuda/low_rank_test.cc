// Projection and reconstruction on a device, their kernels' bodies run on the host: the CPU backend's bits, and every
// call of the device failing once.
#include "kernels/low_rank.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "kernels/cuda/cuda_backend.h"
#include "tests/kernels/cuda/host_device.h"
#include "tests/kernels/low_rank_data.h"

namespace seine {
namespace {

using cuda::Device;
using cuda::HostDevice;
using cuda::HostDeviceControl;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

std::unique_ptr<Backend> MakeBackendOn(std::shared_ptr<HostDeviceControl> control) {
  std::string why;
  return cuda::MakeCudaBackend(std::make_unique<HostDevice>(std::move(control)), 1, &why);
}

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
    const auto cpu = MakeCpuBackend(1), gpu = MakeBackendOn(control);
    for (const int dim : kHeadDims) {
      for (const DType dtype : kTypes) {
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
    outs.push_back(backend->Allocate(places[i].size() * dim * sizeof(float), Place::kStore));
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
    const auto cpu = MakeCpuBackend(1), gpu = MakeBackendOn(control);
    for (const int dim : kHeadDims) {
      for (const int rank : {1, 33, dim}) {
        for (const DType dtype : kTypes) {
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

// More rows than are brought to the device at once.
TEST(CudaLowRank, LongTasksGoInPieces) {
  const auto cpu = MakeCpuBackend(1), gpu = MakeBackendOn(std::make_shared<HostDeviceControl>());
  constexpr int kDim = 16, kCount = (1 << 15) + 100;
  std::vector<std::vector<float>> rows;
  std::vector<uint8_t> codes[2];
  const std::vector<float> basis = RandomBasis(kDim, 2, 1), input = Gaussian(size_t{kCount} * kDim, 2);
  for (Backend* backend : {cpu.get(), gpu.get()}) {
    codes[backend == gpu.get()].resize(kCount * 4);
    const ProjectTask project = {
        basis.data(), kDim, 2, input.data(), kCount, DType::kFloat16, codes[backend == gpu.get()].data(), nullptr};
    ASSERT_EQ(backend->Project(&project, 1), Outcome::kDone);
    LowRankHead head(backend, kDim, 2, DType::kFloat16, {20000, kCount - 20000}, 0, 1);
    std::vector<int32_t> places(kCount);
    std::iota(places.begin(), places.end(), 0);
    const Buffer out = backend->Allocate(places.size() * kDim * sizeof(float), Place::kStore);
    const RebuildTask rebuild = {head.rows, places.data(), nullptr, kCount, reinterpret_cast<float*>(out.data())};
    ASSERT_EQ(backend->Rebuild(&rebuild, 1), Outcome::kDone);
    rows.emplace_back(rebuild.out, rebuild.out + size_t{kCount} * kDim);
  }
  EXPECT_EQ(codes[0], codes[1]);
  EXPECT_EQ(rows[0], rows[1]);
}

TEST(CudaLowRank, EveryCallOfTheDeviceFailsOnce) {
  for (const Device::Error error : {Device::kOutOfMemory, 719}) {
    int failures = 0;
    for (int fail = 0;; ++fail) {
      SCOPED_TRACE(testing::Message() << "error " << error << " at call " << fail);
      auto control = std::make_shared<HostDeviceControl>();
      auto gpu = MakeBackendOn(control);
      constexpr int kDim = 64, kCount = 2000;  // more than a lane holds at first
      {
        LowRankHead head(gpu.get(), kDim, 33, DType::kFloat16, {1500, 500}, 0, 1);
        std::vector<int32_t> places(kCount);
        std::iota(places.begin(), places.end(), 0);
        const Buffer out = gpu->Allocate(size_t{kCount} * kDim * sizeof(float), Place::kStore);
        const std::vector<float> basis = RandomBasis(kDim, 33, 1), rows = Gaussian(size_t{kCount} * kDim, 2);
        std::vector<uint8_t> codes(kCount * 66);
        std::vector<float> residuals(size_t{kCount} * kDim);
        const ProjectTask project = {basis.data(),    kDim, 33, rows.data(), kCount, DType::kFloat16, codes.data(),
                                     residuals.data()};
        const RebuildTask rebuild = {head.rows, places.data(), nullptr, kCount, reinterpret_cast<float*>(out.data())};
        control->error = error;
        control->fail_call = control->calls + fail;
        const int before = control->calls;
        Outcome outcome = gpu->Project(&project, 1);
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
    EXPECT_GE(failures, 8);
  }
}

}  // namespace
}  // namespace seine
