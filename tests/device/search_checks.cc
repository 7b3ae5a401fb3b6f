// Searches of the device against the CPU's: sets, scores, masses and candidates bit for bit.
#include <algorithm>
#include <mutex>
#include <string>
#include <thread>

#include "kernels/codecs/kinds/balanced.h"
#include "kernels/codecs/kinds/rsq.h"
#include "tests/device/draws.h"
#include "tests/device/same.h"
#include "tests/device/suite.h"
#include "tests/kernels/low_rank_data.h"
#include "tests/kernels/random_data.h"

namespace seine::device {
namespace {

// Settings by which a batch of random items is drawn.
struct Drawing {
  int planned = 0;              // items
  int least = 64, most = 4096;  // keys of each
  int each = 25;                // items a batch
};

// Batches of one head_dim, each from a seed of its own, until all are done or time is up. draw(rng, collision) gives
// the settings of a batch; finish(task, params) what an index sets of a task by them.
template <typename Draw, typename Finish>
PartResult CompareBatches(const Rig& rig, const Drawing& drawing, Draw draw, Finish finish) {
  PartResult result;
  result.planned = drawing.planned;
  for (uint64_t seed = rig.options.seed; result.count < result.planned && !rig.Late(); ++seed) {
    Rng rng(seed);
    bool collision = false;
    const SearchParams params = draw(&rng, &collision);
    const int dim = DrawDim(&rng, rig.options);
    const auto rsq = MakeRsqCodec({.head_dim = dim});
    std::vector<std::unique_ptr<Item>> items;
    const int count = static_cast<int>(std::min<int64_t>(result.planned - result.count, drawing.each));
    for (int i = 0; i < count; ++i) {
      const auto codec = collision ? rsq : DrawCodec(&rng, rig.options, dim);
      items.push_back(std::make_unique<Item>(&rng, rig, codec, drawing.least, drawing.most));
      if (params.method == Method::kExact) items.back()->with_keys = true;
      if (!items.back()->done) return Fail(&result, "an item has no memory: " + items.back()->Shape()), result;
    }
    std::vector<SearchTask> tasks[2];
    for (int which = 0; which < 2; ++which) {
      for (const auto& item : items) {
        tasks[which].push_back(item->Task(which));
        finish(params, &tasks[which].back());
      }
    }
    if (!CompareSearches(rig, items, tasks, params, seed, &result)) break;
  }
  return result;
}

void AsItIs(const SearchParams&, SearchTask*) {}

PartResult RandomItems(const Rig& rig) {
  const Drawing drawing = {rig.options.items, 64, rig.options.small ? 1024 : 4096, rig.options.small ? 5 : 25};
  return CompareBatches(
      rig, drawing,
      [&](Rng* rng, bool* collision) {
        *collision = Pick(rng, 0, 3) == 0;
        return DrawParams(rng, rig.options, *collision);
      },
      AsItIs);
}

// As an index searches by default, short zones read whole and few candidates all scored among them: codes of one bit a
// coordinate, shares of the codec's own, summed softmax weights of a group.
PartResult DefaultItems(const Rig& rig) {
  SuiteOptions one_bit = rig.options;
  if (!one_bit.bits) one_bit.bits = Bits::kOne;
  const Rig same = {one_bit, rig.cpu, rig.gpu, rig.deadline};
  const Drawing drawing = {std::max(4, rig.options.items / 10), 64, rig.options.small ? 6144 : 24576, 4};
  return CompareBatches(
      same, drawing,
      [&](Rng* rng, bool*) {
        SearchParams params;
        if (rig.options.reduce) params.gqa_reduce = *rig.options.reduce;
        if (Pick(rng, 0, 2) == 0) params.scope = Scope::kPerQHead;
        return params;
      },
      [](const SearchParams& params, SearchTask* task) {
        if (task->keys.chunks == nullptr) return;
        const CodeLayout& layout = task->codec->layout();
        const double usual = task->codec->DefaultCandidateFraction(task->num_keys);
        task->whole = ReadsWhole(params, task->group, task->num_keys);
        task->refine_all = !task->whole && RefinesAll(params, CandidatesWanted(params, layout, usual, task->num_keys));
      });
}

PartResult ExactItems(const Rig& rig) {
  const Drawing drawing = {std::max(4, rig.options.items / 20), 64, rig.options.small ? 1024 : 8192, 4};
  return CompareBatches(
      rig, drawing,
      [&](Rng* rng, bool*) {
        SearchParams params = DrawParams(rng, rig.options, false);
        params.method = Method::kExact;
        params.recall_target = 0;
        params.with_candidates = false;
        return params;
      },
      AsItIs);
}

// Zones of many blocks, where the threshold is sampled.
PartResult LongItems(const Rig& rig) {
  const Drawing drawing = {std::max(3, rig.options.items / 250), 41024, rig.options.small ? 45056 : 262144, 2};
  return CompareBatches(
      rig, drawing,
      [&](Rng* rng, bool* collision) {
        *collision = Pick(rng, 0, 5) == 0;
        SearchParams params = DrawParams(rng, rig.options, *collision);
        if (Pick(rng, 0, 1) == 0) params.candidate_fraction = 0;
        return params;
      },
      AsItIs);
}

// Two searches by turns, each as often as it takes to run plainly, as it is captured, and twice from its graph
// (launch_cache.h), always with other queries.
PartResult RepeatedSearches(const Rig& rig) {
  PartResult result;
  result.planned = std::max(1, rig.options.items / 20) * 8;
  for (uint64_t seed = rig.options.seed; result.count < result.planned && !rig.Late(); ++seed) {
    Rng rng(seed);
    const auto codec = DrawCodec(&rng, rig.options, DrawDim(&rng, rig.options));
    std::vector<std::unique_ptr<Item>> items;
    items.push_back(std::make_unique<Item>(&rng, rig, codec, 64, rig.options.small ? 1024 : 8192));
    Item& item = *items[0];
    if (!item.done) return Fail(&result, "an item has no memory: " + item.Shape()), result;
    const SearchParams params[] = {DrawParams(&rng, rig.options, false), DrawParams(&rng, rig.options, false)};
    for (int turn = 0; turn < 8; ++turn) {
      item.queries = Gaussian(item.queries.size(), rng());
      const std::vector<SearchTask> tasks[] = {{item.Task(0)}, {item.Task(1)}};
      if (!CompareSearches(rig, items, tasks, params[turn % 2], seed, &result)) return result;
    }
  }
  return result;
}

// Callers with items of their own, all at once on one backend.
PartResult ConcurrentSearches(const Rig& rig) {
  constexpr int kCallers = 6;
  PartResult result;
  result.planned = std::max(kCallers, rig.options.items / 10);
  std::mutex mutex;  // of result
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      for (uint64_t seed = rig.options.seed + caller; !rig.Late(); seed += kCallers) {
        Rng rng(seed);
        const auto codec = DrawCodec(&rng, rig.options, DrawDim(&rng, rig.options));
        std::vector<std::unique_ptr<Item>> items;
        items.push_back(std::make_unique<Item>(&rng, rig, codec, 64, rig.options.small ? 1024 : 8192));
        const SearchParams params = DrawParams(&rng, rig.options, false);
        const std::vector<SearchTask> tasks[] = {{items[0]->Task(0)}, {items[0]->Task(1)}};
        PartResult one;
        if (!items[0]->done) Fail(&one, "an item has no memory: " + items[0]->Shape());
        if (items[0]->done) CompareSearches(rig, items, tasks, params, seed, &one);
        const std::lock_guard<std::mutex> lock(mutex);
        if (!one.error.empty()) Fail(&result, one.error);
        if (one.count > 0) Count(&result, one.first, one.first ? one.first->shape : "");
        if (!result.error.empty() || result.count >= result.planned) return;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  return result;
}

// Searches that rebuild the keys which they score.
PartResult LowRankSearches(const Rig& rig) {
  PartResult result;
  result.planned = std::max(2, rig.options.items / 50);
  for (uint64_t seed = rig.options.seed; result.count < result.planned && !rig.Late(); ++seed) {
    Rng rng(seed);
    const int dim = DrawDim(&rng, rig.options), rank = Pick(&rng, 1, dim);
    const int drawn = Pick(&rng, 1, rig.options.small ? 4 : 40) * 256,
              keys = rig.options.keys > 0 ? rig.options.keys : drawn;
    const int group = rig.options.group > 0 ? rig.options.group : Pick(&rng, 1, 8), dense = Pick(&rng, 0, 40);
    const auto dtype = static_cast<DType>(Pick(&rng, 0, 2));
    const std::vector<double> frequencies = Frequencies(dim);
    const RopeTurns rope = {Pick(&rng, 0, 1) == 0 ? frequencies.data() : nullptr, Pick(&rng, 0, 1) == 1};
    const auto codec = DrawCodec(&rng, rig.options, dim);
    const std::vector<float> values = Keys(keys, dim, rng()),
                             queries = Gaussian(static_cast<size_t>(group) * dim, rng());
    SearchParams params = DrawParams(&rng, rig.options, false);
    if (Pick(&rng, 0, 3) == 0) params.method = Method::kExact, params.with_candidates = false;
    const uint64_t head = rng();
    SearchOutput outputs[2];
    for (Backend* backend : {rig.cpu, rig.gpu}) {
      const Buffer store = StoredKeys(backend, values);
      Zone zone(backend, codec, keys, store.data());
      if (!store || !zone.codes || zone.Encode() != Outcome::kDone) return Fail(&result, "encoding"), result;
      const LowRankZone low(backend, dim, rank, dtype, keys, rope, head);
      if (!low.head.done || !low.positions) return Fail(&result, "memory of low-rank keys"), result;
      SearchTask task = zone.Task(queries.data(), group, false, dense);
      low.AddTo(&task);
      const Outcome o = backend->Search(&task, 1, params, &outputs[backend == rig.gpu]);
      if (o != Outcome::kDone) return Fail(&result, "search: " + NameOf(o)), result;
    }
    Count(&result, FirstDifference(outputs[0], outputs[1]),
          std::to_string(keys) + " keys, dim " + std::to_string(dim) + ", rank " + std::to_string(rank) + ", group " +
              std::to_string(group) + "; --seed " + std::to_string(seed));
  }
  return result;
}

}  // namespace

std::vector<Part> SearchChecks(const SuiteOptions&) {
  return {{"items", "random ragged items equal the CPU's", 240, false, RandomItems},
          {"defaults", "searches by default settings equal the CPU's", 90, false, DefaultItems},
          {"exact", "exact searches over plain keys equal the CPU's", 60, false, ExactItems},
          {"long", "zones of more than 40,960 keys equal the CPU's", 90, false, LongItems},
          {"repeats", "searches that come again equal the CPU's", 60, false, RepeatedSearches},
          {"streams", "callers at once get the CPU's answers", 60, false, ConcurrentSearches},
          {"lowrank-searches", "searches over low-rank keys equal the CPU's", 60, false, LowRankSearches}};
}

}  // namespace seine::device
