// Tenants: what one sees of another, which is nothing.
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <random>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "service/access/access.h"
#include "service/log.h"
#include "tests/service/access/access_fixture.h"
#include "tests/service/channel/raw_channel.h"

namespace seine::test {
namespace {

using grpc::StatusCode;

constexpr char kMarker[] = "zq7acme";  // in each name that the other tenant has

class TenantsTest : public AccessTest {
 protected:
  // The other tenant, with an index and a sequence, and keys in it.
  v1::SequenceHandle Settle(const std::string& index) const {
    const CallerStubs acme = As("acme");
    v1::SequenceHandle handle;
    EXPECT_TRUE(acme.CreateIndex(index).ok());
    EXPECT_TRUE(acme.CreateSequence(index, absl::StrCat(kMarker, "-chat"), &handle).ok());
    EXPECT_TRUE(acme.Append(handle, 0, 300, 77).ok());
    return handle;
  }
};

TEST_F(TenantsTest, EqualNamesAreTwoIndexes) {
  const CallerStubs acme = As("acme"), beta = As("beta");
  v1::SequenceHandle of_acme, of_beta;
  ASSERT_TRUE(acme.CreateIndex("same").ok());
  ASSERT_TRUE(beta.CreateIndex("same").ok());
  EXPECT_EQ(beta.CreateIndex("same").error_code(), StatusCode::ALREADY_EXISTS);
  ASSERT_TRUE(acme.CreateSequence("same", "s", &of_acme).ok());
  ASSERT_TRUE(beta.CreateSequence("same", "s", &of_beta).ok());
  ASSERT_TRUE(acme.Append(of_acme, 0, 20, 1).ok());
  ASSERT_TRUE(beta.Append(of_beta, 0, 10, 2).ok());
  v1::GatherRequest gather;
  v1::GatherResponse first, second;
  *gather.mutable_handle() = of_beta;
  *gather.mutable_positions() = Positions({0, 5});
  gather.set_keys(true);
  ASSERT_TRUE(acme.Call(*acme.retrieval, &v1::RetrievalService::Stub::Gather, gather, &first).ok());
  ASSERT_TRUE(beta.Call(*beta.retrieval, &v1::RetrievalService::Stub::Gather, gather, &second).ok());
  EXPECT_NE(first.keys().raw(), second.keys().raw());
  v1::DeleteIndexRequest remove;
  v1::DeleteIndexResponse removed;
  remove.set_name("same");
  ASSERT_TRUE(beta.Call(*beta.index, &v1::IndexService::Stub::DeleteIndex, remove, &removed).ok());
  EXPECT_TRUE(acme.Call(*acme.retrieval, &v1::RetrievalService::Stub::Gather, gather, &first).ok());
  EXPECT_EQ(beta.Call(*beta.index, &v1::IndexService::Stub::DeleteIndex, remove, &removed).error_code(),
            StatusCode::NOT_FOUND);
}

// Handles made of what another tenant has, of the caller's own index, and of chance.
TEST_F(TenantsTest, OfForgedHandlesNoneIsAnswered) {
  constexpr int kHandles = 100'000, kAtOnce = 1000;
  const std::string foreign = absl::StrCat(kMarker, "-index");
  const v1::SequenceHandle theirs = Settle(foreign);
  const CallerStubs beta = As("beta");
  v1::SequenceHandle own;
  ASSERT_TRUE(beta.CreateIndex("mine").ok());
  ASSERT_TRUE(beta.CreateSequence("mine", "own", &own).ok());
  ASSERT_TRUE(beta.Append(own, 0, 10, 3).ok());
  std::mt19937_64 random(20261125);
  const auto word = [&] {
    std::string text;
    for (uint64_t n = 1 + random() % 20; n > 0; --n) text += static_cast<char>('!' + random() % 94);
    return text;
  };
  const auto forged = [&] {
    v1::SequenceHandle handle;
    const std::string indexes[] = {foreign, "acme/" + foreign, "mine", word(), foreign + word(), ""};
    handle.set_index(indexes[random() % 6]);
    const std::string ids[] = {theirs.id(), word(), theirs.id() + word(), ""};
    handle.set_id(ids[random() % 4]);
    const uint64_t generations[] = {0, theirs.generation(), random() % 16, random()};
    handle.set_generation(generations[random() % 4]);
    return handle;
  };
  grpc::ClientContext context;
  beta.Show(&context);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(50));
  const auto stream = beta.retrieval->Decode(&context);
  v1::DecodeResponse answer;
  int asked = 0, answered = 0, not_found = 0;
  std::map<int, int> others;
  for (; asked < kHandles; asked += kAtOnce) {
    v1::DecodeRequest step;
    for (int i = 0; i < kAtOnce; ++i) *step.add_items() = Query(forged(), 0);
    ASSERT_TRUE(stream->Write(step) && stream->Read(&answer));
    ASSERT_EQ(answer.answers_size(), kAtOnce);
    for (const v1::RetrieveAnswer& one : answer.answers()) {
      answered += one.has_status() ? 0 : 1;
      not_found += one.status().code() == static_cast<int>(StatusCode::NOT_FOUND) ? 1 : 0;
      ++others[one.status().code()];
      EXPECT_TRUE(one.positions().raw().empty());
    }
  }
  EXPECT_EQ(asked, kHandles);
  EXPECT_EQ(answered, 0);
  // The rest is INVALID_ARGUMENT: an id that is empty or too long, where the index is the caller's own.
  EXPECT_EQ(not_found + others[static_cast<int>(StatusCode::INVALID_ARGUMENT)], kHandles);
  EXPECT_GT(not_found, kHandles * 9 / 10);
  // The same handle is answered to its owner, so there was something to find.
  v1::DecodeRequest step;
  *step.add_items() = Query(own, 0);
  ASSERT_TRUE(stream->Write(step) && stream->Read(&answer));
  EXPECT_FALSE(answer.answers(0).has_status());
}

TEST_F(TenantsTest, NotThereAndNotYoursAreOneText) {
  const std::string foreign = absl::StrCat(kMarker, "-index"), nowhere = absl::StrCat(kMarker, "-nowhere");
  Settle(foreign);
  const CallerStubs beta = As("beta");
  const auto said = [&](const std::string& name) {
    v1::GetIndexRequest request;
    v1::GetIndexResponse response;
    request.set_name(name);
    const auto status = beta.Call(*beta.index, &v1::IndexService::Stub::GetIndex, request, &response);
    return absl::StrCat(status.error_code(), " ", absl::StrReplaceAll(status.error_message(), {{name, "NAME"}}), " ",
                        DetailsOf(status).reason, " ", DetailsOf(status).field);
  };
  EXPECT_EQ(said(foreign), said(nowhere));
}

// Everything that a tenant does and hears, on one server alone and on another beside a tenant that has as much.
class PairedTest : public TenantsTest {
 protected:
  template <typename Stub, typename Request, typename Response>
  void Do(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
          const Request& request) {
    Response response;
    const grpc::Status status = beta_->Call(stub, method, request, &response);
    Clear(&response);
    absl::StrAppend(&transcript_, Request::descriptor()->name(), " -> ", status.error_code(), " ",
                    status.error_message(), " ", Sorted(status.error_details()), " ", response.SerializeAsString(),
                    "\n");
  }
  // The order of details is by chance.
  static std::string Sorted(const std::string& details) {
    v1::Status status;
    EXPECT_TRUE(status.ParseFromString(details));
    std::vector<std::string> all;
    for (const auto& detail : status.details()) all.push_back(detail.SerializeAsString());
    std::sort(all.begin(), all.end());
    return absl::StrJoin(all, " ");
  }
  static void Clear(v1::GetServerInfoResponse* response) { response->clear_uptime_seconds(); }
  static void Clear(v1::RetrieveResponse* response) {
    response->clear_server_us();
    for (v1::RetrieveAnswer& answer : *response->mutable_answers()) {
      const std::string details = Sorted(answer.status().SerializeAsString());
      answer.mutable_status()->clear_details();
      answer.mutable_status()->mutable_message()->append(details);
    }
  }
  static void Clear(google::protobuf::Message*) {}

