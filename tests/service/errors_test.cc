// Every field of every call wrong once: the right code, the field named, and nothing changed on the server.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "tests/service/contract/fields.h"
#include "tests/service/fixture.h"

namespace seine::test {
namespace {

using grpc::StatusCode;

// What a call answered, wherever the answer stands: in the trailer, or inside a message.
struct Outcome {
  StatusCode code = StatusCode::OK;
  std::string message;
  Details details;
};

Outcome FromCall(const grpc::Status& status) {
  return {status.error_code(), status.error_message(), DetailsOf(status)};
}
Outcome FromAnswer(const v1::Status& status) {
  return {static_cast<StatusCode>(status.code()), status.message(), DetailsOf(status)};
}

struct Case {
  std::string name;
  StatusCode code;
  std::string field;
  std::function<Outcome()> run;
  const google::protobuf::Descriptor* request = nullptr;  // that the field is a path of
};

class ErrorsTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    keys_ = NewSequence("keys", "first");
    both_ = NewSequence("both", "first");
    none_ = NewSequence("none", "first");
    for (int layer = 0; layer < kLayers; ++layer) {
      ASSERT_TRUE(Append(Item(keys_, layer, 0, 300)).ok());
      ASSERT_TRUE(Append(Item(none_, layer, 0, 300)).ok());
      ASSERT_TRUE(Append(WithValues(layer, 0, 300)).ok());
    }
    NewSequence("keys", "second");
    stale_ = NewSequence("keys", "stale");
    v1::DeleteSequenceRequest remove;
    v1::DeleteSequenceResponse removed;
    *remove.mutable_handle() = stale_;
    ASSERT_TRUE(Call(*stubs_->sequence, &v1::SequenceService::Stub::DeleteSequence, remove, &removed).ok());
    NewSequence("keys", "stale");
  }

  v1::AppendItem WithValues(int layer, int64_t position, int64_t tokens) {
    v1::AppendItem item = Item(both_, layer, position, tokens);
    *item.mutable_values() = Halves({tokens, kKvHeads, kDim}, 2);
    return item;
  }

  // A case of a unary call: `spoil` makes one field of the right request wrong.
  template <typename Stub, typename Request, typename Response>
  void Add(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*), Request request,
           const std::string& what, StatusCode code, const std::string& field, std::function<void(Request*)> spoil) {
    spoil(&request);
    cases_.push_back({Request::descriptor()->name() + ": " + what, code, field,
                      [&stub, method, request] {
                        Response response;
                        return FromCall(Call(stub, method, request, &response));
                      },
                      Request::descriptor()});
  }

  // A case of a handle: each of its parts wrong.
  template <typename Stub, typename Request, typename Response>
  void AddHandle(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                 const Request& request, const std::string& field,
                 std::function<v1::SequenceHandle*(Request*)> handle) {
    Add<Stub, Request, Response>(stub, method, request, "no index", StatusCode::NOT_FOUND, field + ".index",
                                 [=](Request* r) { handle(r)->clear_index(); });
    Add<Stub, Request, Response>(stub, method, request, "unknown index", StatusCode::NOT_FOUND, field + ".index",
                                 [=](Request* r) { handle(r)->set_index("nowhere"); });
    Add<Stub, Request, Response>(stub, method, request, "no id", StatusCode::INVALID_ARGUMENT, field + ".id",
                                 [=](Request* r) { handle(r)->clear_id(); });
    Add<Stub, Request, Response>(stub, method, request, "unknown id", StatusCode::NOT_FOUND, field,
                                 [=](Request* r) { handle(r)->set_id("nobody"); });
    Add<Stub, Request, Response>(stub, method, request, "another generation", StatusCode::FAILED_PRECONDITION, field,
                                 [=](Request* r) { handle(r)->set_generation(handle(r)->generation() + 1000); });
    Add<Stub, Request, Response>(stub, method, request, "stale", StatusCode::FAILED_PRECONDITION, field,
                                 [=, this](Request* r) { *handle(r) = stale_; });
  }

  // Runs every case; all of them together leave the server as it was.
  void RunAll(size_t at_least) {
    ASSERT_GE(cases_.size(), at_least);
    const std::string before = Digest();
    for (const Case& c : cases_) {
      const Outcome outcome = c.run();
      EXPECT_EQ(outcome.code, c.code) << c.name << ": " << outcome.message;
      EXPECT_EQ(outcome.details.field, c.field) << c.name << ": " << outcome.message;
      EXPECT_EQ(outcome.message.rfind(c.field + ": ", 0), 0u) << c.name << ": " << outcome.message;
      EXPECT_TRUE(c.request == nullptr || PathExists(c.request, outcome.details.field)) << c.name;
      EXPECT_FALSE(outcome.details.reason.empty()) << c.name;
      EXPECT_LT(outcome.message.size(), 400u) << c.name;
    }
    EXPECT_EQ(Digest(), before);
  }

  v1::SequenceHandle keys_, both_, none_, stale_;
  std::vector<Case> cases_;
};

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
  add("too long", "name", [](auto* s) { s->set_name(std::string(65, 'n')); });
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
  retrieval("beta", [](auto* r) { r->set_beta(-.1); });
  retrieval("beta", [](auto* r) { r->set_beta(std::numeric_limits<double>::quiet_NaN()); });
  retrieval("refine", [](auto* r) { r->set_refine(-1); });
  retrieval("rho", [](auto* r) { r->set_rho(2); });
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

