// Thin calls of llama.cpp's.
#include "engines/llama.cpp/tests/one_context.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace seine::llama {

OneContext::OneContext(llama_model* model, const ContextShape& shape)
    : vocabulary_(llama_vocab_n_tokens(llama_model_get_vocab(model))), context_(nullptr, &llama_free) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = shape.cells * (shape.unified ? 1 : shape.sequences);
  params.n_batch = 4096;
  params.n_ubatch = shape.ubatch;
  params.n_seq_max = shape.sequences;
  params.n_threads = params.n_threads_batch = 1;  // quick on a machine that others use
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.kv_unified = shape.unified;
  params.swa_full = shape.full_windows;
  params.type_k = shape.types.k, params.type_v = shape.types.v;
  ThePlugin().set_mode(kSeine);
  context_.reset(llama_init_from_model(model, params));
  EXPECT_NE(context_, nullptr);
}

std::vector<float> OneContext::Decode(const std::vector<llama_seq_id>& sequences,
                                      const std::vector<llama_token>& tokens) {
  llama_batch batch = llama_batch_init(static_cast<int32_t>(sequences.size() * tokens.size()), 0, 1);
  for (const llama_seq_id sequence : sequences) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int n = batch.n_tokens++;
      batch.token[n] = tokens[i];
      batch.pos[n] = End(sequence) + static_cast<llama_pos>(i);
      batch.n_seq_id[n] = 1;
      batch.seq_id[n][0] = sequence;
      batch.logits[n] = 1;
    }
  }
  std::vector<float> logits;
  if (llama_decode(get(), batch) == 0) {
    for (int n = 0; n < batch.n_tokens; ++n) {
      const float* of_token = llama_get_logits_ith(get(), n);
      logits.insert(logits.end(), of_token, of_token + vocabulary_);
    }
  }
  llama_batch_free(batch);
  return logits;
}

State OneContext::Save(llama_seq_id sequence, uint32_t flags) const {
  llama_context* const c = get();
  State state(sequence < 0 ? llama_state_get_size(c) : llama_state_seq_get_size_ext(c, sequence, flags));
  const size_t size = sequence < 0 ? llama_state_get_data(c, state.data(), state.size())
                                   : llama_state_seq_get_data_ext(c, state.data(), state.size(), sequence, flags);
  state.resize(size);
  return state;
}

bool OneContext::Load(const State& state, llama_seq_id sequence, uint32_t flags) {
  if (sequence < 0) return llama_state_set_data(get(), state.data(), state.size()) > 0;
  return llama_state_seq_set_data_ext(get(), state.data(), state.size(), sequence, flags) > 0;
}

void OneContext::Use(llama_adapter_lora* adapter) {
  float scale = 1;
  EXPECT_EQ(llama_set_adapters_lora(get(), &adapter, adapter == nullptr ? 0 : 1, &scale), 0);
}

std::vector<llama_token> RandomTokens(int count, uint32_t seed, int vocabulary) {
  std::mt19937 rng(seed);
  std::vector<llama_token> tokens(count);
  for (llama_token& token : tokens) token = static_cast<llama_token>(rng() % vocabulary);
  return tokens;
}

double Largest(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
  return largest;
}

}  // namespace seine::llama
