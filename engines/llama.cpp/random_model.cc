// Writes a GGUF by ggml's own writer.
#include "engines/llama.cpp/random_model.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <random>
#include <vector>

#include "ggml.h"
#include "gguf.h"

namespace seine::llama {

namespace {

constexpr int kConvolved = 3;  // tokens that a convolution of lfm2 sees

// GGML_TYPE_COUNT: there is none.
ggml_type TypeNamed(const std::string& name) {
  for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
    const auto type = static_cast<ggml_type>(i);
    if (const char* const its = ggml_type_name(type); its != nullptr && name == its) return type;
  }
  return GGML_TYPE_COUNT;
}

class Writer {
 public:
  Writer(uint32_t seed, ggml_type weights) : weights_(weights), rng_(seed) {}
  ~Writer() {
    gguf_free(file_);
    for (ggml_context* context : contexts_) ggml_free(context);
  }
  Writer(const Writer&) = delete;

  gguf_context* file() { return file_; }

  // `matrices`: of that shape, in one tensor; 0: one.
  void Add(const std::string& name, int64_t columns, int64_t rows, float mean, float deviation, int64_t matrices = 0) {
    const ggml_type type = TypeOf(name, columns, rows);
    const int64_t all = rows * std::max<int64_t>(1, matrices);
    const size_t bytes = ggml_row_size(type, columns) * all;
    ggml_context* context = ggml_init({bytes + 2 * ggml_tensor_overhead(), nullptr, false});
    contexts_.push_back(context);
    ggml_tensor* tensor = matrices > 0 ? ggml_new_tensor_3d(context, type, columns, rows, matrices)
                          : rows > 1   ? ggml_new_tensor_2d(context, type, columns, rows)
                                       : ggml_new_tensor_1d(context, type, columns);
    ggml_set_name(tensor, name.c_str());
    std::normal_distribution<float> normal(mean, deviation);
    std::vector<float> some(columns * std::min<int64_t>(all, 64));  // rows repeat: nobody reads them but for time
    for (float& x : some) x = normal(rng_);
    for (int64_t r = 0; r < all; ++r) {
      const float* row = some.data() + r % 64 * columns;
      char* to = static_cast<char*>(tensor->data) + r * tensor->nb[1];
      if (type == GGML_TYPE_F32) {
        std::copy(row, row + columns, reinterpret_cast<float*>(to));
      } else {
        ggml_quantize_chunk(type, row, to, 0, 1, columns, nullptr);
      }
    }
    gguf_add_tensor(file_, tensor);
  }

  void Add(const std::string& name, const std::vector<float>& values) {
    ggml_context* context = ggml_init({values.size() * sizeof(float) + 2 * ggml_tensor_overhead(), nullptr, false});
    contexts_.push_back(context);
    ggml_tensor* tensor = ggml_new_tensor_1d(context, GGML_TYPE_F32, static_cast<int64_t>(values.size()));
    ggml_set_name(tensor, name.c_str());
    std::copy(values.begin(), values.end(), static_cast<float*>(tensor->data));
    gguf_add_tensor(file_, tensor);
  }

  bool WriteTo(const std::string& path) {
    const std::string partial = path + ".partial";  // who is cut off leaves none that looks whole
    return gguf_write_to_file(file_, partial.c_str(), /*only_meta=*/false) &&
           std::rename(partial.c_str(), path.c_str()) == 0;
  }

 private:
  // As llama-quantize has it: weights of 4 bits leave 6 to what turns into tokens.
  ggml_type TypeOf(const std::string& name, int64_t columns, int64_t rows) const {
    const bool of_tokens = name == "token_embd.weight" || name == "output.weight";
    const bool four_bits = weights_ == GGML_TYPE_Q4_0 || weights_ == GGML_TYPE_Q4_K;
    const ggml_type type = of_tokens && four_bits ? GGML_TYPE_Q6_K : weights_;
    const bool vectors = rows == 1 || name.ends_with(".bias");
    return vectors || columns % ggml_blck_size(type) != 0 ? GGML_TYPE_F32 : type;
  }

