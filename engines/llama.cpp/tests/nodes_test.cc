// The plug-in's nodes over caches of every type, beside double precision on what ggml itself reads out of these caches.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engines/llama.cpp/tests/fixtures/loaded_plugin.h"
#include "ggml-backend.h"
#include "ggml.h"

namespace seine::llama {
namespace {

constexpr int64_t kNodeCells = 460;
constexpr int kNodeHeads = 6, kNodeKvHeads = 2;

struct NodeCase {
  ggml_type keys, values;
  int head_dim;
  int64_t tokens;
  float softcap = 0;
};

// A layer's caches, and attention of the last tokens over all cells, as llama.cpp's graph has them.
class Nodes {
 public:
  explicit Nodes(const NodeCase& c) : case_(c) {
    (void)ThePlugin().set_mode(kSeine);
    device_ = ggml_backend_dev_by_name("Seine");
    cpu_.reset(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    seine_.reset(ggml_backend_dev_init(device_, nullptr));
    context_.reset(ggml_init({.mem_size = 1 << 20, .mem_buffer = nullptr, .no_alloc = true}));
    const int64_t width = int64_t{kNodeKvHeads} * c.head_dim;
    keys_[0] = Cache("cache_k_l0", c.keys, width), values_[0] = Cache("cache_v_l0", c.values, width);
    keys_[1] = Cache("cache_k_l1", c.keys, width), values_[1] = Cache("cache_v_l1", c.values, width);
    rows_ = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, width, kNodeCells);
    indices_ = ggml_new_tensor_1d(context_.get(), GGML_TYPE_I64, kNodeCells);
    queries_ = ggml_new_tensor_3d(context_.get(), GGML_TYPE_F32, c.head_dim, c.tokens, kNodeHeads);
    for (int layer : {0, 1}) {
      mask_[layer] = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F16, kNodeCells, c.tokens);
      attend_[layer] = ggml_flash_attn_ext(context_.get(), queries_, View(keys_[layer]), View(values_[layer]),
                                           mask_[layer], Scale(), 0, c.softcap);
    }
    write_ = ggml_set_rows(context_.get(), keys_[0], rows_, indices_);
    buffer_.reset(ggml_backend_alloc_ctx_tensors(context_.get(), cpu_.get()));
    mask_[1]->data = mask_[0]->data;  // as an allocator may place a mask that a layer computes
    for (int layer : {0, 1}) Fill(keys_[layer]), Fill(values_[layer]);
    std::normal_distribution<float> normal(0, 2);
    for (float& q : Floats(queries_)) q = normal(rng_);
    for (float& x : Floats(rows_)) x = normal(rng_);
    for (int64_t i = 0; i < kNodeCells; ++i) static_cast<int64_t*>(indices_->data)[i] = i;
    SeeFrom(0);
  }

  // Tokens see the cells from there on, up to their own.
  void SeeFrom(int64_t first) {
    first_ = first;
    for (int64_t t = 0; t < case_.tokens; ++t) {
      for (int64_t i = 0; i < kNodeCells; ++i) {
        static_cast<ggml_fp16_t*>(mask_[0]->data)[t * kNodeCells + i] =
            ggml_fp32_to_fp16(i >= first && i <= kNodeCells - case_.tokens + t ? 0 : -INFINITY);
      }
    }
  }

  // Asked of each node before it is computed, as a scheduler does: caches become known by it.
  bool Supported() const {
    return ggml_backend_dev_supports_op(device_, attend_[0]) && ggml_backend_dev_supports_op(device_, attend_[1]);
  }
  void Compute(ggml_tensor* node) {
    ggml_cgraph* graph = ggml_new_graph(context_.get());
    node->flags |= GGML_TENSOR_FLAG_COMPUTE;
    ggml_graph_add_node(graph, node);
    ASSERT_EQ(ggml_backend_graph_compute(seine_.get(), graph), GGML_STATUS_SUCCESS);
  }
  void Attend(int layer = 0) { Compute(attend_[layer]); }
  void WriteKeys() {
    ASSERT_TRUE(ggml_backend_dev_supports_op(device_, write_));
    Compute(write_);
  }

  // The largest difference from double precision, of outputs that deviate by about 1.
  double LargestError(int layer = 0) const {
    const std::vector<float> keys = Read(keys_[layer]), values = Read(values_[layer]);
    const int dim = case_.head_dim;
    double largest = 0;
    for (int64_t t = 0; t < case_.tokens; ++t) {
      for (int h = 0; h < kNodeHeads; ++h) {
        const float* query = static_cast<const float*>(queries_->data) + (h * case_.tokens + t) * dim;
        const int of_kv = h / (kNodeHeads / kNodeKvHeads);
        std::vector<double> want(dim);
        double sum = 0;
        for (int64_t i = first_; i <= kNodeCells - case_.tokens + t; ++i) {
          const size_t at = (i * kNodeKvHeads + of_kv) * dim;
          double logit = 0;
          for (int j = 0; j < dim; ++j) logit += double{query[j]} * keys[at + j];
          logit *= Scale();
          if (case_.softcap > 0) logit = case_.softcap * std::tanh(logit / case_.softcap);
          const double weight = std::exp(logit);
          sum += weight;
          for (int j = 0; j < dim; ++j) want[j] += weight * values[at + j];
        }
        const float* got = static_cast<const float*>(attend_[layer]->data) + (t * kNodeHeads + h) * dim;
        for (int j = 0; j < dim; ++j) largest = std::max(largest, std::abs(got[j] - want[j] / sum));
      }
    }
    return largest;
  }

