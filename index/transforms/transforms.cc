// Carries the profile's moments to where they are used and balances them.
#include "index/transforms/transforms.h"

#include <Eigen/Core>
#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "index/stop_status.h"
#include "kernels/host.h"
#include "profile/balance.h"
#include "profile/moments.h"
#include "profile/profile.h"

namespace seine {

namespace {

constexpr int64_t kMinPosition = 512, kMinStep = 64;

// The codec of every head of every layer, where it needs no profile.
std::shared_ptr<const LayerCodecs> MakeShared(const IndexConfig& config) {
  const CodecTraits& traits = TraitsOf(config.codec.name);
  if (traits.needs_profile) return nullptr;
  LayerCodecs codecs;
  const CodecSpec spec = SpecOf(config.codec, config.geometry.head_dim);
  codecs.heads.assign(config.geometry.num_kv_heads, {traits.make(spec, nullptr), {}});
  return std::make_shared<const LayerCodecs>(std::move(codecs));
}

// Row-major fp32, as kernels take matrices.
std::vector<float> Floats(const Eigen::MatrixXd& matrix) {
  std::vector<float> out(matrix.size());
  Eigen::Map<Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(
      out.data(), matrix.rows(), matrix.cols()) = matrix.cast<float>();
  return out;
}

// A map of rows x as one of rows x H, which are turned: H^-1 = H, so that the map becomes H times itself. H consists of
// Walsh-Hadamard matrices of `rotation` rows on the diagonal; element (i, j) of one is (-1)^popcount(i & j) / sqrt(n).
std::vector<float> FloatsOfTurned(const Eigen::MatrixXd& map, int rotation) {
  if (rotation == 0) return Floats(map);
  Eigen::MatrixXd hadamard(rotation, rotation), turned(map.rows(), map.cols());
  for (int i = 0; i < rotation; ++i) {
    for (int j = 0; j < rotation; ++j) {
      const int sign = std::popcount(static_cast<uint32_t>(i & j)) % 2 == 0 ? 1 : -1;
      hadamard(i, j) = sign / std::sqrt(static_cast<double>(rotation));
    }
  }
  for (Eigen::Index first = 0; first < map.rows(); first += rotation) {
    turned.middleRows(first, rotation) = hadamard * map.middleRows(first, rotation);
  }
  return Floats(turned);
}

// sum l_i^2 r_i / sum l_i^2 (query_fit.h), of the queries that the balance was made for. r_i: what `bits` of each
// coordinate's total_bits leave.
double ExpectedNoise(const Balance& balance, const CodecTraits& traits, const std::vector<uint8_t>& bits) {
  double noise = 0, variance = 0;
  for (size_t i = 0; i < balance.total_bits.size(); ++i) {
    const double l = balance.lambda(static_cast<Eigen::Index>(i));
    const int total = balance.total_bits[i];
    noise += l * l * (total > 0 ? traits.distortion(total, bits[i]) : 1);
    variance += l * l;
  }
  return noise / variance;
}

}  // namespace

int64_t SealingPosition(int64_t length, int64_t horizon) {
  const auto floor2 = [](int64_t n) { return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n))); };
  const int64_t step = std::max(kMinStep, std::min(floor2(length) / 2, floor2(horizon / 8)));
  return std::max(kMinPosition, length / step * step);
}

Transforms::Transforms(const IndexConfig* config, MemoryLedger* ledger, int rotation)
    : config_(*config),
      traits_(TraitsOf(config_.codec.name)),
      spec_(SpecOf(config_.codec, config_.geometry.head_dim)),
      ledger_(ledger),
      rotation_(rotation),
      shared_(MakeShared(config_)),
      layout_(traits_.layout(spec_)) {}

int64_t Transforms::PositionOf(int layer, int64_t length) const {
  if (shared_ != nullptr || !config_.geometry.RopeOf(layer).turns()) return -1;
  return config_.codec.query_position.value_or(SealingPosition(length, config_.codec.horizon));
}

bool Transforms::Doubled(const LayerCodecs& codecs, int64_t length) const {
  return codecs.position >= 0 && !config_.codec.query_position && length >= 2 * codecs.position;
}

