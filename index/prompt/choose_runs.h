// The heaviest of many runs, down to a given mass.
#ifndef SEINE_INDEX_PROMPT_CHOOSE_RUNS_H_
#define SEINE_INDEX_PROMPT_CHOOSE_RUNS_H_

#include <cstdint>
#include <vector>

namespace seine {

// Sets `chosen` to the fewest of masses [count], none negative, that add up to `wanted`: the largest, of equal ones the
// first; ascending. Returns false, and leaves `chosen` without meaning, where more than `most` would be needed.
bool ChooseRuns(const float* masses, int64_t count, double wanted, int64_t most, std::vector<int32_t>* chosen);

}  // namespace seine

#endif  // SEINE_INDEX_PROMPT_CHOOSE_RUNS_H_