  const ggml_type weights_;
  std::mt19937 rng_;
  gguf_context* file_ = gguf_init_empty();
  std::vector<ggml_context*> contexts_;
};

constexpr int kExperts = 4;

// What an architecture has, and llama does not.
struct Family {
  const char* name;
  bool slides = false;             // every other layer, the first among them
  bool post_norms = false;         // behind attention and feed-forward
  bool pre_norms = true;           // before these
  bool one_norm = false;           // for both, as they run side by side
  bool norms_each_head = false;    // of queries and keys
  bool norms_all_heads = false;    // together
  bool biases = false;             // of queries, keys and values
  bool is_tied = false;            // the embeddings are the output's rows too
  bool gate_in_up = false;         // one matrix for both
  bool half_turns = false;         // half of head_dim is turned by RoPE
  bool norms_have_biases = false;  // stablelm
  bool experts_and_sinks = false;  // gpt-oss
};
constexpr Family kFamilies[] = {
    {.name = "llama"},
    {.name = "qwen2", .biases = true},
    {.name = "qwen3", .norms_each_head = true},
    {.name = "gemma2", .slides = true, .post_norms = true, .is_tied = true},
    {.name = "gemma3", .slides = true, .post_norms = true, .norms_each_head = true, .is_tied = true},
    {.name = "gemma4", .slides = true, .post_norms = true, .is_tied = true},
    {.name = "lfm2", .norms_each_head = true},
    {.name = "granite"},
    {.name = "smollm3"},
    {.name = "phi3", .gate_in_up = true, .half_turns = true},
    {.name = "glm4", .post_norms = true, .gate_in_up = true, .half_turns = true},
    {.name = "stablelm", .half_turns = true, .norms_have_biases = true},
    {.name = "olmo2", .post_norms = true, .pre_norms = false, .norms_all_heads = true},
    {.name = "exaone4", .post_norms = true, .pre_norms = false, .norms_each_head = true},
    {.name = "cohere2", .slides = true, .one_norm = true, .is_tied = true},
    {.name = "gpt-oss", .slides = true, .biases = true, .experts_and_sinks = true},
};
const Family* FamilyOf(const ModelShape& s) {
  const auto* const at = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                      [&](const Family& family) { return s.architecture == family.name; });
  return at == std::end(kFamilies) ? nullptr : at;
}

bool IsConvolution(const ModelShape& s, int layer) { return s.architecture == "lfm2" && layer % 2 == 0; }
bool Slides(int layer) { return layer % 2 == 0; }

void AddConvolution(const ModelShape& s, const std::string& block, float from_embedding, Writer* out) {
  out->Add(block + "shortconv.conv.weight", kConvolved, s.embedding, 0, .5f);
  out->Add(block + "shortconv.in_proj.weight", s.embedding, int64_t{3} * s.embedding, 0, from_embedding);
  out->Add(block + "shortconv.out_proj.weight", s.embedding, s.embedding, 0, from_embedding);
}

void AddAttention(const ModelShape& s, const Family& family, const std::string& block, int head_dim, bool has_cache,
                  float from_embedding, Writer* out) {
  const int of_queries = s.q_heads * head_dim, of_keys = s.kv_heads * head_dim;
  out->Add(block + "attn_q.weight", s.embedding, of_queries, 0, 1.5f * from_embedding);
  if (has_cache) {
    out->Add(block + "attn_k.weight", s.embedding, of_keys, 0, 1.5f * from_embedding);
    out->Add(block + "attn_v.weight", s.embedding, of_keys, 0, from_embedding);
  }
  if (family.biases) {
    out->Add(block + "attn_q.bias", of_queries, 1, 0, .5f);
    out->Add(block + "attn_k.bias", of_keys, 1, 0, .5f);
    out->Add(block + "attn_v.bias", of_keys, 1, 0, .1f);
  }
  if (s.architecture == "gemma4") {  // which scales no logits
    out->Add(block + "attn_q_norm.weight", head_dim, 1, .4f, .04f);
    if (has_cache) out->Add(block + "attn_k_norm.weight", head_dim, 1, .4f, .04f);
  } else if (family.norms_each_head || family.norms_all_heads) {
    out->Add(block + "attn_q_norm.weight", family.norms_all_heads ? of_queries : head_dim, 1, 1, .1f);
    out->Add(block + "attn_k_norm.weight", family.norms_all_heads ? of_keys : head_dim, 1, 1, .1f);
  }
  out->Add(block + "attn_output.weight", of_queries, s.embedding, 0, 1 / std::sqrt(static_cast<float>(of_queries)));
  if (family.experts_and_sinks) {
    out->Add(block + "attn_output.bias", s.embedding, 1, 0, .1f);
    out->Add(block + "attn_sinks.weight", s.q_heads, 1, 4, 2);  // beside logits of some hundred tokens
  }
}

