// Clients that crash, hang, lie and hurry, and what others see of it: nothing. Both ways of serving.
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <future>
#include <thread>

#include "kernels/stop.h"
#include "seine/v1/subspace_service.grpc.pb.h"
#include "service/scheduling/executor.h"
#include "service/transport/rpc_methods.h"
#include "service/transport/sockets/connections.h"
#include "service/transport/sockets/descriptors.h"
#include "service/under_way/in_flight.h"
#include "service/under_way/open_calls.h"
#include "tests/service/fixture.h"

namespace seine::test {
namespace {

using grpc::StatusCode;
using DecodeCall = grpc::ClientReaderWriter<v1::DecodeRequest, v1::DecodeResponse>;
using Clock = std::chrono::steady_clock;

class HostileTest : public ServerTest {
 protected:
  ServerOptions Options() const override {
    ServerOptions options = ServerTest::Options();
    options.core.unread_for = std::chrono::milliseconds(300);
    options.core.stuck_for = std::chrono::milliseconds(300);
    options.core.workers = 2;
    return options;
  }
  grpc::Status SendBytes(const std::string& path, const std::string& bytes) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    const grpc::internal::RpcMethod rpc(path.c_str(), grpc::internal::RpcMethod::NORMAL_RPC, stubs_->channel);
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer sent(&slice, 1);
    grpc::ByteBuffer received;
    const auto status = grpc::internal::BlockingUnaryCall(stubs_->channel.get(), rpc, &context, sent, &received);
    grpc::Slice whole;
    if (status.ok() && received.DumpToSingleSlice(&whole).ok()) {
      answer_.assign(reinterpret_cast<const char*>(whole.begin()), whole.size());
    }
    return status;
  }
  bool Serving() { return SendBytes("/grpc.health.v1.Health/Check", "").ok() && answer_ == "\x08\x01"; }
  // The time of a step of a client of its own.
  Clock::duration StepOfAnother(const v1::SequenceHandle& handle) {
    const Stubs another(server_->address());
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(40));
    const auto stream = another.retrieval->Decode(&context);
    v1::DecodeRequest step;
    v1::DecodeResponse response;
    *step.add_items() = Query(handle, 0);
    const auto begin = Clock::now();
    EXPECT_TRUE(stream->Write(step) && stream->Read(&response));
    EXPECT_FALSE(response.has_status()) << response.status().message();
    const auto took = Clock::now() - begin;
    stream->WritesDone();
    EXPECT_TRUE(stream->Finish().ok());
    return took;
  }
  std::string answer_;
};

TEST_P(HostileTest, BytesThatAreNoMessageAreInvalidWithAText) {
  for (const RpcMethod& method : RpcMethods()) {
    const std::string path = std::string("/") + method.service + "/" + method.name;
    const grpc::Status status = SendBytes(path, "\xff\xff\xff");
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << path;
    EXPECT_EQ(DetailsOf(status).reason, "MALFORMED") << path << ": " << status.error_message();
  }
  const grpc::Status step = SendBytes("/seine.v1.RetrievalService/Decode", "\xff\xff\xff");
  EXPECT_EQ(step.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(step.error_message().find("DecodeRequest"), std::string::npos) << step.error_message();
}

// The piece before it was taken; the stream says that the next was not.
TEST_P(HostileTest, AStreamWithABrokenPieceDoesNotEndOk) {
  const auto handle = NewSequence("keys");
  grpc::ClientContext context;
  const grpc::internal::RpcMethod rpc("/seine.v1.RetrievalService/AppendStream",
                                      grpc::internal::RpcMethod::CLIENT_STREAMING, stubs_->channel);
  v1::AppendStreamResponse totals;
  const std::unique_ptr<grpc::ClientWriter<grpc::ByteBuffer>> stream(
      grpc::internal::ClientWriterFactory<grpc::ByteBuffer>::Create(stubs_->channel.get(), rpc, &context, &totals));
  v1::AppendStreamRequest piece;
  *piece.mutable_item() = Item(handle, 0, 0, 10);
  for (const std::string& bytes : {piece.SerializeAsString(), std::string("\xff\xff\xff")}) {
    const grpc::Slice slice(bytes);
    stream->Write(grpc::ByteBuffer(&slice, 1));
  }
  stream->WritesDone();
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::INVALID_ARGUMENT);
}

TEST_P(HostileTest, CompressedMessagesAreRefusedAndNotInflated) {
  const auto handle = NewSequence("keys");
  const std::string before = Digest();
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    v1::AppendRequest request;
    v1::AppendResponse response;
    *request.mutable_item() = Item(handle, 0, 0, 64);
    request.mutable_item()->mutable_keys()->mutable_raw()->assign(64 * kKvHeads * kDim * 2, '\0');
    const grpc::Status status = stubs_->retrieval->Append(&context, request, &response);
    EXPECT_EQ(status.error_code(), StatusCode::UNIMPLEMENTED);
    EXPECT_NE(status.error_message().find("ompress"), std::string::npos) << status.error_message();
  }
  EXPECT_EQ(Digest(), before);
}

