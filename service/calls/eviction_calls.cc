// The calls of EvictionService.
#include <utility>

#include "absl/strings/str_cat.h"
#include "index/index.h"
#include "service/access/caller.h"
#include "service/calls/calls.h"
#include "service/calls/convert/eviction.h"
#include "service/event_log.h"
#include "service/families/sequence_families.h"
#include "service/fields/error.h"

namespace seine {
namespace {

// What every call here begins with.
struct Target {
  std::shared_ptr<Index> index;
  SequenceHandle handle;
  ScorerInputsStorage storage;
  ScorerInputs given;
};

template <typename Request>
absl::Status Resolve(Core& core, const Request& request, Target* target) {
  auto index = ResolveHandle(core, request.handle(), "handle", &target->handle);
  if (!index.ok()) return index.status();
  target->index = *std::move(index);
  return ScorerInputsFrom(request.given(), target->index->config().geometry, &target->storage, &target->given);
}

// Checks an answer that has so many bytes for each token that the layer holds, head by head.
absl::Status CheckTokens(const Core& core, const Target& target, int layer, int64_t bytes) {
  int64_t tokens = 0;
  for (int h = 0; h < target.index->config().geometry.num_kv_heads; ++h) {
    auto head = target.index->DescribeHead(target.handle, layer, h);
    if (!head.ok()) return Explain(head.status(), "");
    tokens += head->num_retained;
  }
  return CheckAnswer(core, tokens, bytes, "handle");
}

}  // namespace

absl::Status Score(Core& core, const v1::ScoreRequest& request, v1::ScoreResponse* response) {
  Target target;
  if (auto s = Resolve(core, request, &target); !s.ok()) return s;
  ScorerConfig scorer;
  if (auto s = ScorerFrom(request.scorer(), "scorer", &scorer); !s.ok()) return s;
  if (auto s = CheckTokens(core, target, request.layer(), sizeof(int32_t) + sizeof(float)); !s.ok()) return s;
  auto scores = target.index->Score(target.handle, request.layer(), scorer, target.given);
  if (!scores.ok()) return Explain(scores.status(), "");
  for (size_t h = 0; h < scores->scores.size(); ++h) {
    v1::HeadScores* head = response->add_heads();
    SetVector(scores->positions[h], head->mutable_positions());
    SetVector(scores->scores[h], head->mutable_scores());
  }
  return absl::OkStatus();
}

absl::Status Evict(Core& core, const v1::EvictRequest& request, v1::EvictResponse* response) {
  Target target;
  if (auto s = Resolve(core, request, &target); !s.ok()) return s;
  SequenceFamilies::Change change;
  if (!request.dry_run()) {
    if (auto s = BeginChange(core, request.handle().index(), target.handle.id, &change); !s.ok()) return s;
  }
  EvictParams params;
  if (auto s = ScorerFrom(request.scorer(), "scorer", &params.scorer); !s.ok()) return s;
  if (auto s = BudgetFrom(request.budget(), "budget", &params.budget); !s.ok()) return s;
  if (auto s = KeepFrom(request.keep(), "keep", &params.keep); !s.ok()) return s;
  params.dry_run = request.dry_run();
  if (auto s = ReportFrom(request.report(), "report", &params.report); !s.ok()) return s;
  const int64_t lists = params.report == RetainedReport::kNone ? 1 : 2;  // kept, and the report's
  if (auto s = CheckTokens(core, target, request.layer(), lists * sizeof(int32_t)); !s.ok()) return s;
  EventLog::ByCall by_call(core.log, NameInLog(CurrentTenant(), request.handle().index()));
  auto answer = target.index->Evict(target.handle, request.layer(), params, target.given);
  if (answer.ok() && !params.dry_run) by_call.Evicted(answer->tokens_evicted);
  if (!answer.ok()) return Explain(answer.status(), "");
  for (const std::vector<int32_t>& head : answer->kept) SetVector(head, response->add_kept());
  response->set_tokens_evicted(answer->tokens_evicted);
  response->set_bytes_freed(answer->bytes_freed);
  if (params.report != RetainedReport::kNone) ToProto(answer->retained, response->mutable_retained());
  return absl::OkStatus();
}

absl::Status Diagnose(Core& core, const v1::DiagnoseRequest& request, v1::DiagnoseResponse* response) {
  Target target;
  if (auto s = Resolve(core, request, &target); !s.ok()) return s;
  DiagnoseParams params;
  for (int i = 0; i < request.scorers_size(); ++i) {
    absl::Status s = ScorerFrom(request.scorers(i), absl::StrCat("scorers[", i, "]"), &params.scorers.emplace_back());
    if (!s.ok()) return s;
  }
  if (auto s = BudgetFrom(request.budget(), "budget", &params.budget); !s.ok()) return s;
  if (request.has_window()) params.window = request.window();
  auto heads = target.index->Diagnose(target.handle, request.layer(), params, target.given);
  if (!heads.ok()) return Explain(heads.status(), "");
  for (const HeadDiagnosis& head : *heads) ToProto(head, request.scorers_size(), response->add_heads());
  return absl::OkStatus();
}

}  // namespace seine
