// Encoding into segments, and the counts and centres beside them.
#include "index/storage/code_store.h"

#include <algorithm>
#include <cstring>

namespace seine {

namespace {

constexpr int kMinSegmentKeys = 256;

// A full segment holds whole centre windows.
int FullSegmentKeys(int unit_keys) { return std::max(CodeShape::kSegmentKeys / unit_keys, 1) * unit_keys; }

// Copies `count` keys, read one by one, together.
void CopyRows(const KeySource& source, int head, int64_t key, int64_t count, size_t row_bytes, uint8_t* out) {
  while (count > 0) {
    int64_t run = 0;
    const ConstRows rows = source.Rows(head, key, &run);
    run = std::min(run, count);
    for (int64_t i = 0; i < run; ++i, out += row_bytes) std::memcpy(out, rows.row(i), row_bytes);
    key += run;
    count -= run;
  }
}

}  // namespace

int64_t SegmentFormat::Bytes(int capacity) const { return static_cast<int64_t>(CodeBytes(layout_, capacity, part_)); }

void SegmentFormat::Copy(const uint8_t* from, int from_capacity, uint8_t* to, int to_capacity, int count,
                         std::vector<CopyTask>* copies) const {
  CodePlanes a, b;
  PlacePlanes(layout_, from_capacity, part_, const_cast<uint8_t*>(from), &a);
  PlacePlanes(layout_, to_capacity, part_, to, &b);
  const size_t n = count, windows = n / kWindowTokens;
  if (n == 0) return;
  if (part_ == CodePart::kFine) {
    copies->push_back({b.fine, a.fine, n * layout_.fine_bytes});
    copies->push_back({b.fine_base, a.fine_base, windows * sizeof(uint32_t)});
    return;
  }
  copies->push_back({b.coarse, a.coarse, n * layout_.coarse_bytes});
  copies->push_back({b.factor, a.factor, n});
  copies->push_back({b.factor_base, a.factor_base, windows * sizeof(uint32_t)});
  if (a.centre == nullptr) return;
  copies->push_back({b.centre, a.centre, n / layout_.centre_window * layout_.head_dim});
  copies->push_back({b.centre_scale, a.centre_scale, n / layout_.centre_window * sizeof(float)});
}

void ArrayFormat::Copy(const uint8_t* from, int from_capacity, uint8_t* to, int to_capacity, int count,
                       std::vector<CopyTask>* copies) const {
  if (count > 0) copies->push_back({to, from, static_cast<size_t>(bytes_)});
}

CodeShape::CodeShape(Backend* code_backend, const CodeLayout& code_layout, int num_heads, bool counted)
    : backend(code_backend),
      layout(code_layout),
      heads(num_heads),
      unit_keys(std::max(kWindowTokens, layout.centre_window)),
      segment_keys(FullSegmentKeys(unit_keys)),
      with_counts(counted),
      counts_per_head(layout.head_dim / 8 * 256),
      scan_format(layout, CodePart::kScan),
      fine_format(layout, CodePart::kFine),
      counts_format(int64_t{heads} * counts_per_head * sizeof(uint32_t)),
      scan_pool(backend, MemorySpace::kCodes),
      fine_pool(backend, MemorySpace::kCodes),
      scan_parts{&scan_format, MemoryKind::kCode, segment_keys, kMinSegmentKeys, unit_keys, &scan_pool},
      fine_parts{&fine_format, MemoryKind::kCode, segment_keys, kMinSegmentKeys, unit_keys, &fine_pool},
      counts{&counts_format, MemoryKind::kCode, 1, 1, 1, nullptr} {}

void CodeStore::PlanGrow(int64_t visible, Staging* staging) {
  if (visible <= visible_) return;
  if (heads_.empty())
    heads_.resize(shape_->heads, Head{PieceList(&shape_->scan_parts), PieceList(&shape_->fine_parts), {}});
  for (Head& head : heads_) head.scan.Plan(encoded_, visible, encoded_, staging);
  for (Head& head : heads_) head.fine.Plan(encoded_, visible, encoded_, staging);
  if (shape_->with_counts) counts_.Plan(0, 1, visible_ > 0 ? 1 : 0, staging);
}

absl::Status CodeStore::Grow(int64_t visible, const KeySource& source, int centre_keys) {
  if (visible <= visible_) return absl::OkStatus();
  Refresh();
  const int64_t encoded = encoded_;
  if (encoded_ < visible) {
    if (codec(0).centre() == Centre::kGlobal && encoded_ == 0) FreezeCentre(source, centre_keys);
    if (absl::Status s = EncodeTo(visible, source); !s.ok()) return s;
  }
  if (shape_->with_counts) {
    absl::Status status = visible_ == 0 ? ZeroCounts() : absl::OkStatus();
    if (status.ok()) status = CountKeys(visible_, visible, 1);
    if (!status.ok()) {  // the keys of a refused append are not those of the next
      encoded_ = encoded;
      return status;
    }
  }
  visible_ = visible;
  return absl::OkStatus();
}

void CodeStore::Extend(int64_t keys) {
  Refresh();
  visible_ = encoded_ = keys;
}

void CodeStore::Encode(int head, int64_t key, ConstRows rows, int count) {
  codec(head).Encode(rows, count, centre_ ? &(*centre_)[head] : nullptr, PlanesFromKey(head, key));
}

void CodeStore::PlanShrink(int64_t visible, Staging* staging) {
  if (shape_->with_counts && visible > 0 && visible < visible_) counts_.Plan(0, 1, 1, staging);
}

absl::Status CodeStore::Shrink(int64_t visible, int64_t encoded) {
  absl::Status status;
  if (shape_->with_counts && visible < visible_) {
    if (visible == 0) {
      counts_.Truncate(0);
    } else if (visible_ - visible <= visible) {
      status = CountKeys(visible, visible_, -1);
    } else {  // fewer keys stay than go
      status = ZeroCounts();
      if (status.ok()) status = CountKeys(0, visible, 1);
    }
  }
  visible_ = visible;
  encoded_ = encoded;
  if (encoded_ == 0) {
    centre_ = nullptr;
    codecs_ = nullptr;
  }
  for (Head& head : heads_) {
    head.scan.Truncate(encoded_);
    head.fine.Truncate(encoded_);
  }
  Refresh();
  return status;
}

void CodeStore::PrepareSearch(int head, SearchTask* task) const {
  task->codec = &codec(head);
  task->segments = heads_[head].planes.data();
  task->segment_keys = shape_->segment_keys;
  task->num_keys = visible_;
  task->shared_centre = centre_ ? &(*centre_)[head] : nullptr;
  task->collision_counts = shape_->with_counts ? head_counts(head) : nullptr;
  task->counted_keys = visible_;
}

int64_t CodeStore::bytes() const {
  int64_t total = counts_.bytes();
  for (const Head& head : heads_) total += head.scan.bytes() + head.fine.bytes();
  return total;
}

int64_t CodeStore::head_bytes(int head) const {
  const int64_t codes = heads_.empty() ? 0 : heads_[head].scan.bytes() + heads_[head].fine.bytes();
  return codes + counts_.bytes() / shape_->heads;
}

CodePlanes CodeStore::PlanesOf(const Head& head, size_t segment) const {
  const CodeLayout& layout = shape_->layout;
  CodePlanes planes;
  PlacePlanes(layout, head.scan.capacity(segment), CodePart::kScan, head.scan.data(segment), &planes);
  PlacePlanes(layout, head.fine.capacity(segment), CodePart::kFine, head.fine.data(segment), &planes);
  return planes;
}

CodePlanes CodeStore::PlanesFromKey(int head, int64_t key) const {
  const CodePlanes planes = PlanesOf(heads_[head], key / shape_->segment_keys);
  return PlanesFrom(shape_->layout, planes, key % shape_->segment_keys);
}

void CodeStore::Refresh() {
  for (Head& head : heads_) {
    const auto scan = head.scan.TakeChanged(), fine = head.fine.TakeChanged();
    head.planes.resize(head.scan.size());
    for (const auto& [begin, end] : {scan, fine}) {
      for (size_t i = begin; i < end; ++i) head.planes[i] = AsConst(PlanesOf(head, i));
    }
  }
}

void CodeStore::FreezeCentre(const KeySource& source, int centre_keys) {
  std::vector<SharedCentre> centres(shape_->heads);
  std::vector<uint8_t> together;
  for (int h = 0; h < shape_->heads; ++h) {
    int64_t run = 0;
    ConstRows rows = source.Rows(h, 0, &run);
    if (run < centre_keys) {
      const size_t row_bytes = shape_->layout.head_dim * SizeOf(rows.dtype);
      together.resize(row_bytes * centre_keys);
      CopyRows(source, h, 0, centre_keys, row_bytes, together.data());
      rows = {together.data(), row_bytes, rows.dtype};
    }
    centres[h] = codec(h).MakeSharedCentre(rows, centre_keys);
  }
  centre_ = std::make_shared<const std::vector<SharedCentre>>(std::move(centres));
}

// One task for each run of keys that lie together in one place and belong in one segment. A unit that straddles two
// places (a chunk's edge, or stored rows and new ones) is copied together first.
absl::Status CodeStore::EncodeTo(int64_t end, const KeySource& source) {
  std::vector<EncodeTask> tasks;
  std::vector<std::unique_ptr<uint8_t[]>> together;
  for (int h = 0; h < shape_->heads; ++h) {
    for (int64_t key = encoded_; key < end;) {
      const int64_t segment = key / shape_->segment_keys;
      int64_t run = 0;
      ConstRows rows = source.Rows(h, key, &run);
      run = std::min({run, end - key, (segment + 1) * shape_->segment_keys - key}) / shape_->unit_keys *
            shape_->unit_keys;
      if (run == 0) {
        run = shape_->unit_keys;
        const size_t row_bytes = shape_->layout.head_dim * SizeOf(rows.dtype);
        together.push_back(std::make_unique<uint8_t[]>(row_bytes * run));
        CopyRows(source, h, key, run, row_bytes, together.back().get());
        rows = {together.back().get(), row_bytes, rows.dtype};
      }
      tasks.push_back(
          {&codec(h), rows, static_cast<int>(run), centre_ ? &(*centre_)[h] : nullptr, PlanesFromKey(h, key)});
      key += run;
    }
  }
  const Outcome outcome = shape_->backend->Encode(tasks.data(), static_cast<int>(tasks.size()));
  if (outcome == Outcome::kDone) encoded_ = end;
  return StatusOf(*shape_->backend, outcome);
}

absl::Status CodeStore::ZeroCounts() {
  return StatusOf(*shape_->backend, shape_->backend->Zero(counts_.data(0), shape_->counts_format.Bytes(1)));
}

absl::Status CodeStore::CountKeys(int64_t begin, int64_t end, int sign) {
  std::vector<CountTask> tasks;
  for (int h = 0; h < shape_->heads; ++h) {
    for (int64_t key = begin; key < end;) {
      const int64_t segment = key / shape_->segment_keys;
      const int64_t stop = std::min(end, (segment + 1) * shape_->segment_keys);
      const int64_t base = segment * shape_->segment_keys;
      tasks.push_back({heads_[h].planes[segment], &shape_->layout, static_cast<int>(key - base),
                       static_cast<int>(stop - base), sign, head_counts(h)});
      key = stop;
    }
  }
  return StatusOf(*shape_->backend, shape_->backend->CountCodes(tasks.data(), static_cast<int>(tasks.size())));
}

}  // namespace seine
