// State that all layers and steps of one engine's paged cache share.
#ifndef SEINE_ENGINES_PYTHON_PAGED_ATTENTION_H_
#define SEINE_ENGINES_PYTHON_PAGED_ATTENTION_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "engines/python/paged/team.h"
#include "index/cells/cell_layer.h"
#include "index/prompt/prompt_batch.h"

namespace seine::python {

struct PagedSettings {
  int block_size = 0;      // slots
  int64_t min_tokens = 0;  // of texts that are attended by codes
  CellConfig cells;
  PromptParams prompt;
  double gate = 0;
  int64_t codes_bytes = 0;  // most that a layer's codes take; 0: as many as there are blocks
};

// Thread-safe, but for context().
class PagedAttention {
 public:
  // INVALID_ARGUMENT where the first layer's moments cannot be balanced.
  static absl::StatusOr<std::shared_ptr<PagedAttention>> Create(PagedSettings settings, int64_t num_blocks,
                                                                std::unique_ptr<CellContext> context, int threads);

  const PagedSettings& settings() const { return settings_; }
  const Geometry& geometry() const { return context_->config().geometry; }
  int64_t num_blocks() const { return num_blocks_; }
  int64_t num_slots() const { return num_blocks_ * settings_.block_size; }
  // Blocks from the first on that may have codes.
  int64_t code_blocks() const { return code_blocks_; }
  CellContext* context() { return context_.get(); }
  Team& team() { return team_; }

 private:
  PagedAttention(PagedSettings settings, int64_t num_blocks, std::unique_ptr<CellContext> context, int threads)
      : settings_(std::move(settings)),
        num_blocks_(num_blocks),
        code_blocks_(num_blocks),
        context_(std::move(context)),
        team_(threads) {}

  const PagedSettings settings_;
  const int64_t num_blocks_;
  int64_t code_blocks_;
  const std::unique_ptr<CellContext> context_;
  Team team_;
};

}  // namespace seine::python

#endif  // SEINE_ENGINES_PYTHON_PAGED_ATTENTION_H_
