// Wrong fields of the calls that read what is stored: DescribeHead, MeasureProfile, CompareExact and Gather.
#include <limits>

#include "tests/service/errors/errors_fixture.h"

namespace seine::test {
namespace {

using grpc::StatusCode;

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
  v1::DescribeStepRequest step;
  *step.mutable_handle() = both_;
  using Step = v1::DescribeStepRequest;
  AddHandle<Admin, Step, v1::DescribeStepResponse>(*stubs_->admin, &Admin::DescribeStep, step, "handle",
                                                   [](auto* r) { return r->mutable_handle(); });
  const auto add_step = [&](const std::string& what, StatusCode code, const std::string& field, auto spoil) {
    Add<Admin, Step, v1::DescribeStepResponse>(*stubs_->admin, &Admin::DescribeStep, step, what, code, field, spoil);
  };
  add_step("layer", StatusCode::INVALID_ARGUMENT, "layer", [](auto* r) { r->set_layer(2); });
  add_step("without keys", StatusCode::FAILED_PRECONDITION, "handle.index",
           [this](auto* r) { *r->mutable_handle() = none_; });
  add_step("nothing asked yet", StatusCode::FAILED_PRECONDITION, "layer", [](auto*) {});
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

}  // namespace
}  // namespace seine::test
