// The catalogue of indexes: what others see and may do while an index is being made.
#include "service/catalog.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <string>
#include <utility>

#include "index/index.h"
#include "tests/index/test_util.h"

namespace seine {
namespace {

constexpr std::chrono::seconds kSoon(10);

// Stops the first thread that makes an index until it is told to go on. The backend is asked about its memory late in
// the making, after all decompositions.
class SlowBackend : public testing::TestBackend {
 public:
  bool codes_on_device() const override {
    if (armed_.exchange(false)) {
      reached.count_down();
      go_on.wait();
    }
    return false;
  }
  void Arm() { armed_ = true; }

  mutable std::latch reached{1};
  std::latch go_on{1};

 private:
  mutable std::atomic<bool> armed_{false};
};

IndexConfig Named(const std::string& name) {
  IndexConfig config = testing::SmallConfig();
  config.name = name;
  return config;
}

// Holds an index "slow" half made.
class CatalogWithSlowCreation : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(catalog_.Create(Named("old")).ok());
    backend_.Arm();
    creation_ = std::async(std::launch::async, [this] { return catalog_.Create(Named("slow")); });
    backend_.reached.wait();
  }
  ~CatalogWithSlowCreation() override { Finish(); }

  void Finish() {
    if (!std::exchange(finished_, true)) backend_.go_on.count_down();
  }

  // Whether `act` ends while the creation stands still.
  bool Ends(const std::function<void()>& act) {
    auto acting = std::async(std::launch::async, act);
    const bool ended = acting.wait_for(kSoon) == std::future_status::ready;
    if (!ended) Finish();
    return ended;
  }

  SlowBackend backend_;
  Catalog catalog_{&backend_, nullptr};
  std::future<absl::StatusOr<std::shared_ptr<Index>>> creation_;
  bool finished_ = false;
};

TEST_F(CatalogWithSlowCreation, NoStepOfAnotherIndexWaits) {
  ASSERT_TRUE(Ends([this] {
    EXPECT_NE(catalog_.Find("", "old"), nullptr);
    EXPECT_EQ(catalog_.Find("", "slow"), nullptr);
    EXPECT_EQ(catalog_.List().size(), 1u);
    EXPECT_TRUE(catalog_.Create(Named("quick")).ok());
    EXPECT_NE(catalog_.Remove("", "old"), nullptr);
  }));
  Finish();
  const auto made = creation_.get();
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(catalog_.Find("", "slow"), *made);
  EXPECT_EQ(catalog_.List().size(), 2u);
}

TEST_F(CatalogWithSlowCreation, ItsNameIsTaken) {
  ASSERT_TRUE(Ends([this] {
    EXPECT_EQ(catalog_.Create(Named("slow")).status().code(), absl::StatusCode::kAlreadyExists);
    EXPECT_EQ(catalog_.Remove("", "slow"), nullptr);
  }));
  Finish();
  ASSERT_TRUE(creation_.get().ok());
  EXPECT_EQ(catalog_.Create(Named("slow")).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(CatalogWithSlowCreation, ItCountsAmongAllThatTheServerMayHold) {
  ASSERT_TRUE(Ends([this] {
    for (size_t i = 2; i < kMaxIndexes; ++i) ASSERT_TRUE(catalog_.Create(Named("more" + std::to_string(i))).ok());
    EXPECT_EQ(catalog_.Create(Named("last")).status().code(), absl::StatusCode::kResourceExhausted);
  }));
  Finish();
  ASSERT_TRUE(creation_.get().ok());
  EXPECT_EQ(catalog_.List().size(), kMaxIndexes);
}

TEST(Catalog, ANameIsFreeAgainAfterACreationThatFailed) {
  testing::TestBackend backend;
  Catalog catalog(&backend, nullptr);
  IndexConfig wrong = Named("index");
  wrong.geometry.head_dim = 0;
  EXPECT_EQ(catalog.Create(wrong).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(catalog.Create(Named("index")).ok());
}

TEST(Catalog, AWrongConfigurationIsToldBeforeANameThatIsTaken) {
  testing::TestBackend backend;
  Catalog catalog(&backend, nullptr);
  ASSERT_TRUE(catalog.Create(Named("index")).ok());
  IndexConfig wrong = Named("index");
  wrong.zones.sink = -1;
  EXPECT_EQ(catalog.Create(wrong).status(), Validate(wrong));
  EXPECT_EQ(catalog.Create(Named("index")).status().code(), absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace seine
