// The calls of RetrievalService. Hot path: tensors are used where the message holds them, messages and scratch are
// reused.
#include <chrono>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "index/index.h"
#include "service/access/access.h"
#include "service/access/caller.h"
#include "service/calls/calls.h"
#include "service/calls/convert/convert.h"
#include "service/calls/convert/eviction.h"
#include "service/calls/convert/step.h"
#include "service/calls/convert/validate.h"
#include "service/calls/retriever.h"
#include "service/families/sequence_families.h"
#include "service/fields/error.h"
#include "service/under_way/in_flight.h"

namespace seine {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kPositionBytes = sizeof(int32_t);

class Stopwatch {
 public:
  int64_t microseconds() const {
    return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin_).count();
  }

 private:
  const Clock::time_point begin_ = Clock::now();
};

// Empty where the request has none and the index keeps none; whether it may have any is the index's to say.
absl::StatusOr<TensorView> ValuesView(const std::optional<TensorBytes>& values, const IndexConfig& config,
                                      const std::string& field) {
  if (values) return TokensView(*values, config.geometry, field);
  if (config.kv_store != KvStore::kKeysValues) return TensorView{};
  return FieldError("VALUES_MISSING", field, "not given, but the index's kv_store keeps values");
}

// The queries of the last tokens; empty where the request has none. Converted into `scratch` where they are not fp32.
absl::StatusOr<QueryView> AppendedQueries(const std::optional<TensorBytes>& given, const Geometry& geometry,
                                          const std::string& field, std::vector<float>* scratch) {
  if (!given) return QueryView{};
  auto queries = FloatsView(*given, {kAnyDim, geometry.num_q_heads, geometry.head_dim}, field, scratch);
  if (!queries.ok()) return queries.status();
  return QueryView{*queries, given->shape[0]};
}

// Checks that the report on an append of so many tokens takes at most `room` bytes of an answer: it lists each token
// that is held or appended, head by head, at most once.
absl::Status CheckReport(const Core& core, const Index& index, const SequenceHandle& handle, int layer, int64_t tokens,
                         int64_t room, const std::string& field) {
  const int heads = index.config().geometry.num_kv_heads;
  int64_t listed = heads * tokens;
  for (int h = 0; h < heads; ++h) {
    auto head = index.DescribeHead(handle, layer, h);
    if (!head.ok()) return absl::OkStatus();  // the append says what is wrong
    if (h == 0 && (head->num_tokens + tokens) * heads <= room / kPositionBytes) return absl::OkStatus();
    listed += head->num_retained;
  }
  if (listed <= room / kPositionBytes) return absl::OkStatus();
  return FieldError(
      "OUT_OF_LIMITS", field,
      absl::StrCat("the answer might pass ", core.options.max_message_bytes, " bytes, the message limit"));
}

// Bytes that an answer may still grow by.
int64_t Room(const Core& core, const google::protobuf::Message& answer) {
  return core.options.max_message_bytes - static_cast<int64_t>(answer.ByteSizeLong());
}

// Decode is open to readers, its appends are not.
absl::Status CheckMayWrite() {
  const Caller* const caller = CallerScope::current();
  return caller == nullptr || caller->role >= Role::kWriter ? absl::OkStatus() : NotAllowed();
}

// `out` is filled where the item asks for a report, in an answer that has `room` for it.
absl::StatusOr<int64_t> AppendOne(Core& core, const v1::AppendItem& item, int64_t room, v1::Retained* out) {
  Retained retained;
  auto length = AppendTokens(core, AppendView(item), "item", room, &retained);
  if (length.ok() && item.report() != v1::RETAINED_REPORT_UNSPECIFIED) ToProto(retained, out);
  return length;
}

