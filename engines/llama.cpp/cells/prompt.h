// Attention nodes of a prompt's micro-batch: exact, or by chosen runs of keys. No codes are read.
#ifndef SEINE_ENGINES_LLAMA_CPP_CELLS_PROMPT_H_
#define SEINE_ENGINES_LLAMA_CPP_CELLS_PROMPT_H_

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engines/llama.cpp/ggml/node.h"
#include "engines/llama.cpp/ggml/team.h"
#include "index/prompt/prompt_batch.h"

namespace seine::llama {

// One thread at a time calls it.
class PromptAttention {
 public:
  explicit PromptAttention(Team* team) : team_(*team) {}

  // Answers a node of any number of tokens, of the model's layer `layer`. Returns why it cannot; empty: it is answered.
  std::string Answer(const AttentionNode& node, int layer, const PromptParams& params);

 private:
  // What the tokens of a micro-batch see: the same in all layers that share a mask.
  struct Sight {
    std::unique_ptr<const PromptMask> mask;
    bool weighed = false;  // the mask weighs cells
  };
  auto OnTeam() {
    return [this](int count, const std::function<void(int)>& task) { team_.Run(count, task); };
  }
  const Sight& SightOf(const AttentionNode& node, int layer);

  Team& team_;
  // By mask and its data, of one graph: a mask that a layer computes may lie where an earlier layer's has lain.
  std::map<std::pair<const ggml_tensor*, const void*>, Sight> sights_;
  std::vector<float> log_sum_exp_;  // where there are sinks
  int last_layer_ = std::numeric_limits<int>::max();
};

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_CELLS_PROMPT_H_
