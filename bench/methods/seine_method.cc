// Seine's index as a bench method: a sequence of one layer and one KV head holds the head's tokens, and its zone is
// exactly the head's. Scope per query head asks with one query at a time, scope per KV head with the whole group.
#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/inputs/head_profile.h"
#include "bench/measures/recall.h"
#include "bench/methods/method.h"
#include "index/index.h"
#include "index/retrieval/transforms.h"
#include "kernels/codecs/codec_traits.h"
#include "profile/moments.h"

namespace seine::bench {
namespace {

constexpr int64_t kAppendTokens = 16384;  // a call, as a prefill in pieces would
constexpr int64_t kEncodeKeys = 8192;     // that the encoder is timed on, as often as this:
constexpr int kEncodeRounds = 7;

class SeineMethod : public Method {
 public:
  SeineMethod(const SeineOptions& options, Backend* backend) : options_(options), backend_(backend) {
    for (double beta : options.betas) lines_.push_back({options.name, false, beta});
    for (double target : options.recall_targets) {
      lines_.push_back({absl::StrCat(options.name, ", target ", target), false, 0, target});
    }
    if (options.with_exact) lines_.push_back({absl::StrCat("exact, ours, ", NameOf(options.dtype)), true, 0});
  }

  const std::vector<Line>& lines() const override { return lines_; }

  absl::Status Build(const Head& head) override {
    Release();
    auto config = Config(head);
    if (!config.ok()) return config.status();
    auto index = Index::Create(*config, backend_);
    if (!index.ok()) return index.status();
    index_ = *std::move(index);
    auto sequence = index_->CreateSequence("");
    if (!sequence.ok()) return sequence.status();
    sequence_ = *sequence;
    if (absl::Status s = Append(head); !s.ok()) return s;
    auto info = index_->DescribeHead(sequence_, 0, 0);
    if (!info.ok()) return info.status();
    info_ = *info;
    if (info_.zone_begin != head.zone_begin || info_.zone_end != head.zone_end) {
      return absl::InternalError(absl::StrCat("the index's zone [", info_.zone_begin, ", ", info_.zone_end,
                                              ") is not the bench's [", head.zone_begin, ", ", head.zone_end, ")"));
    }
    return TimeEncode(*config, head);
  }

  absl::Status Search(const Line& line, const Ask& ask, bool with_candidates, Found* found) override {
    SearchParams params = options_.search;
    params.method = line.exact ? seine::Method::kExact : seine::Method::kIndex;
    if (line.beta > 0) params.beta = line.beta;
    params.recall_target = line.recall_target;
    params.with_candidates = with_candidates && !line.exact;
    const RetrieveItem item{sequence_, 0, ask.queries};
    auto answers = index_->Retrieve({&item, 1}, params);
    if (!answers.ok()) return answers.status();
    ItemAnswer& answer = answers->front();
    if (!answer.status.ok()) return answer.status;
    if (answer.positions.size() != 1) return absl::InternalError("one set was asked for, another number came");
    found->positions = std::move(answer.positions.front());
    found->candidates = Union(answer.candidates);
    found->stats = answer.stats;
    return absl::OkStatus();
  }

  void Release() override {
    sequence_ = {};
    index_.reset();
  }

  double BytesPerKey(const Line& line) const override {
    return line.exact ? static_cast<double>(options_.head_dim * SizeOf(options_.dtype)) : info_.bytes_per_key;
  }

  // kernels/codecs/code.h: what every scan reads in full.
  double ScanBytesPerKey(const Line& line) const override {
    if (line.exact) return BytesPerKey(line);
    const CodeLayout& layout = info_.layout;
    double bytes = layout.coarse_bytes;
    if (options_.search.coarse == Coarse::kCollision) return bytes;
    bytes += 1 + 4.0 / kWindowTokens;
    if (layout.centre_tokens > 0) bytes += (layout.head_dim + 4.0) / layout.centre_tokens;
    return bytes;
  }

  double EncodeKeysPerSecond(const Line& line) const override { return line.exact ? 0 : Median(encode_rates_); }

