// What the plug-in does with the nodes that it claims, of one llama.cpp context.
#ifndef SEINE_ENGINES_LLAMA_CPP_NODE_COMPUTER_H_
#define SEINE_ENGINES_LLAMA_CPP_NODE_COMPUTER_H_

#include "engines/llama.cpp/ggml/team.h"
#include "ggml.h"

namespace seine::llama {

// One thread at a time calls it. Each call computes its node, here or by llama.cpp's own kernel.
class NodeComputer {
 public:
  virtual ~NodeComputer() = default;

  Team& team() { return team_; }
  virtual ggml_status Attend(ggml_tensor* node) = 0;
  virtual ggml_status SetRows(ggml_tensor* node) = 0;
  virtual ggml_status Shift(ggml_tensor* node) = 0;  // GGML_OP_ROPE in the cache itself, or GGML_OP_CPY into it

 protected:
  Team team_;
};

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_NODE_COMPUTER_H_
