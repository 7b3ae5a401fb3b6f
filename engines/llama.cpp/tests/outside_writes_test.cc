// Every way by which ggml writes into a buffer outside of graphs is told, with the cells that change, and before it
// happens.
#include "engines/llama.cpp/ggml/outside_writes.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

namespace seine::llama {
namespace {

constexpr int64_t kCells = 40;
constexpr size_t kCellBytes = 16 * sizeof(float);

// A cache of [16, cells] and another of the same in one buffer.
struct Cache final : WriteListener {
  Cache() : context(ggml_init({4 * ggml_tensor_overhead(), nullptr, true}), &ggml_free) {
    for (ggml_tensor*& tensor : tensors) tensor = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, 16, kCells);
    buffer = ggml_backend_alloc_ctx_tensors_from_buft(context.get(), ggml_backend_cpu_buffer_type());
    ggml_backend_buffer_clear(buffer, 0);
  }
  ~Cache() {
    StopListening(this);
    ggml_backend_buffer_free(buffer);
  }
  const uint8_t* base() const { return static_cast<const uint8_t*>(tensors[0]->data); }
  void WritesOutside(const uint8_t* at, const uint8_t* data, size_t size) override {
    ++calls;
    for (const ChangedRun& run : ChangedCells(base(), kCells, kCellBytes, at, data, size)) changed.push_back(run);
  }
  std::vector<ChangedRun> Take() { return std::exchange(changed, {}); }

  std::unique_ptr<ggml_context, decltype(&ggml_free)> context;
  ggml_tensor* tensors[2] = {};
  ggml_backend_buffer_t buffer = nullptr;
  std::vector<ChangedRun> changed;
  int calls = 0;
};

using Runs = std::vector<ChangedRun>;

TEST(OutsideWrites, CellsThatChangeAreTold) {
  Cache cache;
  ASSERT_TRUE(Listen(cache.buffer, &cache));
  ASSERT_TRUE(Listen(cache.buffer, &cache));  // once
  std::vector<float> rows(16 * 10, 0);
  ggml_backend_tensor_set(cache.tensors[0], rows.data(), 5 * kCellBytes, 10 * kCellBytes);
  EXPECT_EQ(cache.Take(), Runs());  // the bytes that were there
  EXPECT_EQ(cache.calls, 1);
  rows[16 * 2] = rows[16 * 3 + 15] = rows[16 * 9] = 1;
  ggml_backend_tensor_set(cache.tensors[0], rows.data(), 5 * kCellBytes, 10 * kCellBytes);
  EXPECT_EQ(cache.Take(), (Runs{{7, 9}, {14, 15}}));
  EXPECT_EQ(static_cast<const float*>(cache.tensors[0]->data)[16 * 7], 1);  // it was written
  ggml_backend_tensor_set(cache.tensors[0], rows.data(), 5 * kCellBytes, 10 * kCellBytes);
  EXPECT_EQ(cache.Take(), Runs());
  const float one = 2;
  ggml_backend_tensor_set(cache.tensors[0], &one, 20 * kCellBytes + 8, sizeof(one));  // a part of a cell
  EXPECT_EQ(cache.Take(), (Runs{{20, 21}}));
  ggml_backend_tensor_set(cache.tensors[1], &one, 0, sizeof(one));  // another cache
  EXPECT_EQ(cache.Take(), Runs());
}

TEST(OutsideWrites, ByViewsCopiesAndClears) {
  Cache cache;
  ASSERT_TRUE(Listen(cache.buffer, &cache));
  ggml_context* views = ggml_init({4 * ggml_tensor_overhead(), nullptr, true});
  ggml_tensor* view = ggml_view_2d(views, cache.tensors[0], 16, 4, kCellBytes, 30 * kCellBytes);
  ASSERT_EQ(ggml_backend_view_init(view), GGML_STATUS_SUCCESS);
  const std::vector<float> ones(16, 1);
  ggml_backend_tensor_set(view, ones.data(), kCellBytes, kCellBytes);
  EXPECT_EQ(cache.Take(), (Runs{{31, 32}}));
  ggml_backend_tensor_memset(cache.tensors[0], 3, 2 * kCellBytes, kCellBytes);
  EXPECT_EQ(cache.Take(), (Runs{{2, 3}}));
  ggml_backend_tensor_copy(cache.tensors[1], cache.tensors[0]);
  EXPECT_EQ(cache.Take(), (Runs{{2, 3}, {31, 32}}));
  ggml_backend_buffer_clear(cache.buffer, 0);
  EXPECT_EQ(cache.Take(), (Runs{{0, kCells}}));
  ggml_free(views);
}

TEST(OutsideWrites, NothingIsToldToWhoStopped) {
  Cache cache;
  const float one = 1;
  {
    Cache other;  // listens to both, and is gone before the first
    ASSERT_TRUE(Listen(cache.buffer, &other));
    ASSERT_TRUE(Listen(cache.buffer, &cache));
    ggml_backend_tensor_set(cache.tensors[0], &one, 0, sizeof(one));
    EXPECT_EQ(other.calls, 1);
  }
  ggml_backend_tensor_set(cache.tensors[0], &one, 64, sizeof(one));
  EXPECT_EQ(cache.calls, 2);
  StopListening(&cache);
  ggml_backend_tensor_set(cache.tensors[0], &one, 128, sizeof(one));
  EXPECT_EQ(cache.calls, 2);
  EXPECT_FALSE(Listen(nullptr, &cache));
}

}  // namespace
}  // namespace seine::llama
