// Append, truncate and fork of one layer.
#include "index/layer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/ops.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace seine {

namespace {

// Checksums of `count` tokens of `token_bytes` each.
std::vector<uint64_t> Checksums(const uint8_t* rows, int64_t count, int64_t token_bytes) {
  std::vector<uint64_t> sums(count);
  for (int64_t i = 0; i < count; ++i) sums[i] = XXH3_64bits(rows + i * token_bytes, token_bytes);
  return sums;
}

const uint8_t* Bytes(const std::vector<uint64_t>& sums) { return reinterpret_cast<const uint8_t*>(sums.data()); }

}  // namespace

// Zone keys of a layer that is being extended: stored rows up to its old length, then the rows just given.
class Layer::AppendedKeys : public KeySource {
 public:
  AppendedKeys(const Layer* layer, const uint8_t* input, int64_t new_length)
      : layer_(*layer), input_(input), new_length_(new_length) {}

  ConstRows Rows(int head, int64_t key, int64_t* count) const override {
    const Context& context = *layer_.context_;
    const int64_t position = context.config.zones.sink + key;
    const DType dtype = context.config.geometry.dtype;
    if (position >= layer_.length_) {
      *count = new_length_ - position;
      const uint8_t* token = input_ + (position - layer_.length_) * context.token_bytes();
      return {token + int64_t{head} * context.row_bytes(), static_cast<size_t>(context.token_bytes()), dtype};
    }
    const int64_t chunk_end = (position / layer_.keys_.chunk_tokens() + 1) * layer_.keys_.chunk_tokens();
    *count = std::min(chunk_end, layer_.length_) - position;
    return {layer_.keys_.Row(head, position), static_cast<size_t>(context.row_bytes()), dtype};
  }

 private:
  const Layer& layer_;
  const uint8_t* const input_;
  const int64_t new_length_;
};

Layer::Layer(const Context* context, int layer)
    : context_(context),
      layer_(layer),
      queries_(&context->ledger, int64_t{context->config.geometry.num_q_heads} * context->config.geometry.head_dim),
      keys_(&context->rows, &context->row_shape),
      values_(&context->rows, &context->row_shape),
      checksums_(&context->checksums, &context->checksum_shape),
      codes_(&context->codes) {}

absl::StatusOr<int64_t> Layer::Append(int64_t position, const TensorView& keys, const TensorView& values) {
  if (position > length_) {
    return absl::OutOfRangeError(
        absl::StrCat("position: ", position, " leaves a gap; the layer holds ", length_, " tokens"));
  }
  const auto* key_rows = static_cast<const uint8_t*>(keys.data);
  const auto* value_rows = static_cast<const uint8_t*>(values.data);
  const int64_t replayed = std::min(keys.num_tokens, length_ - position);
  if (absl::Status s = CheckReplay(position, replayed, key_rows, value_rows); !s.ok()) return s;
  if (replayed < keys.num_tokens) {
    const int64_t skipped = replayed * context_->token_bytes();
    absl::Status s =
        Extend(position + keys.num_tokens, key_rows + skipped, keeps_values() ? value_rows + skipped : nullptr);
    if (!s.ok()) return s;
  }
  return length_;
}

absl::Status Layer::CheckReplay(int64_t position, int64_t count, const uint8_t* keys, const uint8_t* values) const {
  if (count <= 0) return absl::OkStatus();
  const char* what = "keys";
  int64_t different;
  if (keeps_all_keys()) {
    different = keys_.FirstDifference(position, keys, count);
  } else {
    different = checksums_.FirstDifference(position, Bytes(Checksums(keys, count, context_->token_bytes())), count);
  }
  if (different < 0 && keeps_values()) {
    what = "values";
    different = values_.FirstDifference(position, values, count);
  }
  if (different < 0) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(what, ": position ", position + different,
                                               " already holds other bytes; truncate before rewriting it"));
}

// Ahead of the first key that is encoded. Codecs chosen for an append that then fails are chosen anew by the next.
absl::Status Layer::ChooseCodecs(int64_t new_length) {
  if (codes_.encoded() > 0 || context_->ZoneKeys(new_length) == 0) return absl::OkStatus();
  absl::StatusOr<std::shared_ptr<const LayerCodecs>> codecs = context_->transforms.Of(layer_, new_length);
  if (!codecs.ok()) return codecs.status();
  codes_.Choose(*std::move(codecs));
  return absl::OkStatus();
}

