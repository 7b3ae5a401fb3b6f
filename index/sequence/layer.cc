// Append, truncate, eviction and fork of one layer.
#include "index/sequence/layer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "index/stop_status.h"
#include "kernels/stop.h"
#include "profile/field_error.h"

namespace seine {

namespace {

// Tokens that are read one after another before the caller's token is looked at again.
constexpr int64_t kTokensBetweenLooks = 4096;

// An append has its own queries, not those given to a call.
absl::Status OfAppend(const absl::Status& status) {
  return FieldOf(status) == "given.queries" ? WithField(status, "queries") : status;
}

}  // namespace

Layer::Layer(const Context* context, int layer)
    : context_(context),
      layer_(layer),
      queries_(&context->ledger, int64_t{context->config.geometry.num_q_heads} * context->config.geometry.head_dim),
      kept_queries_(&context->ledger, int64_t{context->config.geometry.num_q_heads} * context->config.geometry.head_dim,
                    context->kept_queries()),
      attention_sums_(&context->ledger, context->config.geometry.num_kv_heads, context->eviction.accumulates()) {
  caches_.push_back(std::make_unique<HeadGroupCache>(context, layer));
  Publish();
}

absl::StatusOr<int64_t> Layer::Append(int64_t position, const TensorView& keys, const TensorView& values,
                                      const QueryView& queries, RetainedReport report, Retained* retained) {
  if (position > length_) {
    return FieldError(absl::StatusCode::kOutOfRange, "position",
                      absl::StrCat(position, " leaves a gap; the layer holds ", length_, " tokens"));
  }
  Cuts cuts;
  BeginReport(report, retained, &cuts.dropped);
  const auto* key_rows = static_cast<const uint8_t*>(keys.data);
  const auto* value_rows = static_cast<const uint8_t*>(values.data);
  const int64_t replayed = std::min(keys.num_tokens, length_ - position);
  for (int64_t done = 0, count; done < replayed; done += count) {
    if (absl::Status s = StopStatus(); !s.ok()) return s;
    count = std::min(kTokensBetweenLooks, replayed - done);
    const int64_t from = done * context_->token_bytes();
    for (const auto& cache : caches_) {
      absl::Status s = cache->CheckReplay(position + done, count, key_rows + from,
                                          value_rows == nullptr ? nullptr : value_rows + from);
      if (!s.ok()) return s;
    }
  }
  const int64_t last = position + keys.num_tokens;
  auto again = StageQueries(queries, last, position, position + replayed);
  if (!again.ok()) return again.status();
  const bool in_parts = keys.num_tokens - replayed > std::max<int64_t>(0, Room());
  const bool counts_again = attention_sums_.on() && queries.num_tokens > keys.num_tokens - replayed;
  Before before = SaveCheckpoint(in_parts, in_parts || !again->empty(), in_parts || counts_again);
  kept_queries_.Commit(*std::move(again));
  AccumulateGiven(queries, last, position, position + replayed);
  for (int64_t done = replayed; done < keys.num_tokens;) {
    absl::StatusOr<int64_t> part = absl::ResourceExhaustedError("out of memory: no room to work in");
    try {
      part = AppendPart(done, last, keys, values, queries, &cuts);
    } catch (const std::bad_alloc&) {
      for (const auto& cache : caches_) cache->DropStaged();
    }
    if (!part.ok()) {
      RestoreCheckpoint(&before);
      return part.status();
    }
    done += *part;
  }
  before = {};  // its memory, ahead of a cut that needs some
  // The tokens are taken: a cut that fails is left to the next append, which fails where it fails again.
  try {
    UpdateReencodeDue(keys.num_tokens - replayed);
    // Where the scorer looks at queries, those of the last token may still come, before the next one does.
    const bool waits = (context_->eviction.by_queries() && kept_queries_.newest() < length_ - 1) ||
                       (attention_sums_.on() && attention_sums_.counted_to() < length_);
    if (Room() <= 0 && !waits) EvictByItself(&cuts).IgnoreError();
  } catch (const std::bad_alloc&) {
  }
  if (cuts.layers > 0) context_->CountEvicted(context_->eviction.settings().scorer.name, cuts.layers, cuts.tokens);
  EndReport(&cuts.dropped, retained);
  return length_;
}

absl::StatusOr<int64_t> Layer::AppendPart(int64_t done, int64_t last, const TensorView& keys, const TensorView& values,
                                          const QueryView& queries, Cuts* cuts) {
  if (Room() <= 0) {
    if (absl::Status s = EvictByItself(cuts); !s.ok()) return s;
  }
  // At least one, also where a pyramid takes from this layer by the token what the interval would let it hold.
  const int64_t part = std::min(keys.num_tokens - done, std::max<int64_t>(1, Room()));
  auto staged = StageQueries(queries, last, length_, length_ + part);
  if (!staged.ok()) return staged.status();
  const int64_t skipped = done * context_->token_bytes();
  const auto* key_rows = static_cast<const uint8_t*>(keys.data) + skipped;
  const auto* value_rows = values.data == nullptr ? nullptr : static_cast<const uint8_t*>(values.data) + skipped;
  std::vector<int64_t> sizes, extended;  // made before the tokens are taken: nothing fails after that
  if (attention_sums_.on()) sizes = extended = Sizes();
  for (int64_t& size : extended) size += part;
  const int64_t most = extended.empty() ? 0 : *std::max_element(extended.begin(), extended.end());
  auto room = attention_sums_.StageRoom(most);
  if (!room.ok()) return room.status();
  const bool prompt = keys.num_tokens >= context_->config.zones.update_buffer;
  if (absl::Status s = Extend(part, key_rows, value_rows, *staged, prompt); !s.ok()) return s;
  attention_sums_.CommitRoom(*std::move(room), sizes, extended);
  kept_queries_.Commit(*std::move(staged));
  AccumulateGiven(queries, last, length_ - part, length_);
  return part;
}

std::vector<int64_t> Layer::Sizes() const {
  std::vector<int64_t> sizes(num_heads());
  for (int h = 0; h < num_heads(); ++h) sizes[h] = cache(h).size();
  return sizes;
}

Layer::Before Layer::SaveCheckpoint(bool caches, bool queries, bool sums) const {
  Before before{length_, evictions_, due(), {}, std::nullopt, std::nullopt};
  if (queries && kept_queries_.on()) before.queries = kept_queries_.Entries();
  if (sums && attention_sums_.on()) before.sums = attention_sums_.SaveCheckpoint();
  if (!caches) return before;
  for (const auto& cache : caches_) before.caches.push_back(*cache);
  return before;
}

void Layer::RestoreCheckpoint(Before* before) {
  if (before->queries) kept_queries_.Restore(*std::move(before->queries));
  if (before->sums) attention_sums_.Restore(*std::move(before->sums));
  if (before->caches.empty()) return;
  length_ = before->length;
  evictions_ = before->evictions;
  due_ = before->due;
  caches_.clear();
  for (const HeadGroupCache& cache : before->caches) caches_.push_back(std::make_unique<HeadGroupCache>(cache));
}

absl::StatusOr<KeptQueries::Staged> Layer::StageQueries(const QueryView& queries, int64_t last, int64_t begin,
                                                        int64_t end) const {
  const int64_t first = last - queries.num_tokens, from = std::max(first, begin);
  if (from >= end) return KeptQueries::Staged();
  const Geometry& g = context_->config.geometry;
  return kept_queries_.Stage(from, end - from, queries.data + (from - first) * g.num_q_heads * g.head_dim);
}

void Layer::KeepQueries(const float* queries) const {
  if (!kept_queries_.on() || length_ == 0) return;
  auto staged = kept_queries_.Stage(length_ - 1, 1, queries);
  if (staged.ok()) {
    kept_queries_.Commit(*std::move(staged));
  } else {
    context_->dropped_queries.fetch_add(1, std::memory_order_relaxed);
  }
}

int64_t Layer::Room() const {
  if (!context_->eviction.on()) return std::numeric_limits<int64_t>::max();
  HeadSizes sizes;
  for (const auto& cache : caches_) sizes.Add(cache->size());
  return context_->eviction.Room(sizes, layer_, length_);
}

absl::Status Layer::Extend(int64_t count, const uint8_t* keys, const uint8_t* values,
                           const KeptQueries::Staged& queries, bool prompt) {
  std::shared_ptr<const LayerCodecs> codecs;
  Staging staging;
  for (const auto& cache : caches_) {
    // Ahead of the first key that is encoded. Codecs chosen for an append that then fails are chosen anew by the next.
    if (cache->WantsCodecs(count)) {
      absl::StatusOr<std::shared_ptr<const LayerCodecs>> chosen = context_->transforms.Of(layer_, length_ + count);
      if (!chosen.ok()) return chosen.status();
      cache->ChooseCodecs(*std::move(chosen));
    }
    cache->PlanAppend(count, &staging);
  }
  absl::Status staged = staging.Allocate(&context_->ledger);
  LowRankAppend low{prompt, {}};
  const bool lowers = std::any_of(caches_.begin(), caches_.end(), [=](const auto& c) { return c->WillLower(count); });
  if (lowers && kept_queries_.on()) low.queries = kept_queries_.Seen(QueriesKept(*context_->config.subspace), queries);
  for (const auto& cache : caches_) {
    if (staged.ok()) staged = cache->StageLow(length_, count, keys, values, low);
  }
  if (!staged.ok()) {
    for (const auto& cache : caches_) cache->DropStaged();
    return staged;
  }
  if (!staging.empty()) {  // most tokens find room in the pieces that are there
    staging.Install();
    for (const auto& cache : caches_) cache->Installed();
  }
  for (size_t i = 0; i < caches_.size(); ++i) {
    // A device may still refuse, or the call be stopped: a long prompt's memory then goes back.
    absl::Status s = caches_[i]->WriteAppend(length_, count, keys, values);
    if (s.ok()) continue;
    const StopScope finish(nullptr);
    for (const auto& cache : caches_) {
      s.Update(cache->UndoAppend());
      cache->DropStaged();
    }
    return s;
  }
  const StopScope finish(nullptr);  // from here on there is no way back
  for (const auto& cache : caches_) cache->CommitAppend(count);
  length_ += count;
  return absl::OkStatus();
}

absl::Status Layer::PlanTruncate(int64_t position, Staging* staging) {
  if (position >= length_) return absl::OkStatus();
  for (const auto& cache : caches_) {
    if (absl::Status s = cache->PlanTruncate(position, staging); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status Layer::CommitTruncate(int64_t position) {
  if (position >= length_) return absl::OkStatus();
  const StopScope finish(nullptr);
  absl::Status status;
  for (const auto& cache : caches_) status.Update(cache->CommitTruncate(position));
  kept_queries_.DropFrom(position);
  attention_sums_.Truncate(position);
  ++cuts_;
  length_ = position;
  UpdateReencodeDue(0);
  return status;
}

void Layer::ShareFrom(const Layer& source) {
  length_ = source.length_;
  evictions_ = source.evictions_;
  due_ = source.due();
  kept_queries_.ShareFrom(source.kept_queries_);
  attention_sums_.ShareFrom(source.attention_sums_);
  caches_.clear();
  for (const auto& cache : source.caches_) caches_.push_back(std::make_unique<HeadGroupCache>(*cache));
}

absl::Status Layer::PrepareSearch(int kv_head, const SearchParams& params, int64_t zone_keys, SearchTask* task) const {
  const HeadGroupCache& held = cache(kv_head);
  return held.PrepareSearch(kv_head - held.first_head(), params, zone_keys, task);
}

void Layer::FillAttention(int kv_head, int64_t zone_keys, bool tail, bool on_device, host::AttentionTask* task) const {
  const HeadGroupCache& held = cache(kv_head);
  held.FillAttention(kv_head - held.first_head(), zone_keys, tail, on_device, task);
}

absl::StatusOr<int64_t> Layer::Keep(const std::vector<std::vector<uint32_t>>& places, DroppedPositions* dropped) {
  int64_t gone = 0;
  for (int h = 0; h < num_heads(); ++h) gone += cache(h).size() - static_cast<int64_t>(places[h].size());
  if (gone == 0) return 0;
  DroppedPositions::Eviction eviction(dropped);
  for (int h = 0; h < num_heads() && dropped->watches(); ++h) eviction.Add(h, cache(h), places[h]);
  const std::shared_ptr<const LayerCodecs> old = codecs();
  std::shared_ptr<const LayerCodecs> chosen;  // one set for all heads, for the queries that the old ones were made for
  std::vector<std::unique_ptr<HeadGroupCache>> kept;
  Staging staging;
  for (int h = 0; h < num_heads(); ++h) {
    const auto count = static_cast<int64_t>(places[h].size());
    HeadGroupCache& one = *kept.emplace_back(std::make_unique<HeadGroupCache>(context_, layer_, h));
    if (one.WantsCodecs(count) && chosen == nullptr) {
      auto made = context_->transforms.Of(layer_, length_, old == nullptr ? nullptr : old->queries);
      if (!made.ok()) return made.status();
      chosen = *std::move(made);
    }
    if (one.WantsCodecs(count)) one.ChooseCodecs(chosen);
    one.PlanKeep(cache(h), places[h], &staging);
  }
  if (absl::Status s = staging.Allocate(&context_->ledger); !s.ok()) return s;
  auto sums = attention_sums_.StageKept(places);
  if (!sums.ok()) return sums.status();
  staging.Install();
  for (int h = 0; h < num_heads(); ++h) {
    if (absl::Status s = kept[h]->CommitKeep(cache(h), places[h]); !s.ok()) return s;
  }
  if (absl::Status s = StopStatus(); !s.ok()) return s;
  caches_ = std::move(kept);
  eviction.Done();
  attention_sums_.CommitKept(*std::move(sums));
  ++cuts_;
  ++evictions_;
  UpdateReencodeDue(0);
  return gone;
}

absl::Status Layer::EvictByItself(Cuts* cuts) {
  const EvictionConfig& settings = context_->eviction.settings();
  EvictParams params;
  params.budget = settings.budget;
  params.keep = settings.keep;
  auto places = Select(params, context_->eviction.scorer(), {});
  if (!places.ok()) return OfAppend(places.status());
  absl::StatusOr<int64_t> gone = Keep(*places, &cuts->dropped);
  if (!gone.ok()) return gone.status();
  cuts->layers += *gone > 0 ? 1 : 0;
  cuts->tokens += *gone;
  return absl::OkStatus();
}

bool Layer::CopyStored(int64_t position, int64_t count, float* keys, float* values) const {
  const Geometry& g = context_->config.geometry;
  const int64_t stride = int64_t{g.num_kv_heads} * g.head_dim;
  for (int h = 0; h < g.num_kv_heads; ++h) {
    const HeadGroupCache& held = cache(h);
    const int64_t place = held.PlaceOf(position);
    if (held.PlaceOf(position + count) - place != count) return false;
    held.CopyFloats(h - held.first_head(), place, count, keys + h * g.head_dim,
                    values == nullptr ? nullptr : values + h * g.head_dim, stride);
  }
  return true;
}

absl::Status Layer::Gather(int kv_head, absl::Span<const int32_t> positions, std::string* keys,
                           std::string* values) const {
  const HeadGroupCache& held = cache(kv_head);
  std::vector<int64_t> places(positions.size());
  for (size_t i = 0; i < positions.size(); ++i) {
    if (i % kTokensBetweenLooks == 0 && StopRequested()) return StopStatus();
    if (positions[i] < 0 || positions[i] >= length_) {
      return FieldError(absl::StatusCode::kOutOfRange, absl::StrCat("positions[", i, "]"),
                        absl::StrCat(positions[i], " is not in the layer, which holds ", length_, " tokens"));
    }
    places[i] = held.PlaceOf(positions[i]);
    if (places[i] >= held.size() || held.position(places[i]) != positions[i]) {
      return FieldError(absl::StatusCode::kNotFound, absl::StrCat("positions[", i, "]"),
                        absl::StrCat(positions[i], " was evicted from KV head ", kv_head));
    }
  }
  held.Gather(kv_head - held.first_head(), places, keys, values);
  return StopStatus();
}

int64_t Layer::code_bytes() const {
  int64_t total = 0;
  for (const auto& cache : caches_) total += cache->code_bytes();
  return total;
}

int64_t Layer::store_bytes() const {
  int64_t total = 0;
  for (const auto& cache : caches_) total += cache->store_bytes();
  return total + attention_sums_.bytes();
}

void Layer::Publish() try {
  std::vector<HeadGroupFacts> parted;  // goes after the lock
  const LayerTotals totals = {length_, code_bytes(), store_bytes()};
  const std::lock_guard<std::mutex> lock(published_mutex_);
  published_ = totals;
  if (published_caches_.size() != caches_.size()) {
    parted.swap(published_caches_);
    published_caches_.resize(caches_.size());
  }
  for (size_t i = 0; i < caches_.size(); ++i) caches_[i]->FillFacts(&published_caches_[i]);
} catch (const std::bad_alloc&) {  // told with the next change
}

LayerTotals Layer::totals() const {
  const std::lock_guard<std::mutex> lock(published_mutex_);
  return published_;
}

HeadFacts Layer::facts(int kv_head) const {
  HeadFacts facts;
  const std::lock_guard<std::mutex> lock(published_mutex_);
  facts.length = published_.length;
  facts.cache = published_caches_[published_caches_.size() == 1 ? 0 : kv_head];
  const auto& low = facts.cache.low;
  if (low != nullptr) facts.low_rank = &(*low)[low->size() == 1 ? 0 : kv_head];
  return facts;
}

}  // namespace seine
