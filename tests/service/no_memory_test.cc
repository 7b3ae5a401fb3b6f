// Every allocation of a call fails once, on the thread that works on it: the call says so, nothing has changed, or it
// is one that changes something and its outcome is unknown, and the next one works. This program's operator new does
// it.
#include <cstdlib>
#include <iostream>
#include <new>

#include "absl/strings/match.h"
#include "seine/reflection/v1/reflection.pb.h"
#include "service/transport/reflection/descriptor_answers.h"
#include "tests/service/contract/contract.h"

namespace {

thread_local int64_t allocations_left = -1;  // until one fails; -1: none does

void* AllocateOrFail(size_t bytes) {
  if (allocations_left == 0) {
    allocations_left = -1;
    throw std::bad_alloc();
  }
  if (allocations_left > 0) --allocations_left;
  if (void* const block = malloc(bytes > 0 ? bytes : 1)) return block;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t bytes) { return AllocateOrFail(bytes); }
void* operator new[](size_t bytes) { return AllocateOrFail(bytes); }
void operator delete(void* block) noexcept { free(block); }
void operator delete[](void* block) noexcept { free(block); }
void operator delete(void* block, size_t) noexcept { free(block); }
void operator delete[](void* block, size_t) noexcept { free(block); }

namespace seine::test {
namespace {

class NoMemory : public Contract {};

TEST_F(NoMemory, EveryAllocationOfEveryCallFailsOnce) {
  AddAll();
  int64_t failed = 0;
  for (const Rpc& rpc : rpcs_) {
    SCOPED_TRACE(rpc.name);
    const std::string index = IndexOf(*rpc.right);
    v1::DeleteIndexRequest remove;
    v1::DeleteIndexResponse removed;
    remove.set_name("made");
    // All of the first, then fewer and fewer: long calls allocate the same way again and again.
    for (int64_t n = 0, all = 40;; n += n < all ? 1 : 1 + n / 8) {
      DeleteIndex(*core_, remove, &removed).IgnoreError();
      Renew(index);
      const std::string before = Digest(index);
      std::unique_ptr<Message> answer(rpc.answer->New());
      absl::Status status;
      bool hit = false;
      allocations_left = n;
      try {
        status = rpc.call(*rpc.right, answer.get());
      } catch (const std::bad_alloc&) {
        hit = true;
      }
      const bool none_failed = allocations_left >= 0;
      allocations_left = -1;
      if (none_failed) {
        EXPECT_TRUE(status.ok()) << n << ": " << status;
        break;
      }
      ++failed;
      if (!hit && status.ok()) continue;  // it could do without
      if (!hit) {
        EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << n << ": " << status;
      }
      if (hit && (rpc.changes || rpc.name.starts_with("CreateIndex")))
        continue;  // UNKNOWN to the client (rpc_methods.cc)
      ASSERT_TRUE(Digest(index) == before) << "after allocation " << n;
    }
  }
  std::cout << failed << " allocations failed" << std::endl;
  EXPECT_GT(failed, 1000);
}

// Covers all of reflection but gRPC's own part of the bytes: the stream says so, and a new one is answered.
TEST(NoMemoryForReflection, EveryAllocationOfAnAnswerFailsOnce) {
  const std::vector<const char*> services = {"seine.v1.AdminService"};
  reflection::v1::ServerReflectionRequest asked;
  asked.set_file_containing_symbol("seine.v1.AdminService");
  const std::string question = asked.SerializeAsString();
  DescriptorAnswers(services).Build();
  int64_t failed = 0;
  for (int64_t n = 0;; ++n) {
    DescriptorAnswers answers(services);
    const grpc::Slice slice(question);
    grpc::ByteBuffer request(&slice, 1), answer;
    allocations_left = n;
    const absl::Status status = answers.Answer(&request, &answer);
    const bool none_failed = allocations_left >= 0;
    allocations_left = -1;
    EXPECT_TRUE(!status.ok() || answer.Length() > 1000) << n;
    if (none_failed) {
      EXPECT_TRUE(status.ok()) << status;
      break;
    }
    ++failed;
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << n << ": " << status;
  }
  EXPECT_GT(failed, 100);
}

}  // namespace
}  // namespace seine::test