TEST_P(HostileTest, MethodsThatItDoesNotHaveAreNamedAndAFloodOfThemIsCutOff) {
  const grpc::Status told = SendBytes("/seine.v1.RetrievalService/Divine", "");
  EXPECT_EQ(told.error_code(), StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(told.error_message(), "this server has no method /seine.v1.RetrievalService/Divine");
  EXPECT_TRUE(Serving());
  const Connections& connections = server_->core().connections;
  for (int i = 0; i < 20'000 && connections.cut_resets() == 0; ++i) SendBytes("/seine.v1.RetrievalService/Divine", "");
  EXPECT_EQ(connections.cut_resets(), 1);
}

// More streams than lanes, whose clients read neither announcements nor answers. As many as hold large answers at once:
// the next would be told so in a small one.
TEST_P(HostileTest, ClientsThatDoNotReadHoldNobodyUpAndAreCutOff) {
  const auto handle = NewSequence("keys");
  ASSERT_TRUE(Append(Item(handle, 0, 0, 2100)).ok());
  v1::DecodeRequest step;
  for (int i = 0; i < 64; ++i) *step.add_items() = Query(handle, 0, i);
  step.mutable_selector()->set_top_k(2000);  // 2 MB an answer: more than windows and sockets take
  step.mutable_selector()->set_with_scores(true);
  step.set_notify_early(true);
  grpc::ChannelArguments small_windows;
  small_windows.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  small_windows.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto stub = v1::RetrievalService::NewStub(
      grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), small_windows));
  std::deque<grpc::ClientContext> contexts;
  std::vector<std::unique_ptr<DecodeCall>> streams;
  for (int i = 0; i < 7; ++i) {  // all of which the limit admits: an answer counts twice while it is made
    streams.push_back(stub->Decode(&contexts.emplace_back()));
    streams.back()->Write(step);
  }
  EXPECT_LT(StepOfAnother(handle), std::chrono::seconds(30));  // sanitizers take their time; it was never
  EXPECT_TRUE(Serving());
  const auto begin = Clock::now();  // the streams end by themselves, each with its reason in the log
  while (server_->core().open_calls.Count()["Decode"] > 0 && Clock::now() - begin < std::chrono::seconds(40)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(server_->core().open_calls.Count()["Decode"], 0);
  EXPECT_LT(StepOfAnother(handle), std::chrono::seconds(30));  // sanitizers take their time; it was never
}

// A client that is stopped takes nothing from its socket: its connection is cut off with all that was to go there, and
// the descriptors of those that left are given back.
TEST_P(HostileTest, AConnectionThatNobodyReadsIsCutOff) {
  const int before = OpenDescriptors();
  {
    const Stubs others(server_->address());
    v1::ListIndexesResponse list;
    ASSERT_TRUE(Call(*others.index, &v1::IndexService::Stub::ListIndexes, v1::ListIndexesRequest(), &list).ok());
    EXPECT_GT(OpenDescriptors(), before);
  }
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = dir_.path + "/seine.sock";
  memcpy(address.sun_path, path.data(), path.size());
  ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  std::string flood("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
  for (int i = 0; i < 20'000; ++i) flood += std::string("\0\0\0\4\0\0\0\0\0", 9);  // SETTINGS, each to be answered
  size_t sent = 0;
  const auto begin = Clock::now();
  bool cut = false;
  while (!cut && Clock::now() - begin < std::chrono::seconds(10)) {
    const ssize_t count =
        send(fd, flood.data() + sent % flood.size(), flood.size() - sent % flood.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    cut = count < 0 && errno == EPIPE;
    if (count > 0 && sent < flood.size()) sent += static_cast<size_t>(count);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(cut);
  close(fd);
  for (int tries = 0; tries < 500 && OpenDescriptors() > before; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_LE(OpenDescriptors(), before);
}

TEST_P(HostileTest, IdleStreamsTakeNothingFromCalls) {
  const auto handle = NewSequence("keys");
  std::deque<grpc::ClientContext> contexts;
  std::deque<v1::AppendStreamResponse> totals;
  std::vector<std::unique_ptr<grpc::ClientWriter<v1::AppendStreamRequest>>> streams;
  for (int i = 0; i < 40; ++i) {
    streams.push_back(stubs_->retrieval->AppendStream(&contexts.emplace_back(), &totals.emplace_back()));
    v1::AppendStreamRequest piece;
    *piece.mutable_item() = Item(NewSequence("keys"), 0, 0, 1);
    ASSERT_TRUE(streams.back()->Write(piece));
  }
  EXPECT_TRUE(Append(Item(handle, 0, 0, 10)).ok());
  EXPECT_TRUE(Serving());
  for (auto& stream : streams) {
    stream->WritesDone();
    EXPECT_TRUE(stream->Finish().ok());
  }
  EXPECT_EQ(totals.back().tokens(), 1);
}

TEST_P(HostileTest, HealthSaysThatNoWorkerGetsAnywhereAndWhenTheyDoAgain) {
  std::promise<void> release;
  auto released = release.get_future().share();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(server_->core().executor.Submit([released] { released.wait(); }));
  const auto until = [&](bool serving) {
    for (int tries = 0; tries < 500 && Serving() != serving; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return Serving() == serving;
  };
  EXPECT_TRUE(Serving());
  EXPECT_TRUE(until(false));
  release.set_value();
  EXPECT_TRUE(until(true));
}

TEST_P(HostileTest, UnreadyServerServesOn) {
  server_->Unready();
  EXPECT_FALSE(Serving());
  EXPECT_TRUE(Append(Item(NewSequence("keys"), 0, 0, 10)).ok());
}

// Counts how often the server has looked for answers that nobody reads, which it does before it looks after health.
class LookCounter final : public OpenCall {
 public:
  void Drain() override {}
  void Stop(StopReason) override {}
  void CutUnread(SteadyTime) override { ++looks_; }
  void CutUnsent(SteadyTime) override {}
  const char* method() const override { return "a test"; }
  void Await(int looks) const {
    while (looks_ < looks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  std::atomic<int> looks_{0};
};

// Before, the server's next look at its workers said SERVING again, within half a second.
TEST_P(HostileTest, UnreadyServerStaysUnready) {
  server_->Unready();
  LookCounter counter;
  ASSERT_TRUE(server_->core().open_calls.Add(&counter));
  counter.Await(2);  // the first look is over by then, health's too
  server_->core().open_calls.Remove(&counter);
  EXPECT_FALSE(Serving());
}

// A stream that waits for its client is told why it ends, and the server does not wait for it.
TEST_P(HostileTest, AtTheEndIdleStreamsAreToldWhy) {
  const Stubs another(server_->address());
  grpc::ClientContext context;
  v1::AppendStreamResponse totals;
  const auto stream = another.retrieval->AppendStream(&context, &totals);
  const auto decode_context = std::make_unique<grpc::ClientContext>();
  const auto decode = another.retrieval->Decode(decode_context.get());
  while (server_->core().open_calls.Count()["Decode"] + server_->core().open_calls.Count()["AppendStream"] < 2) {
    std::this_thread::yield();
  }
  const auto begin = Clock::now();
  server_->Shutdown(absl::Milliseconds(200));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(decode->Finish().error_code(), StatusCode::UNAVAILABLE);
}

INSTANTIATE_TEST_SUITE_P(Serving, HostileTest, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "Polling" : "Default"; });

// Bytes under way are bounded: a call that does not fit is refused, with a time to try again, and they are given back.
class InFlightTest : public HostileTest {
 protected:
  ServerOptions Options() const override {
    ServerOptions options = HostileTest::Options();
    options.core.max_message_bytes = 1 << 20;
    options.core.in_flight_limit_bytes = 3 << 20;
    options.core.workers = 1;
    return options;
  }
};

TEST_P(InFlightTest, WhatWaitsIsAdmittedAndGivenBack) {
  const auto handle = NewSequence("keys");
  std::promise<void> release;
  ASSERT_TRUE(server_->core().executor.Submit([released = release.get_future().share()] { released.wait(); }));
  std::vector<std::future<grpc::Status>> appends;
  for (int i = 0; i < 6; ++i) {  // of 900 KB each, behind a worker that is busy
    appends.push_back(std::async(std::launch::async, [&, i] { return Append(Item(handle, 0, i * 3500, 3500)); }));
  }
  int refused = 0;
  const auto count_refused = [&](bool last) {
    for (auto& append : appends) {
      if (!append.valid() || (!last && append.wait_for(std::chrono::seconds(0)) != std::future_status::ready)) continue;
      const grpc::Status status = append.get();
      if (status.error_code() != StatusCode::RESOURCE_EXHAUSTED) continue;
      ++refused;
      EXPECT_EQ(DetailsOf(status).reason, "IN_FLIGHT_LIMIT") << status.error_message();
      EXPECT_TRUE(DetailsOf(status).retry);
    }
  };
  for (int tries = 0; tries < 1000 && refused < 4; ++tries) {
    count_refused(false);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(refused, 4);  // three quarters are for large messages: two
  EXPECT_GT(server_->core().in_flight.used_bytes(), 1 << 20);
  EXPECT_TRUE(Serving());
  release.set_value();
  count_refused(true);
  EXPECT_TRUE(Append(Item(NewSequence("keys"), 0, 0, 3500)).ok());
  for (int tries = 0; tries < 1000 && server_->core().in_flight.used_bytes() > 0; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(server_->core().in_flight.used_bytes(), 0);
}

INSTANTIATE_TEST_SUITE_P(Serving, InFlightTest, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "Polling" : "Default"; });

}  // namespace
}  // namespace seine::test
