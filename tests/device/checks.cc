// The CUDA backend against the CPU's: codes byte for byte, sets and scores bit for bit, and memory that runs out.
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>

#include "kernels/codecs/kinds/balanced.h"
#include "kernels/codecs/kinds/rsq.h"
#include "kernels/device/device.h"
#include "tests/device/suite.h"
#include "tests/device/zone.h"
#include "tests/kernels/low_rank_data.h"
#include "tests/kernels/random_data.h"

namespace seine::device {
namespace {

using Rng = std::mt19937_64;

int Pick(Rng* rng, int low, int high) { return low + static_cast<int>((*rng)() % (high - low + 1)); }

std::shared_ptr<const Codec> RandomCodec(Rng* rng, int dim) {
  if (Pick(rng, 0, 1) == 0) return MakeBalancedCodec(RandomBalanced(dim, (*rng)(), Pick(rng, 0, 1) == 0));
  RsqOptions o;
  o.head_dim = dim;
  o.seed = (*rng)();
  o.centre = static_cast<Centre>(Pick(rng, 0, 2));
  o.centre_tokens = Pick(rng, 0, 3) == 0 ? 128 : 64;
  return MakeRsqCodec(o);
}

// Keys in a backend's store, fp16.
Buffer StoredKeys(Backend* backend, const std::vector<float>& keys) {
  Buffer store = backend->Allocate(keys.size() * 2, MemorySpace::kStore);
  for (size_t i = 0; store && i < keys.size(); ++i) {
    const _Float16 half = static_cast<_Float16>(keys[i]);
    memcpy(store.data() + i * 2, &half, 2);
  }
  return store;
}

// A random item on both backends.
struct Item {
  Item(Rng* rng, Backend* cpu, Backend* gpu, std::shared_ptr<const Codec> codec, int most_keys) {
    const int dim = codec->layout().head_dim, unit = std::max(64, codec->layout().centre_tokens);
    const int keys = Pick(rng, 1, most_keys / unit) * unit;
    group = Pick(rng, 1, 8);
    with_keys = Pick(rng, 0, 3) > 0;
    dense = Pick(rng, 0, 1) * Pick(rng, 1, std::min(keys, 70));
    std::vector<float> values = Keys(keys, dim, (*rng)());
    if (Pick(rng, 0, 3) == 0) {  // ties: one window again and again
      for (int i = 64; i < keys; ++i) std::copy_n(values.begin() + i % 64 * dim, dim, values.begin() + i * dim);
    }
    queries = Gaussian(static_cast<size_t>(group) * dim, (*rng)());
    for (Backend* backend : {cpu, gpu}) {
      stores.push_back(StoredKeys(backend, values));
      zones.push_back(std::make_unique<Zone>(backend, codec, keys, stores.back().data()));
      done = done && zones.back()->codes && zones.back()->Encode() == Outcome::kDone;
    }
  }
  SearchTask Task(int which) const { return zones[which]->Task(queries.data(), group, with_keys, dense); }

