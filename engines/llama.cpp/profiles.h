// The profile of the model that llama.cpp runs, out of a folder. A backend is told neither the model's name nor its
// file, so that profiles are told apart by geometry and RoPE.
#ifndef SEINE_ENGINES_LLAMA_CPP_PROFILES_H_
#define SEINE_ENGINES_LLAMA_CPP_PROFILES_H_

#include <string>

#include "absl/status/statusor.h"
#include "engines/llama.cpp/node.h"
#include "profile/profile.h"

namespace seine::llama {

// The path of the one profile in `folder` (files *.safetensors) that is of a model of so many layers with these caches:
// the same numbers of heads, head_dim, and frequencies of RoPE, as they are or unstretched. NOT_FOUND: none fits.
// FAILED_PRECONDITION: several do, and are named. Other errors: the folder cannot be read.
absl::StatusOr<std::string> FindProfile(const std::string& folder, const CacheFacts& facts, int num_layers);

// Returns true if the profile's moments, which were taken before RoPE, serve a layer with these caches. They do not
// where it turns by other frequencies than the profile states and another layer turns by those: Gemma 3's layers that
// slide are such.
bool MomentsAreOf(const Profile& profile, const CacheFacts& facts);

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_PROFILES_H_
