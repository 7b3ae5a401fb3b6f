// Random items and settings of the checks: an item lies on both backends.
#ifndef SEINE_TESTS_DEVICE_DRAWS_H_
#define SEINE_TESTS_DEVICE_DRAWS_H_

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/device/suite.h"
#include "tests/device/zone.h"

namespace seine::device {

using Rng = std::mt19937_64;

inline int Pick(Rng* rng, int low, int high) { return low + static_cast<int>((*rng)() % (high - low + 1)); }

int DrawDim(Rng* rng, const SuiteOptions& options);
std::shared_ptr<const Codec> DrawCodec(Rng* rng, const SuiteOptions& options, int dim);
SearchParams DrawParams(Rng* rng, const SuiteOptions& options, bool collision);

// Keys in a backend's store, fp16.
Buffer StoredKeys(Backend* backend, const std::vector<float>& keys);

// A zone on both backends with keys of [least, most], or as many as the options say.
struct Item {
  Item(Rng* rng, const Rig& rig, std::shared_ptr<const Codec> codec, int least_keys, int most_keys);
  SearchTask Task(int which) const { return zones[which]->Task(queries.data(), group, with_keys, dense); }
  std::string Shape() const;

  std::vector<Buffer> stores;
  std::vector<std::unique_ptr<Zone>> zones;  // the CPU's, the device's
  std::vector<float> queries;
  int keys = 0, group = 1, dense = 0;
  bool with_keys = true, done = true;
};

// An item, the settings of its search, and the seed that draws them again.
std::string ShapeOf(const Item& item, const SearchParams& params, uint64_t seed);

// Both backends' answers to the tasks, compared one by one. false: a call failed, as `result` says.
bool CompareSearches(const Rig& rig, const std::vector<std::unique_ptr<Item>>& items,
                     const std::vector<SearchTask> (&tasks)[2], const SearchParams& params, uint64_t seed,
                     PartResult* result);

}  // namespace seine::device

#endif  // SEINE_TESTS_DEVICE_DRAWS_H_
