// The runs of keys that a query head of a block of tokens attends, chosen by some of the tokens for all of them.
//
// What the sampled tokens attend says little of what another attends that nobody sampled: a token that copies looks
// where its neighbours do not. So a sampled token is asked what it would have of runs that only the others chose. The
// fewest runs are taken of which that is enough (leave-one-out cross-validation).
#ifndef SEINE_INDEX_PROMPT_CHOOSE_RUNS_H_
#define SEINE_INDEX_PROMPT_CHOOSE_RUNS_H_

#include <cstdint>
#include <vector>

namespace seine {

// masses [count][tokens][step], of which the first of each `step` counts and is not negative: what sampled tokens have
// of each run. A run's weight is the sum of its masses.
// Sets `chosen` to the runs of the largest weights, ascending: to so many that, summed over the tokens, what a token
// has of the runs whose weight without the token's own mass reaches the least weight taken is `wanted` or more. Weights
// are told apart to an eighth of an octave. Returns false, and leaves `chosen` without meaning, where more than `most`
// runs would be needed, or all do not suffice.
bool ChooseRuns(const float* masses, int64_t count, int tokens, int step, double wanted, int64_t most,
                std::vector<int32_t>* chosen);

}  // namespace seine

#endif  // SEINE_INDEX_PROMPT_CHOOSE_RUNS_H_
