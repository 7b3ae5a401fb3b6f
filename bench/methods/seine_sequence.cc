// See seine_sequence.h.
#include "bench/methods/seine_sequence.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/inputs/head_profile.h"
#include "kernels/codecs/codec_traits.h"
#include "profile/moments.h"

namespace seine::bench {
namespace {

constexpr int64_t kAppendTokens = 16384;  // a call, as a prefill in pieces would

std::vector<int32_t> Union(const std::vector<std::vector<int32_t>>& lists) {
  if (lists.size() == 1) return lists.front();
  std::set<int32_t> all;
  for (const auto& list : lists) all.insert(list.begin(), list.end());
  return {all.begin(), all.end()};
}

}  // namespace

absl::StatusOr<IndexConfig> ConfigOf(const SeineOptions& options, const Head& head, int64_t query_position) {
  IndexConfig config;
  config.name = "bench";
  config.geometry = {1, options.group, 1, options.head_dim, options.dtype};
  config.zones.sink = static_cast<int>(head.zone_begin);
  config.zones.local = static_cast<int>(head.num_tokens - head.zone_end);
  config.zones.update_buffer = std::max(kWindowTokens, options.centre_window);
  config.zones.dense_threshold = 0;
  config.codec.name = options.codec;
  config.codec.seed = options.seed;
  config.codec.centre = options.centre;
  config.codec.centre_window = options.centre_window;
  ForEachCodecOption([&](const auto& option) {
    if (TraitsOf(options.codec).Takes(option.name)) config.codec.*option.field = options.codec_options.*option.field;
  });
  config.search = options.search;
  if (TraitsOf(options.codec).needs_profile) {
    auto profile = options.profile ? CutProfile(*options.profile, options.data, head)
                                   : OwnProfile(head, options.head_dim, options.rope);
    if (!profile.ok()) return profile.status();
    // One query head of moments serves the whole group; the index wants as many as it has query heads.
    Profile shaped = **profile;
    shaped.num_q_heads = options.group;
    shaped.layers[0].q_mean.resize(options.group, shaped.layers[0].q_mean[0]);
    shaped.layers[0].q_moment.resize(options.group, shaped.layers[0].q_moment[0]);
    config.codec.profile = std::make_shared<const Profile>(std::move(shaped));
    config.codec.profile_name = options.profile ? options.profile->model : "own";
    config.geometry.rope = options.rope;
    if (options.rope.stated()) {
      config.codec.horizon = options.horizon;
      config.codec.query_position = query_position;
    }
  }
  config.kv_store = KvStore::kKeys;
  return config;
}

absl::StatusOr<std::unique_ptr<SeineSequence>> SeineSequence::Create(const IndexConfig& config, Backend* backend) {
  auto index = Index::Create(config, backend);
  if (!index.ok()) return index.status();
  auto made = std::unique_ptr<SeineSequence>(new SeineSequence);
  made->index_ = *std::move(index);
  made->geometry_ = config.geometry;
  auto sequence = made->index_->CreateSequence("");
  if (!sequence.ok()) return sequence.status();
  made->sequence_ = *sequence;
  return made;
}

absl::Status SeineSequence::Append(const Head& head) {
  const size_t row = geometry_.head_dim * SizeOf(geometry_.dtype);
  std::vector<uint8_t> converted;  // only where the index stores another dtype than the data set's
  const uint8_t* tokens = head.tokens.data() + length_ * row;
  if (head.tokens.size() != row * head.num_tokens) {
    std::vector<float> keys(head.keys.begin() + length_ * geometry_.head_dim, head.keys.end());
    converted = ToDType(geometry_.dtype, &keys);
    tokens = converted.data();
  }
  for (const uint8_t* rows = tokens; length_ < head.num_tokens;) {
    const int64_t count = std::min(kAppendTokens, head.num_tokens - length_);
    auto length = index_->Append(sequence_, 0, length_, {rows, count, count * row}, {});
    if (!length.ok()) return length.status();
    rows += count * row;
    length_ = *length;
  }
  auto info = index_->DescribeHead(sequence_, 0, 0);
  if (!info.ok()) return info.status();
  info_ = *info;
  if (info_.zone_begin == head.zone_begin && info_.zone_end == head.zone_end) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the index's zone [", info_.zone_begin, ", ", info_.zone_end,
                                          ") is not the bench's [", head.zone_begin, ", ", head.zone_end, ")"));
}

absl::Status SeineSequence::Search(const SearchParams& params, const Ask& ask, Found* found) const {
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

}  // namespace seine::bench
