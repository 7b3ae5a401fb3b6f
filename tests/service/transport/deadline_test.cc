// Deadlines as another client may send them: a server takes one of centuries for none.
#include <gtest/gtest.h>

#include "tests/service/fixture.h"

namespace seine::test {
namespace {

using DeadlineTest = ServerTest;

TEST_P(DeadlineTest, OneOfCenturiesIsNoneAndOneThatHasPassedEnds) {
  const auto status_within = [this](int64_t seconds) {
    grpc::ClientContext context;
    context.set_deadline(gpr_time_add(gpr_now(GPR_CLOCK_REALTIME), gpr_time_from_seconds(seconds, GPR_TIMESPAN)));
    v1::ListIndexesResponse response;
    return stubs_->index->ListIndexes(&context, v1::ListIndexesRequest(), &response);
  };
  for (const int64_t seconds : {int64_t{100}, int64_t{4'000'000'000}, int64_t{10'000'000'000}, int64_t{30'000'000'000},
                                int64_t{100'000'000'000}, int64_t{300'000'000'000}}) {
    const grpc::Status status = status_within(seconds);
    EXPECT_TRUE(status.ok()) << seconds << ": " << status.error_message();
  }
  EXPECT_EQ(status_within(-1).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

INSTANTIATE_TEST_SUITE_P(BothWays, DeadlineTest, ::testing::Bool());

}  // namespace
}  // namespace seine::test
