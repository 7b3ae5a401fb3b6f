// How a server serves, in both ways: health, reflection, its socket, shutdown, overload, deadlines, oversized messages.
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <future>
#include <latch>
#include <thread>

#include "service/scheduling/executor.h"
#include "tests/service/fixture.h"

namespace seine::test {
namespace {

using grpc::StatusCode;

class ServingTest : public ServerTest {
 protected:
  // Bytes in, bytes out: for services whose protos are not ours.
  grpc::Status Raw(const char* method, const std::string& request, std::string* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    const grpc::internal::RpcMethod rpc(method, grpc::internal::RpcMethod::NORMAL_RPC, stubs_->channel);
    const grpc::Slice slice(request);
    const grpc::ByteBuffer sent(&slice, 1);
    grpc::ByteBuffer received;
    const auto status = grpc::internal::BlockingUnaryCall(stubs_->channel.get(), rpc, &context, sent, &received);
    grpc::Slice bytes;
    if (status.ok() && received.DumpToSingleSlice(&bytes).ok()) {
      response->assign(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
    }
    return status;
  }
};

TEST_P(ServingTest, HealthAndReflection) {
  std::string response;
  for (const std::string service : {"", "seine.v1.IndexService", "seine.v1.SequenceService",
                                    "seine.v1.RetrievalService", "seine.v1.AdminService"}) {
    std::string request;
    if (!service.empty()) request = std::string("\x0a") + static_cast<char>(service.size()) + service;
    ASSERT_TRUE(Raw("/grpc.health.v1.Health/Check", request, &response).ok()) << service;
    EXPECT_EQ(response, std::string("\x08\x01")) << service;  // SERVING
  }
  EXPECT_EQ(Raw("/grpc.health.v1.Health/Check", "\x0a\x03xyz", &response).error_code(), StatusCode::NOT_FOUND);

  grpc::ClientContext context;
  const grpc::internal::RpcMethod rpc("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                                      grpc::internal::RpcMethod::BIDI_STREAMING, stubs_->channel);
  using Factory = grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>;
  const std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream(
      Factory::Create(stubs_->channel.get(), rpc, &context));
  const grpc::Slice slice(std::string("\x3a\x01*"));  // {list_services: "*"}
  stream->Write(grpc::ByteBuffer(&slice, 1));
  grpc::ByteBuffer received;
  ASSERT_TRUE(stream->Read(&received));
  grpc::Slice bytes;
  ASSERT_TRUE(received.DumpToSingleSlice(&bytes).ok());
  const std::string services(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
  for (const char* name :
       {"seine.v1.IndexService", "seine.v1.SequenceService", "seine.v1.RetrievalService", "seine.v1.AdminService"}) {
    EXPECT_NE(services.find(name), std::string::npos) << name;
  }
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

const char kServing[] = "\x08\x01", kNotServing[] = "\x08\x02";

// A Watch of the whole server's health.
class Watch {
 public:
  explicit Watch(const Stubs& stubs) : channel_(stubs.channel) {}
  std::string Next() {
    grpc::ByteBuffer received;
    grpc::Slice bytes;
    if (!stream_->Read(&received) || !received.DumpToSingleSlice(&bytes).ok()) return "ended";
    return {reinterpret_cast<const char*>(bytes.begin()), bytes.size()};
  }

 private:
  using Factory = grpc::internal::ClientReaderFactory<grpc::ByteBuffer>;
  const std::shared_ptr<grpc::Channel> channel_;
  const grpc::Slice whole_server_;
  const grpc::internal::RpcMethod rpc_{"/grpc.health.v1.Health/Watch", grpc::internal::RpcMethod::SERVER_STREAMING,
                                       channel_};
  grpc::ClientContext context_;
  const std::unique_ptr<grpc::ClientReader<grpc::ByteBuffer>> stream_{
      Factory::Create(channel_.get(), rpc_, &context_, grpc::ByteBuffer(&whole_server_, 1))};
};

TEST_P(ServingTest, HealthSaysThatTheServerDrainsAndThatItsServicesServe) {
  Watch watch(*stubs_);
  ASSERT_EQ(watch.Next(), kServing);
  server_->core().draining = true;
  std::string response;
  ASSERT_TRUE(Raw("/grpc.health.v1.Health/Check", "", &response).ok());
  EXPECT_EQ(response, kNotServing);
  ASSERT_TRUE(Raw("/grpc.health.v1.Health/Check", "\x0a\x15seine.v1.AdminService", &response).ok());
  EXPECT_EQ(response, kServing);
  EXPECT_EQ(watch.Next(), kNotServing);
  server_->core().draining = false;
  EXPECT_EQ(watch.Next(), kServing);
}

TEST_P(ServingTest, WatchersOfHealthHearOfTheEndAndDoNotDelayIt) {
  Watch watch(*stubs_);
  ASSERT_EQ(watch.Next(), kServing);
  const auto begin = std::chrono::steady_clock::now();
  std::thread shutdown([&] { server_->Shutdown(absl::Seconds(8)); });
  EXPECT_EQ(watch.Next(), kNotServing);
  EXPECT_EQ(watch.Next(), "ended");
  shutdown.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4));
}

TEST_P(ServingTest, SocketIsForItsOwnerAlone) {
  struct stat info;
  ASSERT_EQ(stat((dir_.path + "/seine.sock").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_P(ServingTest, SecondServerOnTheSocketIsRefusedAndTheFirstLivesOn) {
  const auto second = Server::Start(Options());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists) << second.status();
  v1::ListIndexesResponse list;
  EXPECT_TRUE(Call(*stubs_->index, &v1::IndexService::Stub::ListIndexes, v1::ListIndexesRequest(), &list).ok());
}

TEST_P(ServingTest, ShutdownEndsIdleStreamsAtOnceAndFinishesTheBusy) {
  const auto handle = NewSequence("keys");
  grpc::ClientContext decode_context, append_context;
  auto decode = stubs_->retrieval->Decode(&decode_context);
  v1::DecodeRequest step;
  v1::DecodeResponse response;
  *step.add_appends() = Item(handle, 0, 0, 10);
  decode->Write(step);
  ASSERT_TRUE(decode->Read(&response));
  v1::AppendStreamResponse totals;
  auto append = stubs_->retrieval->AppendStream(&append_context, &totals);
  v1::AppendStreamRequest piece;
  *piece.mutable_item() = Item(handle, 1, 0, 10);
  append->Write(piece);
  v1::GetSequenceRequest get;
  v1::GetSequenceResponse got;
  *get.mutable_handle() = handle;
  while (got.sequence().layer_tokens_size() == 0 ||
         got.sequence().layer_tokens(1) == 0) {  // until the server works on it
    ASSERT_TRUE(Call(*stubs_->sequence, &v1::SequenceService::Stub::GetSequence, get, &got).ok());
  }

  const auto begin = std::chrono::steady_clock::now();
  std::thread shutdown([&] { server_->Shutdown(absl::Seconds(10)); });
  EXPECT_FALSE(decode->Read(&response));
  EXPECT_EQ(decode->Finish().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(append->Finish().error_code(), StatusCode::UNAVAILABLE);
  shutdown.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_FALSE(Append(Item(handle, 0, 10, 1)).ok());
}

// gRPC's own end would wait for the poller that it starts for what a socket does not take at once.
TEST_P(ServingTest, TheLastServerAndClientEndAtOnceAfterLargeMessages) {
  const auto handle = NewSequence("keys");
  {
    grpc::ClientContext context;
    auto stream = stubs_->retrieval->Decode(&context);
    v1::DecodeResponse response;
    for (int i = 0; i < 8; ++i) {
      v1::DecodeRequest step;
      *step.add_appends() = Item(handle, 0, i * 8192, 8192, i);
      stream->Write(step);
      ASSERT_TRUE(stream->Read(&response));
    }
    stream->WritesDone();
    EXPECT_TRUE(stream->Finish().ok());
  }
  const auto begin = std::chrono::steady_clock::now();
  stubs_.reset();
  server_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

// More streams than threads that answer them (decode_lanes.h): all are answered, also those opened while others end.
TEST_P(ServingTest, ManyDecodeStreamsAreAllAnswered) {
  constexpr int kStreams = 20, kRounds = 3;
  struct Open {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::DecodeRequest, v1::DecodeResponse>> stream;
    v1::SequenceHandle handle;
    int64_t tokens = 0;
  };
  std::vector<std::unique_ptr<Open>> open(kStreams);
  for (int round = 0; round < kRounds; ++round) {
    for (int i = round; i < kStreams; i += round + 1) {  // others stay open
      auto& o = open[i];
      if (o != nullptr) {
        o->stream->WritesDone();
        EXPECT_TRUE(o->stream->Finish().ok());
      }
      o = std::make_unique<Open>();
      o->handle = NewSequence("keys");
      o->stream = stubs_->retrieval->Decode(&o->context);
    }
    v1::DecodeRequest step;
    v1::DecodeResponse response;
    for (auto& o : open) {
      step.clear_appends();
      *step.add_appends() = Item(o->handle, 0, o->tokens, 10, /*seed=*/static_cast<uint32_t>(o->tokens) + 1);
      o->tokens += 10;
      ASSERT_TRUE(o->stream->Write(step));
    }
    for (auto& o : open) {
      ASSERT_TRUE(o->stream->Read(&response));
      ASSERT_EQ(response.append_status_size(), 1);
      EXPECT_EQ(response.append_status(0).code(), 0) << response.append_status(0).message();
    }
  }
  for (auto& o : open) o->context.TryCancel();
}

// Announcements come only where they are asked for, at most one a step and before its answer; answers are what they are
// without them. Several streams at once: events of others are at hand while one's announcement is on its way. Tasks
// that the machine's load stretches leave no moment for one, so that some come is asked of a stream that has it alone.
TEST_P(ServingTest, LongStepsAreAnnouncedWhereAsked) {
  constexpr int kStreams = 10, kRounds = 3, kItems = 128, kMostTries = 400;
  const auto handle = NewSequence("keys");
  ASSERT_TRUE(Append(Item(handle, 0, 0, 300)).ok());
  v1::DecodeRequest step;
  for (int i = 0; i < kItems; ++i) *step.add_items() = Query(handle, 0, /*seed=*/i + 1);
  step.mutable_selector()->set_exact(true);  // short tasks, also where a sanitizer watches
  step.set_step(7);
  struct Open {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::DecodeRequest, v1::DecodeResponse>> stream;
  };
  std::vector<Open> open(kStreams);
  for (Open& o : open) o.stream = stubs_->retrieval->Decode(&o.context);
  v1::DecodeResponse expected, response;
  for (int round = 0; round < kRounds; ++round) {
    ASSERT_TRUE(open[0].stream->Write(step) && open[0].stream->Read(&expected));
    EXPECT_FALSE(expected.answer_imminent());
  }
  ASSERT_EQ(expected.answers_size(), kItems);
  expected.clear_server_us();
  v1::DecodeResponse announcement;
  announcement.set_step(7);
  announcement.set_answer_imminent(true);
  step.set_notify_early(true);
  int announced = 0;
  const auto read = [&](Open& o) {
    ASSERT_TRUE(o.stream->Read(&response));
    if (response.answer_imminent()) {
      ++announced;
      EXPECT_EQ(response.SerializeAsString(), announcement.SerializeAsString());
      ASSERT_TRUE(o.stream->Read(&response));
    }
    response.clear_server_us();
    EXPECT_EQ(response.SerializeAsString(), expected.SerializeAsString());
  };
  for (int round = 0; round < kRounds; ++round) {
    for (Open& o : open) ASSERT_TRUE(o.stream->Write(step));
    for (Open& o : open) read(o);
  }
  for (int tries = 0; announced == 0 && tries < kMostTries; ++tries) {
    ASSERT_TRUE(open[0].stream->Write(step));
    read(open[0]);
  }
  EXPECT_GT(announced, 0);
  for (Open& o : open) {
    o.stream->WritesDone();
    EXPECT_TRUE(o.stream->Finish().ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Serving, ServingTest, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "Polling" : "Default"; });

// One worker and one place in the queue: what overload and deadlines do.
class OverloadTest : public ServingTest {
 protected:
  ServerOptions Options() const override {
    ServerOptions options = ServingTest::Options();
    options.core.workers = 1;
    options.core.queue_capacity = 1;
    options.core.max_message_bytes = 64 << 10;
    return options;
  }
  // Holds the worker until Release.
  void Block() {
    std::latch running(1);
    ASSERT_TRUE(server_->core().executor.Submit([&running, released = released_.get_future().share()] {
      running.count_down();
      released.wait();
    }));
    running.wait();
  }
  void Release() { released_.set_value(); }
  std::promise<void> released_;
};

TEST_P(OverloadTest, FullQueueRefusesWithRetryInfo) {
  const auto handle = NewSequence("keys");
  Block();
  auto queued = std::async(std::launch::async, [&] { return Append(Item(handle, 0, 0, 10)); });
  grpc::Status refused;  // as soon as the one place in the queue is taken
  do {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
    v1::AppendRequest request;
    v1::AppendResponse response;
    *request.mutable_item() = Item(handle, 1, 0, 10);
    refused = stubs_->retrieval->Append(&context, request, &response);
  } while (refused.error_code() == StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
  EXPECT_EQ(DetailsOf(refused).reason, "QUEUE_FULL");
  EXPECT_TRUE(DetailsOf(refused).retry);
  Release();
  queued.wait();
}

TEST_P(OverloadTest, DeadlinePassedInTheQueueAppliesNothing) {
  const auto handle = NewSequence("keys");
  const std::string before = Digest();
  Block();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  v1::AppendRequest request;
  v1::AppendResponse response;
  *request.mutable_item() = Item(handle, 0, 0, 10);
  EXPECT_EQ(stubs_->retrieval->Append(&context, request, &response).error_code(), StatusCode::DEADLINE_EXCEEDED);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the server's clock for the call may run a little late
  Release();
  v1::ListSequencesRequest list;  // the queue has one place: served again once the late call has left it
  v1::ListSequencesResponse sequences;
  list.set_index("keys");
  while (!Call(*stubs_->sequence, &v1::SequenceService::Stub::ListSequences, list, &sequences).ok()) {
    std::this_thread::yield();
  }
  EXPECT_EQ(Digest(), before);
}

TEST_P(OverloadTest, OversizedMessageIsRefusedAndTheRestLivesOn) {
  const auto handle = NewSequence("keys");
  const std::string before = Digest();
  const grpc::Status status = Append(Item(handle, 0, 0, 300));  // 76,800 bytes of keys
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(status.error_message().find("larger than max"), std::string::npos) << status.error_message();
  EXPECT_EQ(Digest(), before);
  EXPECT_TRUE(Append(Item(handle, 0, 0, 200)).ok());
}

INSTANTIATE_TEST_SUITE_P(Serving, OverloadTest, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "Polling" : "Default"; });

}  // namespace
}  // namespace seine::test
