// Seine's index as a bench method: a sequence of one layer and one KV head holds the head's tokens
// (seine_sequence.h). Scope per query head asks with one query at a time, scope per KV head with the whole group.
#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/machine/median.h"
#include "bench/methods/method.h"
#include "bench/methods/seine_sequence.h"
#include "index/transforms/transforms.h"
#include "kernels/codecs/codec_traits.h"
#include "profile/moments.h"

namespace seine::bench {
namespace {

constexpr int64_t kEncodeKeys = 8192;  // that the encoder is timed on, as often as this:
constexpr int kEncodeRounds = 7;

class SeineMethod : public Method {
 public:
  SeineMethod(const SeineOptions& options, Backend* backend) : options_(options), backend_(backend) {
    for (double beta : options.betas) AddLine(beta, 0);
    for (double target : options.recall_targets) {
      lines_.push_back({absl::StrCat(options.name, ", target ", target), false, 0, target});
    }
    for (const int64_t count : options.candidates) AddLine(0, count);
    if (options.with_exact) lines_.push_back({absl::StrCat("exact, ours, ", NameOf(options.dtype)), true, 0});
  }

  const std::vector<Line>& lines() const override { return lines_; }

  absl::Status Build(const Head& head) override {
    Release();
    auto config = ConfigOf(options_, head, /*query_position=*/head.zone_end);  // the recorded queries follow the zone
    if (!config.ok()) return config.status();
    auto sequence = SeineSequence::Create(*config, backend_);
    if (!sequence.ok()) return sequence.status();
    sequence_ = *std::move(sequence);
    if (absl::Status s = sequence_->Append(head); !s.ok()) return s;
    info_ = sequence_->info();
    return TimeEncode(*config, head);
  }

  absl::Status Search(const Line& line, const Ask& ask, bool with_candidates, Found* found) override {
    SearchParams params = options_.search;
    params.method = line.exact ? seine::Method::kExact : seine::Method::kIndex;
    if (line.beta > 0) params.candidate_fraction = line.beta;
    params.recall_target = line.recall_target;
    params.candidates = line.candidates;
    if (line.rho > 0) params.collision_fraction = line.rho;
    params.with_candidates = with_candidates && !line.exact;
    return sequence_->Search(params, ask, found);
  }

  void Release() override { sequence_.reset(); }

  double BytesPerKey(const Line& line) const override { return line.exact ? BytesOfRow() : info_.bytes_per_key; }

  // kernels/codecs/code.h: what every scan reads in full.
  double ScanBytesPerKey(const Line& line) const override {
    if (line.exact) return BytesPerKey(line);
    const CodeLayout& layout = info_.layout;
    double bytes = layout.coarse_bytes;
    if (options_.search.coarse == Coarse::kCollision) return bytes;
    bytes += 1 + 4.0 / kWindowTokens;
    if (layout.centre_window > 0) bytes += (layout.head_dim + 4.0) / layout.centre_window;
    return bytes;
  }

  // The scan's, a record of the fine plane a candidate that is reranked, and a key for each that is scored exactly. The
  // paper's answer is the rerank's own: its keys are read by attention alone.
  double BytesRead(const Line& line, int64_t num_keys, const Found& found) const override {
    double bytes = ScanBytesPerKey(line) * static_cast<double>(num_keys);
    if (line.exact) return bytes;
    const auto candidates = static_cast<int64_t>(found.candidates.size());
    const int64_t kept = std::max(options_.search.rescore_k, options_.search.top_k);
    if (candidates > kept) bytes += info_.layout.fine_bytes * static_cast<double>(candidates);
    if (kept > options_.search.top_k) bytes += BytesOfRow() * static_cast<double>(std::min(kept, candidates));
    return bytes;
  }

  double EncodeKeysPerSecond(const Line& line) const override { return line.exact ? 0 : Median(encode_rates_); }

 private:
  // A line of a share, or of so many candidates. Collision covers no fewer keys than are candidates.
  void AddLine(double beta, int64_t candidates) {
    Line& line = lines_.emplace_back();
    line.name = options_.name;
    line.beta = beta;
    line.candidates = candidates;
    if (options_.search.coarse != Coarse::kCollision) return;
    const auto keys = static_cast<double>(options_.data.num_keys());
    line.rho = std::min(1.0, std::max(options_.search.collision_fraction,
                                      candidates > 0 ? static_cast<double>(candidates) / keys : beta));
  }

  double BytesOfRow() const { return static_cast<double>(options_.head_dim * SizeOf(options_.dtype)); }

  // The codec's own loop on the head's first keys of the zone, in fp16 whatever the index stores.
  absl::Status TimeEncode(const IndexConfig& config, const Head& head) {
    MemoryLedger ledger(backend_, /*limit_bytes=*/0, /*device_limit_bytes=*/0, nullptr);
    Transforms transforms(&config, &ledger);
    auto codecs = transforms.Of(0, head.zone_end);
    if (!codecs.ok()) return codecs.status();
    const Codec& codec = *(*codecs)->heads[0].codec;
    const int unit = std::max(kWindowTokens, transforms.layout().centre_window), dim = options_.head_dim;
    const auto count = static_cast<int>(std::min(kEncodeKeys, head.num_keys()) / unit * unit);
    if (count == 0) return absl::OkStatus();
    const float* first = head.keys.data() + head.zone_begin * dim;
    std::vector<float> keys(first, first + static_cast<int64_t>(count) * dim);
    const std::vector<uint8_t> rows = ToDType(DType::kFloat16, &keys);
    const ConstRows view{rows.data(), static_cast<size_t>(dim) * SizeOf(DType::kFloat16), DType::kFloat16};
    SharedCentre centre;
    if (codec.centre() == Centre::kGlobal) centre = codec.MakeSharedCentre(view, count);
    Buffer codes = backend_->Allocate(CodeBytes(codec.layout(), count), MemorySpace::kStore);  // the host's memory
    if (!codes) return absl::ResourceExhaustedError("no memory to time the encoder in");
    const CodePlanes planes = PlanesAt(codec.layout(), count, codes.data());
    for (int round = 0; round <= kEncodeRounds; ++round) {  // the first one touches the memory
      const auto begin = std::chrono::steady_clock::now();
      codec.Encode(view, count, codec.centre() == Centre::kGlobal ? &centre : nullptr, planes);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      if (round > 0) encode_rates_.push_back(count / took.count());
    }
    return absl::OkStatus();
  }

  SeineOptions options_;
  Backend* backend_;
  std::vector<Line> lines_;
  std::unique_ptr<SeineSequence> sequence_;
  HeadInfo info_;
  std::vector<double> encode_rates_;  // keys a second, of all heads so far
};

}  // namespace

std::unique_ptr<Method> MakeSeineMethod(const SeineOptions& options, Backend* backend) {
  return std::make_unique<SeineMethod>(options, backend);
}

}  // namespace seine::bench
