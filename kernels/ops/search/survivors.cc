#include "kernels/ops/search/survivors.h"

#include <cstddef>

namespace seine::cpu {
namespace {

// A key in the upper half, the queries that it survives with in the lower, a bit each.
constexpr uint64_t kNoSurvivor = ~uint64_t{0};

// Merges two lists that ascend by key and end with kNoSurvivor; what both hold becomes one. No branch waits for a
// comparison, which would be foretold wrongly every other time.
void Merge(const uint64_t* a, const uint64_t* b, std::vector<uint64_t>* out) {
  uint64_t* to = out->data();
  while (true) {
    const uint64_t x = *a, y = *b;
    const uint64_t take_x = x >> 32 <= y >> 32, take_y = y >> 32 <= x >> 32;
    *to = (x & (0 - take_x)) | (y & (0 - take_y));
    if (*to == kNoSurvivor) break;
    a += take_x;
    b += take_y;
    ++to;
  }
  out->resize(to - out->data() + 1);
}

// Survivors of queries [begin, end), ascending and ended.
void JoinRange(int begin, int end, std::vector<uint64_t>* halves, const QueryWork* queries,
               std::vector<uint64_t>* out) {
  if (end - begin == 1) {
    const QueryWork& q = queries[begin];
    out->resize(q.survivors.size() + 1);
    for (size_t i = 0; i < q.survivors.size(); ++i) {
      (*out)[i] = uint64_t{q.found.index[q.chosen[q.survivors[i]]]} << 32 | uint64_t{1} << begin;
    }
    out->back() = kNoSurvivor;
    return;
  }
  const int middle = begin + (end - begin) / 2;
  JoinRange(begin, middle, halves + 2, queries, &halves[0]);
  JoinRange(middle, end, halves + 2, queries, &halves[1]);
  out->resize(halves[0].size() + halves[1].size());
  Merge(halves[0].data(), halves[1].data(), out);
}

}  // namespace

void SurvivorJoin::Join(const QueryWork* queries, int begin, int end, std::vector<uint32_t>* keys,
                        std::vector<uint32_t>* members) {
  JoinRange(begin, end, halves_, queries, &joined_);
  const size_t n = joined_.size() - 1;
  keys->resize(n);
  members->resize(n);
  for (size_t i = 0; i < n; ++i) {
    (*keys)[i] = static_cast<uint32_t>(joined_[i] >> 32);
    (*members)[i] = static_cast<uint32_t>(joined_[i]);
  }
}

void TakeOwn(int g, const std::vector<uint32_t>& members, const float* logits, std::vector<float>* own) {
  own->resize(members.size() + 1);
  size_t size = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    (*own)[size] = logits[i];
    size += members[i] >> g & 1;
  }
  own->resize(size);
}

}  // namespace seine::cpu
