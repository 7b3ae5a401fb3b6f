// The profile of the model that llama.cpp runs, out of a folder. A backend is told neither the model's name nor its
// file, so that profiles are told apart by geometry and RoPE.
#ifndef SEINE_ENGINES_LLAMA_CPP_PROFILES_PROFILES_H_
#define SEINE_ENGINES_LLAMA_CPP_PROFILES_PROFILES_H_

#include <string>

#include "absl/status/statusor.h"
#include "engines/llama.cpp/ggml/cache_facts.h"
#include "engines/llama.cpp/ggml/node.h"
#include "index/config/config.h"
#include "profile/profile.h"

namespace seine::llama {

// The path of the one profile in `folder` (files *.safetensors) that is of a model of so many layers with these caches:
// the same numbers of heads, head_dim, and frequencies of each layer's RoPE, as they are or unstretched. NOT_FOUND:
// none fits. FAILED_PRECONDITION: several do, and are named. Other errors: the folder cannot be read.
absl::StatusOr<std::string> FindProfile(const std::string& folder, const CacheFacts& facts, int num_layers);

// The number by which a profile of so many layers counts a layer with these caches: among those of its cache where the
// profile is of as many, else the model's.
int NumberInProfile(const CacheFacts& facts, int num_layers);

// Returns true if the moments of the profile's layer `number`, which were taken before RoPE, serve a layer with these
// caches. They do not where it turns by other frequencies than the profile states and another layer turns by those:
// Gemma 3's layers that slide are such.
bool MomentsAreOf(const Profile& profile, int number, const CacheFacts& facts);

// Sets the RoPE of the geometry's layers: those of the cache turn as the graph says, others as the profile does, of
// which the layers are. nullptr: there is none.
void StateRopes(const CacheFacts& facts, const Profile* profile, Geometry* geometry);

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_PROFILES_PROFILES_H_
