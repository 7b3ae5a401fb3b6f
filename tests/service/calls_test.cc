// Calls over a real socket, in both ways of serving: what they return and what they leave behind.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "kernels/backend.h"
#include "service/catalog.h"
#include "tests/service/fixture.h"

namespace seine::test {
namespace {

using grpc::StatusCode;

class CallsTest : public ServerTest {
 protected:
  v1::RetrieveResponse Retrieve(const v1::RetrieveRequest& request) {
    v1::RetrieveResponse response;
    const auto status = Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Retrieve, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  // The same question asked of the index itself.
  ItemAnswer Direct(const std::string& index_name, const v1::SequenceHandle& handle, int layer,
                    const std::vector<float>& queries, SearchParams params) {
    auto index = server_->core().catalog.Find("", index_name);
    const RetrieveItem item = {{handle.id(), handle.generation()}, layer, queries.data()};
    auto answers = index->Retrieve({&item, 1}, params);
    EXPECT_TRUE(answers.ok()) << answers.status();
    return answers->at(0);
  }

  SearchParams Defaults(const std::string& index_name) {
    return server_->core().catalog.Find("", index_name)->config().search;
  }
};

std::vector<float> AsFloats(const v1::Tensor& halves) {
  std::vector<float> floats(halves.raw().size() / 2);
  for (size_t i = 0; i < floats.size(); ++i) {
    uint16_t half;
    memcpy(&half, halves.raw().data() + 2 * i, 2);
    const float magnitude = std::ldexp(1.0f + (half & 0x3FF) / 1024.0f, (half >> 10 & 31) - 15);
    floats[i] = half & 0x8000 ? -magnitude : magnitude;
  }
  return floats;
}

TEST_P(CallsTest, IndexLifecycle) {
  v1::CreateIndexRequest create;
  v1::CreateIndexResponse created;
  auto* geometry = create.mutable_spec()->mutable_geometry();
  create.mutable_spec()->set_name("defaults");
  geometry->set_num_layers(3);
  geometry->set_num_q_heads(4);
  geometry->set_num_kv_heads(2);
  geometry->set_head_dim(128);
  geometry->set_dtype(v1::D_TYPE_BFLOAT16);
  ASSERT_TRUE(Call(*stubs_->index, &v1::IndexService::Stub::CreateIndex, create, &created).ok());
  // Every default that index_service.proto promises is filled in.
  const v1::IndexSpec& spec = created.index().spec();
  EXPECT_EQ(spec.zones().sink(), 128);
  EXPECT_EQ(spec.zones().local(), 512);
  EXPECT_EQ(spec.zones().update_buffer(), 512);
  EXPECT_EQ(spec.zones().dense_threshold(), 2048);
  EXPECT_EQ(spec.codec().name(), "rsq");
  EXPECT_EQ(spec.codec().seed(), 1u);
  EXPECT_EQ(spec.codec().centre(), v1::CENTRE_WINDOW);
  EXPECT_EQ(spec.codec().centre_window(), 64);
  EXPECT_EQ(spec.retrieval().top_k(), 100);
  EXPECT_EQ(spec.retrieval().candidate_fraction(), 0);
  EXPECT_EQ(spec.retrieval().rescore_k(), 200);
  EXPECT_EQ(spec.retrieval().coarse(), v1::COARSE_SIGN_IP);
  EXPECT_EQ(spec.retrieval().collision_fraction(), .2);
  EXPECT_EQ(spec.retrieval().scope(), v1::SCOPE_PER_KV_HEAD);
  EXPECT_EQ(spec.retrieval().gqa_reduce(), v1::GQA_REDUCE_SOFTMAX_SUM);
  EXPECT_EQ(spec.kv_store(), v1::KV_STORE_KEYS);
  EXPECT_EQ(spec.geometry().SerializeAsString(), geometry->SerializeAsString());

  NewSequence("defaults");
  v1::GetIndexRequest get;
  v1::GetIndexResponse got;
  get.set_name("defaults");
  ASSERT_TRUE(Call(*stubs_->index, &v1::IndexService::Stub::GetIndex, get, &got).ok());
  EXPECT_EQ(got.index().num_sequences(), 1);
  EXPECT_EQ(got.index().spec().SerializeAsString(), spec.SerializeAsString());

  v1::ListIndexesResponse list;
  ASSERT_TRUE(Call(*stubs_->index, &v1::IndexService::Stub::ListIndexes, v1::ListIndexesRequest(), &list).ok());
  ASSERT_EQ(list.indexes_size(), 4);
  EXPECT_EQ(list.indexes(1).spec().name(), "defaults");  // sorted by name

  v1::DeleteIndexRequest remove;
  v1::DeleteIndexResponse removed;
  remove.set_name("defaults");
  ASSERT_TRUE(Call(*stubs_->index, &v1::IndexService::Stub::DeleteIndex, remove, &removed).ok());
  EXPECT_EQ(Call(*stubs_->index, &v1::IndexService::Stub::DeleteIndex, remove, &removed).error_code(),
            StatusCode::NOT_FOUND);
  ASSERT_TRUE(Call(*stubs_->index, &v1::IndexService::Stub::ListIndexes, v1::ListIndexesRequest(), &list).ok());
  EXPECT_EQ(list.indexes_size(), 3);
}

TEST_P(CallsTest, DeletedIndexGivesItsMemoryBack) {
  v1::GetServerInfoResponse empty, full, after;
  const auto info = [&](v1::GetServerInfoResponse* out) {
    ASSERT_TRUE(Call(*stubs_->admin, &v1::AdminService::Stub::GetServerInfo, v1::GetServerInfoRequest(), out).ok());
  };
  info(&empty);
  EXPECT_EQ(empty.num_indexes(), 3);
  std::string why;
  EXPECT_EQ(empty.backend(), MakeBackend("auto", 1, &why)->name());
  EXPECT_FALSE(empty.version().empty());
  EXPECT_FALSE(empty.simd_target().empty());
  EXPECT_EQ(empty.num_threads(), 1);
  EXPECT_EQ(empty.max_message_bytes(), 64 << 20);
  EXPECT_EQ(empty.queue_capacity(), 256);
  ASSERT_TRUE(Append(Item(NewSequence("keys"), 0, 0, 500)).ok());
  info(&full);
  EXPECT_EQ(full.num_sequences(), 1);
  EXPECT_GT(full.memory_bytes(), empty.memory_bytes());
  v1::DeleteIndexRequest remove;
  v1::DeleteIndexResponse removed;
  remove.set_name("keys");
  ASSERT_TRUE(Call(*stubs_->index, &v1::IndexService::Stub::DeleteIndex, remove, &removed).ok());
  info(&after);
  EXPECT_LE(after.memory_bytes(), empty.memory_bytes());
  EXPECT_EQ(after.num_sequences(), 0);
}

TEST_P(CallsTest, ReplayIsNoOpGapIsRefusedConflictKept) {
  const auto handle = NewSequence("keys");
  int64_t length = 0;
  const v1::AppendItem whole = Item(handle, 0, 0, 300);
  ASSERT_TRUE(Append(whole, &length).ok());
  EXPECT_EQ(length, 300);
  const std::string before = Digest();
  ASSERT_TRUE(Append(whole, &length).ok());
  EXPECT_EQ(length, 300);
  v1::AppendItem part = Item(handle, 0, 100, 50);
  const size_t token = kKvHeads * kDim * 2;
  part.mutable_keys()->set_raw(whole.keys().raw().substr(100 * token, 50 * token));
  ASSERT_TRUE(Append(part, &length).ok());
  EXPECT_EQ(Append(Item(handle, 0, 301, 1)).error_code(), StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(Append(Item(handle, 0, 100, 1)).error_code(), StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(Digest(), before);
  // A replay that runs past the end appends the rest.
  v1::AppendItem longer = Item(handle, 0, 0, 310);
  ASSERT_EQ(longer.keys().raw().compare(0, 300 * token, whole.keys().raw()), 0);
  ASSERT_TRUE(Append(longer, &length).ok());
  EXPECT_EQ(length, 310);
}

TEST_P(CallsTest, GatherGivesTheBytesAppended) {
  const auto handle = NewSequence("both");
  v1::AppendItem item = Item(handle, 1, 0, 400);
  *item.mutable_values() = Halves({400, kKvHeads, kDim}, 2);
  ASSERT_TRUE(Append(item).ok());
  v1::GatherRequest request;
  v1::GatherResponse response;
  *request.mutable_handle() = handle;
  request.set_layer(1);
  request.set_kv_head(1);
  request.set_keys(true);
  request.set_values(true);
  const std::vector<int32_t> positions = {399, 0, 17, 17, 200};
  *request.mutable_positions() = Positions(positions);
  ASSERT_TRUE(Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Gather, request, &response).ok());
  const size_t row = kDim * 2;
  for (const auto& [got, given] :
       {std::pair{&response.keys(), &item.keys()}, std::pair{&response.values(), &item.values()}}) {
    ASSERT_EQ(got->dtype(), v1::D_TYPE_FLOAT16);
    ASSERT_EQ(got->shape_size(), 2);
    EXPECT_EQ(got->shape(0), 5);
    EXPECT_EQ(got->shape(1), kDim);
    ASSERT_EQ(got->raw().size(), 5 * row);
    for (size_t i = 0; i < positions.size(); ++i) {
      EXPECT_EQ(got->raw().substr(i * row, row), given->raw().substr((positions[i] * kKvHeads + 1) * row, row)) << i;
    }
  }
}

TEST_P(CallsTest, RetrieveEqualsTheIndexInProcess) {
  const auto handle = NewSequence("keys");
  ASSERT_TRUE(Append(Item(handle, 1, 0, 700)).ok());
  for (const bool exact : {false, true}) {
    for (const auto scope : {v1::SCOPE_PER_KV_HEAD, v1::SCOPE_PER_Q_HEAD}) {
      v1::RetrieveRequest request;
      *request.add_items() = Query(handle, 1);
      auto* selector = request.mutable_selector();
      selector->set_top_k(11);
      selector->set_scope(scope);
      selector->set_exact(exact);
      selector->set_with_scores(true);
      selector->set_gqa_reduce(v1::GQA_REDUCE_MAX);
      const v1::RetrieveResponse response = Retrieve(request);
      ASSERT_EQ(response.answers_size(), 1);
      const auto& answer = response.answers(0);
      SearchParams params = Defaults("keys");
      params.top_k = 11;
      params.scope = scope == v1::SCOPE_PER_Q_HEAD ? Scope::kPerQHead : Scope::kPerKvHead;
      params.method = exact ? Method::kExact : Method::kIndex;
      params.gqa_reduce = GqaReduce::kMax;
      const ItemAnswer direct = Direct("keys", handle, 1, AsFloats(request.items(0).queries()), params);
      const int sets = scope == v1::SCOPE_PER_Q_HEAD ? kQHeads : kKvHeads;
      EXPECT_EQ(answer.path(), exact ? v1::SEARCH_MODE_EXACT : v1::SEARCH_MODE_INDEX);
      EXPECT_EQ(answer.num_tokens(), 700);
      EXPECT_EQ(answer.zone_begin(), direct.zone_begin);
      EXPECT_EQ(answer.zone_end(), direct.zone_end);
      EXPECT_FALSE(answer.all_returned());
      ASSERT_EQ(answer.positions().shape(0), sets);
      ASSERT_EQ(answer.positions().shape(1), 11);
      ASSERT_EQ(direct.positions.size(), static_cast<size_t>(sets));
      EXPECT_EQ(Ints(answer.counts()), std::vector<int32_t>(sets, 11));
      for (int s = 0; s < sets; ++s) {
        EXPECT_EQ(memcmp(answer.positions().raw().data() + s * 44, direct.positions[s].data(), 44), 0) << s;
        EXPECT_EQ(memcmp(answer.scores().raw().data() + s * 44, direct.scores[s].data(), 44), 0) << s;
      }
    }
  }
}

TEST_P(CallsTest, QueriesOfEveryFloatTypeGiveTheSameAnswer) {
  const auto handle = NewSequence("keys");
  ASSERT_TRUE(Append(Item(handle, 0, 0, 700)).ok());
  // Small whole numbers are exact in all three types.
  std::string halves, brains, floats;
  for (int i = 0; i < kQHeads * kDim; ++i) {
    const auto value = static_cast<float>((i * 37) % 17 - 8);
    uint32_t bits;
    memcpy(&bits, &value, 4);
    floats.append(reinterpret_cast<const char*>(&bits), 4);
    brains.append(reinterpret_cast<const char*>(&bits) + 2, 2);
    const uint32_t exponent = (bits >> 23 & 255) - 127 + 15;
    const auto half =
        static_cast<uint16_t>(value == 0 ? 0 : (bits >> 16 & 0x8000) | exponent << 10 | (bits >> 13 & 0x3FF));
    halves.append(reinterpret_cast<const char*>(&half), 2);
  }
  std::vector<std::string> answers;
  for (const auto& [dtype, raw] : {std::pair{v1::D_TYPE_FLOAT16, halves}, std::pair{v1::D_TYPE_BFLOAT16, brains},
                                   std::pair{v1::D_TYPE_FLOAT32, floats}}) {
    v1::RetrieveRequest request;
    *request.add_items() = Query(handle, 0);
    request.mutable_items(0)->mutable_queries()->set_dtype(dtype);
    request.mutable_items(0)->mutable_queries()->set_raw(raw);
    answers.push_back(Retrieve(request).answers(0).SerializeAsString());
  }
  EXPECT_GT(answers[0].size(), 50u);
  EXPECT_EQ(answers[0], answers[1]);
  EXPECT_EQ(answers[0], answers[2]);
}

TEST_P(CallsTest, FewTokensAreDenseAndWideTopKIsPadded) {
  const auto handle = NewSequence("keys");
  ASSERT_TRUE(Append(Item(handle, 0, 0, 100)).ok());
  v1::RetrieveRequest request;
  *request.add_items() = Query(handle, 0);
  *request.add_items() = Query(handle, 1);  // empty layer
  request.mutable_selector()->set_top_k(300);
  v1::RetrieveResponse response = Retrieve(request);
  for (const int tokens : {100, 0}) {
    const auto& answer = response.answers(tokens == 100 ? 0 : 1);
    EXPECT_EQ(answer.path(), v1::SEARCH_MODE_DENSE);
    EXPECT_EQ(answer.num_tokens(), tokens);
    EXPECT_EQ(answer.positions().shape(0), kKvHeads);
    EXPECT_EQ(answer.positions().shape(1), 0);
    EXPECT_EQ(Ints(answer.counts()), std::vector<int32_t>(kKvHeads, 0));
  }
  ASSERT_TRUE(Append(Item(handle, 1, 0, 300)).ok());
  response = Retrieve(request);
  const auto& answer = response.answers(1);
  EXPECT_EQ(answer.path(), v1::SEARCH_MODE_INDEX);
  EXPECT_TRUE(answer.all_returned());
  const auto zone = static_cast<int>(answer.zone_end() - answer.zone_begin());
  EXPECT_EQ(zone, 192);  // floor((300 - 16 - 64) / 64) * 64
  EXPECT_EQ(Ints(answer.counts()), std::vector<int32_t>(kKvHeads, zone));
  const std::vector<int32_t> positions = Ints(answer.positions());
  ASSERT_EQ(positions.size(), 600u);
  for (int i = 0; i < 300; ++i) EXPECT_EQ(positions[i], i < zone ? kSink + i : -1);
}

TEST_P(CallsTest, AShortZoneWithoutBetaIsReadWhole) {
  const auto handle = NewSequence("keys");
  ASSERT_TRUE(Append(Item(handle, 1, 0, 700)).ok());
  v1::RetrieveRequest request;
  *request.add_items() = Query(handle, 1);
  request.mutable_selector()->set_with_scores(true);
  EXPECT_EQ(Retrieve(request).answers(0).path(), v1::SEARCH_MODE_INDEX);  // the index's own share
  request.mutable_selector()->set_candidate_fraction(0);
  const v1::RetrieveResponse whole = Retrieve(request);
  EXPECT_EQ(whole.answers(0).path(), v1::SEARCH_MODE_EXACT);
  request.mutable_selector()->set_exact(true);
  const v1::RetrieveResponse exact = Retrieve(request);
  EXPECT_EQ(Ints(whole.answers(0).positions()), Ints(exact.answers(0).positions()));
  EXPECT_EQ(whole.answers(0).scores().raw(), exact.answers(0).scores().raw());
}

TEST_P(CallsTest, MassSelectorStaysWithinFloorAndCap) {
  const auto handle = NewSequence("keys");
  ASSERT_TRUE(Append(Item(handle, 0, 0, 700)).ok());
  v1::RetrieveRequest request;
  *request.add_items() = Query(handle, 0);
  auto* mass = request.mutable_selector()->mutable_mass_p();
  mass->set_p(1e-6f);
  mass->set_floor(3);
  mass->set_cap(20);
  auto response = Retrieve(request);
  EXPECT_EQ(response.answers(0).positions().shape(1), 20);
  EXPECT_EQ(Ints(response.answers(0).counts()), std::vector<int32_t>(kKvHeads, 3));
  EXPECT_FALSE(response.answers(0).capped());
  EXPECT_EQ(response.answers(0).masses().shape(0), kKvHeads);
  mass->set_p(1.0f);
  response = Retrieve(request);
  EXPECT_EQ(Ints(response.answers(0).counts()), std::vector<int32_t>(kKvHeads, 20));
  EXPECT_TRUE(response.answers(0).capped());
  request.mutable_selector()->set_top_k(20);
  response = Retrieve(request);
  EXPECT_FALSE(response.answers(0).capped());
  EXPECT_FALSE(response.answers(0).has_masses());
}

TEST_P(CallsTest, ForkAndTruncate) {
  const auto handle = NewSequence("keys", "source");
  ASSERT_TRUE(Append(Item(handle, 0, 0, 500)).ok());
  ASSERT_TRUE(Append(Item(handle, 1, 0, 400)).ok());
  v1::ForkSequenceRequest fork;
  v1::ForkSequenceResponse forked;
  *fork.mutable_source() = handle;
  fork.set_new_id("copy");
  fork.set_position(450);
  ASSERT_TRUE(Call(*stubs_->sequence, &v1::SequenceService::Stub::ForkSequence, fork, &forked).ok());
  EXPECT_EQ(forked.handle().id(), "copy");
  EXPECT_EQ(forked.handle().index(), "keys");
  fork.clear_position();
  fork.clear_new_id();
  v1::ForkSequenceResponse all;
  ASSERT_TRUE(Call(*stubs_->sequence, &v1::SequenceService::Stub::ForkSequence, fork, &all).ok());
  EXPECT_FALSE(all.handle().id().empty());

  v1::TruncateSequenceRequest truncate;
  v1::TruncateSequenceResponse truncated;
  *truncate.mutable_handle() = handle;
  truncate.set_position(100);
  ASSERT_TRUE(Call(*stubs_->sequence, &v1::SequenceService::Stub::TruncateSequence, truncate, &truncated).ok());
  EXPECT_EQ(truncated.sequence().layer_tokens(0), 100);

  const auto tokens = [&](const v1::SequenceHandle& of) {
    v1::GetSequenceRequest get;
    v1::GetSequenceResponse got;
    *get.mutable_handle() = of;
    EXPECT_TRUE(Call(*stubs_->sequence, &v1::SequenceService::Stub::GetSequence, get, &got).ok());
    return std::vector<int64_t>(got.sequence().layer_tokens().begin(), got.sequence().layer_tokens().end());
  };
  EXPECT_EQ(tokens(handle), (std::vector<int64_t>{100, 100}));
  EXPECT_EQ(tokens(forked.handle()), (std::vector<int64_t>{450, 400}));
  EXPECT_EQ(tokens(all.handle()), (std::vector<int64_t>{500, 400}));
}

TEST_P(CallsTest, AppendStreamKeepsThePiecesBeforeAnError) {
  const auto handle = NewSequence("keys");
  for (const bool good : {true, false}) {
    grpc::ClientContext context;
    v1::AppendStreamResponse response;
    auto stream = stubs_->retrieval->AppendStream(&context, &response);
    v1::AppendStreamRequest request;
    const int layer = good ? 0 : 1;
    for (const int64_t position : {0, 200, 400}) {
      *request.mutable_item() = Item(handle, layer, good || position < 400 ? position : 401, 200);
      stream->Write(request);
    }
    stream->WritesDone();
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.error_code(), good ? StatusCode::OK : StatusCode::OUT_OF_RANGE) << status.error_message();
    if (good) {
      EXPECT_EQ(response.pieces(), 3);
      EXPECT_EQ(response.tokens(), 600);
    }
  }
  v1::GetSequenceRequest get;
  v1::GetSequenceResponse got;
  *get.mutable_handle() = handle;
  ASSERT_TRUE(Call(*stubs_->sequence, &v1::SequenceService::Stub::GetSequence, get, &got).ok());
  EXPECT_EQ(got.sequence().layer_tokens(0), 600);
  EXPECT_EQ(got.sequence().layer_tokens(1), 400);
}

TEST_P(CallsTest, DecodeAnswersInOrderEachItemForItself) {
  const auto handle = NewSequence("keys");
  const auto other = NewSequence("both");  // another index in the same batch
  ASSERT_TRUE(Append(Item(handle, 0, 0, 300)).ok());
  grpc::ClientContext context;
  auto stream = stubs_->retrieval->Decode(&context);
  constexpr int kSteps = 50;
  std::thread writer([&] {
    for (int i = 0; i < kSteps; ++i) {
      v1::DecodeRequest step;
      step.set_step(1000 + i);
      *step.add_appends() = Item(handle, 0, 300 + i, 1, i);
      *step.add_appends() = Item(handle, 0, 900, 1);  // always a gap
      *step.add_items() = Query(handle, 0, i);
      *step.add_items() = Query(other, 0, i);
      *step.add_items() = Query(handle, 5, i);  // always wrong
      if (i % 10 == 9) step.mutable_selector()->set_candidate_fraction(-1);
      stream->Write(step);
    }
    stream->WritesDone();
  });
  v1::DecodeResponse response;
  int64_t length = 300;
  for (int i = 0; i < kSteps; ++i) {
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.step(), 1000u + i);
    if (i % 10 == 9) {
      EXPECT_EQ(response.status().code(), StatusCode::INVALID_ARGUMENT);
      EXPECT_EQ(response.append_status_size() + response.answers_size(), 0);
      continue;
    }
    EXPECT_FALSE(response.has_status());
    ASSERT_EQ(response.append_status_size(), 2);
    ASSERT_EQ(response.answers_size(), 3);
    // The failed tenth step appended nothing: from then on these tokens leave a gap too.
    if (i < 9) ++length;
    EXPECT_EQ(response.append_status(0).code(), i < 9 ? StatusCode::OK : StatusCode::OUT_OF_RANGE);
    EXPECT_EQ(response.append_status(1).code(), StatusCode::OUT_OF_RANGE);
    EXPECT_EQ(response.answers(0).num_tokens(), length);
    EXPECT_EQ(response.answers(0).path(), v1::SEARCH_MODE_INDEX);
    EXPECT_EQ(response.answers(1).path(), v1::SEARCH_MODE_DENSE);
    EXPECT_EQ(response.answers(2).status().code(), StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_FALSE(stream->Read(&response));
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_P(CallsTest, LongStepsLeaveTheReceivingThreadAndStayInOrder) {
  const auto handle = NewSequence("keys");
  grpc::ClientContext context;
  auto stream = stubs_->retrieval->Decode(&context);
  v1::DecodeResponse response;
  for (int i = 0; i < 8; ++i) {  // 2 MiB a step: above what is done inline
    v1::DecodeRequest step;
    step.set_step(i);
    *step.add_appends() = Item(handle, 0, i * 8192, 8192, i);
    stream->Write(step);
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.step(), static_cast<uint64_t>(i));
    EXPECT_EQ(response.append_status(0).code(), 0) << response.append_status(0).message();
  }
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_P(CallsTest, MemoryLimitRefusesAndKeepsWhatThereIs) {
  v1::CreateIndexRequest create;
  v1::CreateIndexResponse created;
  *create.mutable_spec() = Spec("small");
  create.mutable_spec()->set_memory_limit_bytes(4 << 20);
  ASSERT_TRUE(Call(*stubs_->index, &v1::IndexService::Stub::CreateIndex, create, &created).ok());
  const auto handle = NewSequence("small");
  int64_t position = 0;
  grpc::Status status;
  while (position < 1 << 20 && (status = Append(Item(handle, 0, position, 512))).ok()) position += 512;
  ASSERT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_TRUE(DetailsOf(status).retry);
  EXPECT_EQ(DetailsOf(status).reason, "MEMORY_LIMIT");
  EXPECT_GT(position, 0);
  v1::RetrieveRequest request;
  *request.add_items() = Query(handle, 0);
  EXPECT_EQ(Retrieve(request).answers(0).num_tokens(), position);
}

INSTANTIATE_TEST_SUITE_P(Serving, CallsTest, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "Polling" : "Default"; });

}  // namespace
}  // namespace seine::test
