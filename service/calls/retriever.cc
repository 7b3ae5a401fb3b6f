#include "service/calls/retriever.h"

#include <algorithm>
#include <climits>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "service/calls/calls.h"
#include "service/calls/convert/convert.h"
#include "service/calls/convert/validate.h"
#include "service/fields/error.h"
#include "service/under_way/in_flight.h"

namespace seine {

absl::Status Retriever::Prepare(absl::Span<const ItemView> items, const v1::Selector& selector,
                                const v1::Attention* attention) {
  absl::Status status = PrepareAll(items, selector, attention);
  if (!status.ok()) groups_.clear();
  return status;
}

absl::Status Retriever::PrepareAll(absl::Span<const ItemView> items, const v1::Selector& selector,
                                   const v1::Attention* attention) {
  groups_.clear();
  wrong_.assign(items.size(), absl::OkStatus());
  if (auto s = CheckBatch(static_cast<int>(std::min<size_t>(items.size(), INT_MAX)), "items"); !s.ok()) return s;
  queries_.resize(std::max(queries_.size(), items.size()));
  positions_.resize(std::max(positions_.size(), items.size()));
  device_.resize(std::max(device_.size(), items.size()));  // before any is pointed to
  attended_ = attention != nullptr;
  for (size_t i = 0; i < items.size(); ++i) {
    if (auto s = PrepareItem(i, items[i], selector, attention); !s.ok()) return s;
  }
  return CheckAnswerSize(attention);
}

absl::Status Retriever::PrepareItem(size_t place, const ItemView& item, const v1::Selector& selector,
                                    const v1::Attention* attention) {
  const std::string field = absl::StrCat("items[", place, "]");
  RetrieveItem out;
  auto index = ResolveHandle(core_, item.handle, field + ".handle", &out.sequence);
  if (!index.ok()) {
    wrong_[place] = index.status();
    return absl::OkStatus();
  }
  auto group = GroupOf(*std::move(index), selector, attention);
  if (!group.ok()) return group.status();
  out.layer = item.layer;
  wrong_[place] = PrepareQueries(place, item, (*group)->geometry(), &out);
  if (!wrong_[place].ok()) return absl::OkStatus();
  if (item.dense_from.value_or(0) < 0) {
    wrong_[place] = FieldError("OUT_OF_LIMITS", field + ".dense_from", "must not be negative");
    return absl::OkStatus();
  }
  out.dense_from = item.dense_from.value_or(out.dense_from);
  if (item.positions) {
    wrong_[place] = PositionSets(*item.positions, field + ".positions", &positions_[place]);
    if (!wrong_[place].ok()) return absl::OkStatus();
    out.positions = &positions_[place];
  }
  (*group)->items.push_back(std::move(out));
  (*group)->places.push_back(place);
  return absl::OkStatus();
}

absl::Status Retriever::PrepareQueries(size_t place, const ItemView& item, const Geometry& geometry,
                                       RetrieveItem* out) {
  if (item.queries.on_device) return PrepareOnDevice(place, item, geometry, out);
  const std::string field = absl::StrCat("items[", place, "]");
  if (item.output || item.log_sum_exp) {
    return FieldError("ON_HOST", field + ".queries",
                      "lie in the host's memory, so that output and log_sum_exp come there");
  }
  auto queries = QueriesView(item.queries, geometry, field + ".queries", &queries_[place], &out->prompt_tokens);
  if (queries.ok()) out->queries = *queries;
  return queries.status();
}

absl::Status Retriever::PrepareOnDevice(size_t place, const ItemView& item, const Geometry& geometry,
                                        RetrieveItem* out) {
  const std::string field = absl::StrCat("items[", place, "]");
  if (!attended_ && (item.output || item.log_sum_exp)) {
    return FieldError("NOT_ATTENDED", field + ".output", "given, and the item is retrieved for, not attended");
  }
  DeviceTensors& tensors = device_[place] = {};
  out->device = &tensors;
  auto queries = DeviceFloats(item.queries, {geometry.num_q_heads, geometry.head_dim}, field + ".queries");
  if (!queries.ok()) return queries.status();
  tensors.queries = *queries;
  if (item.output) {
    auto to = DeviceFloats(*item.output, {geometry.num_q_heads, geometry.head_dim}, field + ".output");
    if (!to.ok()) return to.status();
    tensors.output = const_cast<float*>(*to);  // the caller gave it to be written
  }
  if (item.log_sum_exp) {
    auto to = DeviceFloats(*item.log_sum_exp, {geometry.num_q_heads}, field + ".log_sum_exp");
    if (!to.ok()) return to.status();
    tensors.log_sum_exp = const_cast<float*>(*to);
  }
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
  Group group{std::move(index), *std::move(checked), std::nullopt, {}, {}, {}};
  const Geometry& geometry = group.geometry();
  group.shape = {.sets = group.params->scope == Scope::kPerQHead ? geometry.num_q_heads : geometry.num_kv_heads,
                 .width = group.params->top_k,
                 .num_q_heads = geometry.num_q_heads,
                 .head_dim = geometry.head_dim,
                 .with_scores = selector.with_scores(),
                 .with_positions = attention == nullptr || attention->with_positions()};
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
    const AnswerShape& shape = group.shape;
    const int64_t row_bytes = int64_t{shape.width} * (shape.with_scores ? 8 : 4);
    for (const RetrieveItem& item : group.items) {
      const int64_t tokens = std::max<int64_t>(1, item.prompt_tokens);
      if (attention != nullptr) bytes += tokens * shape.num_q_heads * (shape.head_dim + 1) * 4;
      if (shape.with_positions) bytes += row_bytes * shape.sets;
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

void Retriever::TakeStatus(size_t place, const absl::Status& status, AnswerTaker* taker) {
  if (attended_) {
    AttendAnswer answer;
    answer.status = status;
    taker->TakeAnswer(place, {}, std::move(answer));
  } else {
    ItemAnswer answer;
    answer.status = status;
    taker->TakeAnswer(place, {}, std::move(answer));
  }
}

template <typename OneAnswer>
void Retriever::TakeOne(size_t place, const Group& group, OneAnswer* answer, AnswerTaker* taker) {
  if (!answer->status.ok()) answer->status = Explain(answer->status, absl::StrCat("items[", place, "]"));
  taker->TakeAnswer(place, group.shape, std::move(*answer));
}

absl::Status Retriever::AnswerAll(AnswerTaker* taker, const ProgressCallback& progress) {
  for (size_t i = 0; i < wrong_.size(); ++i) {
    if (!wrong_[i].ok()) TakeStatus(i, wrong_[i], taker);
  }
  absl::Status first;
  const auto take_all = [&](const Group& group, auto results) {
    if (results.ok()) {
      for (size_t i = 0; i < results->size(); ++i) TakeOne(group.places[i], group, &(*results)[i], taker);
      return;
    }
    const absl::Status failed = Explain(results.status(), "selector");
    for (const size_t place : group.places) TakeStatus(place, failed, taker);
    first.Update(failed);
  };
  for (const Group& group : groups_) {
    if (group.items.empty()) continue;
    if (attended_) {
      take_all(group, group.index->Attend(group.items, group.params, *group.attention, progress));
    } else {
      take_all(group, group.index->Retrieve(group.items, group.params, progress));
    }
  }
  return first;
}

absl::Status Retriever::Answer(AnswerTaker* taker, const ProgressCallback& progress) {
  absl::Status status;
  try {
    status = AnswerAll(taker, progress);
  } catch (const std::bad_alloc&) {
    status = NoMemory();
    for (size_t i = 0; i < wrong_.size(); ++i) TakeStatus(i, status, taker);
  }
  groups_.clear();  // lets go of the indexes between steps
  return status;
}

}  // namespace seine
