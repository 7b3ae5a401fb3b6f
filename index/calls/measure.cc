// Moments of what sequences hold and were asked: a profile's layer without a recorded trace.
#include "index/calls/measure.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "index/sequence/layer_lock.h"
#include "kernels/stop.h"
#include "profile/field_error.h"
#include "profile/profile.h"

namespace seine {

namespace {

// A few thousand tokens make a profile; of longer sequences, windows are taken all along.
constexpr int64_t kMostWindows = 256;

// Adds stored keys, and values where they are kept, window by window, so that no append waits for more than the copy
// of one. A sequence that is cut meanwhile ends there; a window of which a head has evicted tokens is passed over.
// Returns the windows added; StopStatus().
absl::StatusOr<int64_t> AddStored(const Layer& layer, const IndexConfig& config, const Rope& rope,
                                  ProfileBuilder* builder) {
  const Geometry& g = config.geometry;
  const int64_t sink = config.zones.sink, row = int64_t{g.num_kv_heads} * g.head_dim;
  const bool with_values = config.kv_store == KvStore::kKeysValues;
  std::vector<float> keys(kWindowTokens * row), values(with_values ? kWindowTokens * row : 0);
  int64_t length = 0;
  {
    const auto lock = ReadLock::Of(layer);
    if (!lock.ok()) return lock.status();
    length = layer.length();
  }
  const int64_t held = std::max<int64_t>(length - sink, 0) / kWindowTokens, taken = std::min(held, kMostWindows);
  int64_t added = 0;
  for (int64_t i = 0; i < taken; ++i) {
    const int64_t position = sink + i * held / taken * kWindowTokens;
    if (absl::Status s = StopStatus(); !s.ok()) return s;
    {
      const auto lock = ReadLock::Of(layer);
      if (!lock.ok()) return lock.status();
      if (position + kWindowTokens > layer.length()) return added;
      if (!layer.CopyStored(position, kWindowTokens, keys.data(), with_values ? values.data() : nullptr)) continue;
    }
    ++added;
    builder->AddKeys(0, keys.data(), kWindowTokens, position, rope);
    if (with_values) builder->AddValues(0, values.data(), kWindowTokens);
  }
  return added;
}

// Returns the steps added.
size_t AddSeen(const Layer& layer, const Geometry& g, const Rope& rope, ProfileBuilder* builder) {
  const SeenQueries seen = layer.queries().Seen();
  for (size_t i = 0; i < seen.positions.size() && !StopRequested(); ++i) {
    const float* queries = seen.rows.data() + static_cast<int64_t>(i) * g.num_q_heads * g.head_dim;
    builder->AddQueries(0, queries, 1, seen.positions[i], rope);
  }
  return seen.positions.size();
}

}  // namespace

absl::StatusOr<Profile> MeasureLayer(const Context& context, const Checks& checks, const Sequences& sequences,
                                     absl::Span<const SequenceHandle> handles, int layer) {
  const IndexConfig& config = context.config;
  if (config.kv_store == KvStore::kNone) {
    return FieldError(absl::StatusCode::kFailedPrecondition, "sequences",
                      "the index keeps no keys that could be measured");
  }
  if (absl::Status s = checks.CheckLayer(layer); !s.ok()) return s;
  if (handles.empty()) return BadField("sequences", "none given");
  std::vector<SequenceRef> found;
  std::unordered_set<const Sequence*> seen;
  for (size_t i = 0; i < handles.size(); ++i) {
    absl::StatusOr<SequenceRef> sequence = sequences.Find(handles[i], absl::StrCat("sequences[", i, "]"));
    if (!sequence.ok()) return sequence.status();
    if (!seen.insert(sequence->get()).second) {
      return BadField(absl::StrCat("sequences[", i, "]"), "given twice");
    }
    found.push_back(*std::move(sequence));
  }
  const Geometry& g = config.geometry;
  ProfileBuilder builder(1, g.num_q_heads, g.num_kv_heads, g.head_dim);
  int64_t windows = 0;
  size_t steps = 0;
  for (const SequenceRef& sequence : found) {
    const absl::StatusOr<int64_t> added = AddStored(*sequence->layers[layer], config, g.RopeOf(layer), &builder);
    if (!added.ok()) return added.status();
    windows += *added;
    steps += AddSeen(*sequence->layers[layer], g, g.RopeOf(layer), &builder);
  }
  if (absl::Status s = StopStatus(); !s.ok()) return s;
  if (windows == 0) {
    return FieldError(absl::StatusCode::kFailedPrecondition, "sequences",
                      absl::StrCat("layer ", layer, " holds no ", kWindowTokens, " tokens beyond the sink"));
  }
  if (steps == 0) {
    return FieldError(
        absl::StatusCode::kFailedPrecondition, "sequences",
        absl::StrCat("no query of layer ", layer, " was seen; none is kept where all that it could find is dense"));
  }
  return builder.Finish();
}

}  // namespace seine
