// Snapshots that are cut short, changed or foreign: refused with the reason, or read as what they are; nothing else is
// harmed. Checksums that are made to fit a change let it through to what reads the numbers.
#include <gtest/gtest.h>

#include "tests/index/snapshot/sections.h"
#include "tests/index/snapshot/states.h"

namespace seine {
namespace {

using absl::StatusCode;
using testing::AllStates;
using testing::AnswersOf;
using testing::Extend;
using testing::FixChecksum;
using testing::MakeIndex;
using testing::MakeState;
using testing::RestoreFrom;
using testing::SectionsOf;
using testing::SmallConfig;
using testing::SnapshotOf;
using testing::Span;
using testing::StateCase;
using testing::StateOf;
using testing::TestBackend;

StateCase Named(const std::string& name) {
  for (const StateCase& c : AllStates()) {
    if (name == c.name) return c;
  }
  ADD_FAILURE() << "no state " << name;
  return AllStates()[0];
}

// Small enough that every byte can be tried.
StateCase Tiny(StateCase c, int64_t tokens) {
  c.tokens = tokens;
  return c;
}

TEST(SnapshotDamageTest, EveryLengthThatIsShortIsRefused) {
  TestBackend backend;
  const StateCase state = Tiny(Named("keys"), 20);
  const std::string snapshot = SnapshotOf(*MakeState(state, &backend));
  auto index = MakeIndex(state.config(), &backend);
  for (size_t length = 0; length < snapshot.size(); ++length) {
    const absl::Status status = RestoreFrom(snapshot.substr(0, length), index.get());
    ASSERT_EQ(status.code(), StatusCode::kDataLoss) << length << " bytes: " << status;
  }
  EXPECT_EQ(RestoreFrom(snapshot + "x", index.get()).code(), StatusCode::kDataLoss);
  EXPECT_EQ(index->ListSequences().size(), 0u);
  EXPECT_TRUE(RestoreFrom(snapshot, index.get()).ok());
}

TEST(SnapshotDamageTest, EveryByteThatIsChangedIsFoundOut) {
  TestBackend backend;
  const StateCase state = Tiny(Named("keys"), 20);
  const std::string snapshot = SnapshotOf(*MakeState(state, &backend));
  auto index = MakeIndex(state.config(), &backend);
  const IndexStats before = index->stats();
  for (size_t at = 0; at < snapshot.size(); ++at) {
    std::string changed = snapshot;
    changed[at] = static_cast<char>(changed[at] ^ (1 << at % 8));
    const absl::Status status = RestoreFrom(changed, index.get());
    ASSERT_TRUE(status.code() == StatusCode::kDataLoss || (at < 12 && status.code() == StatusCode::kFailedPrecondition))
        << "byte " << at << ": " << status;
  }
  EXPECT_EQ(index->ListSequences().size(), 0u);
  EXPECT_EQ(index->stats().store_bytes, before.store_bytes);
  EXPECT_EQ(index->stats().other_bytes, before.other_bytes);
}

// What a change with fitting checksums may do: be refused, or give a sequence that answers, grows and goes.
class FittingChecksums : public ::testing::TestWithParam<const char*> {};

TEST_P(FittingChecksums, AnyChangeIsRefusedOrHarmless) {
  TestBackend backend;
  const StateCase state = Named(GetParam());
  const std::string snapshot = SnapshotOf(*MakeState(state, &backend));
  const std::vector<Span> sections = SectionsOf(snapshot);
  auto index = MakeIndex(state.config(), &backend);
  int refused = 0, taken = 0;
  for (size_t s = 0; s < sections.size(); ++s) {
    const auto [begin, end] = sections[s];
    const bool numbers = s < 3;  // header, settings, state: every byte of what is small; of arrays some
    const size_t step = std::max<size_t>(1, (end - begin) / (numbers ? 120 : 10));
    for (size_t at = begin + s % step; at < end; at += step) {
      for (const int change : {0x01, 0x80, 0xff}) {
        std::string changed = snapshot;
        changed[at] = static_cast<char>(changed[at] ^ change);
        FixChecksum(sections[s], s == 0 ? ~uint64_t{0} : s - 1, &changed);
        if (!RestoreFrom(changed, index.get()).ok()) {
          ++refused;
          continue;
        }
        ++taken;
        for (const SequenceInfo& info : index->ListSequences()) {
          const int64_t longest = *std::max_element(info.layer_tokens.begin(), info.layer_tokens.end());
          if (taken % 8 == 0 && longest < 10000) {
            AnswersOf(*index, info.handle.id);
            testing::WaitForBackground(*index);
          }
          ASSERT_TRUE(index->DeleteSequence(info.handle).ok());
        }
      }
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(taken, 5);
}

INSTANTIATE_TEST_SUITE_P(States, FittingChecksums,
                         ::testing::Values("keys", "codes_alone_cut", "collision", "evicted", "evicts_by_windows",
                                           "evicts_by_queries", "evicts_by_sums", "low_rank_evicted",
                                           "low_rank_bases_set", "balanced_evicted"),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST(SnapshotRefusalTest, NewerVersionsAndOtherFilesAreRefusedByName) {
  TestBackend backend;
  const std::string snapshot = SnapshotOf(*MakeState(Named("keys"), &backend));
  auto index = MakeIndex(SmallConfig(), &backend);
  std::string newer = snapshot, foreign = snapshot;
  newer[8] = 4;
  foreign.replace(0, 8, "SAFETENS");
  EXPECT_EQ(RestoreFrom(newer, index.get()),
            absl::FailedPreconditionError("the snapshot is of version 4, and this build reads 1 to 3"));
  EXPECT_EQ(RestoreFrom(foreign, index.get()), absl::FailedPreconditionError("the file is no snapshot of Seine's"));
  EXPECT_EQ(RestoreFrom("", index.get()).code(), StatusCode::kDataLoss);
}

TEST(SnapshotRefusalTest, OtherSettingsAreNamed) {
  TestBackend backend;
  const std::string snapshot = SnapshotOf(*MakeState(Named("keys"), &backend));
  const auto refusal = [&](const IndexConfig& config) {
    return std::string(RestoreFrom(snapshot, MakeIndex(config, &backend).get()).message());
  };
  IndexConfig config = SmallConfig();
  config.zones.sink = 80;
  EXPECT_NE(refusal(config).find("zones.sink=80 where the snapshot has zones.sink=16"), std::string::npos);
  config = SmallConfig();
  config.geometry.num_q_heads = 2;
  EXPECT_NE(refusal(config).find("geometry.num_q_heads=2"), std::string::npos);
  config = SmallConfig(KvStore::kKeysValues);
  EXPECT_NE(refusal(config).find("kv_store=2"), std::string::npos);
  config = SmallConfig();
  config.codec.seed = 5;
  EXPECT_NE(refusal(config).find("codec.seed=5"), std::string::npos);
  config = SmallConfig();
  config.eviction.emplace().budget.tokens = 100;
  EXPECT_NE(refusal(config).find("eviction=1"), std::string::npos);
  config = SmallConfig();  // what may differ
  config.name = "another";
  config.search.top_k = 7;
  config.memory_limit_bytes = 1 << 30;
  EXPECT_EQ(refusal(config), "");
}

TEST(SnapshotRefusalTest, SettingsThatAreNoneAreNotShown) {
  TestBackend backend;
  std::string snapshot = SnapshotOf(*MakeState(Named("keys"), &backend));
  const Span settings = SectionsOf(snapshot)[1];
  snapshot[settings.begin] = '\xff';
  FixChecksum(settings, 0, &snapshot);
  const absl::Status status = RestoreFrom(snapshot, MakeIndex(SmallConfig(), &backend).get());
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("where the snapshot has what is no setting"), std::string::npos) << status;
}

TEST(SnapshotRefusalTest, IdsInUseAndWrongIdsChangeNothing) {
  TestBackend backend;
  auto index = MakeState(Named("family"), &backend);
  const std::string family = SnapshotOf(*index), before = StateOf(*index, "a");
  EXPECT_EQ(RestoreFrom(family, index.get()).code(), StatusCode::kAlreadyExists);
  ASSERT_TRUE(index->DeleteSequence({"a", 0}).ok());
  ASSERT_TRUE(index->DeleteSequence({"cut", 0}).ok());
  EXPECT_EQ(RestoreFrom(family, index.get()).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(index->ListSequences().size(), 2u) << "all or none";
  StringSource source(family);
  EXPECT_EQ(index->Restore(&source, {.id = "one"}).status().code(), StatusCode::kInvalidArgument);
  StringSource again(SnapshotOf(*index, "all", SnapshotScope::kSequence));
  const auto renamed = index->Restore(&again, {.id = "one"});
  ASSERT_TRUE(renamed.ok()) << renamed.status();
  EXPECT_EQ(renamed->sequences[0].handle.id, "one");
  EXPECT_TRUE(AnswersOf(*index, "one") == AnswersOf(*index, "all"));
}

TEST(SnapshotRefusalTest, StaleHandlesAreNotTakenForRestoredOnes) {
  TestBackend backend;
  auto before = MakeState(Named("keys"), &backend);
  const SequenceHandle old = before->ListSequences()[0].handle;
  auto after = MakeIndex(SmallConfig(), &backend);
  ASSERT_TRUE(RestoreFrom(SnapshotOf(*before), after.get()).ok());
  EXPECT_EQ(after->GetSequence(old).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_GT(after->GetSequence({"a", 0})->handle.generation, old.generation);
}

TEST(SnapshotRefusalTest, WhatIsNotAdmittedIsNotMade) {
  TestBackend backend;
  const std::string snapshot = SnapshotOf(*MakeState(Named("whole_pieces"), &backend));
  IndexConfig config = Named("whole_pieces").config();
  config.memory_limit_bytes = 200'000;
  auto small = MakeIndex(config, &backend);
  const int64_t allocations = backend.allocations;
  EXPECT_EQ(RestoreFrom(snapshot, small.get()).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(backend.allocations, allocations) << "refused before any memory is taken";
  config.memory_limit_bytes = 0;
  auto index = MakeIndex(config, &backend);
  StringSource source(snapshot);
  RestoreParams params;
  params.admit = [](int64_t sequences) {
    return absl::ResourceExhaustedError(std::to_string(sequences) + " are too many");
  };
  EXPECT_EQ(index->Restore(&source, params).status(), absl::ResourceExhaustedError("1 are too many"));
  EXPECT_EQ(index->stats().num_sequences, 0);
}

TEST(SnapshotRefusalTest, CodesOnADeviceAreRefused) {
  TestBackend backend;
  backend.apart = true;
  auto index = MakeIndex(SmallConfig(), &backend);
  ASSERT_TRUE(index->CreateSequence("a").ok());
  StringSink sink;
  EXPECT_EQ(index->Snapshot({"a", 0}, SnapshotScope::kFamily, &sink).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(sink.text().empty());
}

}  // namespace
}  // namespace seine
