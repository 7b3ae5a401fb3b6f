#include "kernels/backends/faster.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/codecs/kinds/rsq.h"
#include "kernels/math.h"

namespace seine {
namespace {

constexpr int kGroup = 4, kDim = 128;

// A head's zone: keys in the backend's store, and codes of them.
struct TrialZone {
  bool Make(Backend* backend, const Codec& codec, int count, uint64_t seed) {
    num_keys = count;
    keys = backend->Allocate(static_cast<size_t>(num_keys) * kDim * sizeof(uint16_t), MemorySpace::kStore);
    codes = backend->Allocate(CodeBytes(codec.layout(), num_keys), MemorySpace::kCodes);
    if (!keys || !codes) return false;
    for (size_t i = 0; i < static_cast<size_t>(num_keys) * kDim; ++i) {  // sums of four draws, around 0
      const uint64_t bits = SplitMix64(seed, i);
      int sum = -510;
      for (int j = 0; j < 4; ++j) sum += static_cast<int>(bits >> (8 * j) & 255);
      const uint16_t half = FloatToHalf(static_cast<float>(sum) / 148);
      memcpy(keys.data() + i * sizeof(half), &half, sizeof(half));
    }
    chunk = keys.data();
    const CodePlanes to = PlanesAt(codec.layout(), num_keys, codes.data());
    planes = AsConst(to);
    const EncodeTask task = {&codec, {keys.data(), kDim * sizeof(uint16_t), DType::kFloat16}, num_keys, nullptr, to};
    return backend->Encode(&task, 1) == Outcome::kDone;
  }
  SearchTask Task(const Codec& codec, const float* queries) const {
    SearchTask task;
    task.codec = &codec;
    task.segments = &planes;
    task.segment_keys = task.num_keys = num_keys;
    task.keys = {&chunk, num_keys, kDim, DType::kFloat16};
    task.queries = queries;
    task.group = kGroup;
    return task;
  }

  Buffer keys, codes;
  ConstCodePlanes planes;
  int num_keys = 0;
  const uint8_t* chunk = nullptr;
};

}  // namespace

std::optional<double> TrialUs(const Trial& trial, Backend* backend) {
  const auto codec = MakeRsqCodec({.head_dim = kDim});
  std::vector<TrialZone> zones(trial.kv_heads);
  std::vector<float> queries(static_cast<size_t>(trial.kv_heads) * kGroup * kDim);
  for (size_t i = 0; i < queries.size(); ++i) queries[i] = static_cast<float>(SplitMix64(1, i) >> 40) / (1 << 23) - 1;
  std::vector<SearchTask> tasks;
  for (int h = 0; h < trial.kv_heads; ++h) {
    if (!zones[h].Make(backend, *codec, trial.keys, 7 + h)) return std::nullopt;
    tasks.push_back(zones[h].Task(*codec, queries.data() + h * kGroup * kDim));
  }
  std::vector<SearchOutput> outputs(trial.kv_heads);
  std::vector<double> us;
  for (int run = -2; run < trial.runs; ++run) {  // the first two also see to graphs and caches
    const auto begin = std::chrono::steady_clock::now();
    if (backend->Search(tasks.data(), trial.kv_heads, SearchParams(), outputs.data()) != Outcome::kDone)
      return std::nullopt;
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    if (run >= 0) us.push_back(took.count());
  }
  std::sort(us.begin(), us.end());
  return us[us.size() / 2];
}

std::unique_ptr<Backend> FasterBackend(const Trial& trial, std::unique_ptr<Backend> device,
                                       std::unique_ptr<Backend> cpu, std::string* why) {
  const std::optional<double> device_us = TrialUs(trial, device.get());
  const std::string name = device->simd_target();
  if (!device_us) {
    *why = name + " did not get through a trial" + (device->loss().empty() ? "" : ": " + device->loss());
    return cpu;
  }
  const std::optional<double> cpu_us = TrialUs(trial, cpu.get());
  if (!cpu_us || *device_us < *cpu_us) return device;
  char text[160];
  std::snprintf(text, sizeof(text),
                " took %.0f us for a layer's search in a trial, the CPU %.0f; cuda takes it all the same", *device_us,
                *cpu_us);
  *why = name + text;
  return cpu;
}

}  // namespace seine
