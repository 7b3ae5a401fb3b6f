// Answers of texts' newest tokens, by codes or exactly: Decode of layer.h.
#include <algorithm>
#include <atomic>

#include "engines/python/paged/layer.h"
#include "index/cells/share_rest.h"

namespace seine::python {
namespace {

constexpr int64_t kRunWindows = 16;  // windows that a thread encodes at a time

}  // namespace

void PagedLayer::Decode(const PagedStep& step) {
  Refit(step);
  const auto count = step.decodes().size();
  coded_.assign(count, false);
  for (size_t i = 0; i < count; ++i) {
    const DecodeRow& row = step.decodes()[i];
    if (row.seen.zone.empty() && row.cut) {
      Decline("no room for codes");
    } else if (row.seen.zone.empty()) {
      ++counts_.exact;
    } else if (gate_.Exact()) {
      ++counts_.gated;
    } else {
      coded_[i] = Prepare(row);
    }
  }
  Answer(step);
  for (size_t i = 0; i < count; ++i) {
    if (!coded_[i]) continue;
    ++counts_.coded, counts_.cut += static_cast<int64_t>(step.decodes()[i].cut);
    Watch(step.decodes()[i]);
  }
}

void PagedLayer::Refit(const PagedStep& step) {
  if (counts_.encoded_keys == 0) longest_prompt_ = std::max(longest_prompt_, step.longest());
  for (int head; (head = cells_->FindOutgrown(longest_prompt_)) >= 0;) RefitHead(head, step);
  if (++since_refit_ < kStepsOfRefit) return;
  const int head = cells_->FindOutgrown(step.longest());
  if (head < 0) return;
  since_refit_ = 0;
  RefitHead(head, step);
}

void PagedLayer::RefitHead(int head, const PagedStep& step) {
  if (!cells_->Refit(head, std::max(longest_prompt_, step.longest())).ok())
    ++counts_.declined["codes for a longer text"];
}

bool PagedLayer::Prepare(const DecodeRow& row) {
  if (!cells_->Reserve(row.seen.end_window() * kWindowTokens).ok()) return Decline("no memory for codes");
  runs_.clear();
  cells_->ListStale(row.seen, kRunWindows, &runs_);
  if (runs_.empty()) return true;
  const int64_t begin = NowMicros();
  std::atomic<bool> finite{true};
  attention_->team().Run(static_cast<int>(runs_.size()), [&](int i) {
    if (!cells_->Encode(runs_[i], rows_)) finite = false;
  });
  for (const CellLayer::Run& run : runs_) counts_.encoded_keys += run.count * kWindowTokens;
  counts_.encode_us += NowMicros() - begin;
  return finite || Decline("a key or value that is not finite");
}

bool PagedLayer::Decline(const char* why) {
  ++counts_.declined[why];
  return false;
}

void PagedLayer::Answer(const PagedStep& step) {
  std::vector<uint8_t> changed = AttendRows(step, std::vector<uint8_t>(step.decodes().size(), 1));
  if (std::none_of(changed.begin(), changed.end(), [](uint8_t x) { return x != 0; })) return;
  // Somebody else has written into the cache. What differs is encoded anew.
  for (size_t i = 0; i < changed.size(); ++i) {
    if (changed[i] == 0) continue;
    const DecodeRow& row = step.decodes()[i];
    for (int head = 0; head < cells_->num_heads(); ++head) {
      counts_.found_windows += cells_->Verify(head, row.seen.end_window() * kWindowTokens, rows_);
    }
  }
  for (size_t i = 0; i < coded_.size(); ++i) {  // neighbours may share windows
    if (coded_[i]) coded_[i] = Prepare(step.decodes()[i]), changed[i] = 1;
  }
  const std::vector<uint8_t> again = AttendRows(step, changed);
  std::vector<uint8_t> left(again.size(), 0);
  for (size_t i = 0; i < again.size(); ++i) {
    if (again[i] == 0) continue;
    coded_[i] = Decline("rows that change while they are read");
    left[i] = 1;
  }
  AttendRows(step, left);
}

std::vector<uint8_t> PagedLayer::AttendRows(const PagedStep& step, const std::vector<uint8_t>& which) {
  ListItems(step, which);
  std::vector<std::atomic<bool>> changed(which.size());
  const Geometry& g = attention_->geometry();
  attention_->team().Run(static_cast<int>(items_.size()), [&](int i) {
    const Item& item = items_[i];
    const int64_t at = (item.head * g.group() + item.first) * int64_t{g.head_dim};
    const float* const queries = queries_ + item.row->token * query_stride_ + at;
    float* const out = output_ + item.row->token * output_stride_ + at;
    if (!item.coded) {
      cells_->AttendExactly(item.head, queries, item.count, item.row->seen, rows_, out);
    } else if (!cells_->Attend(item.head, queries, item.count, item.row->seen, rows_, top_k(), out)) {
      changed[item.row - step.decodes().data()] = true;
    }
  });
  std::vector<uint8_t> out(which.size());
  std::copy(changed.begin(), changed.end(), out.begin());
  return out;
}

void PagedLayer::ListItems(const PagedStep& step, const std::vector<uint8_t>& which) {
  const Geometry& g = attention_->geometry();
  items_.clear();
  for (size_t i = 0; i < which.size(); ++i) {
    if (which[i] == 0) continue;
    for (int h = 0; h < g.num_kv_heads; ++h) items_.push_back({&step.decodes()[i], h, 0, g.group(), coded_[i] != 0});
  }
  const auto work = [](const Item& item) { return item.coded ? item.row->length / 8 : item.row->length; };
  std::stable_sort(items_.begin(), items_.end(), [work](const Item& a, const Item& b) { return work(a) > work(b); });
  ShareRest(attention_->team().threads(), g.group(), &items_);
}

void PagedLayer::Watch(const DecodeRow& row) {
  const Geometry& g = attention_->geometry();
  const auto head = static_cast<int>(gate_.checks_due() % g.num_kv_heads);  // they take turns
  if (cells_->ReadsWhole(row.seen, g.group(), top_k()) || !gate_.Due(row.length)) return;
  const float* const queries = queries_ + row.token * query_stride_ + int64_t{head} * g.group() * g.head_dim;
  gate_.Checked(cells_->Lost(head, queries, g.group(), row.seen, rows_, top_k()));
}

}  // namespace seine::python
