#include "index/eviction/kept_queries.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>

#include "index/bytes/state_reader.h"
#include "index/bytes/state_writer.h"

namespace seine {

absl::StatusOr<KeptQueries::Staged> KeptQueries::Stage(int64_t first, int64_t count, const float* queries) const {
  const int64_t skipped = std::max<int64_t>(0, count - most_), bytes = row_ * static_cast<int64_t>(sizeof(float));
  Staged staged;
  Reservation reservation(ledger_);
  if (absl::Status s = reservation.Reserve(MemoryKind::kQuery, (count - skipped) * bytes); !s.ok()) return s;
  for (int64_t i = skipped; i < count; ++i) {
    auto row = std::make_shared<Row>();
    row->charge = reservation.Charge(MemoryKind::kQuery, bytes);
    row->floats = std::make_unique_for_overwrite<float[]>(row_);
    std::copy_n(queries + i * row_, row_, row->floats.get());
    staged.push_back({first + i, std::move(row)});
  }
  return staged;
}

void KeptQueries::Commit(Staged staged) {
  if (staged.empty()) return;
  Staged gone;  // freed after the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    gone.reserve(entries_.size() + staged.size());
    entries_.reserve(entries_.size() + staged.size());
  } catch (const std::bad_alloc&) {
    return;  // the tokens are there already: their queries are not kept
  }
  const auto before = [](const Entry& a, const Entry& b) { return a.position < b.position; };
  const auto from = std::lower_bound(entries_.begin(), entries_.end(), staged.front(), before);
  const auto to = std::upper_bound(from, entries_.end(), staged.back(), before);
  gone.assign(std::make_move_iterator(from), std::make_move_iterator(to));
  const auto at = entries_.erase(from, to);
  entries_.insert(at, std::make_move_iterator(staged.begin()), std::make_move_iterator(staged.end()));
  const int64_t over = std::max<int64_t>(0, static_cast<int64_t>(entries_.size()) - most_);
  const auto oldest = entries_.begin() + over;
  std::move(entries_.begin(), oldest, std::back_inserter(gone));
  entries_.erase(entries_.begin(), oldest);
}

void KeptQueries::DropFrom(int64_t position) {
  const std::lock_guard<std::mutex> lock(mutex_);
  while (!entries_.empty() && entries_.back().position >= position) entries_.pop_back();
}

KeptQueries::Staged KeptQueries::Entries() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return entries_;
}

void KeptQueries::Restore(Staged entries) {
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_.swap(entries);  // the others are freed after the lock
}

void KeptQueries::ShareFrom(const KeptQueries& source) { Restore(source.Entries()); }

SeenQueries KeptQueries::Seen(int64_t most, const Staged& staged) const {
  Staged all = Entries();
  for (const Entry& entry : staged) {
    const auto at = std::lower_bound(all.begin(), all.end(), entry,
                                     [](const Entry& a, const Entry& b) { return a.position < b.position; });
    if (at != all.end() && at->position == entry.position) {
      *at = entry;
    } else {
      all.insert(at, entry);
    }
  }
  all.erase(all.begin(), all.end() - std::min<int64_t>(most, static_cast<int64_t>(all.size())));
  SeenQueries seen;
  seen.rows.reserve(all.size() * row_);
  for (const Entry& entry : all) {
    seen.positions.push_back(entry.position);
    seen.rows.insert(seen.rows.end(), entry.row->floats.get(), entry.row->floats.get() + row_);
  }
  return seen;
}

void KeptQueries::Save(StateWriter* writer) const {
  const Staged entries = Entries();
  writer->Put<uint64_t>(entries.size());
  for (const Entry& entry : entries) {
    writer->Put(entry.position);
    if (!writer->PutRef(entry.row.get())) continue;
    writer->PutPayload(row_ * static_cast<int64_t>(sizeof(float)), [row = entry.row, floats = row_](uint8_t* out) {
      std::memcpy(out, row->floats.get(), floats * sizeof(float));
    });
  }
}

void KeptQueries::Load(int64_t length, StateReader* reader) {
  const auto count = reader->Get<uint64_t>();
  const int64_t bytes = row_ * static_cast<int64_t>(sizeof(float));
  reader->Check(count <= static_cast<uint64_t>(most_), "too many queries are kept");
  Staged entries;
  for (uint64_t i = 0; i < count && reader->ok(); ++i) {
    const int64_t least = entries.empty() ? 0 : entries.back().position + 1;
    const int64_t position = reader->GetWithin(least, length - 1, "kept queries do not ascend");
    bool is_new = false;
    auto* const found = reader->GetRef<std::shared_ptr<const Row>>(&is_new);
    if (found != nullptr && is_new) {
      auto row = std::make_shared<Row>();
      if (!reader->Charge(MemoryKind::kQuery, bytes, &row->charge)) return;
      row->floats = std::make_unique_for_overwrite<float[]>(row_);
      float* const floats = row->floats.get();
      reader->GetPayload(floats, bytes, [floats, count = row_](const uint8_t*) {
        return std::all_of(floats, floats + count, [](float x) { return std::isfinite(x); });
      });
      *found = std::move(row);
    }
    if (reader->ok()) entries.push_back({position, *found});
  }
  if (reader->ok()) Restore(std::move(entries));
}

int64_t KeptQueries::newest() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return entries_.empty() ? -1 : entries_.back().position;
}

}  // namespace seine
