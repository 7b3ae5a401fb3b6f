// The tensors of a step and of its answer that travel apart from their message: their bytes go from the memory where
// they lie into the ring, and out of it into the strings of the message that was read. Protobuf never copies them.
//
// Apart travel: of a request, every tensor; of an answer, positions, scores and outputs, which grow with the step.
// Either all of a message's tensors travel apart, in this file's order and with no bytes left in it, or none does.
#ifndef SEINE_PROTO_CHANNEL_TENSORS_H_
#define SEINE_PROTO_CHANNEL_TENSORS_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "seine/v1/retrieval_service.pb.h"

namespace seine::channel {

// Calls visit(raw) with the bytes of each, a std::string&.
template <typename Visit>
void ForEachTensor(v1::DecodeRequest* request, Visit visit) {
  for (v1::AppendItem& item : *request->mutable_appends()) {
    if (item.has_keys()) visit(*item.mutable_keys()->mutable_raw());
    if (item.has_values()) visit(*item.mutable_values()->mutable_raw());
    if (item.has_queries()) visit(*item.mutable_queries()->mutable_raw());
  }
  for (v1::RetrieveItem& item : *request->mutable_items()) {
    if (item.has_queries()) visit(*item.mutable_queries()->mutable_raw());
    if (item.has_positions()) visit(*item.mutable_positions()->mutable_raw());
  }
}

template <typename Visit>
void ForEachTensor(v1::RetrieveAnswer* answer, Visit visit) {
  if (answer->has_positions()) visit(*answer->mutable_positions()->mutable_raw());
  if (answer->has_scores()) visit(*answer->mutable_scores()->mutable_raw());
}

template <typename Visit>
void ForEachTensor(v1::DecodeResponse* response, Visit visit) {
  for (v1::RetrieveAnswer& answer : *response->mutable_answers()) ForEachTensor(&answer, visit);
  for (v1::AttendAnswer& answer : *response->mutable_attended()) {
    if (answer.has_output()) visit(*answer.mutable_output()->mutable_raw());
    if (answer.has_selected()) ForEachTensor(answer.mutable_selected(), visit);
  }
}

// Puts what came before a message into it. False: it does not fit the message, which is then spoiled.
template <typename Message>
[[nodiscard]] bool PutTensors(std::span<std::string> tensors, Message* message) {
  if (tensors.empty()) return true;
  size_t count = 0;
  bool fits = true;
  ForEachTensor(message, [&](std::string& raw) {
    fits = fits && raw.empty() && count < tensors.size();
    if (fits) raw.swap(tensors[count++]);
  });
  return fits && count == tensors.size();
}

// Takes out again what PutTensors has put into a message that is read no more, so that the strings are used again.
template <typename Message>
void TakeTensorsBack(std::span<std::string> tensors, Message* message) {
  if (tensors.empty()) return;
  size_t count = 0;
  ForEachTensor(message, [&](std::string& raw) { raw.swap(tensors[count++]); });
}

// Takes the bytes of a message's tensors out of it: into `held`, whose strings live until the next call, and as
// `views`.
template <typename Message>
void TakeTensors(Message* message, std::vector<std::string>* held, std::vector<std::string_view>* views) {
  size_t count = 0;
  ForEachTensor(message, [&](std::string& raw) {
    if (count == held->size()) held->emplace_back();
    std::string& place = (*held)[count++];
    place.clear();
    place.swap(raw);
  });
  held->resize(count);
  views->assign(held->begin(), held->end());
}

}  // namespace seine::channel

#endif  // SEINE_PROTO_CHANNEL_TENSORS_H_
