// What drills that kill servers ask of them: an index of two layers, and sequences whose answers tell what they hold.
#ifndef SEINE_TESTS_SOAK_DRILLS_KILLED_SEQUENCE_H_
#define SEINE_TESTS_SOAK_DRILLS_KILLED_SEQUENCE_H_

#include <string>

#include "tests/soak/server/made_requests.h"

namespace seine::soak {

inline constexpr char kKillIndex[] = "m";
// The configuration that makes the index.
inline constexpr char kKillConfig[] = R"(indexes:
  - name: m
    geometry: {num_layers: 2, num_q_heads: 8, num_kv_heads: 2, head_dim: 64, dtype: float16}
    kv_store: keys_values
)";

v1::SequenceHandle HandleOf(const std::string& id);
// False: the call was not answered with OK.
bool Delete(Client& client, const std::string& id);
// Returns what a sequence answers, in every layer; empty where a call failed.
std::string AnswersOf(Client& client, const std::string& id);

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_DRILLS_KILLED_SEQUENCE_H_
