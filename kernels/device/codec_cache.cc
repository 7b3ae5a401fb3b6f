#include "kernels/device/codec_cache.h"

#include <cstdint>

namespace seine::cuda {

CodecCache::~CodecCache() {
  for (auto& [codec, entry] : entries_) device_->Free(entry.memory);
}

Device::Error CodecCache::Get(const Codec& codec, StreamContext* context, const CodecTables** out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = entries_.find(&codec);
  if (found == entries_.end() || found->second.life.expired()) {  // expired: another codec's at the same address
    DropExpired();
    void* memory = nullptr;
    if (const Device::Error error = Upload(codec, context, &memory); error != Device::kNoError) return error;
    found = entries_.emplace(&codec, Entry{codec.life(), memory}).first;
  }
  *out = static_cast<const CodecTables*>(found->second.memory);
  return Device::kNoError;
}

Device::Error CodecCache::Upload(const Codec& codec, StreamContext* context, void** out) {
  CodecTables tables = codec.Tables();
  size_t bytes = ViewWriter::Room(sizeof(CodecTables));
  ForEachTable(&tables, [&](auto& table) { bytes += ViewWriter::Room(table.size * sizeof(*table.data)); });
  if (const Device::Error error = context->views.Reserve(bytes); error != Device::kNoError) return error;
  if (const Device::Error error = device_->Allocate(bytes, out); error != Device::kNoError) return error;
  uint8_t* host = context->views.data();
  const uint8_t* device = static_cast<const uint8_t*>(*out);
  size_t at = ViewWriter::Room(sizeof(CodecTables));
  ForEachTable(&tables, [&](auto& table) {
    const size_t size = table.size * sizeof(*table.data);
    if (size == 0) return;
    memcpy(host + at, table.data, size);
    table.data = reinterpret_cast<decltype(table.data)>(device + at);
    at += ViewWriter::Room(size);
  });
  memcpy(host, &tables, sizeof(tables));
  Device::Error error = device_->Copy(*out, host, at, context->stream);
  if (error == Device::kNoError) error = device_->Finish(context->stream);
  if (error != Device::kNoError) device_->Free(*out);
  return error;
}

void CodecCache::DropExpired() {
  for (auto i = entries_.begin(); i != entries_.end();) {
    if (!i->second.life.expired()) {
      ++i;
      continue;
    }
    device_->Free(i->second.memory);
    i = entries_.erase(i);
  }
}

}  // namespace seine::cuda
