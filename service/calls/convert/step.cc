#include "service/calls/convert/step.h"

#include <utility>

#include "service/calls/convert/convert.h"
#include "service/fields/error.h"

namespace seine {

AppendView::AppendView(const v1::AppendItem& item)
    : handle(item.handle()), layer(item.layer()), position(item.position()), keys(item.keys()), report(item.report()) {
  if (item.has_values()) values = item.values();
  if (item.has_queries()) queries = item.queries();
}

ItemView::ItemView(const v1::RetrieveItem& item) : handle(item.handle()), layer(item.layer()), queries(item.queries()) {
  if (item.has_dense_from()) dense_from = item.dense_from();
  if (item.has_positions()) positions = item.positions();
}

MessageTaker::MessageTaker(size_t items, google::protobuf::RepeatedPtrField<v1::RetrieveAnswer>* answers)
    : retrieved_(answers) {
  for (size_t i = 0; i < items; ++i) answers->Add();
}

MessageTaker::MessageTaker(size_t items, google::protobuf::RepeatedPtrField<v1::AttendAnswer>* answers)
    : attended_(answers) {
  for (size_t i = 0; i < items; ++i) answers->Add();
}

void MessageTaker::TakeAnswer(size_t item, const AnswerShape& shape, ItemAnswer answer) {
  v1::RetrieveAnswer* out = retrieved_->Mutable(static_cast<int>(item));
  if (answer.status.ok()) return ToProto(answer, shape, out);
  out->Clear();
  ToProto(answer.status, out->mutable_status());
}

void MessageTaker::TakeAnswer(size_t item, const AnswerShape& shape, AttendAnswer answer) {
  v1::AttendAnswer* out = attended_->Mutable(static_cast<int>(item));
  if (answer.status.ok()) return ToProto(answer, shape, out);
  out->Clear();
  ToProto(answer.status, out->mutable_status());
}

}  // namespace seine