  // What beta does, to its own and to what is not its own.
  std::string Transcript() {
    const CallerStubs beta = As("beta");
    beta_ = &beta;
    transcript_.clear();
    v1::SequenceHandle own;
    absl::StrAppend(&transcript_, beta.CreateIndex("x").error_message(), beta.CreateIndex("x").error_message(), "\n");
    absl::StrAppend(&transcript_, beta.CreateSequence("x", "", &own).error_message(), own.SerializeAsString(), "\n");
    absl::StrAppend(&transcript_, beta.Append(own, 0, 300, 5).error_message(), "\n");
    v1::SequenceHandle foreign;
    foreign.set_index(absl::StrCat(kMarker, "-index"));
    foreign.set_id(absl::StrCat(kMarker, "-chat"));
    for (const v1::SequenceHandle& handle : {own, foreign}) {
      v1::GetIndexRequest get;
      get.set_name(handle.index());
      Do(*beta.index, &v1::IndexService::Stub::GetIndex, get);
      v1::GetSequenceRequest sequence;
      *sequence.mutable_handle() = handle;
      Do(*beta.sequence, &v1::SequenceService::Stub::GetSequence, sequence);
      v1::ListSequencesRequest list;
      list.set_index(handle.index());
      Do(*beta.sequence, &v1::SequenceService::Stub::ListSequences, list);
      v1::ForkSequenceRequest fork;
      *fork.mutable_source() = handle;
      Do(*beta.sequence, &v1::SequenceService::Stub::ForkSequence, fork);
      v1::RetrieveRequest retrieve;
      *retrieve.add_items() = Query(handle, 0);
      Do(*beta.retrieval, &v1::RetrievalService::Stub::Retrieve, retrieve);
      v1::GatherRequest gather;
      *gather.mutable_handle() = handle;
      *gather.mutable_positions() = Positions({0, 7, 299});
      gather.set_keys(true);
      gather.set_values(true);
      Do(*beta.retrieval, &v1::RetrievalService::Stub::Gather, gather);
      v1::DescribeHeadRequest head;
      *head.mutable_handle() = handle;
      Do(*beta.admin, &v1::AdminService::Stub::DescribeHead, head);
      v1::MeasureProfileRequest measure;
      *measure.add_sequences() = handle;
      Do(*beta.admin, &v1::AdminService::Stub::MeasureProfile, measure);
      v1::CompareExactRequest compare;
      compare.set_index(handle.index());
      compare.set_sequence(handle.id());
      Do(*beta.admin, &v1::AdminService::Stub::CompareExact, compare);
      v1::DescribeStepRequest step;
      *step.mutable_handle() = handle;
      Do(*beta.admin, &v1::AdminService::Stub::DescribeStep, step);
      v1::ScoreRequest score;
      *score.mutable_handle() = handle;
      Do(*beta.eviction, &v1::EvictionService::Stub::Score, score);
      v1::EvictRequest evict;
      *evict.mutable_handle() = handle;
      evict.mutable_budget()->set_tokens(200);
      Do(*beta.eviction, &v1::EvictionService::Stub::Evict, evict);
      v1::TruncateSequenceRequest truncate;
      *truncate.mutable_handle() = handle;
      truncate.set_position(299);
      Do(*beta.sequence, &v1::SequenceService::Stub::TruncateSequence, truncate);
    }
    Do(*beta.index, &v1::IndexService::Stub::ListIndexes, v1::ListIndexesRequest());
    Do(*beta.admin, &v1::AdminService::Stub::GetServerInfo, v1::GetServerInfoRequest());
    for (const std::string& name : {foreign.index(), own.index()}) {
      v1::DeleteIndexRequest remove;
      remove.set_name(name);
      Do(*beta.index, &v1::IndexService::Stub::DeleteIndex, remove);
    }
    beta_ = nullptr;
    return transcript_;
  }

