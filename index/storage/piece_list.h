// A growing array kept in pieces of fixed length, shared between sequences and copied only when one of them writes.
//
// Entries are rows of keys, values or checksums (row_store.h) or a head's codes (code_store.h). The last piece starts
// small and doubles, so short sequences do not pay for a whole one. A write runs in two steps, so that a failure
// changes nothing:
//   Staging staging;
//   list.Plan(begin, end, keep, &staging);    // what must be made: new pieces, larger ones, own copies of shared ones
//   if (!staging.Allocate(&ledger).ok()) ...  // admission, allocation, copies; nothing has changed yet
//   staging.Install();                        // cannot fail; [begin, end) may now be written
#ifndef SEINE_INDEX_STORAGE_PIECE_LIST_H_
#define SEINE_INDEX_STORAGE_PIECE_LIST_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "index/memory/memory.h"
#include "index/storage/cow_ptr.h"

namespace seine {

class StateReader;  // index/bytes/state_reader.h
class StateWriter;  // index/bytes/state_writer.h

// How the entries of one piece lie in its buffer; planes may move with the capacity. Immutable, shared by all lists.
class PieceFormat {
 public:
  virtual ~PieceFormat() = default;
  virtual int64_t Bytes(int capacity) const = 0;
  // What must be copied to bring entries [0, count) into a buffer of at least that capacity, behind what `copies`
  // holds.
  virtual void Copy(const uint8_t* from, int from_capacity, uint8_t* to, int to_capacity, int count,
                    std::vector<CopyTask>* copies) const = 0;
  // Zeroes entries [first, last) of a buffer, of lists that may lack some.
  virtual void Clear(uint8_t* data, int capacity, int first, int last) const {}
};

struct Piece {
  Memory memory;
  int capacity = 0;  // entries
};

class PieceList;

// Pieces to be made for one or several lists.
class Staging {
 public:
  bool empty() const { return needs_.empty(); }
  // RESOURCE_EXHAUSTED, UNAVAILABLE: nothing is held. One reservation for all, before the first allocation. The lists
  // must not change between their Plan and Install.
  absl::Status Allocate(MemoryLedger* ledger);
  void Install();

 private:
  friend class PieceList;
  struct Need {
    PieceList* list;
    size_t index;
    int capacity;
    int keep;  // entries to carry over from the present piece
    bool mirrored;
    CowPtr<Piece> made;
    CowPtr<Memory> mirror;
  };
  absl::Status Make(MemoryLedger* ledger);
  absl::Status CopyKept(Backend* backend) const;

  std::vector<Need> needs_;
};

// Not thread-safe; the owning layer's lock guards it.
class PieceList {
 public:
  struct Shape {
    const PieceFormat* format;
    MemoryKind kind;
    int length;             // entries a full piece holds
    int min_capacity;       // of the last piece
    int granularity;        // capacities are multiples of it; divides length
    SlabPool* pool;         // of full pieces; nullptr: each has a buffer of its own
    int growth = 0;         // entries that capacities grow by; 0: an eighth of length
    bool mirrored = false;  // whether pieces lie in the device's memory too: for kernels alone
  };
  explicit PieceList(const Shape* shape) : shape_(shape) {}

  // What is needed to write entries [begin, end) while those before `keep` stay (keep <= begin, or within one piece).
  void Plan(int64_t begin, int64_t end, int64_t keep, Staging* staging);
  // Drops the pieces that lie wholly at or beyond `end`, and those wholly within [begin, end).
  void Truncate(int64_t end);
  void Drop(int64_t begin, int64_t end);

  // For a list of `end` entries that is to stay as it is while the one that it was copied from is written to: a copy of
  // the last piece, if that has room left. Not where others share it too, for then that one must part from them anyway.
  void PlanOwnTail(int64_t end, Staging* staging);

  // Writes and reads a list of `end` entries (piece_list_snapshot.cc). Entries [gap_begin, gap_end) may be missing.
  // `right`, which may be absent, says whether entries [first, last) of a piece may be what they are.
  struct Extent {
    int64_t end = 0, gap_begin = 0, gap_end = 0;
  };
  using PieceCheck = std::function<bool(const uint8_t* data, int capacity, int first, int last)>;
  void Save(const Extent& extent, StateWriter* writer) const;
  void Load(const Extent& extent, const PieceCheck& right, StateReader* reader);

  // Pieces [first, second) hold all that were put in place or dropped since the last call: tables of their addresses
  // need no more refreshed.
  std::pair<size_t, size_t> TakeChanged();

  size_t size() const { return pieces_.size(); }
  int length() const { return shape_->length; }
  // nullptr and 0 where dropped.
  uint8_t* data(size_t i) const { return pieces_[i] ? pieces_[i]->memory.data() : nullptr; }
  int capacity(size_t i) const { return pieces_[i] ? pieces_[i]->capacity : 0; }
  int64_t bytes() const { return bytes_; }
  // Pieces of a mirrored shape: those made from now on are mirrored that hold entries before `head` or from `tail` on,
  // all of them where this was not called. DropMirrors drops the mirrors of others.
  void MirrorEnds(int64_t head, int64_t tail);
  void DropMirrors();
  // The piece in the device's memory; nullptr where it is not. Whoever writes to data() brings it up to date.
  uint8_t* mirror(size_t i) const;
  int64_t mirror_bytes() const { return mirrors_ ? mirrors_->bytes : 0; }

 private:
  friend class Staging;
  struct Restored;
  int64_t NeededOf(size_t i, const Extent& extent) const;  // entries of piece i that must be there
  void SavePiece(const Piece& piece, int count, int64_t begin, const Extent& extent, StateWriter* writer) const;
  CowPtr<Piece> LoadPiece(size_t i, const Extent& extent, const PieceCheck& right, StateReader* reader) const;
  int CapacityFor(int64_t entries) const;
  bool WantsMirror(size_t i) const;
  void Set(size_t i, CowPtr<Piece> piece, CowPtr<Memory> mirror = {});
  void SetMirror(size_t i, CowPtr<Memory> mirror);
  void Changed(size_t i);

  struct Mirrors {
    std::vector<CowPtr<Memory>> pieces;  // up to the last that is mirrored
    int64_t bytes = 0;
    int64_t head = INT64_MAX, tail = INT64_MAX;  // MirrorEnds
  };
  // A pointer's size where nothing is mirrored, for lists are many.
  class MirrorsPtr {
   public:
    MirrorsPtr() = default;
    MirrorsPtr(const MirrorsPtr& o) : mirrors_(o.mirrors_ ? std::make_unique<Mirrors>(*o.mirrors_) : nullptr) {}
    MirrorsPtr(MirrorsPtr&& o) noexcept = default;
    MirrorsPtr& operator=(MirrorsPtr o) noexcept {
      std::swap(mirrors_, o.mirrors_);
      return *this;
    }
    explicit operator bool() const { return mirrors_ != nullptr; }
    Mirrors* operator->() const { return mirrors_.get(); }
    void Make() {
      if (mirrors_ == nullptr) mirrors_ = std::make_unique<Mirrors>();
    }

   private:
    std::unique_ptr<Mirrors> mirrors_;
  };

  const Shape* shape_;
  std::vector<CowPtr<Piece>> pieces_;
  MirrorsPtr mirrors_;
  int64_t bytes_ = 0;                             // of pieces_
  uint32_t changed_begin_ = 0, changed_end_ = 0;  // since TakeChanged; small, for lists are many
};

}  // namespace seine

#endif  // SEINE_INDEX_STORAGE_PIECE_LIST_H_
