// A sequence that was written and read again is the same: its whole state, its answers, and all that it does later.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/index/snapshot/states.h"

namespace seine {
namespace {

using testing::AllStates;
using testing::AnswersOf;
using testing::Extend;
using testing::MakeIndex;
using testing::MakeState;
using testing::RestoreFrom;
using testing::SmallConfig;
using testing::SnapshotOf;
using testing::StateCase;
using testing::StateOf;
using testing::TestBackend;
using testing::WaitForBackground;

class SnapshotStateTest : public ::testing::TestWithParam<StateCase> {
 protected:
  SnapshotStateTest() : before_(MakeState(GetParam(), &backend_)), after_(MakeIndex(GetParam().config(), &backend_)) {}
  std::vector<std::string> Ids() const {
    std::vector<std::string> ids;
    for (const SequenceInfo& info : before_->ListSequences()) ids.push_back(info.handle.id);
    return ids;
  }
  std::string FirstDifference(const std::string& id) const {
    const std::string a = StateOf(*before_, id), b = StateOf(*after_, id);
    const auto at = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
    uint64_t settings, state;
    std::memcpy(&settings, a.data() + 16 + 8, 8);
    std::memcpy(&state, a.data() + 32 + 8, 8);
    return "; byte " + std::to_string(at) + ", of " + std::to_string(a.size()) + " and " + std::to_string(b.size()) +
           "; settings " + std::to_string(settings) + ", state " + std::to_string(state);
  }
  void ExpectSame(const char* when) {
    for (const std::string& id : Ids()) {
      ASSERT_TRUE(StateOf(*before_, id) == StateOf(*after_, id)) << id << " " << when << FirstDifference(id);
      ASSERT_TRUE(AnswersOf(*before_, id) == AnswersOf(*after_, id)) << id << " " << when;
      ASSERT_TRUE(StateOf(*before_, id) == StateOf(*after_, id))
          << id << " once asked, " << when << FirstDifference(id);
    }
  }

  TestBackend backend_;
  std::unique_ptr<Index> before_, after_;
};

TEST_P(SnapshotStateTest, IsTheSameNowAndLater) {
  const std::string snapshot = SnapshotOf(*before_);
  ASSERT_TRUE(RestoreFrom(snapshot, after_.get()).ok()) << RestoreFrom(snapshot, after_.get());
  ASSERT_EQ(after_->ListSequences().size(), before_->ListSequences().size());
  EXPECT_EQ(SnapshotOf(*after_).size(), snapshot.size()) << "what was shared is shared";
  ExpectSame("at once");
  for (Index* index : {before_.get(), after_.get()}) {
    for (const std::string& id : Ids()) {
      Extend(index, id, 1);
      Extend(index, id, 130);
    }
    WaitForBackground(*index);
  }
  ExpectSame("with more tokens");
  const std::vector<std::string> ids = Ids();
  for (Index* index : {before_.get(), after_.get()}) {
    for (const std::string& id : ids) {
      const auto tokens = index->GetSequence({id, 0})->layer_tokens;
      ASSERT_TRUE(index->Truncate({id, 0}, tokens[0] - 1).ok());
      ASSERT_TRUE(index->Fork({id, 0}, id + "-fork", -1).ok());
      Extend(index, id, 70);
    }
    WaitForBackground(*index);
  }
  ExpectSame("after a cut");
  const auto stats = [](const Index& index) {
    const IndexStats s = index.stats();
    return std::vector<int64_t>{s.num_sequences, s.query_bytes, s.subspace_bytes};
  };
  EXPECT_EQ(stats(*before_), stats(*after_));
}

INSTANTIATE_TEST_SUITE_P(All, SnapshotStateTest, ::testing::ValuesIn(AllStates()),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace seine
