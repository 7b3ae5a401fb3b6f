// Two contexts of one model, with the plug-in and without, which are called alike.
#ifndef SEINE_ENGINES_LLAMA_CPP_TESTS_CONTEXT_PAIR_H_
#define SEINE_ENGINES_LLAMA_CPP_TESTS_CONTEXT_PAIR_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

#include "engines/llama.cpp/tests/loaded_plugin.h"
#include "llama.h"

namespace seine::llama {

// The same calls to a context with the plug-in and one without.
class Pair {
 public:
  Pair(llama_model* model, int cells, int sequences, bool unified, CacheTypes types = {},
       llama_flash_attn_type flash = LLAMA_FLASH_ATTN_TYPE_ENABLED)
      : vocabulary_(llama_vocab_n_tokens(llama_model_get_vocab(model))) {
    for (const Mode mode : {kPlain, kSeine}) {
      llama_context_params params = llama_context_default_params();
      params.n_ctx = cells * (unified ? 1 : sequences);
      params.n_batch = params.n_ubatch = 512;
      params.n_seq_max = sequences;
      params.n_threads = params.n_threads_batch = 2;
      params.flash_attn_type = flash;
      params.kv_unified = unified;
      params.type_k = types.k, params.type_v = types.v;
      if (std::getenv("TEST_RINGS") != nullptr) params.swa_full = false;
      ThePlugin().set_mode(mode);
      both_.emplace_back(llama_init_from_model(model, params), &llama_free);
      EXPECT_NE(both_.back(), nullptr);
    }
  }

  llama_context* plain() const { return both_[0].get(); }
  llama_context* seine() const { return both_[1].get(); }
  llama_pos End(llama_seq_id sequence) const {
    return llama_memory_seq_pos_max(llama_get_memory(plain()), sequence) + 1;
  }

  // Decodes random tokens of each sequence, one behind another, and compares the logits of all of them. Returns the
  // largest difference. `token`: in place of random ones.
  double Decode(const std::vector<llama_seq_id>& sequences, int tokens, llama_token token = -1) {
    llama_batch batch = llama_batch_init(static_cast<int32_t>(sequences.size()) * tokens, 0, 1);
    for (const llama_seq_id sequence : sequences) {
      for (int i = 0; i < tokens; ++i) {
        const int n = batch.n_tokens++;
        batch.token[n] = token >= 0 ? token : static_cast<llama_token>(rng_() % vocabulary_);
        batch.pos[n] = End(sequence) + i;
        batch.n_seq_id[n] = 1;
        batch.seq_id[n][0] = sequence;
        batch.logits[n] = 1;
      }
    }
    ThePlugin().set_mode(kPlain);
    EXPECT_EQ(llama_decode(plain(), batch), 0);
    ThePlugin().set_mode(kSeine);
    EXPECT_EQ(llama_decode(seine(), batch), 0);
    double worst = 0;
    for (int n = 0; n < batch.n_tokens; ++n) {
      const float *a = llama_get_logits_ith(plain(), n), *b = llama_get_logits_ith(seine(), n);
      for (int v = 0; v < vocabulary_; ++v) worst = std::max(worst, std::abs(static_cast<double>(a[v]) - b[v]));
    }
    llama_batch_free(batch);
    return worst;
  }

  template <typename Fn>
  void Each(Fn fn) {
    ThePlugin().set_mode(kPlain);
    fn(plain());
    ThePlugin().set_mode(kSeine);
    fn(seine());
  }

 private:
  const int vocabulary_;
  std::mt19937 rng_{11};
  std::vector<Context> both_;
};

// Logits deviate by 2; llama.cpp adds values up in fp16, we in fp32.
inline constexpr double kSame = .03;
// Over quantised keys llama.cpp rounds queries to 8 bits as well, and we do not: logits then differ by up to .15 where
// every layer attends alike, and by .55 over four layers. What is exact is held to double precision by nodes_test.cc.
inline double Near(const CacheTypes& types) { return types.quantised() ? 10 * kSame : kSame; }

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_TESTS_CONTEXT_PAIR_H_
