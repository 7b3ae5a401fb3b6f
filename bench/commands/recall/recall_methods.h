// The methods that the flags of `seine-bench recall` ask for.
#ifndef SEINE_BENCH_COMMANDS_RECALL_RECALL_METHODS_H_
#define SEINE_BENCH_COMMANDS_RECALL_RECALL_METHODS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/commands/recall/recall_flags.h"
#include "bench/inputs/dataset.h"
#include "bench/methods/method.h"
#include "kernels/backend.h"

namespace seine::bench {

// The asked setting first, then its peers. `flags` have passed CheckRecall; errors name a flag, or are a profile's.
absl::StatusOr<std::vector<std::unique_ptr<Method>>> MakeRecallMethods(const RecallFlags& flags,
                                                                       const DatasetInfo& info, Backend* backend);

// Those of --candidates: ours in each code, ParisKV's at as many and by its authors' schedule, FAISS's PQ, Quest.
// left_out: "NAME: WHY" of each that this head_dim or this build has not.
absl::StatusOr<std::vector<std::unique_ptr<Method>>> MakeEqualMethods(const RecallFlags& flags, const DatasetInfo& info,
                                                                      Backend* backend,
                                                                      std::vector<std::string>* left_out);

}  // namespace seine::bench

#endif  // SEINE_BENCH_COMMANDS_RECALL_RECALL_METHODS_H_
