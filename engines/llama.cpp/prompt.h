// Attention nodes of a prompt's micro-batch: exact, or by chosen runs of keys. No codes are read.
#ifndef SEINE_ENGINES_LLAMA_CPP_PROMPT_H_
#define SEINE_ENGINES_LLAMA_CPP_PROMPT_H_

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "engines/llama.cpp/node.h"
#include "engines/llama.cpp/team.h"
#include "index/prompt/prompt_attention.h"

namespace seine::llama {

// One thread at a time calls it.
class PromptAttention {
 public:
  explicit PromptAttention(Team* team) : team_(*team) {}

  // Answers a node of any number of tokens, of the model's layer `layer`. Returns why it cannot; empty: it is answered.
  std::string Answer(const AttentionNode& node, int layer, const PromptParams& params);

 private:
  // What the tokens of a micro-batch see, [streams][blocks]: the same in all layers that share a mask.
  struct Sight {
    int block_tokens = 0;
    bool weighed = false;  // the mask weighs cells
    std::vector<PromptBlock> blocks;
  };
  const Sight& SightOf(const AttentionNode& node, int layer);

  Team& team_;
  std::map<const void*, Sight> sights_;  // by the mask's data, of one graph
  int last_layer_ = std::numeric_limits<int>::max();
};

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_PROMPT_H_
