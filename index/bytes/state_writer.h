// Writes what a sequence is into a snapshot: numbers at once, large arrays as references to where they lie.
//
// An object that several sequences share is written once: PutRef gives it a number, and says whether it is new. Then
// its owner describes it. Arrays ("payloads") follow the numbers in a part of their own, one a layer, and are read from
// where they lie when the snapshot is written; their owners must live and not change until then.
//
// A writer that is given the numbers of an earlier one adds to what that has written: its objects are not described
// again.
#ifndef SEINE_INDEX_BYTES_STATE_WRITER_H_
#define SEINE_INDEX_BYTES_STATE_WRITER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace seine {

// The numbers that objects have got, by address. They mean something while the objects live and do not change.
struct WrittenObjects {
  struct Object {
    uint32_t number;
    int64_t extent;
  };
  std::unordered_map<const void*, Object> by_address;
  uint32_t count = 0;  // numbers given
};

class StateWriter {
 public:
  // `fill`, where data is nullptr, makes the bytes: into zeros.
  struct Payload {
    int64_t bytes = 0;
    const uint8_t* data = nullptr;
    std::function<void(uint8_t*)> fill = {};
  };
  using Part = std::vector<Payload>;

  explicit StateWriter(WrittenObjects known = {}) : objects_(std::move(known)) {}

  // Little-endian, as the machine has them.
  template <typename T>
  void Put(T value) {
    static_assert(std::is_arithmetic_v<T>);
    PutBytes(&value, sizeof(value));
  }
  // A count, then the elements.
  template <typename T>
  void PutVector(const std::vector<T>& values) {
    static_assert(std::is_arithmetic_v<T>);
    Put<uint64_t>(values.size());
    PutBytes(values.data(), values.size() * sizeof(T));
  }
  void PutString(absl::string_view text) {
    Put<uint64_t>(text.size());
    PutBytes(text.data(), text.size());
  }

  // The number of `object`. True: it is new, and its owner must describe it now. So it is where more of it is used
  // than was described: its first `extent` entries, of an array that sequences have cut at different lengths.
  bool PutRef(const void* object, int64_t extent = 0) {
    const auto [at, is_new] = objects_.by_address.try_emplace(object, WrittenObjects::Object{objects_.count, extent});
    const bool describe = is_new || extent > at->second.extent;
    if (describe) at->second = {objects_.count++, extent};
    Put(at->second.number);
    return describe;
  }
  bool Knows(const void* object) const { return objects_.by_address.contains(object); }

  void PutPayload(const void* data, int64_t bytes) { AddPayload({bytes, static_cast<const uint8_t*>(data), {}}); }
  void PutPayload(int64_t bytes, std::function<void(uint8_t*)> fill) { AddPayload({bytes, nullptr, std::move(fill)}); }
  // Ends a part; what it holds goes into a section of its own.
  void EndPart() { parts_.emplace_back(); }

  const std::string& state() const { return state_; }
  // The last one is open, and empty where EndPart came last.
  const std::vector<Part>& parts() const { return parts_; }
  WrittenObjects TakeObjects() { return std::move(objects_); }

 private:
  void PutBytes(const void* data, size_t bytes) {
    if (bytes > 0) state_.append(static_cast<const char*>(data), bytes);
  }
  void AddPayload(Payload payload) {
    if (payload.bytes > 0) parts_.back().push_back(std::move(payload));
  }

  std::string state_;
  std::vector<Part> parts_ = std::vector<Part>(1);
  WrittenObjects objects_;
};

}  // namespace seine

#endif  // SEINE_INDEX_BYTES_STATE_WRITER_H_