 private:
  // The codec's own loop on the head's first keys of the zone, in fp16 whatever the index stores.
  absl::Status TimeEncode(const IndexConfig& config, const Head& head) {
    MemoryLedger ledger(backend_, /*limit_bytes=*/0, /*device_limit_bytes=*/0, nullptr);
    Transforms transforms(&config, &ledger);
    auto codecs = transforms.Of(0, head.zone_end);
    if (!codecs.ok()) return codecs.status();
    const Codec& codec = *(*codecs)->heads[0].codec;
    const int unit = std::max(kWindowTokens, transforms.layout().centre_tokens), dim = options_.head_dim;
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

  absl::StatusOr<IndexConfig> Config(const Head& head) const {
    IndexConfig config;
    config.name = "bench";
    config.geometry = {1, options_.group, 1, options_.head_dim, options_.dtype};
    config.zones.sink = static_cast<int>(head.zone_begin);
    config.zones.local = static_cast<int>(head.num_tokens - head.zone_end);
    config.zones.update_buffer = std::max(kWindowTokens, options_.centre_tokens);
    config.zones.dense_threshold = 0;
    config.codec.name = options_.codec;
    config.codec.seed = options_.seed;
    config.codec.centre = options_.centre;
    config.codec.centre_tokens = options_.centre_tokens;
    config.search = options_.search;
    if (TraitsOf(options_.codec).needs_profile) {
      auto profile = options_.profile ? CutProfile(*options_.profile, options_.data, head)
                                      : OwnProfile(head, options_.head_dim, options_.rope);
      if (!profile.ok()) return profile.status();
      // One query head of moments serves the whole group; the index wants as many as it has query heads.
      Profile shaped = **profile;
      shaped.num_q_heads = options_.group;
      shaped.layers[0].q_mean.resize(options_.group, shaped.layers[0].q_mean[0]);
      shaped.layers[0].q_moment.resize(options_.group, shaped.layers[0].q_moment[0]);
      config.codec.profile = std::make_shared<const Profile>(std::move(shaped));
      config.codec.profile_name = options_.profile ? options_.profile->model : "own";
      config.codec.coarse_bits = options_.coarse_bits;
      config.codec.total_bits = options_.total_bits;
      config.geometry.rope = options_.rope;
      if (options_.rope.stated()) {
        config.codec.horizon = options_.horizon;
        config.codec.query_position = head.zone_end;  // the recorded queries follow the zone
      }
    }
    config.kv_store = KvStore::kKeys;
    return config;
  }

  absl::Status Append(const Head& head) {
    std::vector<uint8_t> converted;  // only where the index stores another dtype than the data set's
    const size_t row = options_.head_dim * SizeOf(options_.dtype);
    if (head.tokens.size() != row * head.num_tokens) {
      std::vector<float> keys = head.keys;
      converted = ToDType(options_.dtype, &keys);
    }
    const uint8_t* tokens = converted.empty() ? head.tokens.data() : converted.data();
    for (int64_t p = 0; p < head.num_tokens; p += kAppendTokens) {
      const int64_t count = std::min(kAppendTokens, head.num_tokens - p);
      auto length = index_->Append(sequence_, 0, p, {tokens + p * row, count, count * row}, {});
      if (!length.ok()) return length.status();
    }
    return absl::OkStatus();
  }

  static std::vector<int32_t> Union(const std::vector<std::vector<int32_t>>& lists) {
    if (lists.size() == 1) return lists.front();
    std::set<int32_t> all;
    for (const auto& list : lists) all.insert(list.begin(), list.end());
    return {all.begin(), all.end()};
  }

  SeineOptions options_;
  Backend* backend_;
  std::vector<Line> lines_;
  std::unique_ptr<Index> index_;
  SequenceHandle sequence_;
  HeadInfo info_;
  std::vector<double> encode_rates_;  // keys a second, of all heads so far
};

}  // namespace

std::unique_ptr<Method> MakeSeineMethod(const SeineOptions& options, Backend* backend) {
  return std::make_unique<SeineMethod>(options, backend);
}

}  // namespace seine::bench
