// The calls of SubspaceService.
#include <utility>

#include "absl/strings/str_cat.h"
#include "profile/field_error.h"
#include "profile/layout.h"
#include "service/calls/calls.h"
#include "service/calls/convert/convert.h"
#include "service/calls/convert/eviction.h"
#include "service/calls/convert/subspace.h"
#include "service/families/sequence_families.h"
#include "service/fields/error.h"

namespace seine {
namespace {

// Checks the size of an answer that holds the bases of a layer's heads, of such ranks.
absl::Status CheckBases(const Core& core, const Geometry& g, int ranks, absl::string_view field) {
  return CheckAnswer(core, g.num_kv_heads, int64_t{g.head_dim} * ranks * static_cast<int64_t>(sizeof(float)), field);
}

}  // namespace

absl::Status GetBasis(Core& core, const v1::GetBasisRequest& request, v1::GetBasisResponse* response) {
  SequenceHandle handle;
  auto index = ResolveHandle(core, request.handle(), "handle", &handle);
  if (!index.ok()) return index.status();
  const IndexConfig& config = (*index)->config();
  if (config.subspace) {
    const int ranks = LargestRanks(*config.subspace);
    if (auto s = CheckBases(core, config.geometry, ranks, "handle"); !s.ok()) return s;
  }
  auto bases = (*index)->GetBases(handle, request.layer());
  if (!bases.ok()) return Explain(bases.status(), "");
  ToProto(*bases, response->mutable_bases());
  response->set_frame(ToProto(config.subspace->frame));
  for (int h = 0; h < config.geometry.num_kv_heads; ++h) {
    auto head = (*index)->DescribeHead(handle, request.layer(), h);
    if (!head.ok()) return Explain(head.status(), "");  // somebody deleted the sequence in between
    ToProto(*head->subspace, response->add_heads());
  }
  return absl::OkStatus();
}

absl::Status LoadBasis(Core& core, const v1::LoadBasisRequest& request, v1::LoadBasisResponse*) {
  SequenceHandle handle;
  auto index = ResolveHandle(core, request.handle(), "handle", &handle);
  if (!index.ok()) return index.status();
  SequenceFamilies::Change change;
  if (auto s = BeginChange(core, request.handle().index(), handle.id, &change); !s.ok()) return s;
  const IndexConfig& config = (*index)->config();
  if (config.subspace && request.frame() != v1::KEY_FRAME_UNSPECIFIED &&
      request.frame() != ToProto(config.subspace->frame)) {
    return FieldError("CONFLICT", "frame", absl::StrCat("the index's is ", Name(config.subspace->frame)));
  }
  auto bases = BasesFrom(request.bases(), config.geometry, "bases");
  if (!bases.ok()) return bases.status();
  return Explain((*index)->SetBases(handle, request.layer(), *bases), "");
}

absl::Status CalibrateBasis(Core& core, const v1::CalibrateBasisRequest& request,
                            v1::CalibrateBasisResponse* response) {
  auto index = FindIndex(core, request.index(), "index");
  if (!index.ok()) return index.status();
  const IndexConfig& config = (*index)->config();
  const Geometry& g = config.geometry;
  if (!config.subspace) {
    return FieldError("NO_SUBSPACE", "index", "keeps nothing low-rank", absl::StatusCode::kFailedPrecondition);
  }
  auto profile = core.options.profiles->Find(request.profile(), "profile");
  if (!profile.ok()) return profile.status();
  absl::Status fits = CheckGeometry(**profile, g.num_layers, g.num_q_heads, g.num_kv_heads, g.head_dim);
  if (fits.ok() && g.rope.stated()) fits = WithField(CheckProfileRope(**profile, g), "profile");
  if (!fits.ok()) return Explain(fits, "");
  if (request.carried_to() < 0) return FieldError("OUT_OF_LIMITS", "carried_to", "negative");
  if (!(request.energy() >= 0 && request.energy() <= 1)) {
    return FieldError("OUT_OF_LIMITS", "energy", absl::StrCat(request.energy(), " is not in [0, 1]"));
  }
  CalibrationOptions options;
  options.frame = config.subspace->frame;
  options.end = static_cast<double>(request.carried_to());
  options.stack_queries = request.stack_queries();
  options.key_rank = request.key_rank();
  options.value_rank = request.value_rank();
  options.energy = request.energy();
  auto bases = CalibrateLayer(*InLayout(*profile, g.rope), g.RopeOf(request.layer()), request.layer(), options);
  if (!bases.ok()) return Explain(bases.status(), "");
  const int ranks = bases->keys[0].rank + bases->values[0].rank;
  if (auto s = CheckBases(core, g, ranks, "energy"); !s.ok()) return s;
  ToProto(*bases, response->mutable_bases());
  response->set_frame(ToProto(options.frame));
  return absl::OkStatus();
}

absl::Status Reconstruct(Core& core, const v1::ReconstructRequest& request, v1::ReconstructResponse* response) {
  SequenceHandle handle;
  auto index = ResolveHandle(core, request.handle(), "handle", &handle);
  if (!index.ok()) return index.status();
  const Geometry& g = (*index)->config().geometry;
  const auto row_bytes = static_cast<int64_t>(2 * g.head_dim * SizeOf(g.dtype) + sizeof(int32_t));
  if (request.begin() >= 0 && request.end() > request.begin()) {
    if (auto s = CheckAnswer(core, request.end() - request.begin(), row_bytes, "end"); !s.ok()) return s;
  }
  std::vector<int32_t> positions;
  absl::Status s =
      (*index)->Reconstruct(handle, request.layer(), request.kv_head(), request.begin(), request.end(), &positions,
                            response->mutable_keys()->mutable_raw(), response->mutable_values()->mutable_raw());
  if (!s.ok()) return Explain(s, "");
  for (v1::Tensor* tensor : {response->mutable_keys(), response->mutable_values()}) {
    tensor->set_dtype(ToProto(g.dtype));
    tensor->add_shape(static_cast<int64_t>(positions.size()));
    tensor->add_shape(g.head_dim);
  }
  SetVector(positions, response->mutable_positions());
  return absl::OkStatus();
}

}  // namespace seine
