// Reads what a StateWriter has written. The first thing that is wrong ends it: later reads give zeros and change
// nothing, so that an owner may read all that it wants and look at ok() before it uses any.
//
// What is read may be anything, also where its checksum fits: owners bound every number before they use it.
#ifndef SEINE_INDEX_BYTES_STATE_READER_H_
#define SEINE_INDEX_BYTES_STATE_READER_H_

#include <any>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "index/memory/memory.h"

namespace seine {

// What was read of shared objects, by the numbers that a StateWriter gave them.
using ReadObjects = std::deque<std::any>;

class StateReader {
 public:
  // `take`, which may be absent, gets the bytes once they are at `data`, or, where that is nullptr, elsewhere. It may
  // refuse them.
  struct Payload {
    int64_t bytes = 0;
    uint8_t* data = nullptr;
    std::function<bool(const uint8_t*)> take = {};
  };
  using Part = std::vector<Payload>;

  // `version`: the snapshot's (snapshot_format.h). `part_bytes`: of the parts, as its table says. Admits as many
  // against the ledger's limits at once. `known`: objects of the snapshots that this one adds to.
  StateReader(uint32_t version, std::string state, std::vector<int64_t> part_bytes, MemoryLedger* ledger,
              ReadObjects known = {});
  StateReader(const StateReader&) = delete;
  StateReader& operator=(const StateReader&) = delete;

  uint32_t version() const { return version_; }
  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  // DATA_LOSS, of a snapshot that contradicts itself.
  void Fail(absl::string_view what);
  void Fail(const absl::Status& status) { status_.Update(status); }
  // Fails where `right` is false; returns ok().
  bool Check(bool right, absl::string_view what) {
    if (!right) Fail(what);
    return ok();
  }

  template <typename T>
  T Get() {
    static_assert(std::is_arithmetic_v<T>);
    T value = 0;
    GetBytes(&value, sizeof(value));
    return value;
  }
  // A number that is neither NaN nor infinite.
  template <typename T>
  T GetFinite() {
    const T value = Get<T>();
    return Check(std::isfinite(value), "a number is not finite") ? value : T{0};
  }
  template <typename T>
  std::vector<T> GetFiniteVector(size_t count) {
    std::vector<T> values = GetVector<T>();
    Check(values.size() == count, "a list has a wrong length");
    for (const T value : values) Check(std::isfinite(value), "a number is not finite");
    return ok() ? std::move(values) : std::vector<T>(count);
  }
  bool GetBool() { return Get<uint8_t>() != 0; }
  // In [least, most].
  int64_t GetWithin(int64_t least, int64_t most, absl::string_view what) {
    const auto value = Get<int64_t>();
    return Check(value >= least && value <= most, what) ? value : least;
  }
  template <typename T>
  std::vector<T> GetVector() {
    static_assert(std::is_arithmetic_v<T>);
    const auto count = Get<uint64_t>();
    if (!Check(count <= (state_.size() - at_) / sizeof(T), "a list is longer than what holds it")) return {};
    std::vector<T> values(count);
    GetBytes(values.data(), count * sizeof(T));
    return values;
  }
  std::string GetString();

  // An object that was given a number; *is_new: it is described here. nullptr: the snapshot is wrong.
  template <typename T>
  T* GetRef(bool* is_new) {
    const auto number = Get<uint32_t>();
    *is_new = ok() && number == objects_.size();
    if (*is_new) return std::any_cast<T>(&objects_.emplace_back(T{}));
    T* const found = ok() && number < objects_.size() ? std::any_cast<T>(&objects_[number]) : nullptr;
    if (found == nullptr) Fail("what is shared is not there");
    return found;
  }

  // Where the next bytes of this part go. They come when all has been described.
  void GetPayload(void* data, int64_t bytes, std::function<bool(const uint8_t*)> take = {}) {
    AddPayload({bytes, static_cast<uint8_t*>(data), std::move(take)});
  }
  void EndPart();
  const std::vector<Part>& parts() const { return parts_; }
  ReadObjects TakeObjects() { return std::move(objects_); }

  // Memory out of what was admitted; more is admitted where that is not enough. False, and it has failed, where there
  // is none.
  bool Allocate(MemoryKind kind, int64_t bytes, SlabPool* pool, Memory* out);
  bool Charge(MemoryKind kind, int64_t bytes, Memory* out);

  // Returns true once everything has been read.
  bool AtEnd() const { return at_ == state_.size() && parts_.back().empty() && ended_ == part_bytes_.size(); }

 private:
  void GetBytes(void* data, size_t bytes);
  void AddPayload(Payload payload);
  bool Admit(MemoryKind kind, int64_t bytes);

  const uint32_t version_;
  const std::string state_;
  size_t at_ = 0;
  absl::Status status_;
  ReadObjects objects_;  // addresses last
  std::vector<Part> parts_ = std::vector<Part>(1);
  const std::vector<int64_t> part_bytes_;
  size_t ended_ = 0;  // parts
  int64_t part_bytes_so_far_ = 0;
  Reservation reservation_;
  int64_t admitted_ = 0;  // of it, not yet allocated
};

}  // namespace seine

#endif  // SEINE_INDEX_BYTES_STATE_READER_H_
