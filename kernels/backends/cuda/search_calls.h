// A batch of searches on a device: tasks laid out in a stream context, the kernels of search_steps.h, and their
// answers.
#ifndef SEINE_KERNELS_BACKENDS_CUDA_SEARCH_CALLS_H_
#define SEINE_KERNELS_BACKENDS_CUDA_SEARCH_CALLS_H_

#include <optional>
#include <vector>

#include "kernels/device/codec_cache.h"
#include "kernels/device/stream_context.h"
#include "kernels/ops/query/search.h"
#include "kernels/ops/search/search_plan.h"

namespace seine::cuda {

// Searches the tasks at the places that `batch` lists, into outputs[place]. Returns when the answers are there, or
// nothing of it is under way any more.
Device::Error SearchOnDevice(const SearchTask* tasks, const std::vector<int>& batch, const SearchParams& params,
                             CodecCache* cache, SearchOutput* outputs, StreamContext* context);

// The same in steps, for a call that enqueues more behind it: Begin, Put, Place and Launch in this order, between them
// the caller's own, and Read once the stream has come to its end. Not thread-safe.
class SearchCall {
 public:
  SearchCall(const SearchTask* tasks, const std::vector<int>& batch) : tasks_(tasks), batch_(batch) {}

  // Finds codecs' tables on the device.
  Device::Error Begin(CodecCache* cache, StreamContext* context);
  size_t view_bytes() const { return view_bytes_; }  // that Put and Place take
  // Lays the tasks out; `params` are of them all.
  void Put(const SearchParams& params, ViewWriter* views);
  // After Put: the search's sizes and places.
  const SearchPlan& plan() const { return *plan_; }
  // `workspace`: device memory. `answers`: where the kernels write, memory of either side. Both 256-byte aligned.
  void Place(uint8_t* workspace, uint8_t* answers, ViewWriter* views);
  // After the views are sent.
  Device::Error Launch(StreamContext* context) const;
  // From `answers`, where the host reads them.
  void Read(uint8_t* answers, SearchOutput* outputs);

 private:
  const SearchTask* const tasks_;
  const std::vector<int>& batch_;
  std::vector<const CodecTables*> codecs_;
  size_t view_bytes_ = 0;
  std::optional<SearchPlan> plan_;
  uint8_t* workspace_ = nullptr;
  SearchArgs args_;
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_BACKENDS_CUDA_SEARCH_CALLS_H_