  const CallerStubs* beta_ = nullptr;
  std::string transcript_;
};

TEST_F(PairedTest, ATenantHearsTheSameWhateverAnotherHas) {
  const std::string alone = Transcript();
  const v1::SequenceHandle theirs = Settle(absl::StrCat(kMarker, "-index"));
  EXPECT_TRUE(As("acme").CreateIndex("x").ok());
  const std::string beside = Transcript();
  EXPECT_EQ(alone, beside);
  EXPECT_GT(alone.size(), 20'000u) << "there was something to hear";
  // And the other tenant's is all there.
  const CallerStubs acme = As("acme");
  EXPECT_TRUE(acme.Append(theirs, 300, 1, 9).ok());
}

TEST_F(PairedTest, NoLineOfTheLogAboutATenantHoldsAnothersNames) {
  const auto before = spdlog::default_logger();
  std::ostringstream lines;
  auto logger = std::make_shared<spdlog::logger>(kLogName, std::make_shared<spdlog::sinks::ostream_sink_mt>(lines));
  logger->set_level(spdlog::level::debug);
  spdlog::set_default_logger(logger);
  Settle(absl::StrCat(kMarker, "-index"));
  const CallerStubs beta = As("beta");
  v1::SequenceHandle own;
  EXPECT_TRUE(beta.CreateIndex("x").ok());
  EXPECT_FALSE(beta.CreateSequence("nowhere", "", &own).ok());
  EXPECT_TRUE(beta.CreateSequence("x", "s", &own).ok());
  v1::DeleteIndexRequest remove;
  v1::DeleteIndexResponse removed;
  remove.set_name("x");
  EXPECT_TRUE(beta.Call(*beta.index, &v1::IndexService::Stub::DeleteIndex, remove, &removed).ok());
  server_ = nullptr;
  spdlog::set_default_logger(before);
  int of_beta = 0, of_acme = 0;
  std::istringstream all(lines.str());
  for (std::string line; std::getline(all, line);) {
    const bool has_marker = line.find(kMarker) != std::string::npos, has_beta = line.find("beta") != std::string::npos;
    EXPECT_FALSE(has_marker && has_beta) << line;
    of_beta += has_beta ? 1 : 0;
    of_acme += has_marker ? 1 : 0;
  }
  EXPECT_GE(of_beta, 3) << lines.str();
  EXPECT_GE(of_acme, 1) << lines.str();
}

TEST_F(TenantsTest, ASameHostChannelIsTheCallersThatOpenedIt) {
  const v1::SequenceHandle theirs = Settle("x");
  const auto open = [&](const std::string& token) {
    const CallerStubs stubs = As(token);
    v1::OpenChannelResponse offer;
    const auto service = v1::SharedMemoryService::NewStub(stubs.channel);
    const grpc::Status status =
        stubs.Call(*service, &v1::SharedMemoryService::Stub::OpenChannel, v1::OpenChannelRequest(), &offer);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return RawChannel::Open(offer);
  };
  v1::DecodeRequest step;
  *step.add_items() = Query(theirs, 0);
  for (const auto& [token, code] : {std::pair{"acme", 0}, std::pair{"beta", static_cast<int>(StatusCode::NOT_FOUND)}}) {
    const auto channel = open(token);
    ASSERT_NE(channel, nullptr);
    v1::DecodeResponse answer;
    ASSERT_TRUE(channel->Send(step) && channel->Read(&answer));
    ASSERT_EQ(answer.answers_size(), 1);
    EXPECT_EQ(answer.answers(0).status().code(), code) << token;
  }
  // A channel goes on by the credential that opened it.
  const auto channel = open("acme-reader");
  ASSERT_NE(channel, nullptr);
  v1::DecodeResponse answer;
  ASSERT_TRUE(channel->Send(step) && channel->Read(&answer));
  EXPECT_FALSE(answer.answers(0).has_status());
  ReplaceFile(Path("tokens.yaml"), TokenEntry("beta", "beta", "admin"));
  ASSERT_TRUE(server_->core().access->Reload().ok());
  ASSERT_TRUE(channel->Send(step) && channel->Read(&answer));
  EXPECT_EQ(answer.status().code(), static_cast<int>(StatusCode::UNAUTHENTICATED));
}

}  // namespace
}  // namespace seine::test
