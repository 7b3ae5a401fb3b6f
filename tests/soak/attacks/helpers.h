// What attacks are made of.
#ifndef SEINE_TESTS_SOAK_ATTACKS_HELPERS_H_
#define SEINE_TESTS_SOAK_ATTACKS_HELPERS_H_

#include <functional>
#include <initializer_list>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/soak/attacks/attacks.h"
#include "tests/soak/server/made_requests.h"

namespace seine::soak {

using Random = std::mt19937;
inline constexpr char kAttacked[] = "attack";  // the index

void Pause(int milliseconds);
void RaiseDescriptors();  // our limit, to what the system gives
[[noreturn]] void Forever();
// Runs `work(i)` on threads of its own, again and again.
[[noreturn]] void InParallel(int threads, const std::function<void(int)>& work);

// Counts a call. Breaks where its code is none of `codes`, or it is an error without a text.
void Expect(const grpc::Status& status, const std::set<int>& codes, const std::string& what, Tally& tally);
// What a server that is not at its end answers.
const std::set<int>& Answers();
std::set<int> With(std::set<int> codes, std::initializer_list<int> more);

// A unary call of these bytes.
grpc::Status Raw(Client& client, const std::string& path, const std::string& bytes);
// A right request of every unary RPC: its path and its bytes.
std::vector<std::pair<std::string, std::string>> Requests(const v1::SequenceHandle& handle);

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_ATTACKS_HELPERS_H_
