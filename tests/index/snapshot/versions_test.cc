// Snapshots of version 1, whose pieces hold 32 windows' means where later ones hold 512.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/index/snapshot/sections.h"
#include "tests/index/snapshot/states.h"

namespace seine {
namespace {

using testing::AnswersOf;
using testing::Extend;
using testing::FixChecksum;
using testing::MakeIndex;
using testing::RestoreFrom;
using testing::SectionsOf;
using testing::SmallConfig;
using testing::SnapshotOf;
using testing::Span;
using testing::TestBackend;

constexpr int64_t kManyWindows = 16 + 32 + 64 * 40;

template <typename T>
std::string BytesOf(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// The same as version 1 wrote it: without the length of windows' pieces, `length` before a list of `pieces`, once a
// layer.
std::string AsVersionOne(std::string snapshot, int32_t length, uint64_t pieces) {
  const Span state = SectionsOf(snapshot)[2];
  const std::string list = BytesOf(pieces) + BytesOf(uint8_t{1}), stated = BytesOf(length) + list;
  std::string text = snapshot.substr(state.begin, state.end - state.begin);
  int found = 0;
  for (size_t at; (at = text.find(stated)) != std::string::npos; ++found) text.replace(at, stated.size(), list);
  EXPECT_EQ(found, SmallConfig().geometry.num_layers);
  snapshot.replace(state.begin, state.end - state.begin, text);
  const uint64_t bytes = text.size();
  std::memcpy(snapshot.data() + 16 + 16 + 8, &bytes, sizeof(bytes));
  snapshot[8] = 1;
  FixChecksum(SectionsOf(snapshot)[0], ~uint64_t{0}, &snapshot);
  FixChecksum(SectionsOf(snapshot)[2], 1, &snapshot);
  return snapshot;
}

std::unique_ptr<Index> MakeWith(int64_t tokens, Backend* backend) {
  auto index = MakeIndex(SmallConfig(KvStore::kKeysValues), backend);
  EXPECT_TRUE(index->CreateSequence("a").ok());
  Extend(index.get(), "a", tokens);
  return index;
}

std::unique_ptr<Index> Restored(const std::string& snapshot, Backend* backend) {
  auto index = MakeIndex(SmallConfig(KvStore::kKeysValues), backend);
  EXPECT_EQ(RestoreFrom(snapshot, index.get()), absl::OkStatus());
  return index;
}

TEST(SnapshotVersionTest, PiecesOfVersionOneAreReadGrownAndWrittenAgain) {
  TestBackend backend;
  const auto expected = MakeWith(300, &backend);
  const auto grown = Restored(AsVersionOne(SnapshotOf(*expected), 512, 1), &backend);
  EXPECT_TRUE(AnswersOf(*grown, "a") == AnswersOf(*expected, "a"));
  for (Index* index : {expected.get(), grown.get()}) Extend(index, "a", kManyWindows - 300);
  EXPECT_TRUE(AnswersOf(*grown, "a") == AnswersOf(*expected, "a"));

  const std::string of_two_pieces = SnapshotOf(*grown);
  EXPECT_NE(of_two_pieces, SnapshotOf(*expected));
  const auto again = Restored(of_two_pieces, &backend);
  EXPECT_TRUE(AnswersOf(*again, "a") == AnswersOf(*expected, "a"));
  const auto first = Restored(AsVersionOne(of_two_pieces, 32, 2), &backend);
  EXPECT_TRUE(AnswersOf(*first, "a") == AnswersOf(*expected, "a"));
}

TEST(SnapshotVersionTest, APieceOfAnotherLengthIsRefused) {
  TestBackend backend;
  std::string snapshot = SnapshotOf(*MakeWith(300, &backend));
  const Span state = SectionsOf(snapshot)[2];
  const size_t at = snapshot.find(BytesOf(int32_t{512}) + BytesOf(uint64_t{1}) + BytesOf(uint8_t{1}), state.begin);
  ASSERT_LT(at, state.end);
  snapshot[at] = 64;
  FixChecksum(state, 1, &snapshot);
  auto index = MakeIndex(SmallConfig(KvStore::kKeysValues), &backend);
  EXPECT_EQ(RestoreFrom(snapshot, index.get()),
            absl::DataLossError("the snapshot contradicts itself: a piece holds another number of windows"));
}

}  // namespace
}  // namespace seine
