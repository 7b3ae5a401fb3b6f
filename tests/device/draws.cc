#include "tests/device/draws.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "kernels/codecs/kinds/balanced.h"
#include "kernels/codecs/kinds/registry.h"
#include "kernels/codecs/kinds/rsq.h"
#include "tests/device/same.h"
#include "tests/kernels/random_data.h"

namespace seine::device {
namespace {

Bits DrawBits(Rng* rng, const SuiteOptions& options) {
  if (options.bits) return *options.bits;
  if (Pick(rng, 0, 1) == 1) return Bits::kRsq;
  return Pick(rng, 0, 1) == 0 ? Bits::kHalf : Bits::kOne;
}

}  // namespace

int DrawDim(Rng* rng, const SuiteOptions& options) {
  const int drawn = kTestHeadDims[Pick(rng, 0, static_cast<int>(std::size(kTestHeadDims)) - 1)];
  return options.dim > 0 ? options.dim : drawn;
}

std::shared_ptr<const Codec> DrawCodec(Rng* rng, const SuiteOptions& options, int dim) {
  const Bits bits = DrawBits(rng, options);
  if (bits != Bits::kRsq) return MakeBalancedCodec(RandomBalanced(dim, (*rng)(), bits == Bits::kHalf));
  RsqOptions o;
  o.head_dim = dim;
  o.seed = (*rng)();
  o.centre = static_cast<Centre>(Pick(rng, 0, 2));
  o.centre_window = Pick(rng, 0, 3) == 0 ? 128 : 64;
  return MakeRsqCodec(o);
}

SearchParams DrawParams(Rng* rng, const SuiteOptions& options, bool collision) {
  SearchParams p;
  p.top_k = Pick(rng, 1, 120);
  p.candidate_fraction = Pick(rng, 1, 30) * .01;
  if (Pick(rng, 0, 3) == 0) p.recall_target = Pick(rng, 30, 99) * .01;
  p.rescore_k = Pick(rng, 0, 300);
  p.coarse = collision ? Coarse::kCollision : Coarse::kSignIp;
  p.scope = static_cast<Scope>(Pick(rng, 0, 1));
  p.gqa_reduce = static_cast<GqaReduce>(Pick(rng, 0, 2));
  if (options.reduce) p.gqa_reduce = *options.reduce;
  if (Pick(rng, 0, 3) == 0) p.mass_p = static_cast<float>(Pick(rng, 5, 99)) * .01f;
  p.with_candidates = Pick(rng, 0, 1) == 1;
  return p;
}

Buffer StoredKeys(Backend* backend, const std::vector<float>& keys) {
  Buffer store = backend->Allocate(keys.size() * 2, MemorySpace::kStore);
  for (size_t i = 0; store && i < keys.size(); ++i) {
    const _Float16 half = static_cast<_Float16>(keys[i]);
    memcpy(store.data() + i * 2, &half, 2);
  }
  return store;
}

Item::Item(Rng* rng, const Rig& rig, std::shared_ptr<const Codec> codec, int least_keys, int most_keys) {
  const int dim = codec->layout().head_dim, unit = std::max(64, codec->layout().centre_window);
  if (rig.options.keys > 0) least_keys = most_keys = rig.options.keys;
  keys = Pick(rng, std::max(1, least_keys / unit), std::max(1, most_keys / unit)) * unit;
  group = Pick(rng, 1, 8);
  if (rig.options.group > 0) group = rig.options.group;
  with_keys = Pick(rng, 0, 3) > 0;
  dense = Pick(rng, 0, 1) * Pick(rng, 1, std::min(keys, 70));
  std::vector<float> values = Keys(keys, dim, (*rng)());
  if (Pick(rng, 0, 3) == 0) {  // ties: one window again and again
    for (int i = 64; i < keys; ++i) std::copy_n(values.begin() + i % 64 * dim, dim, values.begin() + i * dim);
  }
  queries = Gaussian(static_cast<size_t>(group) * dim, (*rng)());
  for (Backend* backend : {rig.cpu, rig.gpu}) {
    stores.push_back(StoredKeys(backend, values));
    zones.push_back(std::make_unique<Zone>(backend, codec, keys, stores.back().data()));
    done = done && stores.back() && zones.back()->codes && zones.back()->Encode() == Outcome::kDone;
  }
}

std::string Item::Shape() const {
  const CodeLayout& layout = zones[0]->codec->layout();
  const bool balanced = zones[0]->codec->Tables().kind == CodecKind::kBalanced;
  return std::to_string(keys) + " keys, dim " + std::to_string(layout.head_dim) + ", group " + std::to_string(group) +
         (balanced ? ", balanced, " : ", rsq, ") + std::to_string(layout.coarse_bytes) + " coarse bytes" +
         (with_keys ? "" : ", keys not stored") + (dense > 0 ? ", dense " + std::to_string(dense) : "");
}

std::string ShapeOf(const Item& item, const SearchParams& p, uint64_t seed) {
  const char* reduces[] = {"sum", "max", "mean"};
  std::string text = item.Shape() + "; top_k " + std::to_string(p.top_k) + ", beta " +
                     std::to_string(p.candidate_fraction) + ", refine " + std::to_string(p.rescore_k) +
                     (p.coarse == Coarse::kCollision ? ", collision" : ", sign_ip") +
                     (p.scope == Scope::kPerQHead ? ", a set a query head" : ", a set a KV head, reduce ") +
                     (p.scope == Scope::kPerQHead ? "" : reduces[static_cast<int>(p.gqa_reduce)]);
  if (p.method == Method::kExact) text += ", exact";
  if (p.recall_target > 0) text += ", recall target " + std::to_string(p.recall_target);
  if (p.mass_p > 0) text += ", mass " + std::to_string(static_cast<double>(p.mass_p));
  return text + "; --seed " + std::to_string(seed);
}

bool CompareSearches(const Rig& rig, const std::vector<std::unique_ptr<Item>>& items,
                     const std::vector<SearchTask> (&tasks)[2], const SearchParams& params, uint64_t seed,
                     PartResult* result) {
  const int count = static_cast<int>(items.size());
  std::vector<SearchOutput> outputs[2] = {std::vector<SearchOutput>(count), std::vector<SearchOutput>(count)};
  Backend* const backends[] = {rig.cpu, rig.gpu};
  for (int which = 0; which < 2; ++which) {
    const Outcome o = backends[which]->Search(tasks[which].data(), count, params, outputs[which].data());
    if (o != Outcome::kDone) {
      return Fail(result, std::string("search on the ") + (which == 0 ? "CPU: " : "device: ") + NameOf(o) + "; " +
                              ShapeOf(*items[0], params, seed));
    }
  }
  for (int i = 0; i < count; ++i) {
    Count(result, FirstDifference(outputs[0][i], outputs[1][i]), ShapeOf(*items[i], params, seed));
  }
  return true;
}

}  // namespace seine::device
