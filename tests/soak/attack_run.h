// One attack on a seined of its own, with a bystander beside it whose calls must not suffer.
#ifndef SEINE_TESTS_SOAK_ATTACK_RUN_H_
#define SEINE_TESTS_SOAK_ATTACK_RUN_H_

#include "tests/soak/attacks/attacks.h"
#include "tests/soak/member.h"

namespace seine::soak {

// `attack` nullptr: the bystander alone. The attack lasts `options.seconds`, and longer until it has made what is
// stated. Then the server is told to end, most often under attack.
void RunAttack(const Attack* attack, const RunOptions& options, Result* result);

// The part of the child process that attacks; never returns.
int MakeAttack(const std::string& name, const std::string& endpoint, const std::string& metrics,
               const RunOptions& options);

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_ATTACK_RUN_H_
