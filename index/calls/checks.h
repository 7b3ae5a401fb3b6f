// Checks of what a call hands over: one clear error, before anything has changed.
#ifndef SEINE_INDEX_CALLS_CHECKS_H_
#define SEINE_INDEX_CALLS_CHECKS_H_

#include <cstdint>
#include <memory>

#include "index/context.h"
#include "index/index.h"
#include "index/sequence/layer.h"

namespace seine {

// Against one index. Thread-safe. INVALID_ARGUMENT or as the Index calls say, with the field.
class Checks {
 public:
  explicit Checks(const Context* context) : context_(*context) {}

  absl::Status CheckLayer(int layer) const;
  absl::Status CheckHead(int kv_head) const;
  // Checks an append, but for what the layer holds by now; CheckAppendShapes: without a look at its data.
  absl::Status CheckAppendShapes(int layer, int64_t position, const TensorView& keys, const TensorView& values) const;
  absl::Status CheckAppend(int layer, int64_t position, const TensorView& keys, const TensorView& values,
                           const QueryView& queries) const;
  // Makes it, where the index keeps what it reads.
  absl::StatusOr<std::shared_ptr<const Scorer>> CheckScorer(const ScorerConfig& config) const;
  absl::Status CheckScorerInputs(const Layer& layer, const ScorerInputs& given) const;  // the layer's lock held

 private:
  absl::Status CheckShape(const char* field, const TensorView& tensor) const;
  absl::Status CheckFinite(const char* field, int64_t position, const TensorView& tensor) const;
  absl::Status CheckFinite(const char* field, const float* queries, int64_t num_queries) const;
  absl::Status CheckAppended(const QueryView& queries, int64_t num_tokens) const;

  const Context& context_;
};

}  // namespace seine

#endif  // SEINE_INDEX_CALLS_CHECKS_H_
