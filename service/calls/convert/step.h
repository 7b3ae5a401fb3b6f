// A decode step as whoever asks for it has it: tensors are read where they lie, in a message or in the memory of a
// caller in this process, and each answer is handed on as the index gives it.
#ifndef SEINE_SERVICE_CALLS_CONVERT_STEP_H_
#define SEINE_SERVICE_CALLS_CONVERT_STEP_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "index/index.h"
#include "seine/v1/retrieval_service.pb.h"
#include "service/calls/convert/validate.h"

namespace seine {

// A handle where it lies: that of a message, or of a caller.
struct HandleView {
  HandleView() = default;
  HandleView(absl::string_view index_name, absl::string_view sequence, uint64_t number)
      : index(index_name), id(sequence), generation(number) {}
  HandleView(const v1::SequenceHandle& handle)  // NOLINT(google-explicit-constructor)
      : HandleView(handle.index(), handle.id(), handle.generation()) {}

  absl::string_view index, id;
  uint64_t generation = 0;  // 0: any
};

struct AppendView {
  AppendView() = default;
  explicit AppendView(const v1::AppendItem& item);

  HandleView handle;
  int layer = 0;
  int64_t position = 0;
  TensorBytes keys;
  std::optional<TensorBytes> values = {}, queries = {};
  v1::RetainedReport report = v1::RETAINED_REPORT_UNSPECIFIED;
};

struct ItemView {
  ItemView() = default;
  explicit ItemView(const v1::RetrieveItem& item);

  HandleView handle;
  int layer = 0;
  TensorBytes queries;
  std::optional<int64_t> dense_from = {};
  std::optional<TensorBytes> positions = {};
  // Room for the answer on the device, of a caller in this process whose queries lie there.
  std::optional<TensorBytes> output = {}, log_sum_exp = {};
};

// How an answer's arrays are to be read. An answer whose status is not OK has none.
struct AnswerShape {
  int sets = 0, width = 0;  // of its positions
  int num_q_heads = 0, head_dim = 0;
  bool with_scores = false, with_positions = false;  // with_positions: an attended item's, of its set
};

// Takes the answers to a step's items, each once. Where memory ran out, those that were taken are taken again, as
// errors.
class AnswerTaker {
 public:
  virtual ~AnswerTaker() = default;
  virtual void TakeAnswer(size_t item, const AnswerShape& shape, ItemAnswer answer) = 0;
  virtual void TakeAnswer(size_t item, const AnswerShape& shape, AttendAnswer answer) = 0;
};

class StepTaker : public AnswerTaker {
 public:
  // Comes before all answers. `retained` where a report was asked for; returns its bytes in the answer.
  virtual int64_t Appended(size_t append, const absl::Status& status, Retained retained) = 0;
};

// All of it must live while the step is taken.
struct StepView {
  absl::Span<const AppendView> appends;
  absl::Span<const ItemView> items;
  const v1::Selector* selector = nullptr;
  const v1::Attention* attention = nullptr;  // nullptr: items are retrieved
};

// Into messages: answers of a Retrieve or an Attend, one an item.
class MessageTaker final : public AnswerTaker {
 public:
  MessageTaker(size_t items, google::protobuf::RepeatedPtrField<v1::RetrieveAnswer>* answers);
  MessageTaker(size_t items, google::protobuf::RepeatedPtrField<v1::AttendAnswer>* answers);
  void TakeAnswer(size_t item, const AnswerShape& shape, ItemAnswer answer) override;
  void TakeAnswer(size_t item, const AnswerShape& shape, AttendAnswer answer) override;

 private:
  google::protobuf::RepeatedPtrField<v1::RetrieveAnswer>* retrieved_ = nullptr;
  google::protobuf::RepeatedPtrField<v1::AttendAnswer>* attended_ = nullptr;
};

}  // namespace seine

#endif  // SEINE_SERVICE_CALLS_CONVERT_STEP_H_