  std::vector<Buffer> stores;
  std::vector<std::unique_ptr<Zone>> zones;
  std::vector<float> queries;
  int group = 1, dense = 0;
  bool with_keys = true, done = true;
};

SearchParams RandomParams(Rng* rng, bool collision) {
  SearchParams p;
  p.top_k = Pick(rng, 1, 120);
  p.beta = Pick(rng, 1, 30) * .01;
  if (Pick(rng, 0, 3) == 0) p.recall_target = Pick(rng, 30, 99) * .01;
  p.refine = Pick(rng, 0, 300);
  p.coarse = collision ? Coarse::kCollision : Coarse::kSignIp;
  p.scope = static_cast<Scope>(Pick(rng, 0, 1));
  p.reduce = static_cast<GqaReduce>(Pick(rng, 0, 2));
  if (Pick(rng, 0, 3) == 0) p.mass_p = static_cast<float>(Pick(rng, 5, 99)) * .01f;
  p.with_candidates = Pick(rng, 0, 1) == 1;
  return p;
}

bool Same(const SearchOutput& a, const SearchOutput& b) {
  if (a.positions != b.positions || a.candidates != b.candidates || a.scores.size() != b.scores.size()) return false;
  for (size_t r = 0; r < a.scores.size(); ++r) {
    if (a.scores[r].size() != b.scores[r].size()) return false;
    if (memcmp(a.scores[r].data(), b.scores[r].data(), a.scores[r].size() * 4) != 0) return false;
  }
  return true;
}

// Ragged batches of one head_dim and coarse kind until `items` are done. Returns those that differ, -1 for an error.
int DifferingItems(const SuiteOptions& options, Backend* cpu, Backend* gpu) {
  Rng rng(2026);
  int differing = 0;
  for (int done = 0; done < options.items;) {
    const int dim = kDeviceHeadDims[Pick(&rng, 0, 5)];
    const bool collision = Pick(&rng, 0, 3) == 0;
    const int most = options.small ? 1024 : Pick(&rng, 0, 9) == 0 ? 40960 : 4096;
    std::vector<std::unique_ptr<Item>> items;
    const int count = std::min(options.items - done, most > 4096 ? 4 : 25);
    const auto rsq = MakeRsqCodec({.head_dim = dim});
    for (int i = 0; i < count; ++i) {
      items.push_back(std::make_unique<Item>(&rng, cpu, gpu, collision ? rsq : RandomCodec(&rng, dim), most));
      if (!items.back()->done) return -1;
    }
    const SearchParams params = RandomParams(&rng, collision);
    std::vector<SearchTask> tasks[2];
    for (const auto& item : items) tasks[0].push_back(item->Task(0)), tasks[1].push_back(item->Task(1));
    std::vector<SearchOutput> a(count), b(count);
    if (cpu->Search(tasks[0].data(), count, params, a.data()) != Outcome::kDone) return -1;
    if (gpu->Search(tasks[1].data(), count, params, b.data()) != Outcome::kDone) return -1;
    for (int i = 0; i < count; ++i) differing += !Same(a[i], b[i]);
    done += count;
  }
  return differing;
}

// Two searches by turns, each as often as it takes to run plainly, as it is captured, and twice from its graph
// (launch_cache.h), always with other queries. -1 for an error.
int DifferingRepeats(const SuiteOptions& options, Backend* cpu, Backend* gpu) {
  Rng rng(29);
  int differing = 0;
  for (int done = 0; done < options.items / 20; ++done) {
    const auto codec = RandomCodec(&rng, kDeviceHeadDims[Pick(&rng, 0, 5)]);
    Item item(&rng, cpu, gpu, codec, options.small ? 1024 : 8192);
    if (!item.done) return -1;
    const SearchParams params[] = {RandomParams(&rng, false), RandomParams(&rng, false)};
    for (int turn = 0; turn < 8; ++turn) {
      item.queries = Gaussian(item.queries.size(), rng());
      const SearchTask tasks[] = {item.Task(0), item.Task(1)};
      SearchOutput a, b;
      if (cpu->Search(&tasks[0], 1, params[turn % 2], &a) != Outcome::kDone) return -1;
      if (gpu->Search(&tasks[1], 1, params[turn % 2], &b) != Outcome::kDone) return -1;
      differing += !Same(a, b);
    }
  }
  return differing;
}

// Graphs that could not be made or launched: the device's name says so. Of this one, whose searches are done.
int FailedGraphs(Backend* gpu) {
  std::string why;
  const auto fresh = cuda::OpenDevice(&why);
  return fresh == nullptr ? -1 : gpu->simd_target() != fresh->name();
}

// Codes of a zone as bytes, brought back from wherever they lie.
bool CodesOf(const Zone& zone, cuda::Device* device, std::vector<uint8_t>* out) {
  out->resize(zone.codes.size());
  if (!zone.backend->codes_on_device()) {
    memcpy(out->data(), zone.codes.data(), out->size());
    return true;
  }
  cuda::Device::Stream stream = nullptr;
  if (device == nullptr || device->MakeStream(&stream) != 0) return false;
  const bool copied = device->Copy(out->data(), zone.codes.data(), out->size(), stream) == 0;
  return device->Finish(stream) == 0 && copied && device->DropStream(stream) == 0;
}

// Bytes of codes that differ, over all head_dims; -1 for an error.
int DifferingCodeBytes(Backend* cpu, Backend* gpu) {
  std::string why;
  const auto device = cuda::OpenDevice(&why);
  Rng rng(7);
  int64_t differing = 0;
  for (const int dim : kDeviceHeadDims) {
    for (int kind = 0; kind < 6; ++kind) {
      const auto codec = kind < 2 ? MakeBalancedCodec(RandomBalanced(dim, rng(), kind == 1)) : RandomCodec(&rng, dim);
      const int keys = 2048 + 256;
      const std::vector<float> values = Keys(keys, dim, rng());
      std::vector<uint8_t> codes[2];
      std::vector<Buffer> stores;
      for (Backend* backend : {cpu, gpu}) {
        stores.push_back(StoredKeys(backend, values));
        Zone zone(backend, codec, keys, stores.back().data());
        if (backend->Zero(zone.codes.data(), zone.codes.size()) != Outcome::kDone) return -1;
        if (zone.Encode() != Outcome::kDone || !CodesOf(zone, device.get(), &codes[backend == gpu])) return -1;
      }
      for (size_t i = 0; i < codes[0].size(); ++i) differing += codes[0][i] != codes[1][i];
    }
  }
  return static_cast<int>(std::min<int64_t>(differing, INT32_MAX));
}

// Random heads of stored keys, all lengths: sums that differ; -1 for an error.
int DifferingSums(const SuiteOptions& options, Backend* cpu, Backend* gpu) {
  Rng rng(23);
  int differing = 0;
  for (int i = 0; i < options.items / 20; ++i) {
    const int dim = kDeviceHeadDims[Pick(&rng, 0, 5)], count = Pick(&rng, 1, options.small ? 700 : 9000);
    const std::vector<float> values = Keys(count, dim, rng());
    const int64_t window = Pick(&rng, 0, 1) * Pick(&rng, 1, 5000);
    const MadeUpWindows windows(count, window, rng() % 2);
    const bool unit = Pick(&rng, 0, 1) == 1;
    std::vector<double> sums[2];
    for (Backend* backend : {cpu, gpu}) {
      const Buffer store = StoredKeys(backend, values);
      if (!store) return -1;
      const uint8_t* chunk = store.data();
      SumTask task = {{&chunk, count, dim, DType::kFloat16}, count, unit, windows.view()};
      std::vector<double>& out = sums[backend == gpu];
      out.resize(task.windows.count * dim);
      task.sums = out.data();
      if (backend->Sum(&task, 1) != Outcome::kDone) return -1;
    }
    differing += sums[0] != sums[1];
  }
  return differing;
}

// Random heads of stored keys, all kinds and lengths: scores that differ, and places; -1 for an error.
int DifferingScores(const SuiteOptions& options, Backend* cpu, Backend* gpu) {
  Rng rng(11);
  int differing = 0;
  for (int i = 0; i < options.items / 20; ++i) {
    const int dim = kDeviceHeadDims[Pick(&rng, 0, 5)], count = Pick(&rng, 1, options.small ? 700 : 9000);
    const std::vector<float> values = Keys(count, dim, rng());
    const int64_t window = Pick(&rng, 0, 1) * Pick(&rng, 64, 700), kept = Pick(&rng, 0, count);
    const MadeUpWindows windows(count, window, rng() % 2);
    const std::vector<float> anchors = Gaussian(dim * static_cast<int>(windows.view().count), rng());
    const auto kind = static_cast<KeyScore>(Pick(&rng, 0, 6));
    std::vector<float> scores[2];
    std::vector<uint32_t> places[2];
    for (Backend* backend : {cpu, gpu}) {
      const int which = backend == gpu;
      const Buffer store = StoredKeys(backend, values);
      if (!store) return -1;
      const uint8_t* chunk = store.data();
      scores[which].resize(count);
      const ScoreTask score = {
          {&chunk, count, dim, DType::kFloat16}, count, kind, anchors.data(), windows.view(), scores[which].data()};
      const SelectTask select = {scores[which].data(), count, kept, &places[which]};
      if (backend->Score(&score, 1) != Outcome::kDone || backend->Select(&select, 1) != Outcome::kDone) return -1;
    }
    differing += memcmp(scores[0].data(), scores[1].data(), count * sizeof(float)) != 0 || places[0] != places[1];
  }
  return differing;
}

// Random heads kept low-rank: codes, residuals and rebuilt rows that differ; -1 for an error.
int DifferingLowRank(const SuiteOptions& options, Backend* cpu, Backend* gpu) {
  Rng rng(13);
  int differing = 0;
  for (int i = 0; i < options.items / 20; ++i) {
    const int dim = kDeviceHeadDims[Pick(&rng, 0, 5)], rank = Pick(&rng, 1, dim),
              count = Pick(&rng, 1, options.small ? 90 : 900);
    const auto dtype = static_cast<DType>(Pick(&rng, 0, 2));
    const std::vector<double> frequencies = Frequencies(dim);
    const RopeTurns rope = {Pick(&rng, 0, 2) > 0 ? frequencies.data() : nullptr, Pick(&rng, 0, 1) == 1};
    const std::vector<float> basis = RandomBasis(dim, rank, rng());
    const std::vector<float> rows = Gaussian(static_cast<size_t>(count) * dim, rng());
    const std::vector<int> lengths = {count, Pick(&rng, 1, 40), Pick(&rng, 1, 40)};
    std::vector<int32_t> places, positions;
    for (int p = 0; p < count; ++p) {
      places.push_back(Pick(&rng, 0, count + lengths[1] + lengths[2] - 1));
      positions.push_back(Pick(&rng, 0, 1 << 20));
    }
    const uint64_t seed = rng();
    std::vector<uint8_t> codes[2];
    std::vector<float> residuals[2], rebuilt[2];
    for (Backend* backend : {cpu, gpu}) {
      const int which = backend == gpu;
      LowRankHead head(backend, dim, rank, dtype, lengths, 0, seed);
      head.rows.rope = rope;
      codes[which].resize(static_cast<size_t>(count) * rank * SizeOf(dtype));
      residuals[which].resize(rows.size());
      const Buffer out = backend->Allocate(rows.size() * sizeof(float), MemorySpace::kStore);
      if (!head.done || !out) return -1;
      auto* const to = reinterpret_cast<float*>(out.data());
      const ProjectTask project = {basis.data(),           dim, rank, rows.data(), count, dtype, codes[which].data(),
                                   residuals[which].data()};
      const RebuildTask rebuild = {head.rows, places.data(), positions.data(), count, to};
      if (backend->Project(&project, 1) != Outcome::kDone || backend->Rebuild(&rebuild, 1) != Outcome::kDone) return -1;
      rebuilt[which].assign(to, to + rows.size());
    }
    differing += codes[0] != codes[1] || residuals[0] != residuals[1] || rebuilt[0] != rebuilt[1];
  }
  return differing;
}

// Random bases that learn from random rows; -1 for an error.
int DifferingLearning(const SuiteOptions& options, Backend* cpu, Backend* gpu) {
  Rng rng(17);
  int differing = 0;
  for (int i = 0; i < options.items / 50; ++i) {
    const int dim = kDeviceHeadDims[Pick(&rng, 0, 5)], rank = Pick(&rng, 1, dim);
    OjaOptions oja;
    oja.interval = Pick(&rng, 0, 1) == 0 ? 32 : Pick(&rng, 1, 128);
    oja.relative = Pick(&rng, 0, 3) > 0;  // else steps are large
    oja.error_threshold = Pick(&rng, 0, 3) == 0 ? .3 : 0;
    const int count = Pick(&rng, 1, options.small ? 3 : 40) * oja.interval;
    const std::vector<float> start = OrthonormalBasis(dim, rank, rng()), rows = Keys(count, dim, rng());
    std::vector<float> learnt[2];
    OjaStats stats[2];
    for (Backend* backend : {cpu, gpu}) {
      const int which = backend == gpu;
      learnt[which] = start;
      const LearnTask task = {oja, dim, rank, learnt[which].data(), rows.data(), count, &stats[which]};
      if (backend->Learn(&task, 1) != Outcome::kDone) return -1;
    }
    differing += learnt[0] != learnt[1] || stats[0].updates != stats[1].updates ||
                 stats[0].large_steps != stats[1].large_steps || stats[0].residual_energy != stats[1].residual_energy;
  }
  return differing;
}

// Searches that rebuild the keys which they score; -1 for an error.
int DifferingLowRankSearches(const SuiteOptions& options, Backend* cpu, Backend* gpu) {
  Rng rng(19);
  int differing = 0;
  for (int i = 0; i < options.items / 50; ++i) {
    const int dim = kDeviceHeadDims[Pick(&rng, 0, 5)], rank = Pick(&rng, 1, dim);
    const int keys = Pick(&rng, 1, options.small ? 4 : 40) * 256, group = Pick(&rng, 1, 8), dense = Pick(&rng, 0, 40);
    const auto dtype = static_cast<DType>(Pick(&rng, 0, 2));
    const std::vector<double> frequencies = Frequencies(dim);
    const RopeTurns rope = {Pick(&rng, 0, 1) == 0 ? frequencies.data() : nullptr, Pick(&rng, 0, 1) == 1};
    const auto codec = RandomCodec(&rng, dim);
    const std::vector<float> values = Keys(keys, dim, rng()),
                             queries = Gaussian(static_cast<size_t>(group) * dim, rng());
    SearchParams params = RandomParams(&rng, false);
    if (Pick(&rng, 0, 3) == 0) params.method = Method::kExact, params.with_candidates = false;
    const uint64_t seed = rng();
    SearchOutput outputs[2];
    for (Backend* backend : {cpu, gpu}) {
      const Buffer store = StoredKeys(backend, values);
      Zone zone(backend, codec, keys, store.data());
      if (!store || !zone.codes || zone.Encode() != Outcome::kDone) return -1;
      const LowRankZone low(backend, dim, rank, dtype, keys, rope, seed);
      if (!low.head.done || !low.positions) return -1;
      SearchTask task = zone.Task(queries.data(), group, false, dense);
      low.AddTo(&task);
      if (backend->Search(&task, 1, params, &outputs[backend == gpu]) != Outcome::kDone) return -1;
    }
    differing += !Same(outputs[0], outputs[1]);
  }
  return differing;
}

// More memory than there is: refused, and the backend goes on. Counts what went wrong.
int FullDevice(Backend* gpu) {
  int wrong = 0;
  for (const MemorySpace space : {MemorySpace::kCodes, MemorySpace::kStore})
    wrong += bool(gpu->Allocate(size_t{1} << 46, space));
  const Buffer small = gpu->Allocate(1000, MemorySpace::kCodes);
  wrong += !small || gpu->Zero(small.data(), small.size()) != Outcome::kDone || !gpu->loss().empty();
  return wrong;
}

}  // namespace

nlohmann::ordered_json RunChecks(const SuiteOptions& options, Backend* cpu, Backend* gpu) {
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  const auto check = [&](const char* name, int count, const std::function<int()>& wrong) {
    const int found = wrong();
    checks.push_back({{"name", name}, {"count", count}, {"wrong", found}, {"passed", found == 0}});
    std::fprintf(stderr, "%s: %s (%d wrong)\n", name, found == 0 ? "passed" : "FAILED", found);
  };
  check("codes equal the CPU's", 36, [&] { return DifferingCodeBytes(cpu, gpu); });
  check("random ragged items equal the CPU's", options.items, [&] { return DifferingItems(options, cpu, gpu); });
  check("repeated searches equal the CPU's", options.items / 20, [&] { return DifferingRepeats(options, cpu, gpu); });
  check("sums of keys equal the CPU's", options.items / 20, [&] { return DifferingSums(options, cpu, gpu); });
  check("scores and retained places equal the CPU's", options.items / 20,
        [&] { return DifferingScores(options, cpu, gpu); });
  check("low-rank codes and rows equal the CPU's", options.items / 20,
        [&] { return DifferingLowRank(options, cpu, gpu); });
  check("learnt bases equal the CPU's", options.items / 50, [&] { return DifferingLearning(options, cpu, gpu); });
  check("searches over low-rank keys equal the CPU's", options.items / 50,
        [&] { return DifferingLowRankSearches(options, cpu, gpu); });
  check("no graph of a search failed", 1, [&] { return FailedGraphs(gpu); });
  if (!options.small) check("memory that runs out is refused", 3, [&] { return FullDevice(gpu); });
  return checks;
}

}  // namespace seine::device
