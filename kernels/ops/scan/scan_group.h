// The queries of a group in passes over the codes, each pass for up to kMostFused of them.
#ifndef SEINE_KERNELS_OPS_SCAN_SCAN_GROUP_H_
#define SEINE_KERNELS_OPS_SCAN_SCAN_GROUP_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/ops/scan/coarse_stage.h"
#include "kernels/ops/scan/scan.h"

namespace seine::cpu {

inline constexpr int kMostPasses = (kMaxGroup + kMostFused - 1) / kMostFused;

// Queries of one pass: indices into the group's work.
struct ScanPass {
  int members[kMostFused];
  int count = 0;
};

struct ScanPasses {
  ScanPass pass[kMostPasses];
  int count = 0;
};

// The group's queries that open(g) says, spread evenly over as few passes as there can be.
template <typename Open>
ScanPasses PassesOf(int group, Open open) {
  int left = 0;
  for (int g = 0; g < group; ++g) left += open(g) ? 1 : 0;
  ScanPasses passes;
  passes.count = (left + kMostFused - 1) / kMostFused;
  for (int g = 0, at = 0; g < group; ++g) {
    if (!open(g)) continue;
    ScanPass& pass = passes.pass[at];
    pass.members[pass.count++] = g;
    at = (at + 1) % passes.count;
  }
  return passes;
}

// The windows and keys that are searched, by their order among these; asked for ascending.
class SearchedKeys {
 public:
  explicit SearchedKeys(const SearchTask& task) : runs_(task.runs) {}
  uint32_t Window(uint32_t i) {
    if (runs_ == nullptr) return i;
    for (; i >= before_ + Size(); ++run_) before_ += Size();
    return static_cast<uint32_t>((*runs_)[run_].begin) + (i - before_);
  }
  uint32_t Key(uint32_t i) { return Window(i / kWindowTokens) * kWindowTokens + i % kWindowTokens; }

 private:
  uint32_t Size() const { return static_cast<uint32_t>((*runs_)[run_].end - (*runs_)[run_].begin); }

  const std::vector<WindowRun>* const runs_;
  size_t run_ = 0;
  uint32_t before_ = 0;  // windows of earlier runs
};

// Keys [begin, end) of a segment, scanned in one go.
struct ScanPiece {
  int64_t segment = 0;
  int begin = 0, end = 0;
};
// Lists the pieces that a task searches, ascending. The thread's next call writes them anew.
const std::vector<ScanPiece>& PiecesOf(const SearchTask& task);

// The scan of piece `at` by pass `index`.
ScanArgs ArgsFor(const SearchTask& task, const QueryWork* work, const ScanPasses& passes, int index, bool collision,
                 const std::vector<ScanPiece>& pieces, size_t at);

// Which keys are sampled: `keys` neighbours, 16, 32 or 64, of every step-th of the windows of zone_mass.h's sample.
struct ScoreSample {
  uint32_t keys = kWindowTokens, step = 1;
};
// zone_mass.h's.
ScoreSample SampleForMass(int64_t num_keys);
// What a threshold needs: a sixteenth of the zone, 512 to 2,048 keys.
ScoreSample SampleForThreshold(int64_t num_keys);

// Scores of sampled keys for every query of the group: samples[g], and the windows' bases in work[g].sample_bases.
void SampleScores(const SearchTask& task, bool collision, const ScoreSample& sample, QueryWork* work,
                  std::vector<float>* const* samples);

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_SCAN_SCAN_GROUP_H_
