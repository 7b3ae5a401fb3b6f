// See growing_head.h.
#include "bench/drift/growing_head.h"

#include <algorithm>
#include <utility>

#include "kernels/types.h"

namespace seine::bench {

int64_t ZoneShape::FitLength(int64_t tokens) const {
  return sink + local + std::max<int64_t>(0, tokens - sink - local) / kWindowTokens * kWindowTokens;
}

GrowingHead::GrowingHead(Head whole, const DatasetInfo& info, const ZoneShape& zone, int64_t queries)
    : whole_(std::move(whole)), info_(info), zone_(zone), queries_(queries) {
  so_far_.layer = whole_.layer;
  so_far_.kv_head = whole_.kv_head;
  whole_.zone_begin = so_far_.zone_begin = so_far_.zone_end = zone.sink;
  whole_.zone_end = whole_.num_tokens - zone.local;
}

void GrowingHead::GrowTo(int64_t tokens) {
  const int64_t before = so_far_.num_tokens, dim = info_.head_dim;
  const int64_t row = dim * static_cast<int64_t>(SizeOf(info_.dtype));
  so_far_.keys.insert(so_far_.keys.end(), whole_.keys.begin() + before * dim, whole_.keys.begin() + tokens * dim);
  so_far_.tokens.insert(so_far_.tokens.end(), whole_.tokens.begin() + before * row,
                        whole_.tokens.begin() + tokens * row);
  so_far_.num_tokens = tokens;
  so_far_.zone_end = tokens - zone_.local;
  TakeQueries();
}

void GrowingHead::TakeQueries() {
  if (info_.synthetic) {
    so_far_.queries = whole_.queries;
    so_far_.own_queries = whole_.own_queries;
    so_far_.own_positions = whole_.own_positions;
    return;
  }
  const int64_t floats = int64_t{info_.group} * info_.head_dim;
  const int64_t end = so_far_.num_tokens - info_.query_start, begin = end - queries_;
  if (so_far_.queries.empty()) {
    so_far_.own_queries.assign(whole_.queries.begin(), whole_.queries.begin() + begin * floats);
    for (int64_t row = 0; row < begin; ++row) so_far_.own_positions.push_back(info_.query_start + row);
  }
  so_far_.queries.assign(whole_.queries.begin() + begin * floats, whole_.queries.begin() + end * floats);
}

}  // namespace seine::bench
