// Data and small references for the kernel tests.
#ifndef SEINE_TESTS_KERNELS_TEST_UTIL_H_
#define SEINE_TESTS_KERNELS_TEST_UTIL_H_

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/codecs/code.h"
#include "kernels/codecs/codec.h"
#include "kernels/codecs/kinds/rsq.h"
#include "kernels/cpu/targets.h"
#include "kernels/math.h"
#include "kernels/ops/query/search.h"
#include "kernels/ops/rows/rows.h"
#include "kernels/ops/scan/scan.h"
#include "tests/kernels/random_data.h"

namespace seine {

// A zone of one head: keys encoded into segments of 512 and kept as the store.
struct Zone {
  Zone(std::vector<float> rows, int head_dim, const RsqOptions& options, int keys_a_segment = 512)
      : Zone(std::move(rows), head_dim, MakeRsqCodec(options), keys_a_segment) {}
  Zone(std::vector<float> rows, int head_dim, std::shared_ptr<const Codec> the_codec, int keys_a_segment = 512)
      : keys(std::move(rows)), dim(head_dim), codec(std::move(the_codec)), segment_keys(keys_a_segment) {
    const int n = static_cast<int>(keys.size()) / dim;
    if (codec->centre() == Centre::kGlobal) {
      shared = codec->MakeSharedCentre({keys.data(), dim * sizeof(float), DType::kFloat32}, 64);
    }
    counts.assign(static_cast<size_t>(dim / 8) * 256, 0);
    for (int first = 0; first < n; first += segment_keys) {
      const int count = std::min(segment_keys, n - first);
      buffers.emplace_back(CodeBytes(codec->layout(), segment_keys) + 64);
      uint8_t* aligned = buffers.back().data() + (64 - reinterpret_cast<uintptr_t>(buffers.back().data()) % 64) % 64;
      const CodePlanes planes = PlanesAt(codec->layout(), segment_keys, aligned);
      codec->Encode({keys.data() + static_cast<size_t>(first) * dim, dim * sizeof(float), DType::kFloat32}, count,
                    Shared(), planes);
      segments.push_back(AsConst(planes));
      if (codec->layout().coarse_bytes >= dim / 8)
        cpu::CountCodes(segments.back(), codec->layout(), 0, count, 1, counts.data());
    }
    chunk = reinterpret_cast<const uint8_t*>(keys.data());
  }
  Zone(const Zone&) = delete;

  const SharedCentre* Shared() const { return codec->centre() == Centre::kGlobal ? &shared : nullptr; }
  SearchTask Task(const std::vector<float>& queries) const {
    SearchTask t;
    t.codec = codec.get();
    t.segments = segments.data();
    t.segment_keys = segment_keys;
    t.num_keys = static_cast<int64_t>(keys.size()) / dim;
    t.shared_centre = Shared();
    t.collision_counts = counts.data();
    t.counted_keys = t.num_keys;
    t.keys = {&chunk, static_cast<int>(t.num_keys), dim, DType::kFloat32};
    t.queries = queries.data();
    t.group = static_cast<int>(queries.size()) / dim;
    return t;
  }

  std::vector<float> keys;
  int dim;
  std::shared_ptr<const Codec> codec;
  int segment_keys;
  SharedCentre shared;
  std::vector<std::vector<uint8_t>> buffers;
  std::vector<ConstCodePlanes> segments;
  std::vector<uint32_t> counts;
  const uint8_t* chunk;
};

// Every key of a zone as a candidate of one query, with the base that a scan would have found.
inline Candidates AllCandidates(const Zone& zone, const PreparedQuery& prepared) {
  const CodeLayout& layout = zone.codec->layout();
  const int n = static_cast<int>(zone.keys.size()) / zone.dim;
  Candidates c;
  c.size = n;
  c.index.resize(n), c.base.resize(n), c.coarse.resize(n), c.rows.resize(static_cast<size_t>(n) * layout.coarse_bytes);
  for (int i = 0; i < n; ++i) {
    const ConstCodePlanes& planes = zone.segments[i / zone.segment_keys];
    const int key = i % zone.segment_keys;
    c.index[i] = i;
    CopyCoarseRow(CoarseRowAt(planes.coarse, layout.coarse_bytes, key), layout.coarse_bytes,
                  &c.rows[static_cast<size_t>(i) * layout.coarse_bytes]);
    if (planes.centre == nullptr || !(prepared.coarse_step > 0)) continue;
    const int row = key / layout.centre_window;
    const int32_t dot = cpu::Dot8(planes.centre + row * zone.dim, prepared.query8.data(), zone.dim);
    c.base[i] = static_cast<float>(dot) * planes.centre_scale[row] * prepared.query8_step / prepared.coarse_step;
  }
  return c;
}

// Fine estimates of <query, key> for every key of the zone.
inline std::vector<float> Estimates(const Zone& zone, const std::vector<float>& query) {
  PreparedQuery prepared;
  zone.codec->PrepareQuery(query.data(), &prepared);
  const Candidates c = AllCandidates(zone, prepared);
  std::vector<uint32_t> chosen(c.index.begin(), c.index.end());
  std::vector<float> out(c.size);
  zone.codec->Rerank(prepared, c, chosen.data(), c.size, zone.segments.data(), zone.segment_keys, out.data());
  return out;
}

inline double Dot64(const float* a, const float* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// Runs `body` once on every target of this machine, SCALAR included, and goes back to the automatic choice.
template <typename Body>
void OnEveryTarget(Body body) {
  for (const std::string& target : cpu::SupportedTargets()) {
    ASSERT_TRUE(cpu::ForceTarget(target)) << target;
    SCOPED_TRACE(target);
    body(target);
  }
  cpu::ForceTarget("");
}

}  // namespace seine

#endif  // SEINE_TESTS_KERNELS_TEST_UTIL_H_
