// Sums, scoring and selection on a device, their kernels' bodies run on the host: the CPU backend's bits, and every
// call of the device failing once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "kernels/backends/cuda/cuda_backend.h"
#include "tests/kernels/cuda/host_device.h"
#include "tests/kernels/same_bits.h"

namespace seine {
namespace {

using cuda::Device;
using cuda::HostDevice;
using cuda::HostDeviceControl;

constexpr KeyScore kEveryKeyScore[] = {KeyScore::kNegNorm, KeyScore::kDot,  KeyScore::kNegCosine, KeyScore::kL2,
                                       KeyScore::kL1,      KeyScore::kLinf, KeyScore::kUnitL2};

// One head's keys in chunks of a backend's store, one of them zero.
struct StoredHead {
  static constexpr int kChunk = 100;

  StoredHead(Backend* backend, int count, int dim, DType dtype) {
    std::vector<float> values = Keys(std::max(count, 1), dim, count + dim);
    std::fill_n(values.begin() + static_cast<int64_t>(count / 2) * dim, dim, 0.0f);
    const Typed typed(values, dim, dtype);
    const size_t row = dim * SizeOf(dtype);
    for (int first = 0; first < count; first += kChunk) {
      const int now = std::min(kChunk, count - first);
      buffers.push_back(backend->Allocate(kChunk * row, MemorySpace::kStore));
      for (int i = 0; i < now; ++i) memcpy(buffers.back().data() + i * row, typed.rows.row(first + i), row);
      chunks.push_back(buffers.back().data());
    }
    rows = {chunks.data(), kChunk, dim, dtype};
  }
  std::vector<Buffer> buffers;
  std::vector<const uint8_t*> chunks;
  ChunkedRows rows;
};

// Scores of heads of several lengths, one call for all.
std::vector<std::vector<float>> ScoresOn(Backend* backend, KeyScore kind, int dim, DType dtype, int64_t window) {
  std::vector<std::unique_ptr<MadeUpWindows>> windows;
  std::vector<std::unique_ptr<StoredHead>> heads;
  std::vector<std::vector<float>> scores, anchors;
  std::vector<ScoreTask> tasks;
  for (const int count : {0, 1, 127, 128, 129, 300}) {
    heads.push_back(std::make_unique<StoredHead>(backend, count, dim, dtype));
    windows.push_back(std::make_unique<MadeUpWindows>(count, window, window % 2 == 0 ? 0 : 3));
    const KeyWindows view = windows.back()->view();
    anchors.push_back(Gaussian(static_cast<size_t>(view.count) * dim, 5 + count));
    scores.emplace_back(count, -7.0f);
    tasks.push_back({heads.back()->rows, count, kind, anchors.back().data(), view, nullptr});
  }
  for (size_t i = 0; i < tasks.size(); ++i) tasks[i].out = scores[i].data();
  EXPECT_EQ(backend->Score(tasks.data(), static_cast<int>(tasks.size())), Outcome::kDone);
  return scores;
}

TEST(CudaEvict, ScoresAreTheCpus) {
  auto control = std::make_shared<HostDeviceControl>();
  {
    const auto cpu = MakeCpuBackend(1), gpu = cuda::BackendOn(control);
    for (const int dim : kTestHeadDims) {
      for (const DType dtype : DTypesOf(dim)) {
        for (const KeyScore kind : kEveryKeyScore) {
          for (const int64_t window : {0, 64, 77}) {
            SCOPED_TRACE(testing::Message()
                         << "dim " << dim << " type " << int(dtype) << " kind " << int(kind) << " window " << window);
            const auto want = ScoresOn(cpu.get(), kind, dim, dtype, window);
            const auto got = ScoresOn(gpu.get(), kind, dim, dtype, window);
            for (size_t i = 0; i < want.size(); ++i) {
              for (size_t j = 0; j < want[i].size(); ++j) {
                ASSERT_EQ(FloatBits(got[i][j]), FloatBits(want[i][j])) << i << " " << j;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(control->device_bytes, 0);
  EXPECT_EQ(control->host_bytes, 0);
}

// Sums of heads of several lengths, one call for all.
std::vector<std::vector<double>> SumsOn(Backend* backend, int dim, DType dtype, bool unit, int64_t window) {
  std::vector<std::unique_ptr<StoredHead>> heads;
  std::vector<std::unique_ptr<MadeUpWindows>> windows;
  std::vector<std::vector<double>> sums;
  std::vector<SumTask> tasks;
  std::vector<int> counts = {0, 1, 255, 256, 257, 700};
  if (dim == 64 && window == 0) counts.push_back(33 * kSumGroup + 5);  // more groups than are read ahead
  for (const int count : counts) {
    heads.push_back(std::make_unique<StoredHead>(backend, count, dim, dtype));
    windows.push_back(std::make_unique<MadeUpWindows>(count, window, window % 2 == 0 ? 0 : 3));
    tasks.push_back({heads.back()->rows, count, unit, windows.back()->view()});
    sums.emplace_back(tasks.back().windows.count * dim, -7.0);
  }
  for (size_t i = 0; i < tasks.size(); ++i) tasks[i].sums = sums[i].data();
  EXPECT_EQ(backend->Sum(tasks.data(), static_cast<int>(tasks.size())), Outcome::kDone);
  return sums;
}

TEST(CudaEvict, SumsAreTheCpus) {
  auto control = std::make_shared<HostDeviceControl>();
  {
    const auto cpu = MakeCpuBackend(1), gpu = cuda::BackendOn(control);
    for (const int dim : kTestHeadDims) {
      for (const DType dtype : DTypesOf(dim)) {
        for (const bool unit : {false, true}) {
          for (const int64_t window : {0, 50, 256, 400, 601}) {
            SCOPED_TRACE(testing::Message()
                         << "dim " << dim << " type " << int(dtype) << " unit " << unit << " window " << window);
            const auto want = SumsOn(cpu.get(), dim, dtype, unit, window);
            const auto got = SumsOn(gpu.get(), dim, dtype, unit, window);
            for (size_t i = 0; i < want.size(); ++i) {
              ASSERT_EQ(got[i].size(), want[i].size());
              ASSERT_TRUE(want[i].empty() || memcmp(got[i].data(), want[i].data(), want[i].size() * 8) == 0) << i;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(control->device_bytes, 0);
  EXPECT_EQ(control->host_bytes, 0);
}

std::vector<std::vector<uint32_t>> PlacesOn(Backend* backend, const std::vector<std::vector<float>>& scores,
                                            const std::vector<int64_t>& kept) {
  std::vector<std::vector<uint32_t>> places(scores.size(), {99});
  std::vector<SelectTask> tasks;
  for (size_t i = 0; i < scores.size(); ++i) {
    tasks.push_back({scores[i].data(), static_cast<int64_t>(scores[i].size()), kept[i], &places[i]});
  }
  EXPECT_EQ(backend->Select(tasks.data(), static_cast<int>(tasks.size())), Outcome::kDone);
  return places;
}

// Against a stable sort, ties and all: scores of few values, of all, all equal, and some that tower over the rest.
TEST(CudaEvict, PlacesAreThoseOfAStableSort) {
  const auto cpu = MakeCpuBackend(1), gpu = cuda::BackendOn(std::make_shared<HostDeviceControl>());
  std::mt19937 rng(3);
  for (const int distinct : {1, 2, 40, 1 << 30}) {
    std::vector<std::vector<float>> scores;
    std::vector<int64_t> kept;
    std::vector<std::vector<uint32_t>> want;
    for (const int n : {0, 1, 2, 63, 64, 65, 1000, 5000}) {
      for (const int m : {0, 1, n / 3, n - 1, n, n + 9}) {
        if (m < 0) continue;
        std::vector<float> s(n);
        for (float& x : s) x = (static_cast<float>(rng() % distinct) - static_cast<float>(distinct / 2)) * .37f;
        for (int forced = 0; n > 100 && forced < 5; ++forced) s[rng() % n] = kLargestFloat;
        std::vector<uint32_t> order(n);
        for (int i = 0; i < n; ++i) order[i] = i;
        std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return s[a] > s[b]; });
        order.resize(std::min(m, n));
        std::sort(order.begin(), order.end());
        scores.push_back(std::move(s));
        kept.push_back(m);
        want.push_back(std::move(order));
      }
    }
    EXPECT_EQ(PlacesOn(gpu.get(), scores, kept), want) << distinct;
    EXPECT_EQ(PlacesOn(cpu.get(), scores, kept), want) << distinct;
  }
}

// Zeros of both signs are equal: the lowest place of them stays.
TEST(CudaEvict, ZerosTie) {
  const auto cpu = MakeCpuBackend(1), gpu = cuda::BackendOn(std::make_shared<HostDeviceControl>());
  const std::vector<std::vector<float>> scores = {{-1.0f, -0.0f, 0.0f, -0.0f, 0.0f, 2.0f}};
  for (Backend* backend : {cpu.get(), gpu.get()}) {
    EXPECT_EQ(PlacesOn(backend, scores, {3})[0], (std::vector<uint32_t>{1, 2, 5})) << backend->name();
  }
}

TEST(CudaEvict, EveryCallOfTheDeviceFailsOnce) {
  for (const Device::Error error : {Device::kOutOfMemory, 719}) {
    int failures = 0;
    for (int fail = 0;; ++fail) {
      SCOPED_TRACE(testing::Message() << "error " << error << " at call " << fail);
      auto control = std::make_shared<HostDeviceControl>();
      auto gpu = cuda::BackendOn(control);
      const int dim = 64, count = 5000;  // more than a lane holds at first
      {
        const StoredHead head(gpu.get(), count, dim, DType::kFloat32);
        const std::vector<float> anchor = Gaussian(dim, 1);
        std::vector<float> scores(count);
        std::vector<double> sums(count * dim);  // a window a key: more than a lane holds at first, too
        const MadeUpWindows windows(count, 1, 0);
        std::vector<uint32_t> places;
        const SumTask sum = {head.rows, count, true, windows.view(), sums.data()};
        const ScoreTask score = {head.rows, count, KeyScore::kL2, anchor.data(), {}, scores.data()};
        const SelectTask select = {scores.data(), count, 100, &places};
        control->error = error;
        control->fail_call = control->calls + fail;
        const int before = control->calls;
        Outcome outcome = gpu->Sum(&sum, 1);
        if (outcome == Outcome::kDone) outcome = gpu->Score(&score, 1);
        if (outcome == Outcome::kDone) outcome = gpu->Select(&select, 1);
        if (control->calls - before <= fail) {
          EXPECT_EQ(outcome, Outcome::kDone);
          EXPECT_EQ(places.size(), 100u);
          break;
        }
        ++failures;
        if (gpu->loss().empty()) {
          EXPECT_EQ(outcome, Outcome::kNoMemory);
          EXPECT_EQ(gpu->Sum(&sum, 1), Outcome::kDone);  // the next try has memory
          EXPECT_EQ(gpu->Score(&score, 1), Outcome::kDone);
          EXPECT_EQ(gpu->Select(&select, 1), Outcome::kDone);
          EXPECT_EQ(places.size(), 100u);
        } else {
          EXPECT_EQ(error, 719);
          EXPECT_EQ(outcome, Outcome::kLost);
          EXPECT_EQ(gpu->Sum(&sum, 1), Outcome::kLost);
          EXPECT_EQ(gpu->Select(&select, 1), Outcome::kLost);
        }
      }
    }
    EXPECT_GE(failures, 12);
  }
}

}  // namespace
}  // namespace seine
