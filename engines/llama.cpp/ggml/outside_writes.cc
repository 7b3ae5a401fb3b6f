// Takes a buffer's functions, and gives them back.
#include "engines/llama.cpp/ggml/outside_writes.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "ggml-backend-impl.h"

namespace seine::llama {

namespace {

struct Watched {
  ggml_backend_buffer_i own = {};  // ggml's functions
  std::vector<WriteListener*> listeners;
};

struct WatchedBuffers {
  std::mutex mutex;
  std::map<ggml_backend_buffer_t, Watched> buffers;
};

WatchedBuffers& TheWatched() {
  static auto* const all = new WatchedBuffers();
  return *all;
}

// A copy, since listeners are called without the lock: they may be those that stop.
Watched Of(ggml_backend_buffer_t buffer) {
  WatchedBuffers& all = TheWatched();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return all.buffers.at(buffer);
}

void Tell(const Watched& watched, const void* at, const void* data, size_t size) {
  for (WriteListener* listener : watched.listeners) {
    listener->WritesOutside(static_cast<const uint8_t*>(at), static_cast<const uint8_t*>(data), size);
  }
}

const char* At(const ggml_tensor* tensor, size_t offset) { return static_cast<const char*>(tensor->data) + offset; }

void SetTensor(ggml_backend_buffer_t buffer, ggml_tensor* tensor, const void* data, size_t offset, size_t size) {
  const Watched watched = Of(buffer);
  Tell(watched, At(tensor, offset), data, size);
  watched.own.set_tensor(buffer, tensor, data, offset, size);
}

void SetTensor2d(ggml_backend_buffer_t buffer, ggml_tensor* tensor, const void* data, size_t offset, size_t size,
                 size_t copies, size_t stride_tensor, size_t stride_data) {
  const Watched watched = Of(buffer);
  for (size_t i = 0; i < copies; ++i) {
    Tell(watched, At(tensor, offset + i * stride_tensor), static_cast<const char*>(data) + i * stride_data, size);
  }
  watched.own.set_tensor_2d(buffer, tensor, data, offset, size, copies, stride_tensor, stride_data);
}

void MemsetTensor(ggml_backend_buffer_t buffer, ggml_tensor* tensor, uint8_t value, size_t offset, size_t size) {
  const Watched watched = Of(buffer);
  Tell(watched, At(tensor, offset), nullptr, size);
  watched.own.memset_tensor(buffer, tensor, value, offset, size);
}

bool CopyTensor(ggml_backend_buffer_t buffer, const ggml_tensor* from, ggml_tensor* to) {
  const Watched watched = Of(buffer);
  Tell(watched, to->data, nullptr, ggml_nbytes(to));
  return watched.own.cpy_tensor(buffer, from, to);
}

void Clear(ggml_backend_buffer_t buffer, uint8_t value) {
  const Watched watched = Of(buffer);
  Tell(watched, watched.own.get_base(buffer), nullptr, buffer->size);
  watched.own.clear(buffer, value);
}

void FreeBuffer(ggml_backend_buffer_t buffer) {
  const Watched watched = Of(buffer);
  {
    WatchedBuffers& all = TheWatched();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.buffers.erase(buffer);
  }
  if (watched.own.free_buffer != nullptr) watched.own.free_buffer(buffer);
}

// What ggml's own library reads of the buffer and what we read are the same.
bool IsAsKnown(ggml_backend_buffer_t buffer) {
  return buffer->buft == ggml_backend_buffer_get_type(buffer) && buffer->size == ggml_backend_buffer_get_size(buffer) &&
         buffer->usage == ggml_backend_buffer_get_usage(buffer) && buffer->iface.get_base != nullptr &&
         buffer->iface.get_base(buffer) == ggml_backend_buffer_get_base(buffer) && buffer->iface.set_tensor != nullptr;
}

template <typename Function>
void Replace(Function* place, Function by) {  // a function that ggml lacks is asked for by nobody
  if (*place != nullptr) *place = by;
}

}  // namespace

bool Listen(ggml_backend_buffer_t buffer, WriteListener* listener) {
  if (buffer == nullptr || !IsAsKnown(buffer)) return false;
  WatchedBuffers& all = TheWatched();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto [at, is_new] = all.buffers.try_emplace(buffer);
  std::vector<WriteListener*>& listeners = at->second.listeners;
  if (std::find(listeners.begin(), listeners.end(), listener) == listeners.end()) listeners.push_back(listener);
  if (!is_new) return true;
  ggml_backend_buffer_i& iface = buffer->iface;
  at->second.own = iface;
  iface.free_buffer = FreeBuffer;
  Replace(&iface.set_tensor, &SetTensor);
  Replace(&iface.set_tensor_2d, &SetTensor2d);
  Replace(&iface.memset_tensor, &MemsetTensor);
  Replace(&iface.cpy_tensor, &CopyTensor);
  Replace(&iface.clear, &Clear);
  return true;
}

void StopListening(WriteListener* listener) {
  WatchedBuffers& all = TheWatched();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (auto at = all.buffers.begin(); at != all.buffers.end();) {
    auto& [buffer, watched] = *at;
    std::erase(watched.listeners, listener);
    if (watched.listeners.empty()) {
      buffer->iface = watched.own;
      at = all.buffers.erase(at);
    } else {
      ++at;
    }
  }
}

ChangedRun TouchedCells(const uint8_t* base, int64_t cells, size_t cell_bytes, const uint8_t* at, size_t size) {
  const uint8_t* const first = std::max(base, at);
  const uint8_t* const end = std::min(base + cells * cell_bytes, at + size);
  if (first >= end) return {0, 0};
  return {(first - base) / cell_bytes, (end - base + cell_bytes - 1) / cell_bytes};
}

std::vector<ChangedRun> ChangedCells(const uint8_t* base, int64_t cells, size_t cell_bytes, const uint8_t* at,
                                     const uint8_t* data, size_t size) {
  const auto [first, end] = TouchedCells(base, cells, cell_bytes, at, size);
  if (first == end) return {};
  if (data == nullptr) return {{first, end}};
  std::vector<ChangedRun> runs;
  for (int64_t cell = first; cell < end; ++cell) {
    const uint8_t* const begin = std::max(at, base + cell * cell_bytes);
    const uint8_t* const behind = std::min(at + size, base + (cell + 1) * cell_bytes);
    if (std::memcmp(begin, data + (begin - at), behind - begin) == 0) continue;
    if (runs.empty() || runs.back().second != cell) runs.push_back({cell, cell});
    runs.back().second = cell + 1;
  }
  return runs;
}

}  // namespace seine::llama
