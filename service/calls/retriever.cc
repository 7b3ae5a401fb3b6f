#include "service/calls/retriever.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "service/calls/calls.h"
#include "service/calls/convert/convert.h"
#include "service/calls/convert/validate.h"
#include "service/fields/error.h"
#include "service/under_way/in_flight.h"

namespace seine {

int Retriever::Group::sets() const {
  return params->scope == Scope::kPerQHead ? geometry().num_q_heads : geometry().num_kv_heads;
}

absl::Status Retriever::Prepare(const Items& items, const v1::Selector& selector, const v1::Attention* attention) {
  absl::Status status = PrepareAll(items, selector, attention);
  if (!status.ok()) groups_.clear();
  return status;
}

absl::Status Retriever::PrepareAll(const Items& items, const v1::Selector& selector, const v1::Attention* attention) {
  groups_.clear();
  wrong_.assign(items.size(), absl::OkStatus());
  if (auto s = CheckBatch(items.size(), "items"); !s.ok()) return s;
  queries_.resize(std::max<size_t>(queries_.size(), items.size()));
  positions_.resize(std::max<size_t>(positions_.size(), items.size()));
  with_scores_ = selector.with_scores();
  for (int i = 0; i < items.size(); ++i) {
    if (auto s = PrepareItem(i, items[i], selector, attention); !s.ok()) return s;
  }
  return CheckAnswerSize(attention);
}

absl::Status Retriever::PrepareItem(int place, const v1::RetrieveItem& item, const v1::Selector& selector,
                                    const v1::Attention* attention) {
  const std::string field = absl::StrCat("items[", place, "]");
  RetrieveItem out;
  auto index = ResolveHandle(core_, item.handle(), field + ".handle", &out.sequence);
  if (!index.ok()) {
    wrong_[place] = index.status();
    return absl::OkStatus();
  }
  auto group = GroupOf(*std::move(index), selector, attention);
  if (!group.ok()) return group.status();
  out.layer = item.layer();
  auto queries =
      QueriesView(item.queries(), (*group)->geometry(), field + ".queries", &queries_[place], &out.prompt_tokens);
  if (!queries.ok()) {
    wrong_[place] = queries.status();
    return absl::OkStatus();
  }
  out.queries = *queries;
  if (item.has_dense_from() && item.dense_from() < 0) {
    wrong_[place] = FieldError("OUT_OF_LIMITS", field + ".dense_from", "must not be negative");
    return absl::OkStatus();
  }
  if (item.has_dense_from()) out.dense_from = item.dense_from();
  if (item.has_positions()) {
    wrong_[place] = PositionSets(item.positions(), field + ".positions", &positions_[place]);
    if (!wrong_[place].ok()) return absl::OkStatus();
    out.positions = &positions_[place];
  }
  (*group)->items.push_back(std::move(out));
  (*group)->places.push_back(place);
  return absl::OkStatus();
}

absl::StatusOr<Retriever::Group*> Retriever::GroupOf(std::shared_ptr<Index> index, const v1::Selector& selector,
                                                     const v1::Attention* attention) {
  for (Group& group : groups_) {
    if (group.index == index) return &group;
  }
  auto params = ParamsFrom(selector, index->config());
  if (!params.ok()) return params.status();
  if (attention != nullptr && selector.scope() == v1::SCOPE_UNSPECIFIED) params->scope = Scope::kPerQHead;
  auto checked = index->Check(*params);
  if (!checked.ok()) return Explain(checked.status(), "selector");
  Group group{std::move(index), *std::move(checked), std::nullopt, {}, {}};
  if (attention != nullptr) {
    auto attended = group.index->Check(AttentionFrom(*attention));
    if (!attended.ok()) return Explain(attended.status(), "");
    group.attention = *std::move(attended);
  }
  groups_.push_back(std::move(group));
  return &groups_.back();
}

absl::Status Retriever::CheckAnswerSize(const v1::Attention* attention) const {
  int64_t bytes = 0;
  for (const Group& group : groups_) {
    const Geometry& g = group.geometry();
    const int64_t row_bytes = int64_t{group.params->top_k} * (with_scores_ ? 8 : 4);
    for (const RetrieveItem& item : group.items) {
      const int64_t tokens = std::max<int64_t>(1, item.prompt_tokens);
      if (attention != nullptr) bytes += tokens * g.num_q_heads * (g.head_dim + 1) * 4;
      if (attention == nullptr || attention->with_positions()) bytes += row_bytes * group.sets();
    }
  }
  if (bytes <= core_.options.max_message_bytes) {
    // Twice: as the index gives it and as the wire takes it. Once it is written, what it takes then is held.
    return AnswerShare::Admit(2 * bytes) ? absl::OkStatus() : TooMuchInFlight();
  }
  return FieldError("OUT_OF_LIMITS", attention != nullptr ? "items" : "selector.top_k",
                    absl::StrCat("the answer would take ", bytes,
                                 " bytes, more than a message may have: ", core_.options.max_message_bytes));
}

// call(group): the index's answers to a group's items; convert(group, answer, out): one of them for the wire.
template <typename Answer, typename Call, typename Convert>
absl::Status Retriever::AnswerAll(google::protobuf::RepeatedPtrField<Answer>* answers, Call call, Convert convert) {
  for (const absl::Status& wrong : wrong_) {
    Answer* answer = answers->Add();
    if (!wrong.ok()) ToProto(wrong, answer->mutable_status());
  }
  absl::Status first;
  for (Group& group : groups_) {
    if (group.items.empty()) continue;
    auto results = call(group);
    if (!results.ok()) {
      const absl::Status failed = Explain(results.status(), "selector");
      for (const int place : group.places) ToProto(failed, answers->Mutable(place)->mutable_status());
      first.Update(failed);
      continue;
    }
    for (size_t i = 0; i < results->size(); ++i) {
      auto& result = (*results)[i];
      if (!result.status.ok()) result.status = Explain(result.status, absl::StrCat("items[", group.places[i], "]"));
      convert(group, result, answers->Mutable(group.places[i]));
      result = {};  // the message has it now
    }
  }
  groups_.clear();  // lets go of the indexes between steps
  return first;
}

absl::Status Retriever::Retrieve(google::protobuf::RepeatedPtrField<v1::RetrieveAnswer>* answers,
                                 const ProgressCallback& progress) {
  return AnswerAll(
      answers, [&](const Group& group) { return group.index->Retrieve(group.items, group.params, progress); },
      [this](const Group& group, const ItemAnswer& answer, v1::RetrieveAnswer* out) {
        ToProto(answer, group.sets(), group.params->top_k, with_scores_, out);
      });
}

absl::Status Retriever::Attend(google::protobuf::RepeatedPtrField<v1::AttendAnswer>* answers,
                               const ProgressCallback& progress) {
  return AnswerAll(
      answers,
      [&](const Group& group) { return group.index->Attend(group.items, group.params, *group.attention, progress); },
      [this](const Group& group, const AttendAnswer& answer, v1::AttendAnswer* out) {
        ToProto(answer, group.geometry(), out);
        if (!answer.status.ok() || !(*group.attention)->with_positions) return;
        ToProto(answer.selected, group.sets(), group.params->top_k, with_scores_, out->mutable_selected());
      });
}

}  // namespace seine
