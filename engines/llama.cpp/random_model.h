// GGUFs with random weights: of any geometry, for tests and for timing models that nobody can download here.
#ifndef SEINE_ENGINES_LLAMA_CPP_RANDOM_MODEL_H_
#define SEINE_ENGINES_LLAMA_CPP_RANDOM_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

namespace seine::llama {

struct ModelShape {
  // "llama"; "qwen2": keys turn in halves and have biases; "qwen3": queries and keys are normed; "gemma2": every other
  // layer slides, and logits are capped; "gemma3": every other layer slides, and turns by another base; "gemma4": those
  // that slide have heads of half the dimension besides; "lfm2": every other layer is a convolution, with a state of
  // its own; "granite": logits have a scale of their own; "smollm3": the fourth layer does not turn; "phi3", "glm4",
  // "stablelm": half of head_dim turns, of glm4 neighbours; "olmo2", "exaone4": norms behind; "cohere2": every other
  // layer slides, the others do not turn; "gpt-oss": sinks, experts, every other layer slides. In lfm2, phi3, stablelm,
  // olmo2, exaone4 and cohere2 embedding = q_heads
  // * head_dim.
  std::string architecture = "llama";
  int layers = 2, embedding = 128, feed_forward = 256;
  int q_heads = 2, kv_heads = 1, head_dim = 64;
  int vocabulary = 64, context = 8192;
  float rope_base = 10000;
  int sliding_window = 256;              // of the layers that slide
  int sharing_layers = 0;                // of gemma4: the last ones, which attend over caches of layers before them
  std::vector<float> rope_factors = {};  // [head_dim / 2] that frequencies are divided by, as Llama 3.1's; empty: none
  std::string weights = "f32";           // of matrices: a type of ggml's, such as "q8_0"
};

// Weights are normal, of a deviation that keeps activations near 1. False: no such type or
// architecture, or the file cannot be written.
bool WriteRandomModel(const ModelShape& shape, uint32_t seed, const std::string& path);

// An adapter (LoRA) of rank 4 on the projection of values in these layers. False: the file cannot be written.
bool WriteRandomAdapter(const ModelShape& shape, const std::vector<int>& layers, uint32_t seed,
                        const std::string& path);

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_RANDOM_MODEL_H_
