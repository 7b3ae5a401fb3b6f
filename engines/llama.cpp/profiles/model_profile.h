// The profile that serves the model of one context.
#ifndef SEINE_ENGINES_LLAMA_CPP_PROFILES_MODEL_PROFILE_H_
#define SEINE_ENGINES_LLAMA_CPP_PROFILES_MODEL_PROFILE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "engines/llama.cpp/ggml/cache_facts.h"
#include "index/cells/cell_layer.h"
#include "profile/profile.h"

namespace seine::llama {

class ModelProfile {
 public:
  // Reads the profile that the environment names, or the one of its folder that is of this model. The first call does,
  // and later ones return its error. OK: there may be none.
  absl::Status Read(const CacheFacts& facts);

  // The number by which an index counts the layer.
  int NumberOf(const CacheFacts& facts) const;
  // Why the profile does not serve layers of such heads, or such a RoPE; empty: it does, or there is none.
  std::string Unfit(const CacheFacts& facts) const;
  // Why it does not serve the layer in an index of `geometry`; empty: it does, or there is none.
  std::string Unfit(const CacheFacts& facts, const Geometry& geometry) const;

  // States the profile's layers, their RoPE and the code, where there is a profile.
  void State(const CacheFacts& facts, CellConfig* config) const;

 private:
  bool read_ = false;
  absl::Status status_;
  std::string path_;                        // empty: there is none
  std::shared_ptr<const Profile> profile_;  // nullptr: there is none
};

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_PROFILES_MODEL_PROFILE_H_