bool Transforms::Outgrown(const LayerCodecs& codecs, int64_t length) const {
  if (Doubled(codecs, length)) return true;
  return codecs.position >= 0 && !config_.codec.query_position && length > codecs.position + config_.codec.horizon;
}

Transforms::Codecs Transforms::Of(int layer, int64_t length) {
  if (shared_ != nullptr) return shared_;
  const int64_t position = PositionOf(layer, length);
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<Entry>& found = entries_[{layer, position}];
    if (found == nullptr) found = std::make_shared<Entry>();
    entry = found;
  }
  const std::lock_guard<std::mutex> lock(entry->mutex);
  if (entry->codecs == nullptr) {
    Codecs codecs = Compute(layer, position, nullptr);
    if (!codecs.ok()) return codecs;
    entry->codecs = *std::move(codecs);
  }
  return entry->codecs;
}

Transforms::Codecs Transforms::Of(int layer, int64_t length, std::shared_ptr<const QueryMoments> queries) {
  if (queries == nullptr) return Of(layer, length);
  return Compute(layer, PositionOf(layer, length), std::move(queries));
}

// A map for keys in 16 bits and one for queries in 32, tables by the coordinate; moments in double.
int64_t Transforms::TableBytes(bool with_moments) const {
  constexpr int64_t kCoordinateBytes = 64;
  const Geometry& g = config_.geometry;
  const int64_t square = int64_t{g.head_dim} * g.head_dim;
  return g.num_kv_heads * (square * (with_moments ? 14 : 6) + g.head_dim * kCoordinateBytes);
}

Transforms::Codecs Transforms::Compute(int layer, int64_t position, std::shared_ptr<const QueryMoments> queries) const {
  const int num_heads = config_.geometry.num_kv_heads;
  const int64_t bytes = TableBytes(queries != nullptr);
  Reservation reservation(ledger_);
  if (absl::Status s = reservation.Reserve(MemoryKind::kOther, bytes); !s.ok()) return s;
  std::vector<absl::StatusOr<HeadCodec>> heads(num_heads);
  ledger_->backend()->Run(num_heads, [&](int h) { heads[h] = OfHead(layer, h, position, queries.get()); });
  if (absl::Status s = StopStatus(); !s.ok()) return s;
  LayerCodecs codecs;
  codecs.position = position;
  codecs.queries = std::move(queries);
  codecs.memory = reservation.Charge(MemoryKind::kOther, bytes);
  for (int h = 0; h < num_heads; ++h) {
    if (!heads[h].ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the codec's profile, layer ", layer, ", KV head ", h, ": ", heads[h].status().message()));
    }
    codecs.heads.push_back(*std::move(heads[h]));
  }
  return std::make_shared<const LayerCodecs>(std::move(codecs));
}

absl::StatusOr<HeadCodec> Transforms::OfHead(int layer, int kv_head, int64_t position,
                                             const QueryMoments* learnt) const {
  const Profile& profile = *config_.codec.profile;
  const Rope& rope = config_.geometry.RopeOf(layer);
  const auto begin = static_cast<double>(position), end = begin + static_cast<double>(config_.codec.horizon);
  const Eigen::MatrixXd keys = CarryMoment(profile.layers[layer].k_residual[kv_head], rope, 0, begin);
  const Eigen::MatrixXd queries =
      CarryMoment(learnt != nullptr ? (*learnt)[kv_head] : GroupQueryMoment(profile, layer, kv_head), rope, begin, end);
  const absl::StatusOr<Balance> balance =
      MakeBalance(keys, queries, {config_.codec.coarse_bits, config_.codec.total_bits});
  if (!balance.ok()) return balance.status();
  const CodecTransform transform = {FloatsOfTurned(balance->key_map, rotation_),
                                    FloatsOfTurned(balance->query_map, rotation_), Floats(balance->lambda),
                                    balance->coarse_bits, balance->total_bits};
  return HeadCodec{traits_.make(spec_, &transform), transform.lambda,
                   ExpectedNoise(*balance, traits_, balance->coarse_bits),
                   ExpectedNoise(*balance, traits_, balance->total_bits)};
}

}  // namespace seine
