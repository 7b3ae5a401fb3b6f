// Steps' answers as Python has them: StepResult of step.h.
#include <utility>

#include "engines/python/step.h"
#include "engines/python/values/errors.h"

namespace seine::python {
namespace {

// Keys and words of answers: interned strings, made at the first step and never freed.
struct AnswerNames {
  static PyObject* Make(const char* name) { return PyUnicode_InternFromString(name); }
  PyObject* const all_returned = Make("all_returned");
  PyObject* const attended_tokens = Make("attended_tokens");
  PyObject* const capped = Make("capped");
  PyObject* const codes_stale = Make("codes_stale");
  PyObject* const counts = Make("counts");
  PyObject* const dense_positions = Make("dense_positions");
  PyObject* const error = Make("error");
  PyObject* const log_sum_exp = Make("log_sum_exp");
  PyObject* const masses = Make("masses");
  PyObject* const num_tokens = Make("num_tokens");
  PyObject* const output = Make("output");
  PyObject* const path = Make("path");
  PyObject* const positions = Make("positions");
  PyObject* const scores = Make("scores");
  PyObject* const selected = Make("selected");
  PyObject* const tail = Make("tail");
  PyObject* const zone_begin = Make("zone_begin");
  PyObject* const zone_end = Make("zone_end");
  // By client::SearchMode.
  PyObject* const modes[5] = {Make("unknown"), Make("index"), Make("dense"), Make("exact"), Make("gate")};
  nb::handle Word(client::SearchMode mode) const { return modes[static_cast<int>(mode)]; }
};

const AnswerNames& NamesOfAnswers() {
  static const AnswerNames* const names = new AnswerNames;
  return *names;
}

template <typename T>
nb::object Vector(std::vector<T> data) {
  const auto size = static_cast<int64_t>(data.size());
  return ArrayOf(std::move(data), {size});
}

nb::list Vectors(std::vector<std::vector<int32_t>> heads) {
  nb::list out;
  for (auto& head : heads) out.append(Vector(std::move(head)));
  return out;
}

nb::dict AnswerDict(client::Answer answer) {
  const AnswerNames& names = NamesOfAnswers();
  nb::dict out;
  const auto set = [&](PyObject* name, nb::handle value) { out[nb::handle(name)] = value; };
  set(names.path, names.Word(answer.path));
  set(names.num_tokens, nb::int_(answer.num_tokens));
  set(names.zone_begin, nb::int_(answer.zone_begin));
  set(names.zone_end, nb::int_(answer.zone_end));
  set(names.all_returned, nb::bool_(answer.all_returned));
  set(names.positions, ArrayOf(std::move(answer.positions), {answer.num_sets, answer.width}));
  set(names.counts, Vector(std::move(answer.counts)));
  set(names.scores,
      answer.scores.empty() ? nb::none() : ArrayOf(std::move(answer.scores), {answer.num_sets, answer.width}));
  set(names.dense_positions, Vectors(std::move(answer.dense_positions)));
  set(names.error, ErrorTuple(answer.status));
  set(names.codes_stale, nb::bool_(answer.codes_stale));
  set(names.masses, answer.masses.empty() ? nb::none() : Vector(std::move(answer.masses)));
  set(names.capped, nb::bool_(answer.capped));
  return out;
}

nb::dict AttendedDict(client::Attended attended, bool with_positions) {
  const AnswerNames& names = NamesOfAnswers();
  const bool ok = attended.status.ok();
  const int64_t dims[] = {attended.prompt_tokens, attended.num_q_heads, attended.head_dim};
  const absl::Span<const int64_t> of_output = absl::MakeConstSpan(dims).subspan(attended.prompt_tokens == 0 ? 1 : 0);
  const auto array = [&](std::vector<float> values, absl::Span<const int64_t> shape) {
    return ok && !values.empty() ? ArrayOf(std::move(values), shape) : nb::none();
  };
  nb::dict out;
  const auto set = [&](PyObject* name, nb::handle value) { out[nb::handle(name)] = value; };
  set(names.path, names.Word(attended.path));
  set(names.num_tokens, nb::int_(attended.num_tokens));
  set(names.output, array(std::move(attended.output), of_output));
  set(names.log_sum_exp, array(std::move(attended.log_sum_exp), of_output.first(of_output.size() - 1)));
  set(names.attended_tokens, nb::int_(attended.attended_tokens));
  set(names.tail, nb::bool_(attended.tail));
  set(names.selected, ok && with_positions ? nb::object(AnswerDict(std::move(attended.selected))) : nb::none());
  set(names.error, ErrorTuple(attended.status));
  set(names.codes_stale, nb::bool_(attended.codes_stale));
  return out;
}

const char* ReportWord(client::RetainedReport report) {
  return report == client::RetainedReport::kKept ? "kept" : "dropped";
}

}  // namespace

nb::dict RetainedDict(client::Retained retained) {
  nb::dict out;
  out["report"] = ReportWord(retained.report);
  out["evictions_before"] = retained.evictions_before;
  out["evictions"] = retained.evictions;
  out["num_tokens"] = retained.num_tokens;
  out["counts"] = retained.counts.empty() ? nb::none() : Vector(std::move(retained.counts));
  out["dropped"] = Vectors(std::move(retained.dropped));
  out["kept"] = Vectors(std::move(retained.kept));
  return out;
}

nb::tuple StepResult(client::DecodeAnswer* answer, bool with_positions) {
  nb::list append_errors, answers, attended;
  for (const absl::Status& status : answer->append_status) append_errors.append(ErrorTuple(status));
  for (client::Answer& one : answer->answers) answers.append(AnswerDict(std::move(one)));
  for (client::Attended& one : answer->attended) attended.append(AttendedDict(std::move(one), with_positions));
  nb::list retained;
  for (client::Retained& one : answer->retained) {
    const bool told = one.report != client::RetainedReport::kNone;
    retained.append(told ? nb::object(RetainedDict(std::move(one))) : nb::none());
  }
  return nb::make_tuple(append_errors, answers, attended, answer->server_us, ErrorTuple(answer->status), retained);
}

}  // namespace seine::python