TEST_P(ErrorsTest, AdminAndGather) {
  using Admin = v1::AdminService::Stub;
  using Retrieval = v1::RetrievalService::Stub;
  v1::DescribeHeadRequest describe;
  *describe.mutable_handle() = keys_;
  AddHandle<Admin, v1::DescribeHeadRequest, v1::DescribeHeadResponse>(
      *stubs_->admin, &Admin::DescribeHead, describe, "handle", [](auto* r) { return r->mutable_handle(); });
  v1::MeasureProfileRequest measure;
  *measure.add_sequences() = both_;
  using Measure = v1::MeasureProfileRequest;
  AddHandle<Admin, Measure, v1::MeasureProfileResponse>(*stubs_->admin, &Admin::MeasureProfile, measure, "sequences[0]",
                                                        [](auto* r) { return r->mutable_sequences(0); });
  const auto add_measure = [&](const std::string& what, StatusCode code, const std::string& field, auto spoil) {
    Add<Admin, Measure, v1::MeasureProfileResponse>(*stubs_->admin, &Admin::MeasureProfile, measure, what, code, field,
                                                    spoil);
  };
  add_measure("none", StatusCode::INVALID_ARGUMENT, "sequences", [](auto* r) { r->clear_sequences(); });
  add_measure("of another index", StatusCode::INVALID_ARGUMENT, "sequences[1].index",
              [this](auto* r) { *r->add_sequences() = keys_; });
  add_measure("given twice", StatusCode::INVALID_ARGUMENT, "sequences[1]",
              [this](auto* r) { *r->add_sequences() = both_; });
  add_measure("layer", StatusCode::INVALID_ARGUMENT, "layer", [](auto* r) { r->set_layer(2); });
  add_measure("without keys", StatusCode::FAILED_PRECONDITION, "sequences",
              [this](auto* r) { *r->mutable_sequences(0) = none_; });
  add_measure("nothing asked yet", StatusCode::FAILED_PRECONDITION, "sequences", [](auto*) {});
  v1::CompareExactRequest compare;
  compare.set_index(both_.index());
  const auto add_compare = [&](const std::string& what, StatusCode code, const std::string& field, auto spoil) {
    Add<Admin, v1::CompareExactRequest, v1::CompareExactResponse>(*stubs_->admin, &Admin::CompareExact, compare, what,
                                                                  code, field, spoil);
  };
  add_compare("no index", StatusCode::NOT_FOUND, "index", [](auto* r) { r->set_index("nowhere"); });
  add_compare("no sequence", StatusCode::NOT_FOUND, "sequence", [](auto* r) { r->set_sequence("nobody"); });
  add_compare("layer", StatusCode::INVALID_ARGUMENT, "layers[1]", [](auto* r) { r->add_layers(0), r->add_layers(2); });
  add_compare("samples", StatusCode::INVALID_ARGUMENT, "samples", [](auto* r) { r->set_samples(10'001); });
  add_compare("samples", StatusCode::INVALID_ARGUMENT, "samples", [](auto* r) { r->set_samples(-1); });
  add_compare("exact", StatusCode::INVALID_ARGUMENT, "selector.exact",
              [](auto* r) { r->mutable_selector()->set_exact(true); });
  add_compare("top_k", StatusCode::INVALID_ARGUMENT, "selector.top_k",
              [](auto* r) { r->mutable_selector()->set_top_k(0); });
  add_compare("without keys", StatusCode::FAILED_PRECONDITION, "index",
              [this](auto* r) { r->set_index(none_.index()); });
  add_compare("nothing asked yet", StatusCode::FAILED_PRECONDITION, "sequence", [](auto*) {});
  v1::GatherRequest gather;
  *gather.mutable_handle() = both_;
  *gather.mutable_positions() = Positions({0, 5, 299});
  gather.set_keys(true);
  gather.set_values(true);
  AddHandle<Retrieval, v1::GatherRequest, v1::GatherResponse>(*stubs_->retrieval, &Retrieval::Gather, gather, "handle",
                                                              [](auto* r) { return r->mutable_handle(); });
  const auto add = [&](const std::string& what, StatusCode code, const std::string& field, auto spoil) {
    Add<Retrieval, v1::GatherRequest, v1::GatherResponse>(*stubs_->retrieval, &Retrieval::Gather, gather, what, code,
                                                          field, spoil);
  };
  for (const int value : {-1, 2, std::numeric_limits<int>::max()}) {
    Add<Admin, v1::DescribeHeadRequest, v1::DescribeHeadResponse>(*stubs_->admin, &Admin::DescribeHead, describe,
                                                                  "range", StatusCode::INVALID_ARGUMENT, "layer",
                                                                  [=](auto* r) { r->set_layer(value); });
    Add<Admin, v1::DescribeHeadRequest, v1::DescribeHeadResponse>(*stubs_->admin, &Admin::DescribeHead, describe,
                                                                  "range", StatusCode::INVALID_ARGUMENT, "kv_head",
                                                                  [=](auto* r) { r->set_kv_head(value); });
    add("range", StatusCode::INVALID_ARGUMENT, "layer", [=](auto* r) { r->set_layer(value); });
    add("range", StatusCode::INVALID_ARGUMENT, "kv_head", [=](auto* r) { r->set_kv_head(value); });
  }
  const StatusCode invalid = StatusCode::INVALID_ARGUMENT;
  add("no tensor", invalid, "positions.dtype", [](auto* r) { r->clear_positions(); });
  add("halves", invalid, "positions.dtype", [](auto* r) { *r->mutable_positions() = Halves({3}, 1); });
  add("rank", invalid, "positions.shape", [](auto* r) { r->mutable_positions()->add_shape(1); });
  add("bytes", invalid, "positions.raw", [](auto* r) { r->mutable_positions()->set_shape(0, 4); });
  add("nothing asked", invalid, "keys", [](auto* r) { r->clear_keys(), r->clear_values(); });
  add("negative", StatusCode::OUT_OF_RANGE, "positions[1]", [](auto* r) {
    *r->mutable_positions() = Positions({0, -1});
  });
  add("beyond", StatusCode::OUT_OF_RANGE, "positions[2]", [](auto* r) {
    *r->mutable_positions() = Positions({0, 1, 300});
  });
  add("no values kept", StatusCode::FAILED_PRECONDITION, "values", [this](auto* r) { *r->mutable_handle() = keys_; });
  add("no keys kept", StatusCode::FAILED_PRECONDITION, "keys", [this](auto* r) { *r->mutable_handle() = none_; });
  RunAll(30);
}

// What can be wrong with an appended item, by Append, AppendStream and Decode: their paths differ, their rules do not.
TEST_P(ErrorsTest, Appends) {
  struct Wrong {
    std::string what;
    StatusCode code;
    std::string field;
    std::function<void(v1::AppendItem*)> spoil;
  };
  const StatusCode invalid = StatusCode::INVALID_ARGUMENT;
  std::vector<Wrong> wrongs = {
      {"no index", StatusCode::NOT_FOUND, "handle.index", [](auto* i) { i->mutable_handle()->clear_index(); }},
      {"no id", invalid, "handle.id", [](auto* i) { i->mutable_handle()->clear_id(); }},
      {"unknown id", StatusCode::NOT_FOUND, "handle", [](auto* i) { i->mutable_handle()->set_id("nobody"); }},
      {"generation", StatusCode::FAILED_PRECONDITION, "handle",
       [](auto* i) { i->mutable_handle()->set_generation(999); }},
      {"negative", invalid, "layer", [](auto* i) { i->set_layer(-1); }},
      {"beyond", invalid, "layer", [](auto* i) { i->set_layer(kLayers); }},
      {"negative", invalid, "position", [](auto* i) { i->set_position(-1); }},
      {"gap", StatusCode::OUT_OF_RANGE, "position", [](auto* i) { i->set_position(301); }},
      {"far", StatusCode::OUT_OF_RANGE, "position",
       [](auto* i) { i->set_position(std::numeric_limits<int64_t>::max()); }},
      {"conflict", StatusCode::ALREADY_EXISTS, "keys", [](auto* i) { i->set_position(100); }},
      {"none", invalid, "keys.dtype", [](auto* i) { i->clear_keys(); }},
      {"unspecified", invalid, "keys.dtype", [](auto* i) { i->mutable_keys()->clear_dtype(); }},
      {"unknown", invalid, "keys.dtype", [](auto* i) { i->mutable_keys()->set_dtype(static_cast<v1::DType>(77)); }},
      {"other float", invalid, "keys.dtype", [](auto* i) { i->mutable_keys()->set_dtype(v1::D_TYPE_BFLOAT16); }},
      {"truncated", invalid, "keys.raw", [](auto* i) { i->mutable_keys()->mutable_raw()->pop_back(); }},
      {"no bytes", invalid, "keys.raw", [](auto* i) { i->mutable_keys()->clear_raw(); }},
      {"no values", invalid, "values", [](auto* i) { i->clear_values(); }},
      {"values rank", invalid, "values.shape", [](auto* i) { i->mutable_values()->add_shape(1); }},
      {"values dtype", invalid, "values.dtype", [](auto* i) { i->mutable_values()->set_dtype(v1::D_TYPE_BFLOAT16); }},
      {"values bytes", invalid, "values.raw", [](auto* i) { i->mutable_values()->mutable_raw()->push_back('x'); }},
      {"fewer values", invalid, "values",
       [](auto* i) {
         *i->mutable_values() = Halves({2, kKvHeads, kDim}, 2);
       }},
      {"values not kept", invalid, "values", [this](auto* i) { *i->mutable_handle() = keys_; }},
  };
  for (const int64_t dim : {int64_t{0}, int64_t{-1}, int64_t{1} << 31, int64_t{1} << 32,
                            std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}) {
    for (int axis = 0; axis < 3; ++axis) {
      // No tokens, or 2^31, are within limits as a dimension: the bytes do not match them.
      const bool bytes = axis == 0 && (dim == 0 || dim == int64_t{1} << 31);
      wrongs.push_back({"dimension", invalid, bytes ? "keys.raw" : "keys.shape",
                        [=](auto* i) { i->mutable_keys()->set_shape(axis, dim); }});
    }
  }
  wrongs.push_back({"empty", invalid, "keys.shape", [](auto* i) {
                      *i->mutable_keys() = Halves({0, kKvHeads, kDim}, 1);
                    }});
  for (const size_t size : {0, 1, 2, 4, 4000}) {
    wrongs.push_back({"rank", invalid, "keys.shape",
                      [=](auto* i) { i->mutable_keys()->mutable_shape()->Resize(static_cast<int>(size), 1); }});
  }
  for (const uint16_t bad : {0x7C00, 0xFC00, 0x7C01, 0xFFFF}) {  // infinities and NaNs
    wrongs.push_back({"not finite", invalid, "keys",
                      [=](auto* i) { memcpy(i->mutable_keys()->mutable_raw()->data() + 77 * 2, &bad, 2); }});
  }
  for (const Wrong& wrong : wrongs) {
    v1::AppendItem item = WithValues(0, 300, 3);
    wrong.spoil(&item);
    cases_.push_back(
        {"Append: " + wrong.what, wrong.code, "item." + wrong.field, [=, this] { return FromCall(Append(item)); }});
    cases_.push_back({"AppendStream: " + wrong.what, wrong.code, "item." + wrong.field, [=, this] {
                        grpc::ClientContext context;
                        v1::AppendStreamResponse response;
                        v1::AppendStreamRequest request;
                        *request.mutable_item() = item;
                        auto stream = stubs_->retrieval->AppendStream(&context, &response);
                        stream->Write(request);
                        stream->WritesDone();
                        return FromCall(stream->Finish());
                      }});
    cases_.push_back({"Decode: " + wrong.what, wrong.code, "appends[1]." + wrong.field, [=, this] {
                        grpc::ClientContext context;
                        auto stream = stubs_->retrieval->Decode(&context);
                        v1::DecodeRequest request;
                        v1::DecodeResponse response;
                        *request.add_appends() = WithValues(1, 0, 3);  // a replay, right and without effect
                        *request.add_appends() = item;
                        stream->Write(request);
                        EXPECT_TRUE(stream->Read(&response));
                        stream->WritesDone();
                        EXPECT_TRUE(stream->Finish().ok());
                        EXPECT_EQ(response.append_status_size(), 2);
                        EXPECT_EQ(response.append_status(0).code(), 0) << response.append_status(0).message();
                        return FromAnswer(response.append_status(1));
                      }});
  }
  RunAll(100);
}

TEST_P(ErrorsTest, Retrievals) {
  struct Wrong {
    std::string what;
    StatusCode code;
    std::string field;  // under "items[1]." or "selector."
    std::function<void(v1::RetrieveItem*, v1::Selector*)> spoil;
  };
  const StatusCode invalid = StatusCode::INVALID_ARGUMENT;
  const std::vector<Wrong> items = {
      {"no index", StatusCode::NOT_FOUND, "handle.index", [](auto* i, auto*) { i->mutable_handle()->clear_index(); }},
      {"no id", invalid, "handle.id", [](auto* i, auto*) { i->mutable_handle()->clear_id(); }},
      {"unknown id", StatusCode::NOT_FOUND, "handle", [](auto* i, auto*) { i->mutable_handle()->set_id("nobody"); }},
      {"stale", StatusCode::FAILED_PRECONDITION, "handle", [this](auto* i, auto*) { *i->mutable_handle() = stale_; }},
      {"negative", invalid, "layer", [](auto* i, auto*) { i->set_layer(-1); }},
      {"beyond", invalid, "layer", [](auto* i, auto*) { i->set_layer(kLayers); }},
      {"none", invalid, "queries.dtype", [](auto* i, auto*) { i->clear_queries(); }},
      {"ints", invalid, "queries.dtype",
       [](auto* i, auto*) {
         i->mutable_queries()->set_dtype(v1::D_TYPE_INT32);
         i->mutable_queries()->mutable_raw()->append(i->queries().raw());
       }},
      {"heads", invalid, "queries.shape",
       [](auto* i, auto*) {
         *i->mutable_queries() = Halves({kKvHeads, kDim}, 1);
       }},
      {"head_dim", invalid, "queries.shape",
       [](auto* i, auto*) {
         *i->mutable_queries() = Halves({kQHeads, 80}, 1);
       }},
      {"rank", invalid, "queries.shape", [](auto* i, auto*) { i->mutable_queries()->add_shape(1); }},
      {"bytes", invalid, "queries.raw", [](auto* i, auto*) { i->mutable_queries()->mutable_raw()->pop_back(); }},
      {"NaN", invalid, "queries",
       [](auto* i, auto*) { i->mutable_queries()->mutable_raw()->replace(100, 2, "\xff\x7f"); }},
      {"infinity", invalid, "queries",
       [](auto* i, auto*) { i->mutable_queries()->mutable_raw()->replace(100, 2, "\x00\x7c", 2); }},
  };
  const std::vector<Wrong> selectors = {
      {"zero", invalid, "top_k", [](auto*, auto* s) { s->set_top_k(0); }},
      {"negative", invalid, "top_k", [](auto*, auto* s) { s->set_top_k(-5); }},
      {"huge", invalid, "top_k", [](auto*, auto* s) { s->set_top_k(std::numeric_limits<int>::max()); }},
      {"p", invalid, "mass_p.p",
       [](auto*, auto* s) { s->mutable_mass_p()->set_p(1.5f), s->mutable_mass_p()->set_cap(9); }},
      {"p NaN", invalid, "mass_p.p",
       [](auto*, auto* s) { s->mutable_mass_p()->set_p(NAN), s->mutable_mass_p()->set_cap(9); }},
      {"cap", invalid, "mass_p.cap", [](auto*, auto* s) { s->mutable_mass_p()->set_p(.5f); }},
      {"recall target", invalid, "recall_target", [](auto*, auto* s) { s->set_recall_target(1); }},
      {"recall target of a code that predicts no noise", invalid, "recall_target",
       [](auto*, auto* s) { s->set_recall_target(.9); }},
      {"recall target and beta", invalid, "recall_target",
       [](auto*, auto* s) { s->set_recall_target(.9), s->set_beta(.1); }},
      {"floor", invalid, "mass_p.floor",
       [](auto*, auto* s) {
         s->mutable_mass_p()->set_p(.5f);
         s->mutable_mass_p()->set_cap(9);
         s->mutable_mass_p()->set_floor(10);
       }},
      {"scope", invalid, "scope", [](auto*, auto* s) { s->set_scope(static_cast<v1::Scope>(7)); }},
      {"reduce", invalid, "gqa_reduce", [](auto*, auto* s) { s->set_gqa_reduce(static_cast<v1::GqaReduce>(7)); }},
      {"beta", invalid, "beta", [](auto*, auto* s) { s->set_beta(1.01); }},
      {"beta NaN", invalid, "beta", [](auto*, auto* s) { s->set_beta(NAN); }},
      {"refine", invalid, "refine", [](auto*, auto* s) { s->set_refine(-1); }},
      {"exact", StatusCode::FAILED_PRECONDITION, "exact",
       [this](auto* i, auto* s) {
         *i->mutable_handle() = none_;
         s->set_exact(true);
       }},
  };
  for (const auto* list : {&items, &selectors}) {
    const bool whole = list == &selectors;
    for (const Wrong& wrong : *list) {
      v1::RetrieveRequest request;
      *request.add_items() = Query(keys_, 0);
      *request.add_items() = Query(keys_, 1);
      wrong.spoil(request.mutable_items(1), request.mutable_selector());
      const std::string field = (whole ? "selector." : "items[1].") + wrong.field;
      cases_.push_back({"Retrieve: " + wrong.what, wrong.code, field, [=, this] {
                          v1::RetrieveResponse response;
                          const auto status =
                              Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Retrieve, request, &response);
                          if (whole) return FromCall(status);
                          EXPECT_TRUE(status.ok()) << status.error_message();
                          EXPECT_EQ(response.answers_size(), 2);
                          EXPECT_FALSE(response.answers(0).has_status());
                          EXPECT_EQ(response.answers(0).path(), v1::PATH_INDEX);
                          EXPECT_FALSE(response.answers(1).has_positions());
                          return FromAnswer(response.answers(1).status());
                        }});
      cases_.push_back({"Decode: " + wrong.what, wrong.code, field, [=, this] {
                          grpc::ClientContext context;
                          auto stream = stubs_->retrieval->Decode(&context);
                          v1::DecodeRequest step;
                          v1::DecodeResponse response;
                          *step.mutable_items() = request.items();
                          *step.mutable_selector() = request.selector();
                          // With a wrong selector not even a right append may be applied.
                          if (whole) *step.add_appends() = Item(keys_, 0, 300, 1);
                          stream->Write(step);
                          EXPECT_TRUE(stream->Read(&response));
                          stream->WritesDone();
                          EXPECT_TRUE(stream->Finish().ok());
                          if (whole) return FromAnswer(response.status());
                          EXPECT_FALSE(response.has_status());
                          EXPECT_EQ(response.answers_size(), 2);
                          EXPECT_EQ(response.answers(0).path(), v1::PATH_INDEX);
                          return FromAnswer(response.answers(1).status());
                        }});
    }
  }
  using Retrieval = v1::RetrievalService::Stub;
  Add<Retrieval, v1::RetrieveRequest, v1::RetrieveResponse>(*stubs_->retrieval, &Retrieval::Retrieve, {}, "nothing",
                                                            invalid, "items", [](auto*) {});
  Add<Retrieval, v1::RetrieveRequest, v1::RetrieveResponse>(*stubs_->retrieval, &Retrieval::Retrieve, {}, "too many",
                                                            invalid, "items", [](auto* r) {
                                                              for (int i = 0; i < 4097; ++i) r->add_items();
                                                            });
  Add<Retrieval, v1::RetrieveRequest, v1::RetrieveResponse>(
      *stubs_->retrieval, &Retrieval::Retrieve, {}, "answer too large", invalid, "selector.top_k", [this](auto* r) {
        for (int i = 0; i < 300; ++i) *r->add_items() = Query(keys_, 0);
        r->mutable_selector()->set_top_k(60000);
      });
  RunAll(50);
}

INSTANTIATE_TEST_SUITE_P(Serving, ErrorsTest, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "Polling" : "Default"; });

}  // namespace
}  // namespace seine::test
