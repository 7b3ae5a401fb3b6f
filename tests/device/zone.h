// A head's zone in a backend's memory, from keys given in fp16.
#ifndef SEINE_TESTS_DEVICE_ZONE_H_
#define SEINE_TESTS_DEVICE_ZONE_H_

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/codecs/code.h"
#include "kernels/codecs/codec.h"
#include "kernels/ops/query/search.h"

namespace seine::device {

struct Zone {
  static constexpr int kSegmentKeys = 2048;

  // `stored` holds [num_keys, head_dim] fp16 in MemorySpace::kStore memory; nullptr in a task: no stored keys.
  Zone(Backend* owner, std::shared_ptr<const Codec> the_codec, int keys, const uint8_t* stored)
      : backend(owner), codec(std::move(the_codec)), num_keys(keys), chunk(stored) {
    const CodeLayout& layout = codec->layout();
    const int count = (num_keys + kSegmentKeys - 1) / kSegmentKeys;
    const size_t scan = CodeBytes(layout, kSegmentKeys, CodePart::kScan);
    const size_t fine = CodeBytes(layout, kSegmentKeys, CodePart::kFine);
    codes = backend->Allocate(count * (scan + fine), MemorySpace::kCodes);
    counts = backend->Allocate(static_cast<size_t>(layout.head_dim) / 8 * 256 * 4, MemorySpace::kCodes);
    if (!codes || !counts) return;
    for (int i = 0; i < count; ++i) {
      CodePlanes p;
      PlacePlanes(layout, kSegmentKeys, CodePart::kScan, codes.data() + i * scan, &p);
      PlacePlanes(layout, kSegmentKeys, CodePart::kFine, codes.data() + count * scan + i * fine, &p);
      planes.push_back(p);
      segments.push_back(AsConst(p));
    }
  }

  Outcome Encode() {
    const CodeLayout& layout = codec->layout();
    const ConstRows rows = {chunk, static_cast<size_t>(layout.head_dim) * 2, DType::kFloat16};
    if (codec->centre() == Centre::kGlobal) shared = codec->MakeSharedCentre(rows, kWindowTokens);
    std::vector<EncodeTask> tasks;
    std::vector<CountTask> count_tasks;
    for (size_t i = 0; i < segments.size(); ++i) {
      const int first = static_cast<int>(i) * kSegmentKeys, keys = std::min(kSegmentKeys, num_keys - first);
      tasks.push_back({codec.get(), {rows.row(first), rows.stride_bytes, rows.dtype}, keys, Shared(), planes[i]});
      count_tasks.push_back({segments[i], &layout, 0, keys, 1, reinterpret_cast<uint32_t*>(counts.data())});
    }
    Outcome o = backend->Encode(tasks.data(), static_cast<int>(tasks.size()));
    if (o == Outcome::kDone) o = backend->Zero(counts.data(), counts.size());
    if (o == Outcome::kDone && layout.coarse_bytes >= layout.head_dim / 8) {
      o = backend->CountCodes(count_tasks.data(), static_cast<int>(count_tasks.size()));
    }
    return o;
  }

  const SharedCentre* Shared() const { return codec->centre() == Centre::kGlobal ? &shared : nullptr; }

  SearchTask Task(const float* queries, int group, bool with_keys, int dense) const {
    const CodeLayout& layout = codec->layout();
    SearchTask t;
    t.codec = codec.get();
    t.segments = segments.data();
    t.segment_keys = kSegmentKeys;
    t.num_keys = num_keys;
    t.shared_centre = Shared();
    t.collision_counts = reinterpret_cast<const uint32_t*>(counts.data());
    t.counted_keys = t.num_keys;
    if (with_keys) t.keys = {&chunk, num_keys, layout.head_dim, DType::kFloat16};
    if (dense > 0) t.dense.push_back({{chunk, static_cast<size_t>(layout.head_dim) * 2, DType::kFloat16}, dense});
    t.queries = queries;
    t.group = group;
    return t;
  }

  Backend* backend;
  std::shared_ptr<const Codec> codec;
  int num_keys;
  const uint8_t* chunk;
  Buffer codes, counts;
  std::vector<CodePlanes> planes;
  std::vector<ConstCodePlanes> segments;
  SharedCentre shared;
};

}  // namespace seine::device

#endif  // SEINE_TESTS_DEVICE_ZONE_H_
