// Answers of attention, from wire messages.
#include <algorithm>

#include "client/convert/convert.h"

namespace seine::client {

absl::Status FromProto(const v1::AttendAnswer& answer, Attended* out) {
  out->status = FromProto(answer.status());
  out->path = static_cast<SearchMode>(answer.path());
  out->num_tokens = answer.num_tokens();
  out->attended_tokens = answer.attended_tokens();
  out->tail = answer.tail();
  out->codes_stale = answer.codes_stale();
  out->num_q_heads = out->head_dim = 0;
  out->prompt_tokens = 0;
  out->output.clear();
  out->log_sum_exp.clear();
  absl::Status status = FromProto(answer.selected(), &out->selected);
  if (!status.ok() || !answer.has_output()) return status;
  const v1::Tensor& output = answer.output();
  constexpr int64_t kMost = int64_t{1} << 20;
  const auto& shape = output.shape();
  const bool wrong = std::any_of(shape.begin(), shape.end(), [](int64_t dim) { return dim < 0 || dim > kMost; });
  if (shape.size() < 2 || shape.size() > 3 || wrong) {
    return absl::InternalError(
        "the server's answer is malformed: output must have the shape [num_q_heads, head_dim] or "
        "[tokens, num_q_heads, head_dim]");
  }
  out->head_dim = static_cast<int>(shape[shape.size() - 1]);
  out->num_q_heads = static_cast<int>(shape[shape.size() - 2]);
  out->prompt_tokens = shape.size() == 3 ? shape[0] : 0;
  const int64_t rows = (shape.size() == 3 ? shape[0] : 1) * out->num_q_heads;
  status = ReadFloats("output", output, rows * out->head_dim, &out->output);
  status.Update(ReadFloats("log_sum_exp", answer.log_sum_exp(), rows, &out->log_sum_exp));
  return status;
}

}  // namespace seine::client