void AddFeedForward(const ModelShape& s, const Family& family, const std::string& block, float from_embedding,
                    Writer* out) {
  const float from_inner = 1 / std::sqrt(static_cast<float>(s.feed_forward));
  if (!family.experts_and_sinks) {
    if (!family.gate_in_up) out->Add(block + "ffn_gate.weight", s.embedding, s.feed_forward, 0, from_embedding);
    out->Add(block + "ffn_up.weight", s.embedding, (family.gate_in_up ? 2 : 1) * s.feed_forward, 0, from_embedding);
    out->Add(block + "ffn_down.weight", s.feed_forward, s.embedding, 0, from_inner);
    return;
  }
  out->Add(block + "ffn_gate_inp.weight", s.embedding, kExperts, 0, from_embedding);
  out->Add(block + "ffn_gate_inp.bias", kExperts, 1, 0, .1f);
  for (const char* name : {"ffn_gate_exps", "ffn_up_exps"}) {
    out->Add(block + name + ".weight", s.embedding, s.feed_forward, 0, from_embedding, kExperts);
    out->Add(block + name + ".bias", s.feed_forward, kExperts, 0, .1f);
  }
  out->Add(block + "ffn_down_exps.weight", s.feed_forward, s.embedding, 0, from_inner, kExperts);
  out->Add(block + "ffn_down_exps.bias", s.embedding, kExperts, 0, .1f);
}

void AddLayer(const ModelShape& s, const Family& family, int layer, Writer* out) {
  const std::string block = "blk." + std::to_string(layer) + ".";
  const float from_embedding = 1 / std::sqrt(static_cast<float>(s.embedding));
  if (family.pre_norms) out->Add(block + "attn_norm.weight", s.embedding, 1, 1, 0);
  if (IsConvolution(s, layer)) {
    AddConvolution(s, block, from_embedding, out);
  } else {
    const int head_dim = s.architecture == "gemma4" && Slides(layer) ? s.head_dim / 2 : s.head_dim;
    AddAttention(s, family, block, head_dim, layer < s.layers - s.sharing_layers, from_embedding, out);
  }
  if (family.post_norms || family.experts_and_sinks) {
    out->Add(block + "post_attention_norm.weight", s.embedding, 1, 1, 0);
  }
  if (family.post_norms) out->Add(block + "post_ffw_norm.weight", s.embedding, 1, 1, 0);
  const bool own_norm = family.pre_norms && !family.one_norm && !family.experts_and_sinks;
  if (own_norm) out->Add(block + "ffn_norm.weight", s.embedding, 1, 1, 0);
  for (const char* norm : {"attn_norm.bias", "ffn_norm.bias"}) {
    if (family.norms_have_biases) out->Add(block + norm, s.embedding, 1, 0, .1f);
  }
  AddFeedForward(s, family, block, from_embedding, out);
}

}  // namespace

