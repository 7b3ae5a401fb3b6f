// Server reflection as a client sees it: what services there are, their protos, and what it refuses.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "seine/reflection/v1/reflection.pb.h"
#include "service/transport/reflection/descriptor_answers.h"
#include "service/transport/rpc_methods.h"
#include "service/transport/sockets/connections.h"
#include "service/under_way/in_flight.h"
#include "service/under_way/open_calls.h"
#include "tests/service/fixture.h"

namespace seine::test {
namespace {

using google::protobuf::FileDescriptorProto;
using grpc::StatusCode;
using reflection::v1::ServerReflectionRequest;
using reflection::v1::ServerReflectionResponse;

constexpr char kV1[] = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
constexpr char kV1Alpha[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

// One stream of a client.
class Stream {
 public:
  Stream(const Stubs& stubs, const char* method) {
    using Factory = grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>;
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(40));
    const grpc::internal::RpcMethod rpc(method, grpc::internal::RpcMethod::BIDI_STREAMING, stubs.channel);
    stream_.reset(Factory::Create(stubs.channel.get(), rpc, &context_));
  }
  bool Send(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    return stream_->Write(grpc::ByteBuffer(&slice, 1));
  }
  // False: the server has ended the stream.
  bool Receive(ServerReflectionResponse* response) {
    grpc::ByteBuffer received;
    grpc::Slice bytes;
    return stream_->Read(&received) && received.DumpToSingleSlice(&bytes).ok() &&
           response->ParseFromArray(bytes.begin(), static_cast<int>(bytes.size()));
  }
  ServerReflectionResponse Ask(const ServerReflectionRequest& request) {
    ServerReflectionResponse response;
    EXPECT_TRUE(Send(request.SerializeAsString()));
    EXPECT_TRUE(Receive(&response));
    EXPECT_EQ(response.original_request().SerializeAsString(), request.SerializeAsString());
    return response;
  }
  grpc::Status End() {
    stream_->WritesDone();
    return Status();
  }
  grpc::Status Status() { return stream_->Finish(); }
  void Cancel() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream_;
};

ServerReflectionRequest BySymbol(const std::string& symbol) {
  ServerReflectionRequest request;
  request.set_file_containing_symbol(symbol);
  return request;
}

ServerReflectionRequest ByName(const std::string& file) {
  ServerReflectionRequest request;
  request.set_file_by_filename(file);
  return request;
}

std::vector<std::string> Files(const ServerReflectionResponse& response) {
  std::vector<std::string> names;
  for (const std::string& bytes : response.file_descriptor_response().file_descriptor_proto()) {
    FileDescriptorProto file;
    EXPECT_TRUE(file.ParseFromString(bytes));
    names.push_back(file.name());
  }
  return names;
}

class ReflectionTest : public ServerTest {
 protected:
  ServerOptions Options() const override {
    ServerOptions options = ServerTest::Options();
    options.core.unread_for = std::chrono::milliseconds(500);
    return options;
  }
  static void Wait() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }
  grpc::Status Refused(const std::string& bytes) {
    Stream stream(*stubs_, kV1Alpha);
    ServerReflectionResponse none;
    EXPECT_TRUE(stream.Send(bytes));
    EXPECT_FALSE(stream.Receive(&none));
    return stream.Status();
  }
};

TEST_P(ReflectionTest, ListsAllServicesInBothVersions) {
  std::set<std::string> expected = {"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                                    "grpc.reflection.v1alpha.ServerReflection"};
  expected.insert(ServiceNames().begin(), ServiceNames().end());
  for (const char* method : {kV1, kV1Alpha}) {
    Stream stream(*stubs_, method);
    ServerReflectionRequest request;
    request.set_host("here");
    request.set_list_services("*");
    const ServerReflectionResponse response = stream.Ask(request);
    std::set<std::string> names;
    for (const auto& service : response.list_services_response().service()) names.insert(service.name());
    EXPECT_EQ(names, expected) << method;
    EXPECT_EQ(response.valid_host(), "here");
    EXPECT_TRUE(stream.End().ok()) << method;
  }
}

// A pool built of one answer knows the service: nothing it depends on is missing.
TEST_P(ReflectionTest, FileOfASymbolComesFirstAndWithAllThatItDependsOn) {
  Stream stream(*stubs_, kV1);
  const ServerReflectionResponse response = stream.Ask(BySymbol("seine.v1.RetrievalService.Decode"));
  const std::vector<std::string> names = Files(response);
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names[0], "seine/v1/retrieval_service.proto");
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  google::protobuf::SimpleDescriptorDatabase database;
  for (const std::string& bytes : response.file_descriptor_response().file_descriptor_proto()) {
    ASSERT_TRUE(database.AddAndOwn([&] {
      auto* const file = new FileDescriptorProto;
      file->ParseFromString(bytes);
      return file;
    }()));
  }
  google::protobuf::DescriptorPool pool(&database);
  const auto* const service = pool.FindServiceByName("seine.v1.RetrievalService");
  ASSERT_NE(service, nullptr);
  EXPECT_NE(service->FindMethodByName("Decode"), nullptr);
  EXPECT_TRUE(stream.End().ok());
}

TEST_P(ReflectionTest, DependenciesAreSentOnceAStreamAndTheFileAskedForEachTime) {
  Stream stream(*stubs_, kV1Alpha);
  const std::vector<std::string> first = Files(stream.Ask(ByName("seine/v1/status.proto")));
  EXPECT_EQ(
      std::set<std::string>(first.begin(), first.end()),
      (std::set<std::string>{"seine/v1/status.proto", "google/protobuf/any.proto", "google/protobuf/duration.proto"}));
  EXPECT_EQ(Files(stream.Ask(ByName("seine/v1/status.proto"))), std::vector<std::string>{"seine/v1/status.proto"});
  EXPECT_EQ(Files(Stream(*stubs_, kV1Alpha).Ask(ByName("seine/v1/status.proto"))), first);
}

TEST_P(ReflectionTest, ExtensionsOfAMessageAreNumbersAndNoneIsFoundWhereThereIsNone) {
  Stream stream(*stubs_, kV1);
  ServerReflectionRequest numbers;
  numbers.set_all_extension_numbers_of_type("seine.v1.Status");
  const ServerReflectionResponse listed = stream.Ask(numbers);
  ASSERT_TRUE(listed.has_all_extension_numbers_response());
  EXPECT_EQ(listed.all_extension_numbers_response().base_type_name(), "seine.v1.Status");
  EXPECT_EQ(listed.all_extension_numbers_response().extension_number_size(), 0);
  ServerReflectionRequest extension;
  extension.mutable_file_containing_extension()->set_containing_type("seine.v1.Status");
  extension.mutable_file_containing_extension()->set_extension_number(100);
  EXPECT_EQ(stream.Ask(extension).error_response().error_code(), StatusCode::NOT_FOUND);
  EXPECT_TRUE(stream.End().ok());
}

TEST_P(ReflectionTest, WhatItDoesNotHaveIsToldAndTheStreamGoesOn) {
  Stream stream(*stubs_, kV1);
  ServerReflectionRequest type;
  type.set_all_extension_numbers_of_type("seine.v1.Nothing");
  for (const auto& request : {BySymbol("seine.v1.Nothing"), BySymbol(""), ByName("nothing.proto"), type}) {
    const ServerReflectionResponse response = stream.Ask(request);
    EXPECT_EQ(response.error_response().error_code(), StatusCode::NOT_FOUND) << response.DebugString();
    EXPECT_NE(response.error_response().error_message().find("this server has no such"), std::string::npos);
  }
  EXPECT_EQ(stream.Ask({}).error_response().error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_FALSE(Files(stream.Ask(BySymbol("seine.v1.IndexService"))).empty());
  EXPECT_TRUE(stream.End().ok());
}

TEST_P(ReflectionTest, GarbageAndLongRequestsAreRefused) {
  const grpc::Status garbage = Refused("\xff\xff\xff");
  EXPECT_EQ(garbage.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(garbage.error_message(), "request: the bytes are no message seine.reflection.v1.ServerReflectionRequest");
  const grpc::Status longer =
      Refused(BySymbol(std::string(DescriptorAnswers::kMostRequestBytes, 's')).SerializeAsString());
  EXPECT_EQ(longer.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(longer.error_message(), "request: takes more than 4096 bytes");
  Stream stream(*stubs_, kV1);
  EXPECT_TRUE(stream.Ask(BySymbol(std::string(4000, 's'))).has_error_response());
  EXPECT_TRUE(stream.End().ok());
}

TEST_P(ReflectionTest, OpenStreamsEndWhereTheServerDrains) {
  Stream stream(*stubs_, kV1Alpha);
  stream.Ask(BySymbol("seine.v1.IndexService"));
  std::thread shutdown([&] { server_->Shutdown(absl::Seconds(20)); });
  ServerReflectionResponse none;
  EXPECT_FALSE(stream.Receive(&none));
  EXPECT_EQ(stream.Status().error_code(), StatusCode::UNAVAILABLE);
  shutdown.join();
}

// A client that asks on and reads nothing: its stream is cut off, and gives back what its answers held.
TEST_P(ReflectionTest, AClientThatDoesNotReadIsCutOff) {
  Core& core = server_->core();
  grpc::ChannelArguments small_windows;  // gRPC would make them larger as answers come
  small_windows.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  small_windows.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  Stubs silent(server_->address());
  silent.channel = grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), small_windows);
  Stream stream(silent, kV1);
  EXPECT_TRUE(stream.Send(BySymbol("seine.v1.RetrievalService").SerializeAsString()));
  std::thread asks([&] {
    const std::string bytes = BySymbol("seine.v1.RetrievalService").SerializeAsString();
    for (int i = 0; i < 1000 && stream.Send(bytes); ++i) continue;
  });
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (core.open_calls.Count()["ServerReflectionInfo"] == 0 && std::chrono::steady_clock::now() < end) Wait();
  EXPECT_FALSE(Files(Stream(*stubs_, kV1).Ask(BySymbol("seine.v1.IndexService"))).empty());
  while (core.open_calls.Count()["ServerReflectionInfo"] > 0 && std::chrono::steady_clock::now() < end) Wait();
  EXPECT_EQ(core.open_calls.Count()["ServerReflectionInfo"], 0);
  EXPECT_EQ(core.in_flight.used_bytes(), 0);
  stream.Cancel();  // what has come for it is not read, and what was asked may wait behind that
  asks.join();
  EXPECT_FALSE(stream.Status().ok());
}

TEST_P(ReflectionTest, AnswersThatFindNoRoomUnderWayAreRefusedAndTheNextOneIsNot) {
  InFlight& in_flight = server_->core().in_flight;
  in_flight.Take(in_flight.limit_bytes());
  const grpc::Status refused = Refused(BySymbol("seine.v1.IndexService").SerializeAsString());
  EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(refused).reason, "IN_FLIGHT_LIMIT");
  in_flight.Release(in_flight.limit_bytes());
  EXPECT_FALSE(Files(Stream(*stubs_, kV1).Ask(BySymbol("seine.v1.IndexService"))).empty());
}

TEST_P(ReflectionTest, StreamsThatAskNothingEndWhereMemoryIsShort) {
  Stream stream(*stubs_, kV1);
  stream.Ask(BySymbol("seine.v1.IndexService"));
  std::thread shortage([&] {  // the stream waits again some time after its answer was sent
    while (server_->core().open_calls.Count()["ServerReflectionInfo"] > 0) {
      server_->core().open_calls.CutUnsent(std::chrono::steady_clock::now());
      Wait();
    }
  });
  ServerReflectionResponse none;
  EXPECT_FALSE(stream.Receive(&none));
  const grpc::Status status = stream.Status();
  shortage.join();
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(status).reason, "MEMORY_SHORT");
  EXPECT_TRUE(Stream(*stubs_, kV1).End().ok());
}

TEST_P(ReflectionTest, AFloodOfStreamsIsCutOff) {
  const Connections& connections = server_->core().connections;
  EXPECT_TRUE(Stream(*stubs_, kV1Alpha).End().ok());
  EXPECT_EQ(connections.cut_resets(), 0);
  for (int i = 0; i < 20'000 && connections.cut_resets() == 0; ++i) Stream(*stubs_, kV1Alpha).End();
  EXPECT_EQ(connections.cut_resets(), 1);
}

INSTANTIATE_TEST_SUITE_P(Serving, ReflectionTest, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "Polling" : "Default"; });

}  // namespace
}  // namespace seine::test
