// Bytes under way: within the memory limit, and few of them in answers that nobody reads.
#include "service/under_way/in_flight.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "index/memory/memory_budget.h"
#include "seine/v1/retrieval_service.pb.h"
#include "service/process/fallen_peak.h"
#include "service/transport/message_bytes.h"

namespace seine::test {
namespace {

constexpr int64_t kMiB = 1 << 20;

TEST(InFlight, CountsInTheMemoryLimit) {
  const auto memory = std::make_shared<MemoryBudget>(100 * kMiB);
  InFlight in_flight(400 * kMiB, memory);
  ASSERT_TRUE(in_flight.TryTake(50 * kMiB));
  EXPECT_FALSE(memory->TryReserve(70 * kMiB));  // 16 MiB are for what is under way
  EXPECT_TRUE(memory->TryReserve(60 * kMiB));
  EXPECT_FALSE(in_flight.TryTake(10 * kMiB));
  EXPECT_EQ(in_flight.used_bytes(), 50 * kMiB);
  in_flight.Release(50 * kMiB);
  EXPECT_EQ(memory->passing_bytes(), 0);
  EXPECT_TRUE(memory->TryReserve(40 * kMiB));
  EXPECT_FALSE(memory->TryReserve(1));
  EXPECT_TRUE(in_flight.TryTake(12 * kMiB));
  EXPECT_FALSE(in_flight.TryTake(kMiB));
  EXPECT_EQ(memory->used_bytes(), 100 * kMiB);
}

TEST(InFlight, SmallMessagesGoOnWhereTheMemoryLimitIsReached) {
  const auto memory = std::make_shared<MemoryBudget>(100 * kMiB);
  InFlight in_flight(400 * kMiB, memory);
  ASSERT_TRUE(memory->TryReserve(90 * kMiB));
  ASSERT_TRUE(in_flight.TryTake(22 * kMiB));
  memory->SetUncounted(50 * kMiB);
  EXPECT_FALSE(memory->TryReserve(1));
  EXPECT_FALSE(in_flight.TryTake(kMiB));
  for (int i = 0; i < 16; ++i) EXPECT_TRUE(in_flight.TryTake(InFlight::kSmall)) << i;
  EXPECT_FALSE(in_flight.TryTake(InFlight::kSmall));
}

TEST(InFlight, TheLargestLimitIsOne) {
  MemoryBudget memory(std::numeric_limits<int64_t>::max());
  EXPECT_TRUE(memory.TryReserve(0));
  EXPECT_TRUE(memory.TryPass(kMiB, /*is_small=*/false));
}

TEST(InFlight, WithoutAMemoryLimitItsOwnCounts) {
  const auto memory = std::make_shared<MemoryBudget>(0);
  InFlight in_flight(100 * kMiB, memory);
  EXPECT_TRUE(memory->TryReserve(1000 * kMiB));
  EXPECT_TRUE(in_flight.TryTake(75 * kMiB));
  EXPECT_FALSE(in_flight.TryTake(kMiB));  // a quarter is for small messages
}

TEST(InFlight, LargeAnswersTakeAnEighthOrAreAlone) {
  InFlight in_flight(128 * kMiB);
  AnswerShare first(in_flight), second(in_flight), small(in_flight);
  EXPECT_TRUE(first.TryHold(40 * kMiB));  // alone
  EXPECT_FALSE(second.TryHold(kMiB));
  EXPECT_TRUE(small.TryHold(InFlight::kSmall));
  EXPECT_TRUE(first.TryHold(10 * kMiB));
  EXPECT_TRUE(second.TryHold(6 * kMiB));
  EXPECT_FALSE(second.TryHold(7 * kMiB));
  EXPECT_EQ(in_flight.used_bytes(), 16 * kMiB + InFlight::kSmall);
  second.Hold(20 * kMiB);  // the answer to what has been changed
  EXPECT_FALSE(first.TryHold(11 * kMiB));
  second.Hold(0);
  EXPECT_TRUE(first.TryHold(16 * kMiB));
  first.Hold(0);
  EXPECT_TRUE(second.TryHold(40 * kMiB));
}

TEST(InFlight, AnAnswerIsAdmittedBeforeItIsMade) {
  InFlight in_flight(128 * kMiB);
  AnswerShare waiting(in_flight), made(in_flight);
  EXPECT_TRUE(AnswerShare::Admit(1000 * kMiB));  // of no call on the wire
  ASSERT_TRUE(waiting.TryHold(8 * kMiB));
  const AnswerShare::Scope scope(&made);
  EXPECT_FALSE(AnswerShare::Admit(9 * kMiB));
  EXPECT_TRUE(AnswerShare::Admit(8 * kMiB));
  EXPECT_EQ(in_flight.used_bytes(), 16 * kMiB);
  EXPECT_TRUE(made.TryHold(4 * kMiB));
}

v1::GatherResponse Gathered(size_t bytes) {
  v1::GatherResponse response;
  for (v1::Tensor* tensor : {response.mutable_keys(), response.mutable_values()}) {
    tensor->add_shape(static_cast<int64_t>(bytes));
    for (size_t i = 0; i < bytes; ++i) tensor->mutable_raw()->push_back(static_cast<char>(i * 7));
  }
  return response;
}

std::string Flat(const grpc::ByteBuffer& bytes) {
  grpc::Slice whole;
  EXPECT_TRUE(bytes.DumpToSingleSlice(&whole).ok());
  return std::string(whole.begin(), whole.end());
}

TEST(InFlight, ALargeAnswerIsHeldOnce) {
  v1::GatherResponse response = Gathered(kMiB);
  const std::string expected = response.SerializeAsString();
  const auto* const rows = reinterpret_cast<const uint8_t*>(response.keys().raw().data());
  grpc::ByteBuffer bytes;
  ASSERT_TRUE(SerialiseLast(&response, &bytes).ok());
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(bytes.Dump(&slices).ok());
  int shared = 0;
  for (const grpc::Slice& slice : slices) shared += slice.begin() == rows ? 1 : 0;
  EXPECT_EQ(shared, 1);
  response.Clear();
  EXPECT_EQ(Flat(bytes), expected);
}

// Blocks that hold `slices`, but for tensors of `tensor` bytes: pieces of one block lie end to end.
size_t BlocksOf(const std::vector<grpc::Slice>& slices, size_t tensor) {
  std::set<const uint8_t*> ends;
  for (const grpc::Slice& slice : slices) ends.insert(slice.end());
  return static_cast<size_t>(std::count_if(slices.begin(), slices.end(), [&](const grpc::Slice& slice) {
    return slice.size() < tensor && !ends.contains(slice.begin());
  }));
}

TEST(InFlight, WhatStandsBetweenTensorsSharesBlocks) {
  constexpr size_t kTensor = 16'000;
  v1::RetrieveResponse response;
  for (int i = 0; i < 256; ++i) {
    v1::RetrieveAnswer* const answer = response.add_answers();
    answer->mutable_status()->set_message("thirty bytes, which are shared");
    answer->mutable_positions()->set_raw(std::string(kTensor, 'p'));
  }
  const std::string expected = response.SerializeAsString();
  grpc::ByteBuffer bytes;
  ASSERT_TRUE(SerialiseLast(&response, &bytes).ok());
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(bytes.Dump(&slices).ok());
  ASSERT_GE(slices.size(), 512);
  EXPECT_LT(BlocksOf(slices, kTensor), 40);  // 256 pieces of 50 bytes, in blocks of 1,024
  EXPECT_EQ(Flat(bytes), expected);
}

TEST(FallenPeak, ALoadThatGoesOnGivesNothingBack) {
  FallenPeak under_way(16 * kMiB);
  for (const int64_t most : {24, 20, 9, 24, 12, 24}) EXPECT_FALSE(under_way.Fell(most * kMiB)) << most;
  EXPECT_TRUE(under_way.Fell(8 * kMiB));
  for (const int64_t most : {0, 15, 0, 16}) EXPECT_FALSE(under_way.Fell(most * kMiB)) << most;
  EXPECT_TRUE(under_way.Fell(0));
}

TEST(InFlight, AnswersOfEverySizeAreTheirBytes) {
  for (const size_t size : {0, 1, 100'000, 131'000, 131'072, 131'073, 500'000}) {
    v1::GatherResponse response = Gathered(size);
    const std::string expected = response.SerializeAsString();
    grpc::ByteBuffer bytes;
    ASSERT_TRUE(SerialiseLast(&response, &bytes).ok());
    EXPECT_EQ(Flat(bytes), expected) << size;
  }
  v1::RetrieveResponse many;  // tensors that are longer than what stands between them, and shorter
  for (int i = 0; i < 2000; ++i) {
    many.add_answers()->mutable_positions()->set_raw(std::string(static_cast<size_t>(i), static_cast<char>(i)));
  }
  const std::string expected = many.SerializeAsString();
  grpc::ByteBuffer bytes;
  ASSERT_TRUE(SerialiseLast(&many, &bytes).ok());
  EXPECT_EQ(Flat(bytes), expected);
}

}  // namespace
}  // namespace seine::test