absl::Status Layer::Extend(int64_t new_length, const uint8_t* keys, const uint8_t* values) {
  const int64_t sink_end = std::min<int64_t>(context_->config.zones.sink, new_length);
  const int64_t raw_begin = RawBeginAt(new_length);
  // New keys to be stored: [length_, first_end) and [second_begin, new_length). They differ where kNone keeps the sink
  // and the newest keys only, and everything between is encoded straight from the input.
  const bool gap = raw_begin > std::max(sink_end, length_);
  const int64_t first_end = gap ? std::max(sink_end, length_) : new_length;
  const int64_t second_begin = gap ? raw_begin : new_length;

  if (absl::Status s = ChooseCodecs(new_length); !s.ok()) return s;
  Staging staging;
  keys_.Plan(length_, first_end, &staging);
  keys_.Plan(second_begin, new_length, &staging);
  if (keeps_values()) values_.Plan(length_, new_length, &staging);
  if (!keeps_all_keys()) checksums_.Plan(length_, new_length, &staging);
  codes_.PlanGrow(context_->ZoneKeys(new_length), &staging);
  if (absl::Status s = staging.Allocate(&context_->ledger); !s.ok()) return s;

  if (!staging.empty()) {
    staging.Install();
    keys_.Refresh();
    values_.Refresh();
    checksums_.Refresh();
  }
  keys_.Write(length_, keys, first_end - length_);
  keys_.Write(second_begin, keys + (second_begin - length_) * context_->token_bytes(), new_length - second_begin);
  if (keeps_values()) values_.Write(length_, values, new_length - length_);
  if (!keeps_all_keys()) {
    const int64_t count = new_length - length_;
    checksums_.Write(length_, Bytes(Checksums(keys, count, context_->token_bytes())), count);
  }
  const AppendedKeys source(this, keys, new_length);
  // A device may still refuse; what was written past the layer's end is then written anew by the next append.
  absl::Status status = codes_.Grow(context_->ZoneKeys(new_length), source, context_->config.zones.update_buffer);
  if (!status.ok()) return status;
  if (raw_begin > raw_begin_) {
    keys_.Drop(context_->config.zones.sink, raw_begin);
    raw_begin_ = raw_begin;
  }
  length_ = new_length;
  return absl::OkStatus();
}

// The first position beyond the sink whose key is held once the layer has grown to `length`: whole chunks are dropped.
int64_t Layer::RawBeginAt(int64_t length) const {
  if (keeps_all_keys()) return 0;
  const int64_t wanted = context_->ZoneEnd(length) - context_->config.zones.update_buffer;
  if (wanted <= context_->config.zones.sink) return raw_begin_;
  return std::max(raw_begin_, wanted / keys_.chunk_tokens() * keys_.chunk_tokens());
}

// Zone keys that stay encoded when the layer is cut at `position`: whole units below the cut. Under Centre::kGlobal the
// first update buffer must stay whole, for the centre is made of it.
int64_t Layer::EncodedAfterCut(int64_t position) const {
  const int64_t below = std::max<int64_t>(position - context_->config.zones.sink, 0);
  const int64_t whole = std::min(below / context_->codes.unit_keys * context_->codes.unit_keys, codes_.encoded());
  if (context_->config.codec.centre == Centre::kGlobal && whole < context_->config.zones.update_buffer) return 0;
  return whole;
}

// True where the keys of all tokens below the cut that lose their codes are held.
bool Layer::CutWorks(int64_t position) const {
  const int64_t first_raw = context_->config.zones.sink + EncodedAfterCut(position);
  return keeps_all_keys() || first_raw >= std::min(position, raw_begin_);
}

absl::Status Layer::PlanTruncate(int64_t position, Staging* staging) {
  if (position >= length_) return absl::OkStatus();
  if (!CutWorks(position)) {
    int64_t below = position, above = position;
    while (!CutWorks(below)) --below;
    while (!CutWorks(above)) ++above;
    return absl::FailedPreconditionError(
        absl::StrCat("position: ", position, " lies inside an encoded window whose keys are gone (kv_store none); ",
                     below, " and ", above, " are the nearest that work"));
  }
  codes_.PlanShrink(context_->ZoneKeys(position), staging);
  return absl::OkStatus();
}

absl::Status Layer::CommitTruncate(int64_t position) {
  if (position >= length_) return absl::OkStatus();
  absl::Status status = codes_.Shrink(context_->ZoneKeys(position), EncodedAfterCut(position));
  keys_.Truncate(position);
  values_.Truncate(position);
  checksums_.Truncate(position);
  ++cuts_;
  raw_begin_ = std::min(raw_begin_, position);
  length_ = position;
  return status;
}

