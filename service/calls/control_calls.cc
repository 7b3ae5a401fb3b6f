// The calls of IndexService, SequenceService and AdminService.
#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "index/index.h"
#include "index/memory/memory_budget.h"
#include "kernels/backend.h"
#include "profile/field_error.h"
#include "profile/profile.h"
#include "service/access/caller.h"
#include "service/calls/calls.h"
#include "service/calls/convert/convert.h"
#include "service/calls/convert/validate.h"
#include "service/catalog.h"
#include "service/event_log.h"
#include "service/families/sequence_families.h"
#include "service/fields/error.h"
#include "service/fields/names.h"
#include "service/kept_families.h"
#include "service/snapshots/exit_snapshots.h"
#include "service/snapshots/files/exit_files.h"
#include "service/snapshots/files/snapshot_bases.h"

namespace seine {
namespace {

constexpr int kMaxPage = 1000;  // sequences

// The tenant of the call, where the server asks for credentials.
Tenant* TenantOfCall() {
  const Caller* const caller = CallerScope::current();
  return caller == nullptr ? nullptr : caller->tenant.get();
}

// The indexes that the call may know of.
std::vector<std::shared_ptr<Index>> OwnIndexes(const Core& core) { return core.catalog.List(CurrentTenant()); }

// Adds a message to a list that may take `room` bytes more. False: it does not fit, and is not added.
template <typename Message>
bool AddWithin(const Message& message, google::protobuf::RepeatedPtrField<Message>* list, int64_t* room) {
  *room -= static_cast<int64_t>(message.ByteSizeLong()) + 6;  // its tag and length
  if (*room >= 0) *list->Add() = message;
  return *room >= 0;
}

// What the whole server holds, or, where it has tenants, what the caller's holds and may hold.
void SetMemory(const Core& core, v1::GetServerInfoResponse* response) {
  const Tenant* const tenant = TenantOfCall();
  const MemoryBudget& held = tenant == nullptr ? *core.budget : *tenant->budget();
  const auto limit = [&](Account account) {
    const int64_t own = held.limit_bytes(account);
    return own > 0 ? own : core.budget->limit_bytes(account);
  };
  response->set_memory_limit_bytes(limit(Account::kHost));
  response->set_memory_bytes(held.used_bytes());
  response->set_device_memory_limit_bytes(limit(Account::kDevice));
  response->set_device_memory_bytes(held.used_bytes(Account::kDevice));
}

}  // namespace

absl::Status CheckRoomForSequences(const Core& core, int64_t count, std::unique_lock<std::mutex>* making) {
  Tenant* const tenant = TenantOfCall();
  if (tenant == nullptr || tenant->quotas().sequences == 0) return absl::OkStatus();
  *making = std::unique_lock<std::mutex>(tenant->making_sequence());
  int64_t held = 0;
  for (const auto& index : OwnIndexes(core)) held += index->stats().num_sequences;
  return tenant->CheckSequences(held + count - 1);
}

absl::StatusOr<std::shared_ptr<Index>> FindIndex(Core& core, absl::string_view name, absl::string_view field) {
  std::shared_ptr<Index> index = core.catalog.Find(CurrentTenant(), name);
  if (index == nullptr) {
    return FieldError("INDEX_NOT_FOUND", field, absl::StrCat("no such index: ", Quoted(name)),
                      absl::StatusCode::kNotFound);
  }
  return index;
}

absl::StatusOr<std::shared_ptr<Index>> ResolveHandle(Core& core, const HandleView& handle, absl::string_view field,
                                                     SequenceHandle* out) {
  auto index = FindIndex(core, handle.index, absl::StrCat(field, ".index"));
  if (!index.ok()) return index;
  if (auto s = CheckId(handle.id, absl::StrCat(field, ".id")); !s.ok()) return s;
  const FamilyKey key{CurrentTenant(), handle.index, FamilyOfId(handle.id)};
  if (auto s = core.families.CheckHere(key); !s.ok()) return s;
  out->id = std::string(handle.id);
  out->generation = handle.generation;
  return index;
}

absl::Status CreateIndex(Core& core, const v1::CreateIndexRequest& request, v1::CreateIndexResponse* response) {
  auto config = ConfigFrom(request.spec(), "spec", core.options.profiles.get());
  if (!config.ok()) return config.status();
  config->tenant = std::string(CurrentTenant());
  auto index = core.catalog.Create(*config, TenantOfCall());
  if (!index.ok()) return Explain(index.status(), "spec");
  core.log.Created(**index);
  RestoreCreated(&core, index->get());
  ToProto(**index, response->mutable_index());
  return absl::OkStatus();
}

absl::Status GetIndex(Core& core, const v1::GetIndexRequest& request, v1::GetIndexResponse* response) {
  auto index = FindIndex(core, request.name(), "name");
  if (!index.ok()) return index.status();
  ToProto(**index, response->mutable_index());
  return absl::OkStatus();
}

absl::Status ListIndexes(Core& core, const v1::ListIndexesRequest&, v1::ListIndexesResponse* response) {
  int64_t room = core.options.max_message_bytes;
  for (const auto& index : OwnIndexes(core)) {
    v1::IndexInfo info;
    ToProto(*index, &info);
    if (AddWithin(info, response->mutable_indexes(), &room)) continue;
    return Explain(absl::OutOfRangeError(absl::StrCat("the indexes take more than ", core.options.max_message_bytes,
                                                      " bytes, the message limit; get them by name")),
                   "");
  }
  return absl::OkStatus();
}

absl::Status DeleteIndex(Core& core, const v1::DeleteIndexRequest& request, v1::DeleteIndexResponse*) {
  auto index = FindIndex(core, request.name(), "name");
  if (!index.ok()) return index.status();
  // One of two deletions at once finds nothing.
  if (core.catalog.Remove(CurrentTenant(), request.name()) == nullptr) {
    return FindIndex(core, request.name(), "name").status();
  }
  core.families.ForgetIndex(CurrentTenant(), request.name());
  ForgetIndexFiles(core, CurrentTenant(), request.name());
  core.bases.ForgetIndex(CurrentTenant(), request.name());
  core.log.Deleted(NameInLog(CurrentTenant(), request.name()));
  return absl::OkStatus();
}

absl::Status CreateSequence(Core& core, const v1::CreateSequenceRequest& request,
                            v1::CreateSequenceResponse* response) {
  auto index = FindIndex(core, request.index(), "index");
  if (!index.ok()) return index.status();
  if (!request.id().empty()) {
    if (auto s = CheckId(request.id(), "id"); !s.ok()) return s;
  }
  SequenceFamilies::Change change;
  if (auto s = BeginChange(core, request.index(), request.id(), &change); !s.ok()) return s;
  if (auto s = CheckTakesFamily(core, **index, FamilyOfId(request.id())); !s.ok()) return s;
  std::unique_lock<std::mutex> making;
  if (auto s = CheckRoomForSequences(core, 1, &making); !s.ok()) return s;
  auto handle = (*index)->CreateSequence(request.id());
  if (!handle.ok()) return Explain(handle.status(), "");
  response->mutable_handle()->set_index(request.index());
  response->mutable_handle()->set_id(handle->id);
  response->mutable_handle()->set_generation(handle->generation);
  return absl::OkStatus();
}

absl::Status GetSequence(Core& core, const v1::GetSequenceRequest& request, v1::GetSequenceResponse* response) {
  SequenceHandle handle;
  auto index = ResolveHandle(core, request.handle(), "handle", &handle);
  if (!index.ok()) return index.status();
  auto sequence = (*index)->GetSequence(handle);
  if (!sequence.ok()) return Explain(sequence.status(), "");
  ToProto(*sequence, request.handle().index(), response->mutable_sequence());
  return absl::OkStatus();
}

absl::Status ListSequences(Core& core, const v1::ListSequencesRequest& request, v1::ListSequencesResponse* response) {
  auto index = FindIndex(core, request.index(), "index");
  if (!index.ok()) return index.status();
  if (request.page_size() < 0) return FieldError("OUT_OF_LIMITS", "page_size", "negative");
  if (!request.page_token().empty()) {
    if (auto s = CheckId(request.page_token(), "page_token"); !s.ok()) return s;
  }
  const bool all = request.page_size() == 0;
  const int page = all ? kMaxPage : std::min(request.page_size(), kMaxPage);
  // A token, which nobody but this reads, is the id that its page ended with.
  std::string last = request.page_token();
  int64_t room = core.options.max_message_bytes - static_cast<int64_t>(kMaxIdLength);
  for (bool more = true; more;) {
    const std::vector<SequenceInfo> sequences = (*index)->ListSequences(last, page);
    more = all && static_cast<int>(sequences.size()) == page;
    for (const SequenceInfo& sequence : sequences) {
      v1::SequenceInfo info;
      ToProto(sequence, request.index(), &info);
      if (AddWithin(info, response->mutable_sequences(), &room)) {
        last = sequence.handle.id;
        continue;
      }
      if (!all && response->sequences_size() > 0) break;
      return FieldError("OUT_OF_LIMITS", "page_size",
                        absl::StrCat("the answer would pass ", core.options.max_message_bytes,
                                     " bytes, the message limit; ask for pages"),
                        absl::StatusCode::kOutOfRange);
    }
  }
  if (!all && !(*index)->ListSequences(last, 1).empty()) response->set_next_page_token(last);
  return absl::OkStatus();
}

absl::Status DeleteSequence(Core& core, const v1::DeleteSequenceRequest& request, v1::DeleteSequenceResponse*) {
  SequenceHandle handle;
  auto index = ResolveHandle(core, request.handle(), "handle", &handle);
  if (!index.ok()) return index.status();
  SequenceFamilies::Change change;
  if (auto s = BeginChange(core, request.handle().index(), handle.id, &change); !s.ok()) return s;
  if (auto s = (*index)->DeleteSequence(handle); !s.ok()) return Explain(s, "");
  const FamilyKey key{CurrentTenant(), request.handle().index(), FamilyOfId(handle.id)};
  if (core.families.Generation(key) > 0 && !HoldsFamily(**index, key.family)) Forget(core, key);
  return absl::OkStatus();
}

absl::Status ForkSequence(Core& core, const v1::ForkSequenceRequest& request, v1::ForkSequenceResponse* response) {
  SequenceHandle source;
  auto index = ResolveHandle(core, request.source(), "source", &source);
  if (!index.ok()) return index.status();
  if (!request.new_id().empty()) {
    if (auto s = CheckId(request.new_id(), "new_id"); !s.ok()) return s;
  }
  SequenceFamilies::Change change;
  if (auto s = BeginChange(core, request.source().index(), request.new_id(), &change); !s.ok()) return s;
  // The index takes a negative position for "all"; the wire says so by leaving it out.
  if (request.has_position() && request.position() < 0) return FieldError("OUT_OF_LIMITS", "position", "negative");
  std::unique_lock<std::mutex> making;
  if (auto s = CheckRoomForSequences(core, 1, &making); !s.ok()) return s;
  auto handle = (*index)->Fork(source, request.new_id(), request.has_position() ? request.position() : -1);
  if (!handle.ok()) return Explain(handle.status(), "");
  response->mutable_handle()->set_index(request.source().index());
  response->mutable_handle()->set_id(handle->id);
  response->mutable_handle()->set_generation(handle->generation);
  return absl::OkStatus();
}

absl::Status TruncateSequence(Core& core, const v1::TruncateSequenceRequest& request,
                              v1::TruncateSequenceResponse* response) {
  SequenceHandle handle;
  auto index = ResolveHandle(core, request.handle(), "handle", &handle);
  if (!index.ok()) return index.status();
  SequenceFamilies::Change change;
  if (auto s = BeginChange(core, request.handle().index(), handle.id, &change); !s.ok()) return s;
  SequenceInfo left;
  if (auto s = (*index)->Truncate(handle, request.position(), &left); !s.ok()) return Explain(s, "");
  ToProto(left, request.handle().index(), response->mutable_sequence());
  return absl::OkStatus();
}

void DescribeServer(Core& core, v1::GetServerInfoResponse* response) {
  response->set_version(SEINE_VERSION);
  response->set_backend(core.backend->name());
  response->set_simd_target(core.backend->simd_target());
  response->set_num_threads(core.backend->num_threads());
  SetMemory(core, response);
  for (const auto& index : OwnIndexes(core)) {
    response->set_num_indexes(response->num_indexes() + 1);
    response->set_num_sequences(response->num_sequences() + index->stats().num_sequences);
  }
  const auto uptime = std::chrono::steady_clock::now() - core.started;
  response->set_uptime_seconds(std::chrono::duration_cast<std::chrono::seconds>(uptime).count());
  response->set_queue_capacity(core.options.queue_capacity);
  response->set_max_message_bytes(core.options.max_message_bytes);
  response->set_instance(core.instance);
  response->set_draining(core.draining);
  response->set_page(core.page);
}

absl::Status GetServerInfo(Core& core, const v1::GetServerInfoRequest&, v1::GetServerInfoResponse* response) {
  DescribeServer(core, response);
  for (std::string& name : core.options.profiles->Names()) response->add_profiles(std::move(name));
  for (const PassedOverFile& file : core.exit_files.List()) {
    if (TenantOfCall() != nullptr && file.tenant != CurrentTenant()) continue;
    v1::PassedOverFile* const out = response->add_passed_over();
    out->set_index(file.index);
    out->set_file(file.file);
    out->set_bytes(file.bytes);
    out->set_reason(std::string(ToString(file.reason)));
  }
  return absl::OkStatus();
}

absl::Status DescribeHead(Core& core, const v1::DescribeHeadRequest& request, v1::DescribeHeadResponse* response) {
  SequenceHandle handle;
  auto index = ResolveHandle(core, request.handle(), "handle", &handle);
  if (!index.ok()) return index.status();
  auto head = (*index)->DescribeHead(handle, request.layer(), request.kv_head());
  if (!head.ok()) return Explain(head.status(), "");
  ToProto(*head, response);
  return absl::OkStatus();
}

absl::Status MeasureProfile(Core& core, const v1::MeasureProfileRequest& request,
                            v1::MeasureProfileResponse* response) {
  if (request.sequences().empty()) return FieldError("EMPTY", "sequences", "none given");
  if (request.sequences_size() > kMaxBatchItems) {
    return FieldError("OUT_OF_LIMITS", "sequences",
                      absl::StrCat(request.sequences_size(), " entries, at most ", kMaxBatchItems));
  }
  std::shared_ptr<Index> index;
  std::vector<SequenceHandle> handles;
  for (int i = 0; i < request.sequences_size(); ++i) {
    const v1::SequenceHandle& sequence = request.sequences(i);
    const std::string field = absl::StrCat("sequences[", i, "]");
    auto found = ResolveHandle(core, sequence, field, &handles.emplace_back());
    if (!found.ok()) return found.status();
    if (index != nullptr && *found != index) {
      return FieldError("CONFLICT", field + ".index", "is another than the first one's");
    }
    index = *std::move(found);
    if (auto s = index->GetSequence(handles.back()).status(); !s.ok()) return Explain(WithField(s, field), "");
  }
  const Geometry& g = index->config().geometry;
  const int64_t row_bytes = int64_t{g.head_dim} * (g.head_dim + 3) / 2 * static_cast<int64_t>(sizeof(float));
  const int heads = g.num_q_heads + 3 * g.num_kv_heads;  // of queries, keys, their residuals and values
  if (auto s = CheckAnswer(core, heads, row_bytes, "sequences"); !s.ok()) return s;
  auto profile = index->Measure(handles, request.layer());
  if (!profile.ok()) return Explain(profile.status(), "");
  ToProto(*profile, response);
  return absl::OkStatus();
}

}  // namespace seine
