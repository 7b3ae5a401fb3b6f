// Codecs' tables on a device: copied there when first used, dropped after the codec is gone. Thread-safe.
#ifndef SEINE_KERNELS_DEVICE_CODEC_CACHE_H_
#define SEINE_KERNELS_DEVICE_CODEC_CACHE_H_

#include <map>
#include <memory>
#include <mutex>

#include "kernels/codecs/code.h"
#include "kernels/codecs/codec.h"
#include "kernels/device/stream_context.h"

namespace seine::cuda {

class CodecCache {
 public:
  explicit CodecCache(Device* device) : device_(device) {}
  CodecCache(const CodecCache&) = delete;
  ~CodecCache();

  // The codec's tables as kernels read them, for as long as the codec lives. Copies on the context's stream and waits,
  // if they are not there yet.
  Device::Error Get(const Codec& codec, StreamContext* context, const CodecTables** out);

 private:
  struct Entry {
    std::weak_ptr<const void> life;
    void* memory = nullptr;  // the struct, then the tables
  };
  Device::Error Upload(const Codec& codec, StreamContext* context, void** out);
  void DropExpired();

  Device* const device_;
  std::mutex mutex_;
  std::map<const Codec*, Entry> entries_;  // guarded by mutex_
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_DEVICE_CODEC_CACHE_H_
