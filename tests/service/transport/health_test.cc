// Watches of a server's health: how many one connection may have, and that others have theirs.
#include "service/transport/health.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/service/fixture.h"

namespace seine::test {
namespace {

using grpc::StatusCode;

class HealthWatch {
 public:
  HealthWatch(const Stubs& stubs, const std::string& request) {
    using Factory = grpc::internal::ClientReaderFactory<grpc::ByteBuffer>;
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(40));
    const grpc::internal::RpcMethod rpc("/grpc.health.v1.Health/Watch", grpc::internal::RpcMethod::SERVER_STREAMING,
                                        stubs.channel);
    const grpc::Slice slice(request);
    stream_.reset(Factory::Create(stubs.channel.get(), rpc, &context_, grpc::ByteBuffer(&slice, 1)));
  }
  bool Next() {
    grpc::ByteBuffer received;
    return stream_->Read(&received);
  }
  grpc::Status Status() { return stream_->Finish(); }
  grpc::Status End() {
    context_.TryCancel();
    return Status();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<grpc::ByteBuffer>> stream_;
};

using Watches = std::vector<std::unique_ptr<HealthWatch>>;

class HealthTest : public ServerTest {
 protected:
  // As many as a connection may have; every other one is of a service that is not there.
  Watches Fill(const Stubs& stubs) {
    Watches watches;
    for (int i = 0; i < Health::kMostWatches; ++i) {
      watches.push_back(std::make_unique<HealthWatch>(stubs, i % 2 == 0 ? "" : "\x0a\x03xyz"));
      EXPECT_TRUE(watches.back()->Next()) << i;
    }
    return watches;
  }
  grpc::Status OneMore(const Stubs& stubs) {
    HealthWatch watch(stubs, "");
    return watch.Next() ? watch.End() : watch.Status();
  }
};

TEST_P(HealthTest, AConnectionHasSoManyWatchesAndOthersHaveTheirs) {
  Watches watches = Fill(*stubs_);
  const grpc::Status refused = OneMore(*stubs_);
  EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(refused.error_message(), "this connection has 64 watches of health open; end one first");
  EXPECT_EQ(DetailsOf(refused).reason, "WATCH_LIMIT");
  EXPECT_EQ(OneMore(Stubs(server_->address())).error_code(), StatusCode::CANCELLED);  // by us
  v1::ListIndexesResponse list;
  EXPECT_TRUE(Call(*stubs_->index, &v1::IndexService::Stub::ListIndexes, v1::ListIndexesRequest(), &list).ok());
}

TEST_P(HealthTest, AWatchThatEndsMakesRoomForAnother) {
  Watches watches = Fill(*stubs_);
  EXPECT_EQ(watches.back()->End().error_code(), StatusCode::CANCELLED);
  grpc::Status status(StatusCode::RESOURCE_EXHAUSTED, "");
  for (int i = 0; i < 2000 && status.error_code() == StatusCode::RESOURCE_EXHAUSTED; ++i) status = OneMore(*stubs_);
  EXPECT_EQ(status.error_code(), StatusCode::CANCELLED);  // by us: the server hears of an end some time later
}

INSTANTIATE_TEST_SUITE_P(Serving, HealthTest, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "Polling" : "Default"; });

}  // namespace
}  // namespace seine::test