 private:
  struct Floats {
    explicit Floats(ggml_tensor* t) : data(static_cast<float*>(t->data)), count(ggml_nelements(t)) {}
    float* begin() const { return data; }
    float* end() const { return data + count; }
    float* data;
    int64_t count;
  };
  float Scale() const { return 1 / std::sqrt(static_cast<float>(case_.head_dim)); }
  ggml_tensor* Cache(const char* name, ggml_type type, int64_t width) {
    return ggml_set_name(ggml_new_tensor_3d(context_.get(), type, width, kNodeCells, 1), name);
  }
  // Strides by hand: a head of 80 values is no whole number of blocks, and such a node is refused.
  ggml_tensor* View(ggml_tensor* cache) const {
    const size_t head = cache->nb[1] / kNodeKvHeads;
    return ggml_permute(context_.get(),
                        ggml_view_4d(context_.get(), cache, case_.head_dim, kNodeKvHeads, kNodeCells, 1, head,
                                     cache->nb[1], cache->nb[2], 0),
                        0, 2, 1, 3);
  }
  void Fill(ggml_tensor* cache) {
    std::normal_distribution<float> normal;
    std::vector<float> rows(ggml_nelements(cache));
    for (float& x : rows) x = normal(rng_);
    ggml_quantize_chunk(cache->type, rows.data(), cache->data, 0, kNodeCells, cache->ne[0], nullptr);
  }
  static std::vector<float> Read(const ggml_tensor* cache) {
    std::vector<float> rows(ggml_nelements(cache));
    ggml_get_type_traits(cache->type)->to_float(cache->data, rows.data(), ggml_nelements(cache));
    return rows;
  }

  const NodeCase case_;
  std::mt19937 rng_{5};
  ggml_backend_dev_t device_;
  std::unique_ptr<ggml_backend, decltype(&ggml_backend_free)> cpu_{nullptr, &ggml_backend_free};
  std::unique_ptr<ggml_context, decltype(&ggml_free)> context_{nullptr, &ggml_free};
  std::unique_ptr<ggml_backend_buffer, decltype(&ggml_backend_buffer_free)> buffer_{nullptr, &ggml_backend_buffer_free};
  std::unique_ptr<ggml_backend, decltype(&ggml_backend_free)> seine_{nullptr, &ggml_backend_free};
  ggml_tensor *keys_[2], *values_[2], *mask_[2], *attend_[2];  // by layer
  ggml_tensor *rows_, *indices_, *queries_, *write_;
  int64_t first_ = 0;
};

TEST(Nodes, NearDoublePrecisionOnWhatGgmlReads) {
  constexpr ggml_type kTypes[] = {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0};
  for (const ggml_type keys : kTypes) {
    for (const ggml_type values : kTypes) {
      for (const int dim : {64, 96, 256, 512}) {
        for (const int64_t tokens : {1, 3, 20}) {  // the last is a prompt's
          SCOPED_TRACE(std::string(ggml_type_name(keys)) + " " + ggml_type_name(values) + " " + std::to_string(dim) +
                       " " + std::to_string(tokens));
          Nodes nodes({keys, values, dim, tokens, dim == 256 ? 3.0f : 0.0f});
          ASSERT_TRUE(nodes.Supported());
          const int64_t answered = ThePlugin().Count("answered"), prompts = ThePlugin().Count("prompt_answered");
          nodes.Attend();
          EXPECT_EQ(ThePlugin().Count("answered") - answered, tokens <= 16 ? 1 : 0) << ThePlugin().report();
          EXPECT_EQ(ThePlugin().Count("prompt_answered") - prompts, tokens <= 16 ? 0 : 1);
          EXPECT_LT(nodes.LargestError(), 2e-5);
        }
      }
    }
  }
}

// Some models compute a mask in each layer, which may lie where an earlier layer's has lain.
TEST(Nodes, EachLayerIsAttendedUnderItsOwnMask) {
  for (const int64_t tokens : {3, 20}) {
    Nodes nodes({GGML_TYPE_F16, GGML_TYPE_F16, 64, tokens});
    ASSERT_TRUE(nodes.Supported());
    nodes.Attend(0);
    EXPECT_LT(nodes.LargestError(0), 2e-5) << tokens;
    nodes.SeeFrom(300);
    nodes.Attend(1);
    EXPECT_LT(nodes.LargestError(1), 2e-5) << tokens;
  }
}

TEST(Nodes, OtherTypesAndHeadDimsAreRefused) {
  for (const auto& [keys, values, dim, reason] :
       {std::tuple{GGML_TYPE_Q5_1, GGML_TYPE_F16, 64, "a cache of another type than f16, bf16, q8_0 or q4_0"},
        {GGML_TYPE_F16, GGML_TYPE_IQ4_NL, 64, "a cache of another type than f16, bf16, q8_0 or q4_0"},
        {GGML_TYPE_Q8_0, GGML_TYPE_F16, 80, "a quantised cache of a head_dim that is no multiple of 32"},
        {GGML_TYPE_F16, GGML_TYPE_Q4_0, 80, "a quantised cache of a head_dim that is no multiple of 32"}}) {
    Nodes nodes({keys, values, dim, 1});
    const int64_t declined = ThePlugin().Count(reason);
    EXPECT_FALSE(nodes.Supported());
    nodes.WriteKeys();  // with which such nodes are counted
    EXPECT_EQ(ThePlugin().Count(reason) - declined, 1) << ThePlugin().report();
  }
}

}  // namespace
}  // namespace seine::llama
