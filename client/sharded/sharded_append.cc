// What a layer of a sharded sequence is given, and the rows that it gives back (sharded_sequence.h).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sharded/shard_error.h"
#include "client/sharded/sharded_sequence.h"
#include "profile/field_error.h"

namespace seine::client {
namespace {

// Tokens [first, first + count) of a tensor [tokens, ...].
ConstTensor Slice(const ConstTensor& tensor, int64_t first, int64_t count) {
  if (tensor.data == nullptr) return tensor;
  ConstTensor out = tensor;
  auto bytes = static_cast<int64_t>(SizeOf(tensor.dtype));
  for (size_t i = 1; i < tensor.shape.size(); ++i) bytes *= tensor.shape[i];
  out.data = static_cast<const char*>(tensor.data) + first * bytes;
  out.shape[0] = count;
  return out;
}

}  // namespace

absl::Status ShardedSequence::CheckLayer(int layer) const {
  if (layer >= 0 && layer < static_cast<int>(layers_.size())) return absl::OkStatus();
  return BadField("layer", layer, " is not in [0, ", layers_.size(), ")");
}

absl::StatusOr<ShardedSequence::Appends> ShardedSequence::Split(int layer, int64_t position, const ConstTensor& keys,
                                                                const ConstTensor& values) const {
  if (absl::Status s = CheckLayer(layer); !s.ok()) return s;
  const Shape want = {keys.shape.empty() ? 0 : keys.shape[0], geometry_.num_kv_heads(), geometry_.head_dim()};
  if (keys.shape != want || want[0] < 1) {
    return BadField("keys.shape", "must be [tokens, ", geometry_.num_kv_heads(), ", ", geometry_.head_dim(), "]");
  }
  if (values.data != nullptr && values.shape != want) return BadField("values.shape", "is not that of keys");
  if (position < 0) return BadField("position", "must not be negative");
  if (position > layers_[layer].tokens) {
    return FieldError(absl::StatusCode::kOutOfRange, "position",
                      absl::StrCat(position, " leaves a gap: layer ", layer, " holds ", layers_[layer].tokens));
  }
  Appends appends(num_shards());
  for (int64_t at = position, end = position + want[0]; at < end;) {
    const int64_t count = std::min(end, map_.RunEnd(at)) - at;
    const int s = map_.ShardOf(at);
    appends[s].push_back(
        {handles_[s], layer, map_.RowOf(at), Slice(keys, at - position, count), Slice(values, at - position, count)});
    at += count;
  }
  return appends;
}

absl::Status ShardedSequence::AppendTo(int shard, const std::vector<AppendItem>& items) {
  // A few tokens are one message; more than a message holds go as a stream.
  constexpr int64_t kFew = 16;
  if (items.size() == 1 && items[0].keys.shape[0] <= kFew) return shards_[shard]->Append(items[0]).status();
  return shards_[shard]->AppendStream(items).status();
}

absl::Status ShardedSequence::Appended(int layer, int64_t position, int64_t count, const absl::Status& status) {
  LayerState& state = layers_[layer];
  state.ends = std::max(state.ends, position + count);
  if (status.ok()) {
    state.tokens = std::max(state.tokens, position + count);
    return status;
  }
  return WithMessage(status, absl::StrCat(status.message(), "; append again from position ", position));
}

absl::StatusOr<int64_t> ShardedSequence::Append(int layer, int64_t position, const ConstTensor& keys,
                                                const ConstTensor& values) {
  const absl::StatusOr<Appends> appends = Split(layer, position, keys, values);
  if (!appends.ok()) return appends.status();
  std::vector<int> concerned;
  for (int s = 0; s < num_shards(); ++s) {
    if (!(*appends)[s].empty()) concerned.push_back(s);
  }
  const absl::Status status = FirstError(OnShards(concerned, [&](int s) { return AppendTo(s, (*appends)[s]); }));
  if (absl::Status s = Appended(layer, position, keys.shape[0], status); !s.ok()) return s;
  return layers_[layer].tokens;
}

absl::StatusOr<Gathered> ShardedSequence::Gather(int layer, int kv_head, absl::Span<const int32_t> positions, bool keys,
                                                 bool values) {
  if (absl::Status s = CheckLayer(layer); !s.ok()) return s;
  std::vector<std::vector<int32_t>> rows(num_shards());
  std::vector<std::vector<size_t>> places(num_shards());  // of them in `positions`
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < 0 || positions[i] >= layers_[layer].tokens) {
      return FieldError(absl::StatusCode::kOutOfRange, "positions",
                        absl::StrCat(positions[i], " is not in the layer's ", layers_[layer].tokens, " tokens"));
    }
    const int s = map_.ShardOf(positions[i]);
    rows[s].push_back(static_cast<int32_t>(map_.RowOf(positions[i])));
    places[s].push_back(i);
  }
  const size_t row_bytes = geometry_.head_dim() * SizeOf(static_cast<DType>(geometry_.dtype()));
  Gathered out = {
      static_cast<DType>(geometry_.dtype()), static_cast<int64_t>(positions.size()), geometry_.head_dim(), {}, {}};
  out.keys.resize(keys ? positions.size() * row_bytes : 0);
  out.values.resize(values ? positions.size() * row_bytes : 0);
  for (int s = 0; s < num_shards(); ++s) {
    if (rows[s].empty()) continue;
    const absl::StatusOr<Gathered> part = shards_[s]->Gather(handles_[s], layer, kv_head, rows[s], keys, values);
    if (!part.ok()) return OfShard(s, part.status());
    for (size_t i = 0; i < places[s].size(); ++i) {
      if (keys) part->keys.copy(out.keys.data() + places[s][i] * row_bytes, row_bytes, i * row_bytes);
      if (values) part->values.copy(out.values.data() + places[s][i] * row_bytes, row_bytes, i * row_bytes);
    }
  }
  return out;
}

}  // namespace seine::client