void Layer::ShareFrom(const Layer& source) {
  length_ = source.length_;
  raw_begin_ = source.raw_begin_;
  keys_ = source.keys_;
  values_ = source.values_;
  checksums_ = source.checksums_;
  codes_ = source.codes_;
}

bool Layer::Outgrown() const {
  return keeps_all_keys() && codes_.visible() > 0 && context_->transforms.Outgrown(*codes_.codecs(), length_);
}

bool Layer::Refittable() const {
  const CodecConfig& codec = context_->config.codec;
  return keeps_all_keys() && codec.name == "balanced" && !codec.query_position;
}

bool Layer::Asked(int64_t position, const float* queries) const {
  if (!keeps_all_keys()) return false;
  const QueryWindow::Added added = queries_.Add(position, queries);
  if (added.refused) context_->queries_not_kept.fetch_add(1, std::memory_order_relaxed);
  return added.renewed && Refittable();
}

// All of the memory is asked for at the first step: a re-encoding that cannot end is better not begun.
absl::Status Layer::GrowFromStored(int64_t most, CodeStore* next) const {
  Staging staging;
  next->PlanGrow(codes_.visible(), &staging);
  if (absl::Status s = staging.Allocate(&context_->ledger); !s.ok()) return s;
  staging.Install();
  const AppendedKeys stored(this, nullptr, length_);
  return next->Grow(std::min(codes_.visible(), next->visible() + most), stored, 0);
}

void Layer::FillTask(int kv_head, const SearchParams& params, SearchTask* task) const {
  codes_.FillTask(kv_head, task);
  const int64_t zone_begin = context_->config.zones.sink;
  task->zone_begin = zone_begin;
  if (keeps_all_keys()) {
    task->keys = {keys_.HeadChunks(kv_head), keys_.chunk_tokens(), context_->config.geometry.head_dim,
                  context_->config.geometry.dtype};
  }
  if (params.scope == Scope::kPerKvHead && params.reduce == GqaReduce::kSoftmaxSum) {
    AddDense(kv_head, 0, zone_begin, &task->dense);
    // Under kNone, after a cut far back, some dense tokens have no keys; their mass is left out.
    AddDense(kv_head, std::max(zone_begin + codes_.visible(), raw_begin_), length_, &task->dense);
  }
}

void Layer::AddDense(int kv_head, int64_t begin, int64_t end, std::vector<DenseRun>* dense) const {
  while (begin < end) {
    const int64_t stop = std::min<int64_t>(end, (begin / keys_.chunk_tokens() + 1) * keys_.chunk_tokens());
    const ConstRows rows = {keys_.Row(kv_head, begin), static_cast<size_t>(context_->row_bytes()),
                            context_->config.geometry.dtype};
    dense->push_back({rows, static_cast<int>(stop - begin)});
    begin = stop;
  }
}

void Layer::CopyStored(int64_t position, int64_t count, float* keys, float* values) const {
  const Geometry& g = context_->config.geometry;
  for (const auto& [store, out] : {std::pair{&keys_, keys}, std::pair{&values_, values}}) {
    if (out == nullptr) continue;
    float* to = out;
    for (int64_t token = position; token < position + count; ++token) {
      for (int head = 0; head < g.num_kv_heads; ++head, to += g.head_dim) {
        const ConstRows row = {store->Row(head, token), static_cast<size_t>(context_->row_bytes()), g.dtype};
        cpu::ToFloat(row, 1, g.head_dim, to);
      }
    }
  }
}

absl::Status Layer::Gather(int kv_head, absl::Span<const int32_t> positions, std::string* keys,
                           std::string* values) const {
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < 0 || positions[i] >= length_) {
      return absl::OutOfRangeError(
          absl::StrCat("positions[", i, "]: ", positions[i], " is not in the layer, which holds ", length_, " tokens"));
    }
  }
  const size_t row_bytes = context_->row_bytes();
  for (const auto& [store, out] : {std::pair{&keys_, keys}, std::pair{&values_, values}}) {
    if (out == nullptr) continue;
    out->resize(positions.size() * row_bytes);
    char* to = out->data();
    for (const int32_t position : positions) {
      std::copy_n(reinterpret_cast<const char*>(store->Row(kv_head, position)), row_bytes, to);
      to += row_bytes;
    }
  }
  return absl::OkStatus();
}

}  // namespace seine
