#include "proto/channel/frame.h"

#include <algorithm>
#include <limits>

namespace seine::channel {
namespace {

// A message's memory grows by so many bytes at once, before they have come.
constexpr size_t kStep = 256 << 10;

}  // namespace

Progress FrameWriter::Put(const void* data, size_t count, size_t* moved) {
  const int64_t put = ring_.Put(data, count);
  if (put == kNonsense) return Progress::kBroken;
  *moved = static_cast<size_t>(put);
  return *moved == count ? Progress::kDone : Progress::kWait;
}

Progress FrameWriter::Write(FrameKind kind, std::string_view message, std::span<const std::string_view> tensors) {
  if (tensors.size() > kMostTensors) return Progress::kTooLarge;
  size_t bytes = message.size();
  for (const std::string_view tensor : tensors) bytes += tensor.size();
  if (bytes > std::numeric_limits<uint32_t>::max()) return Progress::kTooLarge;
  tensors_ = tensors;
  kind_ = kind;
  message_ = message;
  follows_ = true;
  return Continue();
}

void FrameWriter::Begin(FrameKind kind, std::string_view bytes) {
  head_ = {static_cast<uint32_t>(bytes.size()), kind};
  head_written_ = 0;
  rest_ = bytes;
}

Progress FrameWriter::Continue() {
  Progress progress = ContinueFrame();
  while (progress == Progress::kDone && follows_) {
    if (tensors_.empty()) {
      Begin(kind_, message_);
      follows_ = false;
    } else {
      Begin(FrameKind::kTensor, tensors_.front());
      tensors_ = tensors_.subspan(1);
    }
    progress = ContinueFrame();
  }
  if (progress != Progress::kBroken) ring_.Publish();
  return progress;
}

Progress FrameWriter::ContinueFrame() {
  Progress progress = Progress::kDone;
  size_t moved = 0;
  if (head_written_ < sizeof(head_)) {
    progress = Put(reinterpret_cast<const char*>(&head_) + head_written_, sizeof(head_) - head_written_, &moved);
    head_written_ += moved;
  }
  if (progress == Progress::kDone && !rest_.empty()) {
    moved = 0;
    progress = Put(rest_.data(), rest_.size(), &moved);
    rest_.remove_prefix(moved);
  }
  return progress;
}

bool FrameWriter::TryWrite(FrameKind kind, std::string_view message) {
  if (midway() || ring_.Room() < static_cast<int64_t>(sizeof(FrameHead) + message.size())) return false;
  return Write(kind, message) == Progress::kDone;
}

Progress FrameReader::Read() {
  if (done_) {
    done_ = false;
    head_read_ = frame_read_ = tensor_bytes_ = num_tensors_ = 0;
  }
  const Progress progress = ReadMessage();
  ring_.Release();
  return progress;
}

Progress FrameReader::ReadMessage() {
  for (;;) {
    if (const Progress progress = ReadFrame(); progress != Progress::kDone) return progress;
    if (head_.kind != FrameKind::kTensor) break;
    ++num_tensors_;
    tensor_bytes_ += head_.bytes;
    head_read_ = frame_read_ = 0;
  }
  done_ = true;
  return Progress::kDone;
}

Progress FrameReader::ReadFrame() {
  if (head_read_ < sizeof(head_)) {
    const int64_t taken = ring_.Take(reinterpret_cast<char*>(&head_) + head_read_, sizeof(head_) - head_read_);
    if (taken == kNonsense) return Progress::kBroken;
    head_read_ += static_cast<size_t>(taken);
    if (head_read_ < sizeof(head_)) return Progress::kWait;
    if (head_.kind < FrameKind::kMessage || head_.kind > FrameKind::kTensor) return Progress::kBroken;
    if (head_.bytes > most_ - tensor_bytes_) return Progress::kTooLarge;
    if (head_.kind == FrameKind::kTensor && num_tensors_ == kMostTensors) return Progress::kBroken;
    if (head_.kind == FrameKind::kTensor && num_tensors_ == tensors_.size()) tensors_.emplace_back();
  }
  std::string& out = head_.kind == FrameKind::kTensor ? tensors_[num_tensors_] : message_;
  while (frame_read_ < head_.bytes) {
    const size_t wanted = std::min(head_.bytes - frame_read_, kStep);
    if (out.size() < frame_read_ + wanted) out.resize(frame_read_ + wanted);
    const int64_t taken = ring_.Take(out.data() + frame_read_, wanted);
    if (taken == kNonsense) return Progress::kBroken;
    if (taken == 0) return Progress::kWait;
    frame_read_ += static_cast<size_t>(taken);
  }
  out.resize(head_.bytes);
  return Progress::kDone;
}

size_t FrameReader::held() const {
  size_t bytes = message_.capacity() + tensors_.capacity() * sizeof(std::string);
  for (const std::string& tensor : tensors_) bytes += tensor.capacity();
  return bytes;
}

void FrameReader::GiveBack() {
  std::string().swap(message_);
  std::vector<std::string>().swap(tensors_);
  num_tensors_ = tensor_bytes_ = 0;
}

}  // namespace seine::channel
