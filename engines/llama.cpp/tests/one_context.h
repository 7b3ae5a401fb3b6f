// A context with the plug-in, to be compared with another one: a new context that holds nothing but what it loaded.
#ifndef SEINE_ENGINES_LLAMA_CPP_TESTS_ONE_CONTEXT_H_
#define SEINE_ENGINES_LLAMA_CPP_TESTS_ONE_CONTEXT_H_

#include <cstdint>
#include <vector>

#include "engines/llama.cpp/tests/loaded_plugin.h"
#include "llama.h"

namespace seine::llama {

struct ContextShape {
  int cells = 2048, sequences = 1, ubatch = 256;  // cells: a sequence, where these have streams of their own
  bool unified = true, full_windows = false;      // full_windows: layers that slide keep all cells
  CacheTypes types = {};
};

using State = std::vector<uint8_t>;

class OneContext {
 public:
  OneContext(llama_model* model, const ContextShape& shape);

  llama_context* get() const { return context_.get(); }
  llama_memory_t memory() const { return llama_get_memory(context_.get()); }
  llama_pos End(llama_seq_id sequence) const { return llama_memory_seq_pos_max(memory(), sequence) + 1; }
  int vocabulary() const { return vocabulary_; }

  // Decodes these tokens of each sequence behind its last. Returns all logits, [sequences, tokens, vocabulary]; empty:
  // llama.cpp refused.
  std::vector<float> Decode(const std::vector<llama_seq_id>& sequences, const std::vector<llama_token>& tokens);

  // Of a sequence, or of all (-1).
  State Save(llama_seq_id sequence, uint32_t flags = 0) const;
  bool Load(const State& state, llama_seq_id sequence, uint32_t flags = 0);

  void Use(llama_adapter_lora* adapter);  // nullptr: none

 private:
  int vocabulary_;
  Context context_;
};

// Tokens that follow of the seed.
std::vector<llama_token> RandomTokens(int count, uint32_t seed, int vocabulary);

// The largest difference; infinite where one has not as many.
double Largest(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_TESTS_ONE_CONTEXT_H_
