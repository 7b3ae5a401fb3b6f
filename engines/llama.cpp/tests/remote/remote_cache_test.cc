// One layer's nodes over a cache whose session fails or is asked too much, beside llama.cpp's kernel on the same nodes.
// A program of its own: it has the plug-in's code and another OpenSession.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engines/llama.cpp/ggml/cache_facts.h"
#include "engines/llama.cpp/remote/remote_cache.h"
#include "engines/llama.cpp/tests/remote/fake_session.h"
#include "ggml-backend.h"
#include "ggml.h"

namespace seine::llama {
namespace {

constexpr int64_t kCacheCells = 400;
constexpr int kCacheHeads = 4, kCacheKvHeads = 2, kCacheDim = 64;

// What a test's server is asked, and how it fails.
struct Asked {
  int opened = 0, attended = 0;
  std::chrono::milliseconds hangs{0};  // and opens no session then
  bool fails = false;                  // the next step, once its answers are there
} asked;

// Its answers are sevens.
class Sevens final : public FakeSession {
 public:
  absl::Status Attend(int, const std::vector<AttendItem>& items, int) override {
    for (const AttendItem& item : items) {
      ++asked.attended;
      failed_ = item.sequence;
      std::fill_n(item.output, kCacheHeads * kCacheDim, 7.F);
      std::fill_n(item.log_sum_exp, kCacheHeads, 0.F);
    }
    return absl::OkStatus();
  }
  absl::Status Settle() override {
    if (!asked.fails) return absl::OkStatus();
    asked.fails = false;
    return absl::NotFoundError("no such sequence");
  }
  int failed() const override { return failed_; }

 private:
  int failed_ = 0;
};

struct Token {
  int64_t position, cell, first;  // it sees cells [first, cell]
};

class CacheOfOneLayer : public ::testing::Test {
 protected:
  CacheOfOneLayer() {
    setenv("SEINE_MIN_KV", "256", 1);
    setenv("SEINE_ENDPOINT", "unix:///nowhere", 1);
    setenv("SEINE_INDEX", "chats", 1);
    asked = {};
    cpu_.reset(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    context_.reset(ggml_init({.mem_size = 1 << 20, .mem_buffer = nullptr, .no_alloc = true}));
    keys_ = Cache("cache_k_l0"), values_ = Cache("cache_v_l0");
    sinks_ = ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, kCacheHeads);
    buffer_.reset(ggml_backend_alloc_ctx_tensors(context_.get(), cpu_.get()));
    std::normal_distribution<float> normal;
    for (ggml_tensor* cache : {keys_, values_}) {
      for (int64_t i = 0; i < ggml_nelements(cache); ++i) {
        static_cast<ggml_fp16_t*>(cache->data)[i] = ggml_fp32_to_fp16(normal(rng_));
      }
    }
    for (int i = 0; i < kCacheHeads; ++i) static_cast<float*>(sinks_->data)[i] = normal(rng_);
  }

