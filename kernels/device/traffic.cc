#include "kernels/device/traffic.h"

#include <algorithm>
#include <cmath>

#include "kernels/ops/learn/oja_rule.h"
#include "kernels/ops/query/recall_target.h"
#include "kernels/ops/score_keys/score_keys.h"
#include "kernels/ops/search/search_plan.h"

namespace seine::cuda {
namespace {

constexpr double kSector = 32;

// Coarse codes, factors, bases and centres of `keys` keys.
double ScanBytes(const CodeLayout& layout, double keys) {
  double bytes = keys * (layout.coarse_bytes + 1) + keys / kWindowTokens * 4;
  if (layout.centre_window > 0) bytes += keys / layout.centre_window * (layout.head_dim + 4);
  return bytes;
}

// A candidate: a sector for each word of its coarse row, those that its record touches at any alignment, its window's
// base, and what the steps hand on of it.
double CandidateBytes(const CodeLayout& layout) {
  const double record = layout.fine_bytes + kSector - 1;
  return (layout.coarse_bytes / 4.0 + 1) * kSector + record + 2 * sizeof(float) + sizeof(uint32_t);
}

double PrepareBytes(const SearchItem& item, Coarse coarse) {
  const double dim = item.layout.head_dim;
  double bytes = TraitsOf(item.kind).query_table_bytes(item.layout.head_dim);
  if (coarse == Coarse::kCollision) bytes += dim / 8 * 256 * sizeof(uint32_t);
  return bytes + item.group * dim * (sizeof(float) * 2 + 2);
}

}  // namespace

std::vector<StepTraffic> CountTraffic(const SearchPlan& plan) {
  enum { kPrepare, kScan, kChoose, kDots, kCombine, kSteps };
  std::vector<StepTraffic> steps(kSteps);
  const char* names[kSteps] = {"prepare", "scan", "choose", "dots", "combine"};
  for (int i = 0; i < kSteps; ++i) steps[i].step = names[i];
  for (const SearchItem& item : plan.items()) {
    const double keys = static_cast<double>(item.num_keys), wanted = item.wanted, group = item.group;
    const double pieces = std::ceil(keys / kPieceKeys) * sizeof(FoundPiece);
    const double found = std::min<double>(1.2 * wanted, item.capacity) * sizeof(FoundKey);
    steps[kPrepare].device_bytes += PrepareBytes(item, plan.params().coarse);
    steps[kPrepare].device_bytes +=
        ScanBytes(item.layout, static_cast<double>(SampleOf(item.num_keys).count) * kWindowTokens);
    steps[kScan].device_bytes += ScanBytes(item.layout, keys) + group * (keys / kWindowTokens * 4 + pieces + found);
    // Every block reads the whole list; candidates are written, read, reranked, and their estimates read for the
    // survivors.
    steps[kChoose].device_bytes +=
        group * (item.splits * (pieces + found) + wanted * (sizeof(uint32_t) + sizeof(float)));
    steps[kChoose].device_bytes += group * wanted * CandidateBytes(item.layout) + group * item.keep * sizeof(uint32_t);
  }
  for (const SetPlan& set : plan.sets()) {
    const SearchItem& item = plan.items()[set.item];
    const double keys = set.capacity, dense = set.with_dense ? item.dense_tokens : 0;
    const double row = static_cast<double>(item.layout.head_dim) * static_cast<double>(SizeOf(item.key_dtype));
    if (set.count > 1) steps[kChoose].device_bytes += 2 * keys * sizeof(uint32_t);
    const double key_bytes = item.low_rank.num_runs > 0 ? static_cast<double>(item.low_rank.rank) *
                                                              static_cast<double>(SizeOf(item.low_rank.dtype))
                             : item.chunks != nullptr ? row
                                                      : 0.0;
    steps[kDots].link_bytes += keys * key_bytes + dense * row;
    steps[kDots].device_bytes += (keys + dense) * set.count * sizeof(float);
    steps[kCombine].device_bytes += (keys + dense) * set.count * sizeof(float) + 2 * keys * sizeof(float);
  }
  return steps;
}

std::vector<StepTraffic> CountTraffic(const LayerWork& w) {
  constexpr double kFloat = sizeof(float);
  const double heads = w.heads, dim = w.head_dim, rank = w.rank, n = OjaColumns(w.interval), size = SizeOf(w.dtype);
  const double rows = static_cast<double>(w.rows), kept = static_cast<double>(w.kept);
  const double basis = dim * static_cast<double>(OjaColumns(w.rank)) * kFloat, row = dim * kFloat;
  StepTraffic learn = {"learn"}, project = {"project"}, rebuild = {"rebuild"}, sum = {"sum"}, score = {"score"},
              select = {"select"};
  learn.device_bytes = heads * (2 * basis + rows * row);
  // An update's products: X to Y, Y to P, U's step; R^T R, R H, the root's product; Y^T Y. Each term is a
  // multiplication and an addition.
  learn.block_operations = rows / w.interval * 2 * (3 * dim * rank * n + 3 * dim * n * n + rank * n * n);
  project.device_bytes = heads * (basis + rows * (row + rank * size));
  rebuild.device_bytes = heads * (rank * dim * sizeof(uint16_t) + rows * row);
  rebuild.link_bytes = heads * rows * rank * size;
  for (StepTraffic* step : {&sum, &score}) {
    (w.keys_on_device ? step->device_bytes : step->link_bytes) = heads * rows * dim * size;
  }
  const double groups = std::ceil(rows / kSumGroup);
  sum.device_bytes += heads * (2 * groups + 1) * dim * sizeof(double);  // of groups: written, and read again
  score.device_bytes += heads * rows * kFloat;
  select.device_bytes = heads * (rows * kFloat + kept * sizeof(uint32_t));
  return {learn, project, rebuild, sum, score, select};
}

}  // namespace seine::cuda
