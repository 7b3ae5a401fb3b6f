// Wrong fields of the calls that make, show and delete indexes and sequences.
#include <limits>

#include "index/index.h"
#include "tests/service/errors/errors_fixture.h"

namespace seine::test {
namespace {

using grpc::StatusCode;

TEST_P(ErrorsTest, CreateIndex) {
  using Request = v1::CreateIndexRequest;
  Request right;
  *right.mutable_spec() = Spec("new");
  const auto add = [&](const std::string& what, const std::string& field, std::function<void(v1::IndexSpec*)> spoil,
                       StatusCode code = StatusCode::INVALID_ARGUMENT) {
    Add<v1::IndexService::Stub, Request, v1::CreateIndexResponse>(*stubs_->index, &v1::IndexService::Stub::CreateIndex,
                                                                  right, what, code, "spec." + field,
                                                                  [=](Request* r) { spoil(r->mutable_spec()); });
  };
  const auto geometry = [&](const std::string& field, auto set) {
    add(field, "geometry." + field, [=](v1::IndexSpec* s) { set(s->mutable_geometry()); });
  };
  const auto zones = [&](const std::string& field, auto set) {
    add(field, "zones." + field, [=](v1::IndexSpec* s) { set(s->mutable_zones()); });
  };
  const auto codec = [&](const std::string& field, auto set) {
    add(field, "codec." + field, [=](v1::IndexSpec* s) { set(s->mutable_codec()); });
  };
  const auto retrieval = [&](const std::string& field, auto set) {
    add(field, "retrieval." + field, [=](v1::IndexSpec* s) { set(s->mutable_retrieval()); });
  };
  add("empty", "name", [](auto* s) { s->clear_name(); });
  add("a slash", "name", [](auto* s) { s->set_name("a/b"); });
  add("too long", "name", [](auto* s) { s->set_name(std::string(kMaxNameLength + 1, 'n')); });
  add(
      "taken", "name", [](auto* s) { s->set_name("keys"); }, StatusCode::ALREADY_EXISTS);
  for (const int value : {0, -1, 1 << 30}) {
    geometry("num_layers", [=](auto* g) { g->set_num_layers(value); });
    geometry("num_q_heads", [=](auto* g) { g->set_num_q_heads(value); });
    geometry("num_kv_heads", [=](auto* g) { g->set_num_kv_heads(value); });
    geometry("head_dim", [=](auto* g) { g->set_head_dim(value); });
  }
  geometry("num_q_heads", [](auto* g) { g->set_num_q_heads(3); });  // no multiple of the KV heads
  geometry("head_dim", [](auto* g) { g->set_head_dim(65); });
  geometry("dtype", [](auto* g) { g->clear_dtype(); });
  geometry("dtype", [](auto* g) { g->set_dtype(v1::D_TYPE_INT32); });
  geometry("dtype", [](auto* g) { g->set_dtype(static_cast<v1::DType>(99)); });
  zones("sink", [](auto* z) { z->set_sink(-1); });
  zones("local", [](auto* z) { z->set_local(-1); });
  zones("update_buffer", [](auto* z) { z->set_update_buffer(0); });
  zones("update_buffer", [](auto* z) { z->set_update_buffer(65); });
  zones("dense_threshold", [](auto* z) { z->set_dense_threshold(-1); });
  codec("name", [](auto* c) { c->set_name("zip"); });
  codec("centre", [](auto* c) { c->set_centre(static_cast<v1::Centre>(9)); });
  codec("centre_window", [](auto* c) { c->set_centre_window(65); });
  retrieval("top_k", [](auto* r) { r->set_top_k(0); });
  retrieval("top_k", [](auto* r) { r->set_top_k(std::numeric_limits<int>::max()); });
  retrieval("candidate_fraction", [](auto* r) { r->set_candidate_fraction(-.1); });
  retrieval("candidate_fraction", [](auto* r) { r->set_candidate_fraction(std::numeric_limits<double>::quiet_NaN()); });
  retrieval("rescore_k", [](auto* r) { r->set_rescore_k(-1); });
  retrieval("collision_fraction", [](auto* r) { r->set_collision_fraction(2); });
  retrieval("coarse", [](auto* r) { r->set_coarse(static_cast<v1::Coarse>(9)); });
  retrieval("scope", [](auto* r) { r->set_scope(static_cast<v1::Scope>(9)); });
  retrieval("gqa_reduce", [](auto* r) { r->set_gqa_reduce(static_cast<v1::GqaReduce>(9)); });
  retrieval("softmax_scale", [](auto* r) { r->set_softmax_scale(-1); });
  add("kv_store", "kv_store", [](auto* s) { s->set_kv_store(static_cast<v1::KvStore>(9)); });
  add("memory_limit_bytes", "memory_limit_bytes", [](auto* s) { s->set_memory_limit_bytes(-1); });
  RunAll(30);
}

TEST_P(ErrorsTest, IndexesAndSequences) {
  auto& index = *stubs_->index;
  auto& sequence = *stubs_->sequence;
  using Index = v1::IndexService::Stub;
  using Sequence = v1::SequenceService::Stub;
  Add<Index, v1::GetIndexRequest, v1::GetIndexResponse>(index, &Index::GetIndex, {}, "unknown", StatusCode::NOT_FOUND,
                                                        "name", [](auto* r) { r->set_name("nowhere"); });
  Add<Index, v1::DeleteIndexRequest, v1::DeleteIndexResponse>(index, &Index::DeleteIndex, {}, "unknown",
                                                              StatusCode::NOT_FOUND, "name",
                                                              [](auto* r) { r->set_name("nowhere"); });
  Add<Sequence, v1::ListSequencesRequest, v1::ListSequencesResponse>(sequence, &Sequence::ListSequences, {}, "unknown",
                                                                     StatusCode::NOT_FOUND, "index",
                                                                     [](auto* r) { r->set_index("nowhere"); });
  v1::CreateSequenceRequest create;
  create.set_index("keys");
  create.set_id("third");
  const auto add_create = [&](const std::string& what, StatusCode code, const std::string& field, auto spoil) {
    Add<Sequence, v1::CreateSequenceRequest, v1::CreateSequenceResponse>(sequence, &Sequence::CreateSequence, create,
                                                                         what, code, field, spoil);
  };
  add_create("unknown index", StatusCode::NOT_FOUND, "index", [](auto* r) { r->set_index("nowhere"); });
  add_create("taken", StatusCode::ALREADY_EXISTS, "id", [](auto* r) { r->set_id("first"); });
  add_create("a space", StatusCode::INVALID_ARGUMENT, "id", [](auto* r) { r->set_id("a b"); });
  add_create("too long", StatusCode::INVALID_ARGUMENT, "id", [](auto* r) { r->set_id(std::string(257, 'x')); });

  v1::GetSequenceRequest get;
  *get.mutable_handle() = keys_;
  AddHandle<Sequence, v1::GetSequenceRequest, v1::GetSequenceResponse>(sequence, &Sequence::GetSequence, get, "handle",
                                                                       [](auto* r) { return r->mutable_handle(); });
  v1::DeleteSequenceRequest remove;
  *remove.mutable_handle() = keys_;
  AddHandle<Sequence, v1::DeleteSequenceRequest, v1::DeleteSequenceResponse>(
      sequence, &Sequence::DeleteSequence, remove, "handle", [](auto* r) { return r->mutable_handle(); });

  v1::ForkSequenceRequest fork;
  *fork.mutable_source() = keys_;
  fork.set_new_id("copy");
  AddHandle<Sequence, v1::ForkSequenceRequest, v1::ForkSequenceResponse>(
      sequence, &Sequence::ForkSequence, fork, "source", [](auto* r) { return r->mutable_source(); });
  const auto add_fork = [&](const std::string& what, StatusCode code, const std::string& field, auto spoil) {
    Add<Sequence, v1::ForkSequenceRequest, v1::ForkSequenceResponse>(sequence, &Sequence::ForkSequence, fork, what,
                                                                     code, field, spoil);
  };
  add_fork("taken", StatusCode::ALREADY_EXISTS, "new_id", [](auto* r) { r->set_new_id("second"); });
  add_fork("a space", StatusCode::INVALID_ARGUMENT, "new_id", [](auto* r) { r->set_new_id("a b"); });
  add_fork("negative", StatusCode::INVALID_ARGUMENT, "position", [](auto* r) { r->set_position(-1); });
  add_fork("beyond", StatusCode::OUT_OF_RANGE, "position", [](auto* r) { r->set_position(301); });

  v1::TruncateSequenceRequest truncate;
  *truncate.mutable_handle() = keys_;
  truncate.set_position(200);
  AddHandle<Sequence, v1::TruncateSequenceRequest, v1::TruncateSequenceResponse>(
      sequence, &Sequence::TruncateSequence, truncate, "handle", [](auto* r) { return r->mutable_handle(); });
  for (const int64_t position : {int64_t{-1}, int64_t{301}, std::numeric_limits<int64_t>::max()}) {
    Add<Sequence, v1::TruncateSequenceRequest, v1::TruncateSequenceResponse>(
        sequence, &Sequence::TruncateSequence, truncate, "position", StatusCode::OUT_OF_RANGE, "position",
        [=](auto* r) { r->set_position(position); });
  }
  RunAll(35);
}

}  // namespace
}  // namespace seine::test
