// Rows by position, as given: keys, values or checksums of one layer. Each piece is [heads][capacity][row_bytes], so
// that a head's rows are contiguous for scoring and one allocation serves all heads.
#ifndef SEINE_INDEX_STORAGE_ROW_STORE_H_
#define SEINE_INDEX_STORAGE_ROW_STORE_H_

#include <cstdint>
#include <vector>

#include "index/storage/piece_list.h"
#include "kernels/types.h"

namespace seine {

class RowFormat : public PieceFormat {
 public:
  RowFormat(int heads, int row_bytes) : heads_(heads), row_bytes_(row_bytes) {}
  int heads() const { return heads_; }
  int row_bytes() const { return row_bytes_; }
  int64_t Bytes(int capacity) const override;
  void Copy(const uint8_t* from, int from_capacity, uint8_t* to, int to_capacity, int count,
            std::vector<CopyTask>* copies) const override;
  void Clear(uint8_t* data, int capacity, int first, int last) const override;

 private:
  const int heads_;
  const int row_bytes_;
};

// Not thread-safe; the owning layer's lock guards it. Positions given must be held; the layer sees to that.
class RowStore {
 public:
  RowStore(const RowFormat* format, const PieceList::Shape* shape) : format_(format), pieces_(shape) {}

  // Room for rows [begin, end), rows before `begin` staying. After Install: Refresh, then Write.
  void Plan(int64_t begin, int64_t end, Staging* staging) { pieces_.Plan(begin, end, begin, staging); }
  void Refresh();

  // Input rows are [count][heads][row_bytes], `token_bytes` from token to token, which may hold other heads besides.
  void Write(int64_t position, const uint8_t* rows, int64_t count, size_t token_bytes);
  // Which rows are mirrored (piece_list.h), from the next Plan on; DropMirrors drops the mirrors of others.
  void MirrorEnds(int64_t head, int64_t tail) { pieces_.MirrorEnds(head, tail); }
  void DropMirrors() {
    pieces_.DropMirrors();
    Refresh();
  }
  // Brings the device's copies of rows [begin, end) up to date, behind what `copies` holds; nothing where there are
  // none.
  void CopyToMirror(int64_t begin, int64_t end, std::vector<CopyTask>* copies) const;
  // Index of the first of `count` rows whose bytes differ from those held; -1 if none does.
  int64_t FirstDifference(int64_t position, const uint8_t* rows, int64_t count, size_t token_bytes) const;

  void Truncate(int64_t end);
  void Drop(int64_t begin, int64_t end);

  // For snapshots (piece_list.h).
  void PlanOwnTail(int64_t end, Staging* staging) { pieces_.PlanOwnTail(end, staging); }
  void Save(const PieceList::Extent& extent, StateWriter* writer) const { pieces_.Save(extent, writer); }
  // `finite`: the rows are numbers of this type, none of them NaN or infinite. nullptr: any bytes will do.
  void Load(const PieceList::Extent& extent, const DType* finite, StateReader* reader);

  // A head's rows: chunks to be indexed by position / chunk_tokens, and the rows from `position` to the end of its
  // chunk.
  const uint8_t* const* HeadChunks(int head) const { return chunks_.data() + head * pieces_.size(); }
  // The same as kernels read it: in the device's memory where it is mirrored, else in the host's.
  const uint8_t* const* DeviceChunks(int head) const {
    return device_chunks_.empty() ? HeadChunks(head) : device_chunks_.data() + head * pieces_.size();
  }
  int chunk_tokens() const { return pieces_.length(); }
  const uint8_t* Row(int head, int64_t position) const { return RowOf(HeadChunks(head), position); }
  const uint8_t* DeviceRow(int head, int64_t position) const { return RowOf(DeviceChunks(head), position); }
  int64_t bytes() const { return pieces_.bytes(); }
  int64_t mirror_bytes() const { return pieces_.mirror_bytes(); }

 private:
  const uint8_t* RowOf(const uint8_t* const* chunks, int64_t position) const {
    return chunks[position / pieces_.length()] + position % pieces_.length() * format_->row_bytes();
  }

  const RowFormat* format_;
  PieceList pieces_;
  std::vector<const uint8_t*> chunks_;         // [heads][pieces], nullptr where dropped
  std::vector<const uint8_t*> device_chunks_;  // DeviceChunks; empty: as chunks_
};

}  // namespace seine

#endif  // SEINE_INDEX_STORAGE_ROW_STORE_H_