  // A graph of these tokens. The largest difference from llama.cpp's kernel for each.
  std::vector<double> Compute(const std::vector<Token>& tokens) {
    const auto count = static_cast<int64_t>(tokens.size());
    const std::unique_ptr<ggml_context, decltype(&ggml_free)> context(
        ggml_init({.mem_size = 1 << 24, .mem_buffer = nullptr, .no_alloc = false}), &ggml_free);
    ggml_tensor* queries = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, kCacheDim, count, kCacheHeads);
    ggml_tensor* mask = ggml_new_tensor_2d(context.get(), GGML_TYPE_F16, kCacheCells, count);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < ggml_nelements(queries); ++i) static_cast<float*>(queries->data)[i] = normal(rng_);
    std::vector<int64_t> cells, positions;
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t cell = 0; cell < kCacheCells; ++cell) {
        const bool seen = tokens[t].first <= cell && cell <= tokens[t].cell;
        static_cast<ggml_fp16_t*>(mask->data)[t * kCacheCells + cell] = ggml_fp32_to_fp16(seen ? 0 : -INFINITY);
      }
      cells.push_back(tokens[t].cell), positions.push_back(tokens[t].position);
    }
    const auto view = [&](ggml_tensor* cache) {
      return ggml_permute(context.get(),
                          ggml_view_4d(context.get(), cache, kCacheDim, kCacheKvHeads, kCacheCells, 1,
                                       cache->nb[1] / kCacheKvHeads, cache->nb[1], cache->nb[2], 0),
                          0, 2, 1, 3);
    };
    ggml_tensor* node = ggml_flash_attn_ext(context.get(), queries, view(keys_), view(values_), mask, .125F, 0, 0);
    ggml_flash_attn_ext_add_sinks(node, sinks_);
    node->flags |= GGML_TENSOR_FLAG_COMPUTE;
    EXPECT_EQ(team_.Compute(node), GGML_STATUS_SUCCESS);
    auto* const data = static_cast<float*>(node->data);
    const std::vector<float> plain(data, data + ggml_nelements(node));
    std::fill_n(data, plain.size(), 0.F);
    Learn(AttentionNode(node));
    Write(cells);
    cache_.Sees(AttentionNode(node), &positions);
    cache_.SetSeesAll();
    EXPECT_EQ(cache_.Attend(AttentionNode(node), 0), GGML_STATUS_SUCCESS);
    std::vector<double> worst(count);
    for (size_t i = 0; i < plain.size(); ++i) {
      double& of = worst[i / (kCacheHeads * kCacheDim)];
      of = std::max(of, std::abs(static_cast<double>(data[i]) - plain[i]));
    }
    return worst;
  }
  // A graph's writes.
  void Write(const std::vector<int64_t>& cells) {
    cache_.Begin();
    EXPECT_TRUE(cache_.Writes(0, cells));
  }

 private:
  ggml_tensor* Cache(const char* name) {
    return ggml_set_name(
        ggml_new_tensor_3d(context_.get(), GGML_TYPE_F16, int64_t{kCacheKvHeads} * kCacheDim, kCacheCells, 1), name);
  }

  std::mt19937 rng_{3};
  std::unique_ptr<ggml_backend, decltype(&ggml_backend_free)> cpu_{nullptr, &ggml_backend_free};
  std::unique_ptr<ggml_context, decltype(&ggml_free)> context_{nullptr, &ggml_free};
  std::unique_ptr<ggml_backend_buffer, decltype(&ggml_backend_buffer_free)> buffer_{nullptr, &ggml_backend_buffer_free};
  ggml_tensor *keys_, *values_, *sinks_;
  Team team_;
  RemoteCache cache_{&team_};
};

std::vector<Token> Prompt(int64_t first, int64_t count) {
  std::vector<Token> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back({i, first + i, first});
  return tokens;
}

TEST_F(CacheOfOneLayer, ATextThatFailedIsComputedWhole) {
  for (const double difference : Compute(Prompt(0, 300))) EXPECT_EQ(difference, 0);
  EXPECT_GT(Compute({{300, 300, 0}})[0], 1);  // sevens
  EXPECT_EQ(asked.attended, 1);
  // A token beside a prompt, whose kernel was run before the server was asked.
  std::vector<Token> tokens = Prompt(302, 18);
  tokens.push_back({301, 301, 0});
  asked.fails = true;
  for (const double difference : Compute(tokens)) EXPECT_EQ(difference, 0);
  EXPECT_EQ(asked.attended, 2);
}

TEST_F(CacheOfOneLayer, CellsThatWereNeverAttendedAreNotKnown) {
  Compute(Prompt(0, 300));
  Write({50});  // of a graph that ended before its attention
  EXPECT_EQ(Compute({{300, 300, 0}})[0], 0);
  EXPECT_EQ(asked.attended, 0);
}

// A step that waits for a server in vain is followed by others that do not wait.
TEST_F(CacheOfOneLayer, AServerThatHangsIsAskedLessOften) {
  asked.hangs = std::chrono::milliseconds(200);
  Compute(Prompt(0, 300));
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  EXPECT_EQ(Compute({{300, 300, 0}})[0], 0);
  EXPECT_EQ(asked.opened, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  EXPECT_EQ(Compute({{301, 301, 0}})[0], 0);
  EXPECT_EQ(asked.opened, 2);
  EXPECT_EQ(Compute({{0, 302, 302}})[0], 0);  // a text that begins does not wait
  EXPECT_EQ(asked.opened, 3);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> OpenSession(const SessionConfig&) {
  ++asked.opened;
  if (asked.hangs.count() == 0) return std::make_unique<Sevens>();
  std::this_thread::sleep_for(asked.hangs);
  return absl::UnavailableError("no answer");
}

}  // namespace seine::llama