template <typename Request, typename Response, typename Answers>
absl::Status Answered(Core& core, const Request& request, const v1::Attention* attention, Response* response,
                      Answers* answers) {
  const Stopwatch watch;
  if (request.items().empty()) return FieldError("EMPTY", "items", "none given");
  const std::vector<ItemView> items(request.items().begin(), request.items().end());
  Retriever retriever(core);
  if (auto s = retriever.Prepare(items, request.selector(), attention); !s.ok()) return s;
  MessageTaker taker(items.size(), answers);
  if (auto s = retriever.Answer(&taker, {}); !s.ok()) return s;
  response->set_server_us(watch.microseconds());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> AppendTokens(Core& core, const AppendView& append, const std::string& field, int64_t room,
                                     Retained* retained, std::shared_ptr<Index>* found) {
  if (auto s = CheckMayWrite(); !s.ok()) return s;
  RetainedReport report = RetainedReport::kNone;
  if (auto s = ReportFrom(append.report, field + ".report", &report); !s.ok()) return s;
  SequenceHandle handle;
  auto index = ResolveHandle(core, append.handle, field + ".handle", &handle);
  if (!index.ok()) return index.status();
  SequenceFamilies::Change change;
  if (auto s = BeginChange(core, append.handle.index, handle.id, &change); !s.ok()) return s;
  const IndexConfig& config = (*index)->config();
  auto keys = TokensView(append.keys, config.geometry, field + ".keys");
  if (!keys.ok()) return keys.status();
  auto values = ValuesView(append.values, config, field + ".values");
  if (!values.ok()) return values.status();
  std::vector<float> scratch;
  auto queries = AppendedQueries(append.queries, config.geometry, field + ".queries", &scratch);
  if (!queries.ok()) return queries.status();
  if (report != RetainedReport::kNone) {
    auto s = CheckReport(core, **index, handle, append.layer, keys->num_tokens, room, field + ".report");
    if (!s.ok()) return s;
  }
  auto length = (*index)->Append(handle, append.layer, append.position, *keys, *values, *queries, report, retained);
  if (!length.ok()) return Explain(length.status(), field);
  if (found != nullptr && *found == nullptr) *found = *std::move(index);
  return *length;
}

absl::Status CheckBatch(int size, absl::string_view field) {
  if (size <= kMaxBatchItems) return absl::OkStatus();
  return FieldError("OUT_OF_LIMITS", field, absl::StrCat(size, " entries, at most ", kMaxBatchItems));
}

absl::Status CheckAnswer(const Core& core, int64_t count, int64_t bytes, absl::string_view field) {
  if (count <= core.options.max_message_bytes / bytes) {
    return AnswerShare::Admit(count * bytes) ? absl::OkStatus() : TooMuchInFlight();
  }
  return FieldError(
      "OUT_OF_LIMITS", field,
      absl::StrCat("the answer would pass ", core.options.max_message_bytes, " bytes, the message limit"));
}

absl::Status Append(Core& core, const v1::AppendRequest& request, v1::AppendResponse* response) {
  v1::Retained retained;
  auto length = AppendOne(core, request.item(), Room(core, *response), &retained);
  if (!length.ok()) return length.status();
  response->set_num_tokens(*length);
  if (request.item().report() != v1::RETAINED_REPORT_UNSPECIFIED) response->mutable_retained()->Swap(&retained);
  return absl::OkStatus();
}

absl::Status AppendPiece(Core& core, const v1::AppendStreamRequest& request, v1::AppendStreamResponse* totals) {
  v1::Retained retained;
  auto length = AppendOne(core, request.item(), Room(core, *totals), &retained);
  if (!length.ok()) return length.status();
  if (request.item().report() != v1::RETAINED_REPORT_UNSPECIFIED) AddPiece(request.item(), std::move(retained), totals);
  totals->set_pieces(totals->pieces() + 1);
  totals->set_tokens(totals->tokens() + request.item().keys().shape(0));
  return absl::OkStatus();
}

absl::Status Retrieve(Core& core, const v1::RetrieveRequest& request, v1::RetrieveResponse* response) {
  return Answered(core, request, nullptr, response, response->mutable_answers());
}

absl::Status Attend(Core& core, const v1::AttendRequest& request, v1::AttendResponse* response) {
  return Answered(core, request, &request.attention(), response, response->mutable_answers());
}

absl::Status Gather(Core& core, const v1::GatherRequest& request, v1::GatherResponse* response) {
  SequenceHandle handle;
  auto index = ResolveHandle(core, request.handle(), "handle", &handle);
  if (!index.ok()) return index.status();
  const Geometry& geometry = (*index)->config().geometry;
  auto positions = PositionsView(request.positions(), "positions");
  if (!positions.ok()) return positions.status();
  if (!request.keys() && !request.values()) return FieldError("EMPTY", "keys", "neither keys nor values asked for");
  const int parts = (request.keys() ? 1 : 0) + (request.values() ? 1 : 0);
  const auto row_bytes = static_cast<int64_t>(geometry.head_dim * SizeOf(geometry.dtype) * parts);
  const auto count = static_cast<int64_t>(positions->size());
  if (auto s = CheckAnswer(core, count, row_bytes, "positions.shape"); !s.ok()) return s;
  v1::Tensor* tensors[] = {request.keys() ? response->mutable_keys() : nullptr,
                           request.values() ? response->mutable_values() : nullptr};
  for (v1::Tensor* tensor : tensors) {
    if (tensor == nullptr) continue;
    tensor->set_dtype(ToProto(geometry.dtype));
    tensor->add_shape(count);
    tensor->add_shape(geometry.head_dim);
    tensor->mutable_raw();
  }
  auto raw = [](v1::Tensor* tensor) { return tensor == nullptr ? nullptr : tensor->mutable_raw(); };
  return Explain(
      (*index)->Gather(handle, request.layer(), request.kv_head(), *positions, raw(tensors[0]), raw(tensors[1])), "");
}

}  // namespace seine
