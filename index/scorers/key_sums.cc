#include "index/scorers/key_sums.h"

#include <algorithm>
#include <cmath>

#include "index/bytes/state_reader.h"
#include "index/bytes/state_writer.h"
#include "kernels/host.h"

namespace seine {

std::vector<SumKind> KindsOf(const SumsWanted& wanted) {
  std::vector<SumKind> kinds;
  if (wanted.unit) kinds.push_back({true, 0, &KeyMeans::unit});
  if (wanted.raw) kinds.push_back({false, 0, &KeyMeans::raw});
  if (wanted.window > 0) kinds.push_back({false, wanted.window, &KeyMeans::windows});
  return kinds;
}

std::vector<int32_t> WindowBegins(const int32_t* positions, int64_t count, int64_t window) {
  std::vector<int32_t> begins;
  for (int64_t i = 0; i < count;) {
    begins.push_back(static_cast<int32_t>(i));
    const int64_t end = ((positions == nullptr ? i : positions[i]) / window + 1) * window;  // the window's
    i = positions == nullptr ? end : std::lower_bound(positions + i, positions + count, end) - positions;
  }
  return begins;
}

std::vector<float> MeansOfSums(const double* sums, const KeyWindows& windows, int64_t count, int head_dim) {
  std::vector<float> means(windows.count * head_dim);
  for (int64_t w = 0; w < windows.count && count > 0; ++w) {
    const auto keys = static_cast<double>(windows.end(w, count) - windows.begin(w));
    for (int64_t j = w * head_dim; j < (w + 1) * head_dim; ++j) means[j] = static_cast<float>(sums[j] / keys);
  }
  return means;
}

KeySums::KeySums(const SumsWanted& wanted, int head_dim) : head_dim_(head_dim) {
  for (const SumKind& kind : KindsOf(wanted)) {
    const size_t windows = kind.window == 0 ? 1 : 0;
    running_.push_back({kind, std::vector<double>(windows * head_dim), std::vector<double>(head_dim), {}});
  }
}

// Rows of the last window, at places from `begin` on.
void KeySums::AddRun(const ConstRows& rows, int64_t count, int64_t begin, Running* r) const {
  const int64_t before = begin - (r->begins.empty() ? 0 : r->begins.back());
  double* sums = r->sums.data() + r->sums.size() - head_dim_;
  host::AddToSums(rows, count, head_dim_, r->kind.unit, before, sums, r->open.data());
}

void KeySums::Add(const ConstRows& rows, int64_t count, const int32_t* positions) {
  for (Running& r : running_) {
    if (r.kind.window == 0) {
      AddRun(rows, count, count_, &r);
      continue;
    }
    const auto position = [&](int64_t i) { return positions == nullptr ? count_ + i : positions[i]; };
    for (int64_t i = 0; i < count;) {
      const int64_t window = position(i) / r.kind.window, first = i;
      while (i < count && position(i) / r.kind.window == window) ++i;
      if (window != r.last) {
        if (!r.sums.empty()) host::CloseGroup(head_dim_, r.open.data(), r.sums.data() + r.sums.size() - head_dim_);
        r.sums.resize(r.sums.size() + head_dim_);
        r.begins.push_back(static_cast<int32_t>(count_ + first));
        r.last = window;
      }
      AddRun({rows.row(first), rows.stride_bytes, rows.dtype}, i - first, count_ + first, &r);
    }
  }
  count_ += count;
}

KeyMeans KeySums::Means() const {
  KeyMeans means;
  for (const Running& r : running_) {
    std::vector<double> sums = r.sums, open = r.open;
    if (!sums.empty()) host::CloseGroup(head_dim_, open.data(), sums.data() + sums.size() - head_dim_);
    KeyWindows windows;
    if (r.kind.window > 0) {
      means.begins = r.begins;
      windows = {means.begins.data(), static_cast<int64_t>(means.begins.size())};
    }
    means.*r.kind.means = MeansOfSums(sums.data(), windows, count_, head_dim_);
  }
  return means;
}

void KeySums::Save(StateWriter* writer) const {
  writer->Put(count_);
  for (const Running& r : running_) {
    writer->PutVector(r.sums);
    writer->PutVector(r.open);
    writer->PutVector(r.begins);
    writer->Put(r.last);
  }
}

void KeySums::Load(int64_t count, StateReader* reader) {
  count_ = reader->GetWithin(count, count, "sums are of other keys");
  for (Running& r : running_) {
    r.sums = reader->GetVector<double>();
    r.open = reader->GetFiniteVector<double>(head_dim_);
    r.begins = reader->GetVector<int32_t>();
    r.last = reader->GetWithin(-1, INT32_MAX, "a window is too far");
    LoadWindows(&r, reader);
  }
}

void KeySums::LoadWindows(Running* r, StateReader* reader) const {
  const size_t windows = r->kind.window == 0 ? 1 : r->begins.size();
  reader->Check(r->sums.size() == windows * head_dim_ && (r->last < 0) == r->begins.empty(), "sums lack windows");
  for (const double sum : r->sums) reader->Check(std::isfinite(sum), "a number is not finite");
  for (size_t w = 0; w < r->begins.size(); ++w) {
    const bool ascends = r->begins[w] >= 0 && r->begins[w] < count_ && (w == 0 || r->begins[w] > r->begins[w - 1]);
    reader->Check(ascends && r->kind.window > 0, "windows do not ascend");
  }
}

}  // namespace seine
