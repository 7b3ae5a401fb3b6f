// Where a snapshot's bytes go and whence they come: a file (snapshot_file.h), memory, or a stream to another server.
#ifndef SEINE_INDEX_BYTES_BYTE_STREAM_H_
#define SEINE_INDEX_BYTES_BYTE_STREAM_H_

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace seine {

// Takes bytes in order. Not thread-safe.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  // All of them, or an error, after which nothing more is written.
  virtual absl::Status Write(const uint8_t* data, int64_t bytes) = 0;
};

// Gives bytes in order. Not thread-safe.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Exactly so many. DATA_LOSS: there are fewer.
  virtual absl::Status Read(uint8_t* data, int64_t bytes) = 0;
  // Returns the bytes of the whole source; absent for a stream, whose end is not known.
  virtual std::optional<int64_t> size() const { return std::nullopt; }
};

class StringSink : public ByteSink {
 public:
  absl::Status Write(const uint8_t* data, int64_t bytes) override {
    text_.append(reinterpret_cast<const char*>(data), static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

class StringSource : public ByteSource {
 public:
  explicit StringSource(std::string text) : text_(std::move(text)) {}
  absl::Status Read(uint8_t* data, int64_t bytes) override {
    if (bytes > static_cast<int64_t>(text_.size() - at_)) return absl::DataLossError("the snapshot is cut short");
    std::memcpy(data, text_.data() + at_, static_cast<size_t>(bytes));
    at_ += static_cast<size_t>(bytes);
    return absl::OkStatus();
  }
  std::optional<int64_t> size() const override { return static_cast<int64_t>(text_.size()); }

 private:
  const std::string text_;
  size_t at_ = 0;
};

}  // namespace seine

#endif  // SEINE_INDEX_BYTES_BYTE_STREAM_H_
