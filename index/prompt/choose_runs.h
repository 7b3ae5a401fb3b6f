// The heaviest of many runs, until every query head has its mass.
#ifndef SEINE_INDEX_PROMPT_CHOOSE_RUNS_H_
#define SEINE_INDEX_PROMPT_CHOOSE_RUNS_H_

#include <cstdint>
#include <vector>

namespace seine {

// Takes runs by the sum of their masses [count][group], none negative, the largest first, of equal ones the first,
// until those taken add up to wanted[g] of each head g. Sets `chosen` to them, ascending. Returns false, and leaves
// `chosen` without meaning, where more than `most` would be needed.
bool ChooseRuns(const float* masses, int64_t count, int group, const double* wanted, int64_t most,
                std::vector<int32_t>* chosen);

}  // namespace seine

#endif  // SEINE_INDEX_PROMPT_CHOOSE_RUNS_H_
