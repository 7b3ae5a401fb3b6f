// Tables of cells and texts, and the calls that keep the server's sequences as they say.
#include "engines/llama.cpp/remote/remote_texts.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace seine::llama {

namespace {

constexpr int64_t kFewRows = 16;      // of a text beside another: what a draft leaves
constexpr size_t kMostUnheld = 64;    // texts of which no cell holds a row
constexpr size_t kMostReasons = 256;  // a server's errors name numbers: the last place is the newest one's
constexpr char kLoaded[] = "a loaded state, whose rows the server has not";
constexpr int64_t kRowsARead = 1024;  // that are read off the server to find a text

// Rows that both begin with. Those behind a row that differs differ.
int64_t Common(const RemoteText& a, const RemoteText& b) {
  int64_t low = 0, high = std::min(a.length(), b.length());
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (a.rows[middle] == b.rows[middle]) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace

std::string ServerError(const absl::Status& status) {
  return absl::StrCat("the server: ", absl::StatusCodeToString(status.code()), ": ", status.message());
}

void RemoteTexts::SetCells(int64_t count, int64_t count_a_stream, bool kept) {
  cells_.assign(count, {});
  cells_a_stream_ = count_a_stream;
  kept_ = kept;
}

void RemoteTexts::Open(std::unique_ptr<Session> session, int deepest_layer) {
  session_ = std::move(session);
  deepest_ = deepest_layer;
  why_dropped_.clear();
  for (const FoundSequence& found : session_->found()) {
    RemoteText* const text = Add(found.id);
    text->found = true;
    text->readable = found.length;
    for (int64_t i = 0; i < found.length; ++i) text->rows.push_back(++last_row_);
    text->hashes.resize(found.length);
  }
}

void RemoteTexts::Drop(const std::string& why) {
  session_.reset();
  why_dropped_ = why;
  texts_.clear();
  for (size_t cell = 0; cell < cells_.size(); ++cell) {
    if (cells_[cell].row != 0 || kept_) Lose(static_cast<int64_t>(cell), why, kept_);
  }
}

void RemoteTexts::Write(int64_t cell, int64_t position) {
  cells_[cell] = {.row = ++last_row_, .position = static_cast<int32_t>(position)};
  ++written_;
}

uint16_t RemoteTexts::Reason(const std::string& why) {
  const auto held = std::find(reasons_.begin(), reasons_.end(), why);
  if (held != reasons_.end()) return static_cast<uint16_t>(held - reasons_.begin());
  if (reasons_.size() == kMostReasons) reasons_.pop_back();
  reasons_.push_back(why);
  return static_cast<uint16_t>(reasons_.size() - 1);
}

void RemoteTexts::Lose(int64_t cell, const std::string& why, bool fresh) {
  cells_[cell] = {.why = Reason(why), .fresh = fresh, .gone = cells_[cell].gone};
}

void RemoteTexts::Reload(int64_t cell) { cells_[cell] = {.why = Reason(kLoaded)}; }

void RemoteTexts::SetSeen(int64_t cell, bool zeros) {
  cells_[cell].seen = true;
  cells_[cell].gone = cells_[cell].gone || zeros;
}

std::vector<std::pair<int64_t, int64_t>> RemoteTexts::GiveBack(int64_t most) {
  std::vector<std::pair<int64_t, int64_t>> runs;
  if (written_ < std::max<int64_t>(most / 8, kFewRows)) return runs;
  written_ = 0;
  const auto holds = [&](const Cell& cell) { return cell.row != 0 && !cell.gone; };
  if (std::count_if(cells_.begin(), cells_.end(), holds) <= most) return runs;
  std::vector<std::pair<const RemoteText*, int64_t>> held;  // texts, and behind which position no cell has a row
  for (const RemoteText& text : texts_) {
    int64_t end = 0;
    for (int64_t cell = 0; cell < static_cast<int64_t>(cells_.size()); ++cell) {
      if (IsOf(text, cell)) end = std::max<int64_t>(end, cells_[cell].position + 1);
    }
    if (end > 0) held.emplace_back(&text, end);
  }
  const int64_t kept = most / std::max<int64_t>(1, static_cast<int64_t>(held.size()));
  for (int64_t cell = 0; cell < static_cast<int64_t>(cells_.size()); ++cell) {
    if (!holds(cells_[cell])) continue;
    bool is_held = false, is_new = false;
    for (const auto& [text, end] : held) {
      const bool is_of = IsOf(*text, cell);
      is_held = is_held || is_of;
      is_new = is_new || (is_of && cells_[cell].position >= end - kept);
    }
    if (!is_held || is_new) continue;
    cells_[cell].gone = true;
    if (runs.empty() || runs.back().second != cell) runs.emplace_back(cell, cell);
    runs.back().second = cell + 1;
  }
  return runs;
}

void RemoteTexts::LoseAll(const std::string& why) {
  for (size_t cell = 0; cell < cells_.size(); ++cell) Lose(static_cast<int64_t>(cell), why, /*fresh=*/false);
}

bool RemoteTexts::IsOf(const RemoteText& text, int64_t cell) const {
  const Cell& held = cells_[cell];
  return held.row != 0 && held.position < text.length() && text.rows[held.position] == held.row;
}

bool RemoteTexts::Adopt(const RemoteText& text, int64_t cell) {
  const int32_t position = cells_[cell].position;
  if (cells_[cell].row == 0 || position >= text.length() || text.hashes[position].both == 0) return false;
  for (const RemoteText& other : texts_) {
    if (!IsOf(other, cell) || other.hashes[position].both != text.hashes[position].both) continue;
    cells_[cell].row = text.rows[position];
    return true;
  }
  return false;
}

bool RemoteTexts::MayBeLoaded(int64_t but_stream) const {
  for (int64_t cell = 0; cell < static_cast<int64_t>(cells_.size()); ++cell) {
    if (IsFresh(cell) && cells_[cell].why != 0 && cell / cells_a_stream_ != but_stream) return true;
  }
  return false;
}

bool RemoteTexts::IsHeld(const RemoteText& text, int64_t position, int64_t but_stream) const {
  for (int64_t cell = 0; cell < static_cast<int64_t>(cells_.size()); ++cell) {
    if (cells_[cell].position >= position && IsOf(text, cell) && cell / cells_a_stream_ != but_stream) return true;
  }
  return false;
}

absl::Status RemoteTexts::Call(const std::function<absl::Status()>& call) {
  absl::Status status = call();
  while (absl::IsResourceExhausted(status) && Free()) status = call();
  return status;
}

RemoteText* RemoteTexts::Add(int sequence) {
  RemoteText* const text = &texts_.emplace_back();
  text->sequence = sequence;
  text->used = ++uses_;
  return text;
}

RemoteText* RemoteTexts::Begin(std::string* why) {
  Tidy(nullptr);
  int sequence = 0;
  const absl::Status status = Call([&] {
    const absl::StatusOr<int> made = session_->Create();
    if (made.ok()) sequence = *made;
    return made.status();
  });
  if (status.ok()) return Add(sequence);
  *why = ServerError(status);
  if (!absl::IsResourceExhausted(status)) Drop(*why);  // the index is gone, or the server is
  return nullptr;
}

RemoteText* RemoteTexts::Behind(int64_t cell, int64_t position, const std::vector<RemoteText*>& busy,
                                std::string* why) {
  RemoteText* best = nullptr;
  for (RemoteText& text : texts_) {
    if (text.length() < position || !IsOf(text, cell)) continue;
    const auto rank = [&](const RemoteText& t) { return t.length() == position && !t.found ? 1 : 0; };
    if (best == nullptr || rank(text) >= rank(*best)) best = &text;
  }
  if (best == nullptr) {
    *why = "a text that the server has no more";
    return nullptr;
  }
  if (best->length() == position && !best->found) {
    best->used = ++uses_, best->is_left = false;
    return best;
  }
  const bool is_busy = std::find(busy.begin(), busy.end(), best) != busy.end();
  // Where sequences share a stream, what one has removed another may hold; a stream of its own has one end.
  const int64_t streams = static_cast<int64_t>(cells_.size()) / cells_a_stream_;
  const int64_t but_stream = streams == 1 ? -1 : cell / cells_a_stream_;
  absl::Status status;
  // A roll-back, as drafts are followed by. What was loaded goes on from where it was saved.
  const bool few = best->length() - position <= kFewRows && !cells_[cell].is_loaded;
  if (few && !best->found && !is_busy && !IsHeld(*best, position, but_stream) && !MayBeLoaded(but_stream)) {
    best->used = ++uses_;  // it is not freed meanwhile
    status = Call([&] { return session_->Truncate(best->sequence, position); });
    if (status.ok()) {
      CutBack(best, position);
      return best;
    }
  } else {
    Tidy(best);
    int sequence = 0;
    const int64_t used = std::exchange(best->used, std::numeric_limits<int64_t>::max());  // it is not freed meanwhile
    status = Call([&] {
      const absl::StatusOr<int> made = session_->Fork(best->sequence, position);
      if (made.ok()) sequence = *made;
      return made.status();
    });
    best->used = used;
    if (status.ok()) {
      best->is_left = !cells_[cell].is_loaded;
      RemoteText* const fork = Add(sequence);
      fork->rows.assign(best->rows.begin(), best->rows.begin() + position);
      fork->hashes.assign(best->hashes.begin(), best->hashes.begin() + position);
      fork->readable = std::min(best->readable, position);
      if (best->found && best->length() == position) Remove(best);  // all of it is in the fork
      return fork;
    }
  }
  *why = ServerError(status);
  if (absl::IsNotFound(status)) {
    Forget(best);
  } else if (!absl::IsResourceExhausted(status) && !absl::IsOutOfRange(status)) {
    Drop(*why);
  }
  return nullptr;
}

void RemoteTexts::Add(RemoteText* text, int64_t cell) {
  text->rows.push_back(cells_[cell].row);
  text->hashes.emplace_back();
}

void RemoteTexts::CutBack(RemoteText* text, int64_t length) {
  text->rows.resize(length);
  text->hashes.resize(length);
  text->readable = std::min(text->readable, length);
}

RowHash RowHash::Of(const void* key, const void* value, size_t bytes) {
  const std::hash<std::string_view> hash;
  const uint64_t of_key = hash({static_cast<const char*>(key), bytes}),
                 of_value = hash({static_cast<const char*>(value), bytes});
  return {std::max<uint64_t>(1, of_key), std::max<uint64_t>(1, of_key * 0x9E3779B97F4A7C15 + of_value)};
}

RowHash RemoteTexts::HashAt(RemoteText* text, int64_t position, absl::Status* status) {
  if (text->hashes[position].key != 0 || position >= text->readable) return text->hashes[position];
  std::string keys, values;
  // The position alone tells most texts apart; then what lies before it is read.
  const bool first = position + 1 == text->length() || text->hashes[position + 1].key == 0;
  const int64_t begin = first ? position : std::max<int64_t>(0, position + 1 - kRowsARead);
  const int64_t count = position + 1 - begin;
  *status = session_->Read(text->sequence, deepest_, begin, count, &keys, &values);
  if (!status->ok()) return {};
  const size_t bytes = keys.size() / count;
  for (int64_t i = 0; i < count; ++i) {
    text->hashes[begin + i] = RowHash::Of(keys.data() + i * bytes, values.data() + i * bytes, bytes);
  }
  return text->hashes[position];
}

absl::StatusOr<bool> RemoteTexts::Find(const std::vector<int64_t>& cells, int64_t position, int64_t before,
                                       const std::function<RowHash(int64_t cell)>& hash_of) {
  std::unordered_map<uint64_t, int64_t> by_row, by_key;  // cells
  for (const int64_t cell : cells) {
    const RowHash hash = hash_of(cell);
    (IsGone(cell) ? by_key[hash.key] : by_row[hash.both]) = cell;
  }
  const auto is_text = [&](RemoteText* text, absl::Status* status) {
    std::vector<std::pair<int64_t, int64_t>> found;  // cells and positions
    for (int64_t at = position - 1; at >= 0 && status->ok() && found.size() < cells.size(); --at) {
      const RowHash hash = HashAt(text, at, status);
      if (const auto row = by_row.find(hash.both); row != by_row.end()) found.emplace_back(row->second, at);
      if (const auto key = by_key.find(hash.key); key != by_key.end()) found.emplace_back(key->second, at);
      if (found.empty() && before < 0) break;  // the row of the position before must be there
    }
    if (found.size() != cells.size() || !status->ok()) return false;
    for (const auto& [cell, at] : found) {
      cells_[cell] = {
          .row = text->rows[at], .position = static_cast<int32_t>(at), .is_loaded = true, .gone = cells_[cell].gone};
    }
    return true;
  };
  std::vector<RemoteText*> texts;
  for (RemoteText& text : texts_) {
    if (text.length() >= position && (before < 0 || IsOf(text, before))) texts.push_back(&text);
  }
  std::sort(texts.begin(), texts.end(), [](const RemoteText* a, const RemoteText* b) { return a->used > b->used; });
  for (RemoteText* text : texts) {
    absl::Status status;
    if (by_row.size() + by_key.size() == cells.size() && is_text(text, &status)) return true;
    if (absl::IsNotFound(status)) {
      Forget(text);
    } else if (!status.ok()) {
      return status;
    }
  }
  for (const int64_t cell : cells) Lose(cell, kLoaded, /*fresh=*/false);
  return false;
}

void RemoteTexts::Forget(const RemoteText* text) {
  texts_.remove_if([&](const RemoteText& t) { return &t == text; });
}

bool RemoteTexts::IsUnheld(const RemoteText& text) const { return !IsHeld(text, text.length() - OwnRows(text), -1); }

std::vector<RemoteText*> RemoteTexts::Unheld() {
  std::vector<RemoteText*> unheld;
  for (RemoteText& text : texts_) {
    if (IsUnheld(text)) unheld.push_back(&text);
  }
  std::sort(unheld.begin(), unheld.end(), [](const RemoteText* a, const RemoteText* b) { return a->used < b->used; });
  return unheld;
}

bool RemoteTexts::Free() {
  std::vector<RemoteText*> free = Unheld();
  free.erase(std::find_if(free.begin(), free.end(), [&](const RemoteText* t) { return t->used > planned_; }),
             free.end());
  free.resize((free.size() + 1) / 2);  // rows that texts share are there until the last goes
  const bool any = !free.empty();
  for (const RemoteText* text : free) {
    if (IsUnheld(*text)) Remove(text);
  }
  if (any) return true;
  const RemoteText* oldest = nullptr;
  for (const RemoteText& text : texts_) {
    const bool is_older = oldest == nullptr || text.used < oldest->used;
    if (text.used <= planned_ && text.is_left && is_older) oldest = &text;
  }
  if (oldest != nullptr) Remove(oldest);
  return oldest != nullptr;
}

int64_t RemoteTexts::OwnRows(const RemoteText& text) const {
  int64_t common = 0;
  for (const RemoteText& other : texts_) {
    if (&other != &text) common = std::max(common, Common(text, other));
  }
  return text.length() - common;
}

void RemoteTexts::Remove(const RemoteText* text) {
  session_->Delete(text->sequence);
  Forget(text);
}

void RemoteTexts::RemoveMade() {
  for (auto at = texts_.begin(); at != texts_.end();) {
    const RemoteText& text = *at++;
    if (!text.found) Remove(&text);
  }
}

void RemoteTexts::Tidy(const RemoteText* but) {
  for (auto at = texts_.begin(); at != texts_.end();) {
    const RemoteText& text = *at++;
    const int64_t own = text.is_left ? OwnRows(text) : text.length();
    const bool is_rest = text.is_left && own <= kFewRows && !IsHeld(text, text.length() - own, -1);
    if (&text != but && (is_rest || text.rows.empty())) Remove(&text);
  }
  if (texts_.size() <= kMostUnheld) return;
  std::vector<RemoteText*> unheld = Unheld();
  for (size_t i = 0; i + kMostUnheld < unheld.size(); ++i) {
    if (unheld[i] != but && IsUnheld(*unheld[i])) Remove(unheld[i]);
  }
}

}  // namespace seine::llama
