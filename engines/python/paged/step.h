// A step's plan: which slots each text of a step sees, for all layers.
#ifndef SEINE_ENGINES_PYTHON_PAGED_STEP_H_
#define SEINE_ENGINES_PYTHON_PAGED_STEP_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "engines/python/paged/attention.h"
#include "index/cells/cell_layer.h"
#include "index/prompt/prompt_batch.h"

namespace seine::python {

inline constexpr int kPromptTokens =
    64;  // of one text in a step: a prompt's, whose codes are made for its whole length

// A text's newest token, in a step.
struct DecodeRow {
  int64_t token = 0;  // of the step
  int64_t length = 0;
  bool coded = false;
  bool cut = false;  // a part of it lies in blocks that may have no codes
  SeenCells seen;
};

struct PromptRows {
  int64_t token = 0, length = 0;  // the first of the step's; of the text, with them
  std::vector<int64_t> blocks;
  std::unique_ptr<PromptMask> mask;
};

// Constant once it is made.
class PagedStep {
 public:
  // `query_start` [texts + 1] and `seq_lens` [texts] of int32 or int64, `block_table` [texts or more, blocks] of int32.
  // Throws ValueError where they do not fit each other or the cache. Needs the GIL.
  PagedStep(PagedAttention* attention, nanobind::handle query_start, nanobind::handle seq_lens,
            nanobind::handle block_table);
  PagedStep(const PagedStep&) = delete;

  bool IsOf(const PagedAttention* attention) const { return attention_ == attention; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t longest() const { return longest_; }                // tokens of a text
  int64_t longest_prompt() const { return longest_prompt_; }  // of one that has kPromptTokens in the step
  const std::vector<DecodeRow>& decodes() const { return decodes_; }
  const std::vector<PromptRows>& prompts() const { return prompts_; }

 private:
  const PagedAttention* const attention_;  // that it was made for
  int64_t num_tokens_ = 0, longest_ = 0, longest_prompt_ = 0;
  std::vector<DecodeRow> decodes_;
  std::vector<PromptRows> prompts_;
};

}  // namespace seine::python

#endif  // SEINE_ENGINES_PYTHON_PAGED_STEP_H_
