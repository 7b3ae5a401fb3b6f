// Calls that are cancelled or late at random moments, a short form of the soak's `cancels`: no answer holds another
// client's byte, and nothing stays under way. Both ways of serving.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "service/under_way/in_flight.h"
#include "tests/service/fixture.h"
#include "tests/soak/attacks/canceller.h"

namespace seine::test {
namespace {

class CancelTest : public ServerTest {};

TEST_P(CancelTest, RandomEndsShowNoForeignByteAndLeaveNothing) {
  constexpr int kClients = 4, kRounds = 40;
  soak::Tally tally;
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      soak::Canceller canceller(server_->address(), i, /*seed=*/1, tally);
      for (int round = 0; round < kRounds; ++round) canceller.Round();
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(tally.breaks(), 0);
  EXPECT_GE(tally.cases(), kClients * kRounds);
  EXPECT_GE(tally.faults(), kRounds / 2);
  const Core& core = server_->core();
  for (int tries = 0; tries < 1000 && core.in_flight.used_bytes() > 0; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(core.in_flight.used_bytes(), 0);
}

INSTANTIATE_TEST_SUITE_P(Serving, CancelTest, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "Polling" : "Default"; });

}  // namespace
}  // namespace seine::test
