// What one tenant gave back, another does not get to see: buffers come zeroed, and answers hold none of it.
#include "service/access/zeroing_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "index/memory/memory_budget.h"
#include "kernels/backend.h"
#include "service/access/caller.h"
#include "service/backends/forwarding_backend.h"
#include "service/calls/calls.h"
#include "tests/service/fixture.h"

namespace seine::test {
namespace {

const std::string& Watermark() {
  static const std::string mark = [] {
    std::string text;
    for (int i = 0; i < 8; ++i) text += "\x5c\x3a";  // a half, .795
    return text;
  }();
  return mark;
}

bool HoldsWatermark(const uint8_t* data, size_t bytes) {
  const auto* const begin = reinterpret_cast<const char*>(data);
  return std::search(begin, begin + bytes, Watermark().begin(), Watermark().end()) != begin + bytes;
}

void Fill(uint8_t* data, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>(Watermark()[i % 2]);
}

// Memory as it comes from a heap that another tenant has filled to the last byte.
class UsedMemory final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  Buffer Allocate(size_t bytes, MemorySpace space) override {
    Buffer buffer = inner_->Allocate(bytes, space);
    if (buffer) Fill(buffer.data(), buffer.size());
    return buffer;
  }
};

std::unique_ptr<Backend> UsedBackend() { return std::make_unique<UsedMemory>(MakeCpuBackend(1)); }

// Buffers that hold a watermark which buffers given back before were full of.
int MarkedBuffers(Backend& backend, MemorySpace space) {
  constexpr size_t kSizes[] = {64, 200, 4096, 12345, 64 << 10, 100 << 10, 1 << 20, 3 << 20};
  int marked = 0;
  for (int round = 0; round < 2; ++round) {
    std::vector<Buffer> buffers;
    for (const size_t bytes : kSizes) {
      for (int i = 0; i < 4; ++i) {
        buffers.push_back(backend.Allocate(bytes, space));
        const Buffer& buffer = buffers.back();
        if (round > 0) marked += HoldsWatermark(buffer.data(), buffer.size()) ? 1 : 0;
        Fill(buffer.data(), buffer.size());
      }
    }
  }
  return marked;
}

TEST(ZeroedMemory, NewBuffersHoldNothing) {
  for (const MemorySpace space : {MemorySpace::kCodes, MemorySpace::kStore}) {
    EXPECT_EQ(MarkedBuffers(*WithZeroedMemory(UsedBackend()), space), 0);
    EXPECT_GT(MarkedBuffers(*UsedBackend(), space), 0) << "the test would see nothing";
  }
}

// Looks into each buffer that is handed out.
class LookingBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  Buffer Allocate(size_t bytes, MemorySpace space) override {
    Buffer buffer = inner_->Allocate(bytes, space);
    ++buffers;
    marked += buffer && HoldsWatermark(buffer.data(), buffer.size()) ? 1 : 0;
    return buffer;
  }
  int buffers = 0, marked = 0;
};

