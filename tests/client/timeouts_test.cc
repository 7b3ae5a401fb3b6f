// Times so long that no clock has a name for their end: calls have none, and none ends at once.
#include <gtest/gtest.h>

#include "client/client.h"
#include "tests/client/process.h"
#include "tests/client/random_model.h"

namespace seine {
namespace {

using client::Transport;

TEST(Timeouts, HugeOnesHaveNoEnd) {
  const Server server;
  const RandomModel model(16);
  for (const absl::Duration huge : {absl::Seconds(1e10), absl::Seconds(9.3e9), absl::Hours(24 * 365 * 250),
                                    absl::Seconds(1e18), absl::InfiniteDuration()}) {
    SCOPED_TRACE(absl::FormatDuration(huge));
    client::Options options;
    options.connect_timeout = options.timeout = options.step_timeout = huge;
    const auto client = server.Connect(options);
    ASSERT_NE(client, nullptr);
    EXPECT_TRUE(client->GetServerInfo().ok());
    ASSERT_TRUE(client->CreateIndex(RandomModel::Spec("m", v1::KV_STORE_KEYS)).ok());
    const client::Sequence sequence = *client->CreateSequence("m", "s");
    int64_t position = 0;
    for (const Transport transport : {Transport::kBlocking, Transport::kPolling, Transport::kSharedMemory}) {
      const auto stream = client->OpenDecodeStream(transport);
      ASSERT_TRUE(stream.ok()) << stream.status();
      client::DecodeStep step;
      step.appends = {{sequence, 0, position, model.Keys(0, position, 1), {}}};
      ++position;
      client::DecodeAnswer answer;
      EXPECT_TRUE((*stream)->Write(step).ok());
      EXPECT_TRUE((*stream)->Read(&answer).ok());
      EXPECT_TRUE((*stream)->Finish().ok());
    }
    const auto call = client->OpenCall(*client::FindMethod("GetServerInfo"));
    EXPECT_TRUE(call->Write("{}").ok());
    call->WritesDone();
    const auto answer = call->Read();
    EXPECT_TRUE(answer.ok() && answer->has_value()) << call->Finish();
    EXPECT_TRUE(client->DeleteIndex("m").ok());
  }
}

}  // namespace
}  // namespace seine