bool WriteRandomModel(const ModelShape& s, uint32_t seed, const std::string& path) {
  const ggml_type weights = TypeNamed(s.weights);
  const Family* const family = FamilyOf(s);
  if (weights == GGML_TYPE_COUNT || family == nullptr) return false;
  Writer out(seed, weights);
  gguf_context* file = out.file();
  gguf_set_val_str(file, "general.architecture", s.architecture.c_str());
  gguf_set_val_str(file, "tokenizer.ggml.model", "no_vocab");
  const auto set = [&](const char* key, int value) {
    gguf_set_val_u32(file, (s.architecture + "." + key).c_str(), static_cast<uint32_t>(value));
  };
  const auto set_float = [&](const char* key, float value) {
    gguf_set_val_f32(file, (s.architecture + "." + key).c_str(), value);
  };
  set("vocab_size", s.vocabulary);
  set("context_length", s.context);
  set("embedding_length", s.embedding);
  set("block_count", s.layers);
  set("feed_forward_length", s.feed_forward);
  set("attention.head_count", s.q_heads);
  if (s.architecture == "lfm2") {
    std::vector<int32_t> heads;
    for (int i = 0; i < s.layers; ++i) heads.push_back(IsConvolution(s, i) ? 0 : s.kv_heads);
    gguf_set_arr_data(file, "lfm2.attention.head_count_kv", GGUF_TYPE_INT32, heads.data(), heads.size());
    set("shortconv.l_cache", kConvolved);
  } else {
    set("attention.head_count_kv", s.kv_heads);
  }
  set("attention.key_length", s.head_dim);
  set("attention.value_length", s.head_dim);
  set("rope.dimension_count", family->half_turns ? s.head_dim / 2 : s.head_dim);
  if (family->slides) {
    set("attention.sliding_window", s.sliding_window);
    if (s.architecture == "gemma4") {
      std::vector<int8_t> slides;
      for (int i = 0; i < s.layers; ++i) slides.push_back(Slides(i) ? 1 : 0);
      gguf_set_arr_data(file, "gemma4.attention.sliding_window_pattern", GGUF_TYPE_BOOL, slides.data(), slides.size());
      for (const char* key : {"attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"}) {
        set(key, s.head_dim / 2);
      }
      set("embedding_length_per_layer_input", 0);
      set("attention.shared_kv_layers", s.sharing_layers);
    } else {
      set("attention.sliding_window_pattern", 2);  // layers 0, 2, ... slide
    }
  }
  if (family->experts_and_sinks) {
    set("expert_count", kExperts);
    set("expert_used_count", kExperts);  // a choice of two that are nearly as good would hang on rounding
    set("expert_feed_forward_length", s.feed_forward);
  }
  if (s.architecture == "granite") {
    set_float("attention.scale", .1f);
    set_float("embedding_scale", 2);
    set_float("residual_scale", .5f);
  }
  if (s.architecture == "granite" || s.architecture == "cohere2") set_float("logit_scale", 1);
  if (s.architecture == "gemma3") set_float("rope.freq_base_swa", s.rope_base / 10);
  if (family->norms_have_biases) out.Add("output_norm.bias", s.embedding, 1, 0, .1f);
  set_float(s.architecture == "cohere2" || s.architecture == "stablelm" ? "attention.layer_norm_epsilon"
                                                                        : "attention.layer_norm_rms_epsilon",
            1e-5f);
  set_float("rope.freq_base", s.rope_base);
  const float of_logits = 2 / std::sqrt(static_cast<float>(s.embedding));
  out.Add("token_embd.weight", s.embedding, s.vocabulary, 0, family->is_tied ? of_logits : 1);
  std::vector<float> factors = s.rope_factors;
  if (s.architecture == "gemma4" && factors.empty()) factors.resize(s.head_dim / 2, 1);  // it must have some
  if (!factors.empty()) out.Add("rope_freqs.weight", factors);
  for (int layer = 0; layer < s.layers; ++layer) AddLayer(s, *family, layer, &out);
  out.Add(s.architecture == "lfm2" ? "token_embd_norm.weight" : "output_norm.weight", s.embedding, 1, 1, 0);
  if (!family->is_tied) out.Add("output.weight", s.embedding, s.vocabulary, 0, of_logits);
  return out.WriteTo(path);
}

bool WriteRandomAdapter(const ModelShape& s, const std::vector<int>& layers, uint32_t seed, const std::string& path) {
  constexpr int kRank = 4;
  Writer out(seed, GGML_TYPE_F32);
  gguf_set_val_str(out.file(), "general.type", "adapter");
  gguf_set_val_str(out.file(), "general.architecture", s.architecture.c_str());
  gguf_set_val_str(out.file(), "adapter.type", "lora");
  gguf_set_val_f32(out.file(), "adapter.lora.alpha", kRank);
  for (const int layer : layers) {
    const std::string name = "blk." + std::to_string(layer) + ".attn_v.weight.lora_";
    out.Add(name + "a", s.embedding, kRank, 0, 1 / std::sqrt(static_cast<float>(s.embedding)));
    out.Add(name + "b", kRank, int64_t{s.kv_heads} * s.head_dim, 0, 1);
  }
  return out.WriteTo(path);
}

}  // namespace seine::llama
