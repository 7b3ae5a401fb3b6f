// Steps' answers as Python has them: StepResult of step.h.
#include "engines/python/step.h"
#include "engines/python/values/errors.h"

namespace seine::python {
namespace {

const char* ModeWord(client::SearchMode path) {
  switch (path) {
    case client::SearchMode::kIndex:
      return "index";
    case client::SearchMode::kDense:
      return "dense";
    case client::SearchMode::kExact:
      return "exact";
    case client::SearchMode::kGate:
      return "gate";
    case client::SearchMode::kUnknown:
      break;
  }
  return "unknown";
}

// `rows` of `width` elements each.
template <typename T>
nb::object Matrix(client::DType dtype, const std::vector<T>& data, int64_t rows, int64_t width) {
  return NewArray(dtype, {rows, width}, data.data());
}

template <typename T>
nb::object Vector(client::DType dtype, const std::vector<T>& data) {
  return NewArray(dtype, {static_cast<int64_t>(data.size())}, data.data());
}

nb::list Vectors(const std::vector<std::vector<int32_t>>& heads) {
  nb::list out;
  for (const auto& head : heads) out.append(Vector(client::DType::kInt32, head));
  return out;
}

nb::dict AnswerDict(const client::Answer& answer) {
  nb::dict out;
  out["path"] = ModeWord(answer.path);
  out["num_tokens"] = answer.num_tokens;
  out["zone_begin"] = answer.zone_begin;
  out["zone_end"] = answer.zone_end;
  out["all_returned"] = answer.all_returned;
  out["positions"] = Matrix(client::DType::kInt32, answer.positions, answer.num_sets, answer.width);
  out["counts"] = Vector(client::DType::kInt32, answer.counts);
  out["scores"] = answer.scores.empty() ? nb::none()
                                        : Matrix(client::DType::kFloat32, answer.scores, answer.num_sets, answer.width);
  out["dense_positions"] = Vectors(answer.dense_positions);
  out["error"] = ErrorTuple(answer.status);
  out["codes_stale"] = answer.codes_stale;
  out["masses"] = answer.masses.empty() ? nb::none() : Vector(client::DType::kFloat32, answer.masses);
  out["capped"] = answer.capped;
  return out;
}

nb::dict AttendedDict(const client::Attended& attended, bool with_positions) {
  const bool ok = attended.status.ok();
  nb::dict out;
  out["path"] = ModeWord(attended.path);
  out["num_tokens"] = attended.num_tokens;
  std::vector<int64_t> shape = {attended.prompt_tokens, attended.num_q_heads, attended.head_dim};
  if (attended.prompt_tokens == 0) shape.erase(shape.begin());
  const absl::Span<const int64_t> of_output = shape, of_sums = of_output.first(shape.size() - 1);
  const auto array = [&](absl::Span<const int64_t> dims, const std::vector<float>& values) {
    return ok && !values.empty() ? NewArray(client::DType::kFloat32, dims, values.data()) : nb::none();
  };
  out["output"] = array(of_output, attended.output);
  out["log_sum_exp"] = array(of_sums, attended.log_sum_exp);
  out["attended_tokens"] = attended.attended_tokens;
  out["tail"] = attended.tail;
  out["selected"] = ok && with_positions ? nb::object(AnswerDict(attended.selected)) : nb::none();
  out["error"] = ErrorTuple(attended.status);
  out["codes_stale"] = attended.codes_stale;
  return out;
}

const char* ReportWord(client::RetainedReport report) {
  return report == client::RetainedReport::kKept ? "kept" : "dropped";
}

}  // namespace

nb::dict RetainedDict(const client::Retained& retained) {
  nb::dict out;
  out["report"] = ReportWord(retained.report);
  out["evictions_before"] = retained.evictions_before;
  out["evictions"] = retained.evictions;
  out["num_tokens"] = retained.num_tokens;
  out["counts"] = retained.counts.empty() ? nb::none() : Vector(client::DType::kInt32, retained.counts);
  out["dropped"] = Vectors(retained.dropped);
  out["kept"] = Vectors(retained.kept);
  return out;
}

nb::tuple StepResult(const client::DecodeAnswer& answer, bool with_positions) {
  nb::list append_errors, answers, attended;
  for (const absl::Status& status : answer.append_status) append_errors.append(ErrorTuple(status));
  for (const client::Answer& one : answer.answers) answers.append(AnswerDict(one));
  for (const client::Attended& one : answer.attended) attended.append(AttendedDict(one, with_positions));
  nb::list retained;
  for (const client::Retained& one : answer.retained) {
    const bool told = one.report != client::RetainedReport::kNone;
    retained.append(told ? nb::object(RetainedDict(one)) : nb::none());
  }
  return nb::make_tuple(append_errors, answers, attended, answer.server_us, ErrorTuple(answer.status), retained);
}

}  // namespace seine::python
