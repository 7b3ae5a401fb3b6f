// Attention of a prompt's tokens over the rows that an index holds.
#ifndef SEINE_INDEX_RETRIEVAL_ATTEND_PROMPT_H_
#define SEINE_INDEX_RETRIEVAL_ATTEND_PROMPT_H_

#include "absl/status/status.h"
#include "index/context.h"
#include "index/prompt/prompt_attention.h"
#include "index/sequence/layer.h"
#include "index/types.h"

namespace seine {

// Checks an item of a prompt, whatever the layer holds. INVALID_ARGUMENT naming the field.
absl::Status CheckPromptItem(const RetrieveItem& item, const AttentionParams& attention, const IndexConfig& config);

// Answers an item that is checked. Locks the layer meanwhile, shared. More tokens than it holds are the answer's
// status, INVALID_ARGUMENT. Returns StopStatus().
absl::Status AttendPromptItem(const Context& context, const Layer& layer, const RetrieveItem& item, float scale,
                              const AttentionParams& attention, AttendAnswer* answer);

}  // namespace seine

#endif  // SEINE_INDEX_RETRIEVAL_ATTEND_PROMPT_H_
