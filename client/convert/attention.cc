// Attention and its answers between values and wire messages.
#include "client/convert/convert.h"

namespace seine::client {

void ToProto(const Attention& attention, v1::Attention* out) {
  out->clear_tail();
  if (attention.tail) out->set_tail(*attention.tail);
  out->set_scale(attention.scale);
  out->set_with_positions(attention.with_positions);
}

absl::Status FromProto(const v1::AttendAnswer& answer, Attended* out) {
  out->status = FromProto(answer.status());
  out->path = static_cast<Path>(answer.path());
  out->num_tokens = answer.num_tokens();
  out->attended_tokens = answer.attended_tokens();
  out->tail = answer.tail();
  out->codes_outgrown = answer.codes_outgrown();
  out->num_q_heads = out->head_dim = 0;
  out->output.clear();
  out->log_sum_exp.clear();
  absl::Status status = FromProto(answer.selected(), &out->selected);
  if (!status.ok() || !answer.has_output()) return status;
  const v1::Tensor& output = answer.output();
  constexpr int64_t kMost = int64_t{1} << 20;
  if (output.shape_size() != 2 || output.shape(0) < 0 || output.shape(0) > kMost || output.shape(1) < 0 ||
      output.shape(1) > kMost) {
    return absl::InternalError("the server's answer is malformed: output must have the shape [num_q_heads, head_dim]");
  }
  out->num_q_heads = static_cast<int>(output.shape(0));
  out->head_dim = static_cast<int>(output.shape(1));
  status = ReadFloats("output", output, output.shape(0) * output.shape(1), &out->output);
  status.Update(ReadFloats("log_sum_exp", answer.log_sum_exp(), output.shape(0), &out->log_sum_exp));
  return status;
}

}  // namespace seine::client
