// Which searches of a stream are launched as a CUDA graph: those that come again. A graph keeps a search's grids and
// the SearchArgs that its kernels are given by value, so it may stand for every search in which these are the same,
// whatever lies behind their pointers. Plain C++: tests drive it with calls that fail.
#ifndef SEINE_KERNELS_DEVICE_LAUNCH_CACHE_H_
#define SEINE_KERNELS_DEVICE_LAUNCH_CACHE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/ops/query/search_items.h"

namespace seine::cuda {

// All that decides which kernels run, on what grids and with what arguments: each field's bytes, one behind another,
// for between fields there is padding, which may hold anything.
class LaunchKey {
 public:
  // `planned` and `grids`: the plan's, by which the kernels are chosen (search_steps.h).
  LaunchKey(const SearchParams& planned, const SearchGrids& grids, const SearchArgs& args);
  bool operator==(const LaunchKey& other) const = default;

 private:
  template <typename... Fields>
  void Put(const Fields&... fields);
  void PutParams(const SearchParams& params);

  std::array<std::byte, 2 * sizeof(SearchParams) + sizeof(SearchGrids) + sizeof(SearchArgs)> bytes_{};
  size_t used_ = 0;
};

// What graphs take of the CUDA runtime, on one stream. Errors as Device's; none of them sticks to the thread.
class GraphCalls {
 public:
  using Error = int;
  virtual ~GraphCalls() = default;
  // Between the two what is enqueued is recorded, not run. After End the stream runs things again, also where it fails.
  virtual Error Begin() = 0;
  virtual Error End(void** graph) = 0;  // nullptr where there is none
  virtual Error Instantiate(void* graph, void** ready) = 0;
  virtual Error Launch(void* ready) = 0;
  virtual void Drop(void* graph) = 0;
  virtual void DropReady(void* ready) = 0;
};

// Not thread-safe, as its stream is not.
class LaunchCache {
 public:
  // Keys that come by turns are seen again only where there are at most kSeen of them, and then all their graphs are
  // kept: no graph is made only to be dropped before its next use.
  static constexpr size_t kKept = 8, kSeen = kKept;
  // What fails for one search (memory, a driver) is likely to fail for the next, and each attempt costs more than it
  // could save: after so many no more graphs are made.
  static constexpr size_t kMostFailures = 3;

  struct Counts {
    int64_t captured = 0, launched = 0;  // graphs
    int64_t failed = 0;                  // graphs that could not be made or launched
  };

  explicit LaunchCache(GraphCalls* calls);
  LaunchCache(const LaunchCache&) = delete;
  ~LaunchCache();

  // enqueue() starts the kernels that `key` stands for, and may be called twice: whatever fails of a graph, the search
  // is launched without it, and its key gets no other. A key's first launch is enqueue() alone; the second makes its
  // graph.
  GraphCalls::Error Launch(const LaunchKey& key, const std::function<GraphCalls::Error()>& enqueue);
  const Counts& counts() const { return counts_; }

 private:
  struct Kept {
    LaunchKey key;
    void* ready;
  };

  bool SeenBefore(const LaunchKey& key);
  bool MayCapture(const LaunchKey& key) const;
  bool Capture(const LaunchKey& key, const std::function<GraphCalls::Error()>& enqueue);
  void DropLast();
  void Refuse(const LaunchKey& key);

  GraphCalls* const calls_;
  std::vector<Kept> kept_;                 // the last used first
  std::vector<LaunchKey> seen_, refused_;  // once, the last first; those that failed
  Counts counts_;
};

// What the environment's SEINE_CUDA_GRAPHS says: ON or OFF; nullptr, where it is not set, is ON. false, and *why, where
// it is anything else.
bool ReadGraphsSetting(const char* value, bool* on, std::string* why);

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_DEVICE_LAUNCH_CACHE_H_
