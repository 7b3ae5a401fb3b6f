#include "bench/idle/made_traffic.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace seine::bench {
namespace {

constexpr int64_t kSpareRows = 4096, kApart = 61;  // two sequences' rows begin so many apart
constexpr int kForkEvery = 4;

// Rows in fp16 between -2 and 2.
std::string RandomRows(int64_t count) {
  std::mt19937 random(1);
  std::string rows(count * 2, '\0');
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = random();
    const auto half = static_cast<uint16_t>((bits & 0x8000) | (12 + (bits >> 16) % 4) << 10 | (bits & 0x3ff));
    std::memcpy(&rows[i * 2], &half, 2);
  }
  return rows;
}

// The weight of each sequence; the often asked ones lie apart.
std::vector<double> ZipfWeights(int count, double exponent) {
  std::vector<double> weights(count);
  for (int rank = 0; rank < count; ++rank) weights[rank] = std::pow(rank + 1, -exponent);
  std::shuffle(weights.begin(), weights.end(), std::mt19937(2));
  return weights;
}

}  // namespace

MadeTraffic::MadeTraffic(const IdleBenchOptions& options)
    : o_(options), rows_(RandomRows((o_.tokens + kSpareRows) * o_.kv_heads * o_.head_dim)) {
  for (int i = 0; i < o_.sequences; ++i) {
    auto made = std::make_unique<MadeSequence>();
    made->id = absl::StrCat("s", i);
    if (i % kForkEvery == kForkEvery - 1) made->source = sequences_.back()->id;
    made->first_row = i * kApart % kSpareRows;
    made->tokens = o_.tokens;
    sequences_.push_back(std::move(made));
  }
  up_to_ = ZipfWeights(o_.sequences, o_.zipf);
  std::partial_sum(up_to_.begin(), up_to_.end(), up_to_.begin());
}

MadeSequence* MadeTraffic::Next(std::mt19937* random) const {
  const double at = std::uniform_real_distribution<double>(0, up_to_.back())(*random);
  const auto found = std::upper_bound(up_to_.begin(), up_to_.end() - 1, at);
  return sequences_[found - up_to_.begin()].get();
}

IndexConfig MadeTraffic::Config() const {
  IndexConfig config;
  config.name = "bench";
  config.geometry = {.num_layers = o_.layers,
                     .num_q_heads = o_.kv_heads * o_.group,
                     .num_kv_heads = o_.kv_heads,
                     .head_dim = o_.head_dim};
  config.kv_store = KvStore::kKeysValues;
  return config;
}

absl::Status MadeTraffic::Fill(Index* index) const {
  for (const auto& sequence : sequences_) {
    const auto made = sequence->source.empty() ? index->CreateSequence(sequence->id)
                                               : index->Fork({sequence->source, 0}, sequence->id, -1);
    if (!made.ok()) return made.status();
    for (int layer = 0; layer < o_.layers && sequence->source.empty(); ++layer) {
      if (absl::Status s = Append(index, *sequence, layer, 0, o_.tokens); !s.ok()) return s;
    }
  }
  return absl::OkStatus();
}

absl::Status MadeTraffic::Append(Index* index, const MadeSequence& sequence, int layer, int64_t at,
                                 int64_t count) const {
  const int64_t row = count > 1 ? sequence.first_row : (sequence.first_row + at) % kSpareRows;
  const TensorView rows{rows_.data() + row * token_bytes(), count, static_cast<size_t>(count * token_bytes())};
  return index->Append({sequence.id, 0}, layer, at, rows, rows).status();
}

std::vector<float> MadeTraffic::QueriesOf(const MadeSequence& sequence, int layer) const {
  std::minstd_rand random(static_cast<uint32_t>(sequence.first_row + 7 * sequence.tokens + layer + 1));
  std::vector<float> queries(static_cast<size_t>(o_.kv_heads) * o_.group * o_.head_dim);
  for (float& value : queries) value = static_cast<float>(random() % 2001) / 1000 - 1;
  return queries;
}

absl::StatusOr<std::vector<AttendAnswer>> MadeTraffic::Step(Index* index, const MadeSequence& sequence) const {
  std::vector<AttendAnswer> answers;
  for (int layer = 0; layer < o_.layers; ++layer) {
    if (absl::Status s = Append(index, sequence, layer, sequence.tokens, 1); !s.ok()) return s;
    const std::vector<float> queries = QueriesOf(sequence, layer);
    auto answer = index->Attend({{{sequence.id, 0}, layer, queries.data()}}, index->config().search, {});
    if (!answer.ok()) return answer.status();
    if (!answer->front().status.ok()) return answer->front().status;
    answers.push_back(std::move(answer->front()));
  }
  return answers;
}

}  // namespace seine::bench
