// Wrong fields of appends and queries, in calls of their own and in streams.
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/service/errors/errors_fixture.h"

namespace seine::test {
namespace {

using grpc::StatusCode;

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
      {"recall target and fraction", invalid, "recall_target",
       [](auto*, auto* s) { s->set_recall_target(.9), s->set_candidate_fraction(.1); }},
      {"floor", invalid, "mass_p.floor",
       [](auto*, auto* s) {
         s->mutable_mass_p()->set_p(.5f);
         s->mutable_mass_p()->set_cap(9);
         s->mutable_mass_p()->set_floor(10);
       }},
      {"scope", invalid, "scope", [](auto*, auto* s) { s->set_scope(static_cast<v1::Scope>(7)); }},
      {"reduce", invalid, "gqa_reduce", [](auto*, auto* s) { s->set_gqa_reduce(static_cast<v1::GqaReduce>(7)); }},
      {"candidate_fraction", invalid, "candidate_fraction", [](auto*, auto* s) { s->set_candidate_fraction(1.01); }},
      {"candidate_fraction NaN", invalid, "candidate_fraction", [](auto*, auto* s) { s->set_candidate_fraction(NAN); }},
      {"rescore_k", invalid, "rescore_k", [](auto*, auto* s) { s->set_rescore_k(-1); }},
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
                          EXPECT_EQ(response.answers(0).path(), v1::SEARCH_MODE_INDEX);
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
                          EXPECT_EQ(response.answers(0).path(), v1::SEARCH_MODE_INDEX);
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

}  // namespace
}  // namespace seine::test
