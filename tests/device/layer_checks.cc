// A layer's other work on the device against the CPU's: codes byte for byte, sums, scores, subspaces; graphs, and
// memory that runs out.
#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/codecs/kinds/balanced.h"
#include "kernels/codecs/kinds/rsq.h"
#include "tests/device/draws.h"
#include "tests/device/same.h"
#include "tests/device/suite.h"
#include "tests/kernels/low_rank_data.h"
#include "tests/kernels/random_data.h"

namespace seine::device {
namespace {

std::string SeedOf(uint64_t seed) { return "; --seed " + std::to_string(seed); }

// Calls one(&rng, seed, &result) for each of `planned` items, from a seed of its own, until it says false.
template <typename One>
PartResult EachItem(const Rig& rig, int planned, One one) {
  PartResult result;
  result.planned = std::max(2, planned);
  for (uint64_t seed = rig.options.seed; result.count < result.planned && !rig.Late(); ++seed) {
    Rng rng(seed);
    if (!one(&rng, seed, &result)) break;
  }
  return result;
}

// Codes of a zone as bytes, brought back from wherever they lie.
bool CodesOf(const Zone& zone, std::vector<uint8_t>* out) {
  const Buffer back = zone.backend->Allocate(zone.codes.size(), MemorySpace::kStore);
  const CopyTask copy = {back.data(), zone.codes.data(), zone.codes.size()};
  if (!back || zone.backend->Copy(&copy, 1) != Outcome::kDone) return false;
  out->assign(back.data(), back.data() + back.size());
  return true;
}

PartResult Codes(const Rig& rig) {
  return EachItem(rig, std::min(rig.options.items, 60), [&](Rng* rng, uint64_t seed, PartResult* result) {
    const int dim = DrawDim(rng, rig.options);
    const auto codec = DrawCodec(rng, rig.options, dim);
    const int unit = std::max(kWindowTokens, codec->layout().centre_window);  // whole ones are encoded
    const int keys = (rig.options.small ? 11 : 36) * unit;
    const std::vector<float> values = Keys(keys, dim, (*rng)());
    std::vector<uint8_t> codes[2];
    for (Backend* backend : {rig.cpu, rig.gpu}) {
      const Buffer store = StoredKeys(backend, values);
      Zone zone(backend, codec, keys, store.data());
      if (!store || !zone.codes) return Fail(result, "memory of codes");
      if (backend->Zero(zone.codes.data(), zone.codes.size()) != Outcome::kDone) return Fail(result, "zeroing codes");
      if (zone.Encode() != Outcome::kDone) return Fail(result, "encoding");
      if (!CodesOf(zone, &codes[backend == rig.gpu])) return Fail(result, "bringing codes back");
    }
    Count(result, FirstDifference("codes", codes[0], codes[1]),
          std::to_string(keys) + " keys, dim " + std::to_string(dim) + ", " +
              std::to_string(codec->layout().coarse_bytes) + " coarse bytes" + SeedOf(seed));
    return true;
  });
}

// Random heads of stored keys, all lengths.
PartResult Sums(const Rig& rig) {
  return EachItem(rig, rig.options.items / 20, [&](Rng* rng, uint64_t seed, PartResult* result) {
    const int dim = DrawDim(rng, rig.options), count = Pick(rng, 1, rig.options.small ? 700 : 9000);
    const std::vector<float> values = Keys(count, dim, (*rng)());
    const int64_t window = Pick(rng, 0, 1) * Pick(rng, 1, 5000);
    const MadeUpWindows windows(count, window, (*rng)() % 2);
    const bool unit = Pick(rng, 0, 1) == 1;
    std::vector<double> sums[2];
    for (Backend* backend : {rig.cpu, rig.gpu}) {
      const Buffer store = StoredKeys(backend, values);
      if (!store) return Fail(result, "memory of keys");
      const uint8_t* chunk = store.data();
      SumTask task = {{&chunk, count, dim, DType::kFloat16}, count, unit, windows.view()};
      std::vector<double>& out = sums[backend == rig.gpu];
      out.resize(task.windows.count * dim);
      task.sums = out.data();
      if (const Outcome o = backend->Sum(&task, 1); o != Outcome::kDone) return Fail(result, "sum: " + NameOf(o));
    }
    Count(result, FirstDifference("sums", sums[0], sums[1]),
          std::to_string(count) + " keys, dim " + std::to_string(dim) + ", windows of " + std::to_string(window) +
              SeedOf(seed));
    return true;
  });
}

// Random heads of stored keys, all kinds of scores and lengths: scores and the places that are kept.
PartResult Scores(const Rig& rig) {
  return EachItem(rig, rig.options.items / 20, [&](Rng* rng, uint64_t seed, PartResult* result) {
    const int dim = DrawDim(rng, rig.options), count = Pick(rng, 1, rig.options.small ? 700 : 9000);
    const std::vector<float> values = Keys(count, dim, (*rng)());
    const int64_t window = Pick(rng, 0, 1) * Pick(rng, 64, 700), kept = Pick(rng, 0, count);
    const MadeUpWindows windows(count, window, (*rng)() % 2);
    const std::vector<float> anchors = Gaussian(dim * static_cast<int>(windows.view().count), (*rng)());
    const auto kind = static_cast<KeyScore>(Pick(rng, 0, 6));
    std::vector<float> scores[2];
    std::vector<uint32_t> places[2];
    for (Backend* backend : {rig.cpu, rig.gpu}) {
      const int which = backend == rig.gpu;
      const Buffer store = StoredKeys(backend, values);
      if (!store) return Fail(result, "memory of keys");
      const uint8_t* chunk = store.data();
      scores[which].resize(count);
      const ScoreTask score = {
          {&chunk, count, dim, DType::kFloat16}, count, kind, anchors.data(), windows.view(), scores[which].data()};
      const SelectTask select = {scores[which].data(), count, kept, &places[which]};
      Outcome o = backend->Score(&score, 1);
      if (o == Outcome::kDone) o = backend->Select(&select, 1);
      if (o != Outcome::kDone) return Fail(result, "score or selection: " + NameOf(o));
    }
    std::optional<Difference> first = FirstDifference("scores", scores[0], scores[1]);
    if (!first) first = FirstDifference("places", places[0], places[1]);
    Count(result, std::move(first),
          std::to_string(count) + " keys, dim " + std::to_string(dim) + ", kind " +
              std::to_string(static_cast<int>(kind)) + ", kept " + std::to_string(kept) + SeedOf(seed));
    return true;
  });
}

// Random heads kept low-rank: codes, residuals and rebuilt rows.
PartResult LowRank(const Rig& rig) {
  return EachItem(rig, rig.options.items / 20, [&](Rng* rng, uint64_t seed, PartResult* result) {
    const int dim = DrawDim(rng, rig.options), rank = Pick(rng, 1, dim),
              count = Pick(rng, 1, rig.options.small ? 90 : 900);
    const auto dtype = static_cast<DType>(Pick(rng, 0, 2));
    const std::vector<double> frequencies = Frequencies(dim);
    const RopeTurns rope = {Pick(rng, 0, 2) > 0 ? frequencies.data() : nullptr, Pick(rng, 0, 1) == 1};
    const std::vector<float> basis = RandomBasis(dim, rank, (*rng)());
    const std::vector<float> rows = Gaussian(static_cast<size_t>(count) * dim, (*rng)());
    const std::vector<int> lengths = {count, Pick(rng, 1, 40), Pick(rng, 1, 40)};
    std::vector<int32_t> places, positions;
    for (int p = 0; p < count; ++p) {
      places.push_back(Pick(rng, 0, count + lengths[1] + lengths[2] - 1));
      positions.push_back(Pick(rng, 0, 1 << 20));
    }
    const uint64_t head_seed = (*rng)();
    std::vector<uint8_t> codes[2];
    std::vector<float> residuals[2], rebuilt[2];
    for (Backend* backend : {rig.cpu, rig.gpu}) {
      const int which = backend == rig.gpu;
      LowRankHead head(backend, dim, rank, dtype, lengths, 0, head_seed);
      head.rows.rope = rope;
      codes[which].resize(static_cast<size_t>(count) * rank * SizeOf(dtype));
      residuals[which].resize(rows.size());
      const Buffer out = backend->Allocate(rows.size() * sizeof(float), MemorySpace::kStore);
      if (!head.done || !out) return Fail(result, "memory of rows");
      auto* const to = reinterpret_cast<float*>(out.data());
      const ProjectTask project = {basis.data(),           dim, rank, rows.data(), count, dtype, codes[which].data(),
                                   residuals[which].data()};
      const RebuildTask rebuild = {head.rows, places.data(), positions.data(), count, to};
      Outcome o = backend->Project(&project, 1);
      if (o == Outcome::kDone) o = backend->Rebuild(&rebuild, 1);
      if (o != Outcome::kDone) return Fail(result, "projection or reconstruction: " + NameOf(o));
      rebuilt[which].assign(to, to + rows.size());
    }
    std::optional<Difference> first = FirstDifference("codes", codes[0], codes[1]);
    if (!first) first = FirstDifference("residuals", residuals[0], residuals[1]);
    if (!first) first = FirstDifference("rebuilt rows", rebuilt[0], rebuilt[1]);
    Count(
        result, std::move(first),
        std::to_string(count) + " rows, dim " + std::to_string(dim) + ", rank " + std::to_string(rank) + SeedOf(seed));
    return true;
  });
}

// Random bases that learn from random rows.
PartResult Learning(const Rig& rig) {
  return EachItem(rig, rig.options.items / 50, [&](Rng* rng, uint64_t seed, PartResult* result) {
    const int dim = DrawDim(rng, rig.options), rank = Pick(rng, 1, dim);
    OjaOptions oja;
    oja.interval = Pick(rng, 0, 1) == 0 ? 32 : Pick(rng, 1, 128);
    oja.relative = Pick(rng, 0, 3) > 0;  // else steps are large
    oja.error_threshold = Pick(rng, 0, 3) == 0 ? .3 : 0;
    const int count = Pick(rng, 1, rig.options.small ? 3 : 40) * oja.interval;
    const std::vector<float> start = OrthonormalBasis(dim, rank, (*rng)()), rows = Keys(count, dim, (*rng)());
    std::vector<float> learnt[2];
    OjaStats stats[2];
    for (Backend* backend : {rig.cpu, rig.gpu}) {
      const int which = backend == rig.gpu;
      learnt[which] = start;
      const LearnTask task = {oja, dim, rank, learnt[which].data(), rows.data(), count, &stats[which]};
      if (const Outcome o = backend->Learn(&task, 1); o != Outcome::kDone)
        return Fail(result, "learning: " + NameOf(o));
    }
    std::optional<Difference> first = FirstDifference("basis", learnt[0], learnt[1]);
    if (!first && stats[0].updates != stats[1].updates)
      first = DifferAt("updates", TextOf(stats[0].updates), TextOf(stats[1].updates));
    if (!first && stats[0].large_steps != stats[1].large_steps)
      first = DifferAt("large steps", TextOf(stats[0].large_steps), TextOf(stats[1].large_steps));
    if (!first && stats[0].residual_energy != stats[1].residual_energy)
      first = DifferAt("residual energy", TextOf(stats[0].residual_energy), TextOf(stats[1].residual_energy));
    Count(
        result, std::move(first),
        std::to_string(count) + " rows, dim " + std::to_string(dim) + ", rank " + std::to_string(rank) + SeedOf(seed));
    return true;
  });
}

// Searches that come again, and then what the device's name says: graphs that could not be made or launched.
PartResult Graphs(const Rig& rig) {
  PartResult result;
  result.planned = 1;
  Rng rng(rig.options.seed);
  const auto codec = MakeRsqCodec({.head_dim = 64});
  const Item item(&rng, rig, codec, 64, 1024);
  if (!item.done) return Fail(&result, "memory of an item"), result;
  for (int turn = 0; turn < 4; ++turn) {
    const SearchTask task = item.Task(1);
    SearchOutput out;
    const Outcome o = rig.gpu->Search(&task, 1, SearchParams(), &out);
    if (o != Outcome::kDone) return Fail(&result, "search: " + NameOf(o)), result;
  }
  std::optional<Difference> first;
  const std::string name = rig.gpu->simd_target();
  if (name.find("graphs failed") != std::string::npos) first = DifferAt("the device's name", "no graph failed", name);
  Count(&result, std::move(first), "a search four times");
  return result;
}

// More memory than there is: refused, and the backend goes on.
PartResult FullDevice(const Rig& rig) {
  PartResult result;
  result.planned = 3;
  for (const MemorySpace space : {MemorySpace::kCodes, MemorySpace::kStore}) {
    const bool given = static_cast<bool>(rig.gpu->Allocate(size_t{1} << 46, space));
    std::optional<Difference> first;
    if (given) first = DifferAt("64 TiB", "refused", "given");
    Count(&result, std::move(first), space == MemorySpace::kCodes ? "the device's memory" : "page-locked memory");
  }
  const Buffer small = rig.gpu->Allocate(1000, MemorySpace::kCodes);
  std::optional<Difference> first;
  if (!small || rig.gpu->Zero(small.data(), small.size()) != Outcome::kDone || !rig.gpu->loss().empty())
    first = DifferAt("1,000 bytes afterwards", "given and zeroed", rig.gpu->loss());
  Count(&result, std::move(first), "the device's memory");
  return result;
}

}  // namespace

std::vector<Part> LayerChecks(const SuiteOptions&) {
  return {{"codes", "codes equal the CPU's", 60, false, Codes},
          {"sums", "sums of keys equal the CPU's", 60, false, Sums},
          {"scores", "scores and retained places equal the CPU's", 60, false, Scores},
          {"lowrank", "low-rank codes and rows equal the CPU's", 60, false, LowRank},
          {"learn", "learnt bases equal the CPU's", 60, false, Learning},
          {"graphs", "no graph of a search failed", 30, false, Graphs},
          {"memory", "memory that runs out is refused", 30, false, FullDevice}};
}

}  // namespace seine::device
