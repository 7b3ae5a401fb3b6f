// Sequences in every state that a snapshot has to keep: by codec, store, eviction, subspace and history.
#ifndef SEINE_TESTS_INDEX_SNAPSHOT_STATES_H_
#define SEINE_TESTS_INDEX_SNAPSHOT_STATES_H_

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "index/bytes/byte_stream.h"
#include "tests/index/synthetic_model.h"
#include "tests/index/test_util.h"

namespace seine::testing {

// An index's settings, and what its sequence "a", and maybe others, have been through. Both are the same each time.
struct StateCase {
  const char* name;
  std::function<IndexConfig()> config;
  std::function<void(Index*)> live = {};  // after "a" has got its first tokens
  int64_t tokens = 300;                   // that these are
};
inline void PrintTo(const StateCase& c, std::ostream* out) { *out << c.name; }

const std::vector<StateCase>& AllStates();

// Appends tokens to every layer of `id`, as long as the longest of them is; with their queries where those are taken.
void Extend(Index* index, const std::string& id, int64_t count);
// An index in the case's state.
std::unique_ptr<Index> MakeState(const StateCase& c, Backend* backend);

std::string SnapshotOf(const Index& index, const std::string& id = "a", SnapshotScope scope = SnapshotScope::kFamily);
absl::Status RestoreFrom(const std::string& snapshot, Index* index);

// All that a sequence is, but for its generation: the snapshot of it alone.
std::string StateOf(const Index& index, const std::string& id);
// What it answers, each layer: retrievals of all and of few, attention where values are kept, positions of each head.
struct Answers {
  std::vector<ItemAnswer> found;
  std::vector<std::vector<float>> outputs;
  std::vector<std::string> rows;
  bool operator==(const Answers& o) const;
};
Answers AnswersOf(const Index& index, const std::string& id);

}  // namespace seine::testing

#endif  // SEINE_TESTS_INDEX_SNAPSHOT_STATES_H_
