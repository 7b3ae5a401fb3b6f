// One way to find a head's best keys: Seine in some setting, or a peer. Built for one head, then asked.
#ifndef SEINE_BENCH_METHODS_METHOD_H_
#define SEINE_BENCH_METHODS_METHOD_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/inputs/dataset.h"
#include "bench/inputs/truth.h"
#include "index/config/config.h"
#include "kernels/backend.h"
#include "kernels/ops/query/search.h"
#include "profile/profile.h"

namespace seine::bench {

// One row of the table: a method at one setting of what it trades.
struct Line {
  std::string name;
  bool exact = false;        // reads every key: the clock to beat
  double beta = 0;           // share of the keys kept as candidates; 0 under `exact` and where it follows from
  double recall_target = 0;  // what is predicted of it
  int64_t candidates = 0;    // > 0: exactly so many, in place of a share
  double rho = 0;            // Coarse::kCollision: share of the keys that tiers cover; else 0
};

struct Found {
  std::vector<int32_t> positions;
  std::vector<int32_t> candidates;  // what stage I let through; empty where a method does not say
  SearchStats stats;                // Seine's own clocks; zero for peers
};

class Method {
 public:
  virtual ~Method() = default;
  virtual const std::vector<Line>& lines() const = 0;
  // Forgets any earlier head. `head` must outlive the asks.
  virtual absl::Status Build(const Head& head) = 0;
  // One answer on the calling thread. `with_candidates` is false where the clock runs.
  virtual absl::Status Search(const Line& line, const Ask& ask, bool with_candidates, Found* found) = 0;
  virtual void Release() = 0;  // the head's memory; the figures below stay
  virtual int64_t MostAsks() const { return std::numeric_limits<int64_t>::max(); }  // a head, for the figures' means
  virtual double BytesPerKey(const Line& line) const = 0;                           // codes held
  virtual double ScanBytesPerKey(const Line& line) const = 0;                       // read by a whole scan
  // Codes and keys that one answer read to choose, of `num_keys` and with found.candidates filled. Keys count in the
  // data's dtype, and tables of the query not at all.
  virtual double BytesRead(const Line& line, int64_t num_keys, const Found& found) const = 0;
  // Keys that the codec alone encodes a second, on one thread, from fp16; 0 where a method does not say.
  virtual double EncodeKeysPerSecond(const Line& line) const { return 0; }
};

struct SeineOptions {
  std::string name;
  SearchParams search;  // beta comes with the line
  Centre centre = Centre::kWindow;
  int centre_window = 64;
  std::string codec = "rsq";
  uint64_t seed = 1;
  // Balanced: the model's profile, or nullptr to measure each head on itself; and the data's RoPE.
  std::shared_ptr<const Profile> profile;
  Rope rope;
  int64_t horizon = kDefaultHorizon;
  CodecOptions codec_options;
  DatasetInfo data;
  int group = 1;  // queries of an ask
  int head_dim = 0;
  DType dtype = DType::kFloat32;  // of the stored keys
  std::vector<double> betas, recall_targets;
  std::vector<int64_t> candidates;  // lines of so many each
  bool with_exact = false;          // a line of Method::kExact beside the betas
};
std::unique_ptr<Method> MakeSeineMethod(const SeineOptions& options, Backend* backend);

// Bytes of a stored key.
inline double RowBytes(const DatasetInfo& data) { return data.head_dim * static_cast<double>(SizeOf(data.dtype)); }

// Quest's pages of `page_keys`, which divides 64, at so many candidates each. bench/methods/quest_method.cc.
std::unique_ptr<Method> MakeQuestMethod(const DatasetInfo& data, int page_keys, int top_k,
                                        const std::vector<int64_t>& candidates);

// faiss_flat, faiss_pq_fastscan, faiss_ivfpq (Debian's FAISS): INVALID_ARGUMENT names the flag.
// bench/peers/faiss_baseline.cc.
absl::StatusOr<std::vector<std::unique_ptr<Method>>> MakeFaissMethods(const std::string& name, int head_dim, int top_k,
                                                                      int64_t num_keys,
                                                                      const std::vector<double>& betas);
// PQ fast-scan of `bytes` a key, 2 * bytes of which divide head_dim, at so many candidates each.
absl::StatusOr<std::unique_ptr<Method>> MakeFaissPq(const DatasetInfo& data, int bytes, int top_k,
                                                    const std::vector<int64_t>& candidates);
std::string FaissVersion();  // in words

}  // namespace seine::bench

#endif  // SEINE_BENCH_METHODS_METHOD_H_
