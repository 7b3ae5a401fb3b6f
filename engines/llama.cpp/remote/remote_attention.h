// SEINE_ENDPOINT: attention nodes and cache writes of one llama.cpp context whose keys and values a seined holds too.
// Each of the context's caches has texts of its own (remote_cache.h).
//
// Which of two caches slides is seen while the engine's cache holds every position: by the masks of a prompt longer
// than the window, or once one cache shows all positions and the other does not.
#ifndef SEINE_ENGINES_LLAMA_CPP_REMOTE_REMOTE_ATTENTION_H_
#define SEINE_ENGINES_LLAMA_CPP_REMOTE_REMOTE_ATTENTION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "engines/llama.cpp/ggml/node.h"
#include "engines/llama.cpp/node_computer.h"
#include "engines/llama.cpp/remote/remote_cache.h"

namespace seine::llama {

// Answers by a server.
class RemoteAttention final : public NodeComputer {
 public:
  ggml_status Attend(ggml_tensor* node) override;
  ggml_status SetRows(ggml_tensor* node) override;
  ggml_status Shift(ggml_tensor* node) override;

 private:
  RemoteCache& CacheOf(const ggml_tensor* keys);
  void ReadRows(const ggml_tensor* node, int layer);  // GGML_OP_SET_ROWS of keys
  // At a cache's first attention of a graph: what its mask tells of all caches. False: of two that lack positions,
  // either may slide, and the first was attended by llama.cpp.
  bool Learn(const AttentionNode& node, RemoteCache* cache);
  void SetSlides(RemoteCache* slides, int64_t window);  // and that the others do not
  // Whether it is known what the cache's tokens should see: all caches of the graph were seen, or this lacks nothing.
  bool CanTell(const RemoteCache& cache) const;

  std::map<ggml_backend_buffer_t, std::unique_ptr<RemoteCache>> caches_;  // by the buffer that each lies in
  std::vector<int64_t> positions_;                                        // of the graph's tokens; empty: not read
  int layer_ = 0;                                                         // that was written last
};

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_REMOTE_REMOTE_ATTENTION_H_
