// Copying rows in and out of pieces.
#include "index/storage/row_store.h"

#include <algorithm>
#include <cstring>

#include "index/bytes/state_reader.h"
#include "kernels/host.h"

namespace seine {

int64_t RowFormat::Bytes(int capacity) const { return int64_t{heads_} * capacity * row_bytes_; }

void RowFormat::Copy(const uint8_t* from, int from_capacity, uint8_t* to, int to_capacity, int count,
                     std::vector<CopyTask>* copies) const {
  for (int64_t h = 0; h < heads_; ++h) {
    copies->push_back({to + h * to_capacity * row_bytes_, from + h * from_capacity * row_bytes_,
                       static_cast<size_t>(count) * row_bytes_});
  }
}

void RowFormat::Clear(uint8_t* data, int capacity, int first, int last) const {
  for (int64_t h = 0; h < heads_; ++h) {
    std::memset(data + (h * capacity + first) * row_bytes_, 0, static_cast<size_t>(last - first) * row_bytes_);
  }
}

void RowStore::Refresh() {
  const size_t pieces = pieces_.size();
  auto [begin, end] = pieces_.TakeChanged();
  if (chunks_.size() != format_->heads() * pieces) {  // every head's chunks move
    chunks_.resize(format_->heads() * pieces);
    begin = 0, end = pieces;
  }
  const bool mirrored = pieces_.mirror_bytes() > 0;
  if (mirrored && device_chunks_.size() != chunks_.size()) begin = 0, end = pieces;
  device_chunks_.resize(mirrored ? chunks_.size() : 0);
  for (size_t i = begin; i < end; ++i) {
    const uint8_t* const data = pieces_.data(i);
    const uint8_t* const of_device = pieces_.mirror(i) != nullptr ? pieces_.mirror(i) : data;
    const int64_t head_bytes = int64_t{pieces_.capacity(i)} * format_->row_bytes();
    for (int h = 0; h < format_->heads(); ++h) {
      chunks_[h * pieces + i] = data == nullptr ? nullptr : data + h * head_bytes;
      if (mirrored) device_chunks_[h * pieces + i] = of_device == nullptr ? nullptr : of_device + h * head_bytes;
    }
  }
}

void RowStore::CopyToMirror(int64_t begin, int64_t end, std::vector<CopyTask>* copies) const {
  const int64_t row_bytes = format_->row_bytes();
  for (int64_t run; begin < end && pieces_.mirror_bytes() > 0; begin += run) {
    const size_t piece = begin / pieces_.length();
    const int64_t offset = begin % pieces_.length();
    run = std::min<int64_t>(pieces_.length() - offset, end - begin);
    uint8_t* const mirror = pieces_.mirror(piece);
    for (int64_t h = 0; h < format_->heads() && mirror != nullptr; ++h) {
      const int64_t at = (h * pieces_.capacity(piece) + offset) * row_bytes;
      copies->push_back({mirror + at, pieces_.data(piece) + at, static_cast<size_t>(run * row_bytes)});
    }
  }
}

void RowStore::Write(int64_t position, const uint8_t* rows, int64_t count, size_t token_bytes) {
  const int heads = format_->heads();
  const size_t row_bytes = format_->row_bytes();
  const int64_t end = position + count;
  while (position < end) {
    const size_t piece = position / pieces_.length();
    const int64_t offset = position % pieces_.length();
    const int64_t run = std::min<int64_t>(pieces_.length() - offset, end - position);
    const int64_t head_bytes = pieces_.capacity(piece) * int64_t(row_bytes);
    uint8_t* to = pieces_.data(piece) + offset * row_bytes;
    for (int64_t t = 0; t < run; ++t, to += row_bytes, rows += token_bytes) {
      for (int h = 0; h < heads; ++h) std::memcpy(to + h * head_bytes, rows + h * row_bytes, row_bytes);
    }
    position += run;
  }
}

int64_t RowStore::FirstDifference(int64_t position, const uint8_t* rows, int64_t count, size_t token_bytes) const {
  const size_t row_bytes = format_->row_bytes();
  for (int64_t t = 0; t < count; ++t, rows += token_bytes) {
    for (int h = 0; h < format_->heads(); ++h) {
      if (std::memcmp(Row(h, position + t), rows + h * row_bytes, row_bytes) != 0) return t;
    }
  }
  return -1;
}

void RowStore::Load(const PieceList::Extent& extent, const DType* finite, StateReader* reader) {
  PieceList::PieceCheck right;
  if (finite != nullptr) {
    right = [format = format_, dtype = *finite](const uint8_t* data, int capacity, int first, int last) {
      const int row_bytes = format->row_bytes(), dim = row_bytes / static_cast<int>(SizeOf(dtype));
      for (int64_t h = 0; h < format->heads(); ++h) {
        const uint8_t* const rows = data + (h * capacity + first) * row_bytes;
        if (host::FirstNonFinite({rows, static_cast<size_t>(row_bytes), dtype}, last - first, dim) >= 0) return false;
      }
      return true;
    };
  }
  pieces_.Load(extent, right, reader);
  if (reader->ok()) Refresh();
}

void RowStore::Truncate(int64_t end) {
  pieces_.Truncate(end);
  Refresh();
}

void RowStore::Drop(int64_t begin, int64_t end) {
  pieces_.Drop(begin, end);
  Refresh();
}

}  // namespace seine
