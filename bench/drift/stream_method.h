// One way to find the best keys of a head that grows: made once, from what it may learn from, then only appended to.
#ifndef SEINE_BENCH_DRIFT_STREAM_METHOD_H_
#define SEINE_BENCH_DRIFT_STREAM_METHOD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/inputs/dataset.h"
#include "bench/inputs/truth.h"
#include "kernels/backend.h"
#include "profile/profile.h"
#include "profile/rope.h"

namespace seine::bench {

// Not thread-safe.
class StreamMethod {
 public:
  virtual ~StreamMethod() = default;

  // Forgets any earlier head. Centroids, codebooks and means come from the tokens of `seen` in [zone_begin,
  // num_tokens), and from nothing later. `seen` is the prefill, or all tokens where LearnsFromAll.
  virtual absl::Status Begin(const Head& seen) = 0;
  virtual bool LearnsFromAll() const { return false; }

  // Takes the keys that the zone of `head` has gained. What was learnt stays.
  virtual absl::Status Append(const Head& head) = 0;

  // The best top_k of the zone for one query, positions in any order: the method's best `candidates` keys, of which the
  // best are found by exact scores, the paper's by its estimates. `head` is that of the last Append.
  virtual absl::Status Search(const Head& head, const Ask& ask, int64_t candidates, std::vector<int32_t>* found) = 0;

  virtual double BytesPerKey() const = 0;  // of codes, as of the last Append
};

struct StreamOptions {
  DatasetInfo data;
  int top_k = 100;
  std::shared_ptr<const Profile> profile;  // seine's; nullptr: measured on the prefill alone
  Rope rope;                               // the data's
  int64_t prefill = 0;                     // tokens
  uint64_t seed = 1;                       // of signs and hyperplanes
  bool paper_schedule = false;             // the paper's candidates are as many as its authors take
};

// INVALID_ARGUMENT "--methods: ..." where there is none of that name. `backend` must outlive the method.
absl::StatusOr<std::unique_ptr<StreamMethod>> MakeStreamMethod(const std::string& name, const StreamOptions& options,
                                                               Backend* backend);
// Names of the methods that run by default; all names.
const std::vector<std::string>& UsualStreamMethods();
const std::vector<std::string>& StreamMethodNames();

// Beside their classes, for MakeStreamMethod alone.
std::unique_ptr<StreamMethod> MakeSeineStream(const std::string& codec, const StreamOptions& options, Backend* backend);
absl::StatusOr<std::unique_ptr<StreamMethod>> MakeFaissStream(const std::string& name, bool learns_from_all,
                                                              const StreamOptions& options);
std::unique_ptr<StreamMethod> MakeLshStream(const StreamOptions& options);
std::unique_ptr<StreamMethod> MakeQuestStream(const StreamOptions& options);
// ParisKV, or without its rotation or its tiers.
std::unique_ptr<StreamMethod> MakePaperStream(bool rotation, bool tiers, const StreamOptions& options);
std::unique_ptr<StreamMethod> MakeExactStream(const StreamOptions& options);

}  // namespace seine::bench

#endif  // SEINE_BENCH_DRIFT_STREAM_METHOD_H_
