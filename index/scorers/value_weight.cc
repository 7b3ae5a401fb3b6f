#include "index/scorers/value_weight.h"

#include <algorithm>
#include <cmath>

#include "index/scorers/scorers.h"
#include "index/stop_status.h"
#include "kernels/host.h"
#include "kernels/math.h"
#include "kernels/stop.h"
#include "profile/field_error.h"

namespace seine {

namespace {

const float kChosenFirst = std::nextafter(kLargestFloat, 0.0f);
const float kMostWeighted = std::nextafter(kChosenFirst, 0.0f);

void AddNorms(const ScoreInput& input, const HeadTokens& head, float* out) {
  const std::vector<float> origin(input.head_dim);
  scorers::ForEachRun(head.values, 0, head.count, [&](const ConstRows& rows, int64_t first, int64_t count) {
    host::ScoreKeys(rows, count, input.head_dim, KeyScore::kL1, origin.data(), out + first);
  });
}

// The mean over the group of |W_O^g v|_1: a dot product for each row of W_O^g, [hidden_size, head_dim].
void AddProjectedNorms(const ScoreInput& input, int kv_head, const HeadTokens& head, float* out) {
  const int dim = input.head_dim, hidden = input.hidden_size, heads = input.num_q_heads();
  constexpr int64_t kBlock = 64;
  std::vector<float> projection(int64_t{hidden} * dim), dots(int64_t{hidden} * kBlock);
  for (int g = 0; g < input.group; ++g) {
    const float* from = input.output_projection + int64_t{kv_head * input.group + g} * dim;
    for (int r = 0; r < hidden; ++r) std::copy_n(from + int64_t{r} * heads * dim, dim, projection.data() + r * dim);
    for (int64_t begin = 0; begin < head.count; begin += kBlock) {
      const int64_t end = std::min(begin + kBlock, head.count);
      scorers::ForEachRun(head.values, begin, end, [&](const ConstRows& rows, int64_t first, int64_t count) {
        host::DotRows(rows, count, dim, projection.data(), hidden, dots.data(), count);
        for (int r = 0; r < hidden; ++r) {
          for (int64_t i = 0; i < count; ++i) out[first + i] += std::abs(dots[r * count + i]);
        }
      });
    }
  }
  for (int64_t i = 0; i < head.count; ++i) out[i] /= static_cast<float>(input.group);
}

}  // namespace

absl::Status ValueWeighting::Weights(const ScoreInput& input, Scores* weights) const {
  if (kind_ == ValueWeight::kProjected && input.output_projection == nullptr) {
    return BadField("given.output_projection", "value_weight projected needs the layer's, [hidden_size, ",
                    input.num_q_heads(), ", ", input.head_dim, "]");
  }
  for (const HeadTokens& head : input.heads) {
    if (head.count > 0 && head.values.chunks == nullptr) {
      return FieldError(absl::StatusCode::kFailedPrecondition, "scorer.value_weight",
                        "values are not held; keep them (kv_store keys_values) or set it to none");
    }
  }
  return scorers::ForEachHead(input, weights, [&](int h, float* out) {
    if (kind_ == ValueWeight::kProjected) {
      AddProjectedNorms(input, h, input.heads[h], out);
    } else {
      AddNorms(input, input.heads[h], out);
    }
    return absl::OkStatus();
  });
}

absl::Status ValueWeighting::Apply(const ScoreInput& input, Scores* scores) const {
  return ApplyWithin(input, {}, {}, scores);
}

absl::Status ValueWeighting::ApplyWithin(const ScoreInput& input, const std::vector<int64_t>& kept,
                                         const std::vector<int64_t>& safe, Scores* scores) const {
  Scores weights;
  if (absl::Status s = Weights(input, &weights); !s.ok()) return s;
  const auto epsilon = static_cast<float>(epsilon_);
  input.backend->Run(static_cast<int>(scores->size()), [&](int h) {
    std::vector<float>& s = (*scores)[h];
    std::vector<uint32_t> first;
    if (!kept.empty()) {
      const int64_t forced = std::count(s.begin(), s.end(), kLargestFloat);
      const int64_t left = std::max<int64_t>(0, kept[h] - forced);
      auto count = static_cast<int64_t>(static_cast<double>(left) * first_stage_);
      if (first_stage_ > 0 && left > 0) count = std::max<int64_t>(1, count);
      count += forced;
      if (!safe.empty()) count = std::max(count, safe[h]);
      std::vector<float> scratch;
      if (count > 0) host::SelectLargest(s.data(), s.size(), std::min(count, kept[h]), &scratch, &first);
    }
    const bool in_stages = !kept.empty();
    std::vector<bool> chosen(s.size());
    for (const uint32_t place : first) chosen[place] = true;
    for (size_t i = 0; i < s.size(); ++i) {
      if (in_stages && s[i] == kLargestFloat) continue;
      const float weighted = (s[i] + epsilon) * std::fmin(weights[h][i], kLargestFloat);
      s[i] = chosen[i] ? kChosenFirst : std::clamp(weighted, -kMostWeighted, kMostWeighted);
    }
  });
  return StopStatus();
}

}  // namespace seine