class TwoTenants {
 public:
  explicit TwoTenants(std::unique_ptr<Backend> backend) {
    auto looking = std::make_unique<LookingBackend>(std::move(backend));
    looking_ = looking.get();
    CoreOptions options;
    options.workers = 1;
    core_ = std::make_unique<Core>(options, std::move(looking));
    acme_ = Make("acme");
    beta_ = Make("beta");
  }
  // One tenant fills memory with watermarks and deletes all of it.
  void Spread() {
    const CallerScope scope(acme_.get());
    const v1::SequenceHandle handle = Settle(/*marked=*/true);
    v1::DeleteSequenceRequest remove;
    v1::DeleteSequenceResponse removed;
    *remove.mutable_handle() = handle;
    EXPECT_TRUE(DeleteSequence(*core_, remove, &removed).ok());
    v1::DeleteIndexRequest drop;
    v1::DeleteIndexResponse dropped;
    drop.set_name("x");
    EXPECT_TRUE(DeleteIndex(*core_, drop, &dropped).ok());
  }
  // The other appends its own, and asks for all that it can: the answers.
  std::string Ask() {
    const CallerScope scope(beta_.get());
    looking_->buffers = looking_->marked = 0;
    const v1::SequenceHandle handle = Settle(/*marked=*/false);
    std::string answers;
    v1::GatherRequest gather;
    v1::GatherResponse rows;
    std::vector<int32_t> all(kTokens);
    for (int i = 0; i < kTokens; ++i) all[i] = i;
    *gather.mutable_handle() = handle;
    *gather.mutable_positions() = Positions(all);
    gather.set_keys(true);
    gather.set_values(true);
    EXPECT_TRUE(Gather(*core_, gather, &rows).ok());
    answers += rows.SerializeAsString();
    v1::AttendRequest attend;
    v1::AttendResponse attended;
    *attend.add_items() = Query(handle, 0);
    attend.mutable_selector()->set_top_k(64);
    attend.mutable_selector()->set_with_scores(true);
    attend.mutable_attention()->set_with_positions(true);
    EXPECT_TRUE(Attend(*core_, attend, &attended).ok());
    EXPECT_FALSE(attended.answers(0).has_status()) << attended.answers(0).status().message();
    return answers + attended.SerializeAsString();
  }
  int buffers() const { return looking_->buffers; }
  int marked() const { return looking_->marked; }

 private:
  static constexpr int kTokens = 700;

  std::shared_ptr<Caller> Make(const char* name) const {
    auto caller = std::make_shared<Caller>();
    caller->tenant = std::make_shared<Tenant>(name, core_->budget);
    return caller;
  }
  v1::SequenceHandle Settle(bool marked) {
    v1::CreateIndexRequest create;
    v1::CreateIndexResponse created;
    *create.mutable_spec() = Spec("x", v1::KV_STORE_KEYS_VALUES);
    EXPECT_TRUE(CreateIndex(*core_, create, &created).ok());
    v1::CreateSequenceRequest make;
    v1::CreateSequenceResponse made;
    make.set_index("x");
    EXPECT_TRUE(CreateSequence(*core_, make, &made).ok());
    for (int layer = 0; layer < kLayers; ++layer) {
      v1::AppendRequest append;
      v1::AppendResponse appended;
      *append.mutable_item() = Item(made.handle(), layer, 0, kTokens, 5);
      *append.mutable_item()->mutable_values() = Halves({kTokens, kKvHeads, kDim}, 6);
      for (v1::Tensor* tensor : {append.mutable_item()->mutable_keys(), append.mutable_item()->mutable_values()}) {
        std::string* const raw = tensor->mutable_raw();
        if (marked) Fill(reinterpret_cast<uint8_t*>(raw->data()), raw->size());
      }
      EXPECT_TRUE(Append(*core_, append, &appended).ok());
    }
    return made.handle();
  }

  LookingBackend* looking_ = nullptr;
  std::unique_ptr<Core> core_;
  std::shared_ptr<Caller> acme_, beta_;
};

TEST(ZeroedMemory, NothingOfATenantReachesAnother) {
  TwoTenants tenants(WithZeroedMemory(UsedBackend()));
  tenants.Spread();
  const std::string answers = tenants.Ask();
  EXPECT_GT(tenants.buffers(), 0);
  EXPECT_EQ(tenants.marked(), 0);
  EXPECT_GT(answers.size(), 100'000U);
  EXPECT_EQ(answers.find(Watermark()), std::string::npos);
}

// That test looks where the bytes would be.
TEST(ZeroedMemory, WithoutItBuffersComeAsTheyWere) {
  TwoTenants tenants(UsedBackend());
  tenants.Spread();
  const std::string answers = tenants.Ask();
  EXPECT_GT(tenants.marked(), 0);
  EXPECT_EQ(answers.find(Watermark()), std::string::npos);  // rows are written before they are read
}

}  // namespace
}  // namespace seine::test
