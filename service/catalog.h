// The indexes of a server by name. A call holds the index that it works on, so deleting one under it is safe: the index
// goes when the last call lets go.
//
// Making an index may take seconds, for a profile's moments are decomposed. No lock is held meanwhile: the name is
// claimed first, and the index is seen once it is whole.
//
// Thread safety: every method may be called from any thread.
#ifndef SEINE_SERVICE_CATALOG_H_
#define SEINE_SERVICE_CATALOG_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "index/index.h"
#include "index/storage/memory_budget.h"

namespace seine {

inline constexpr size_t kMaxIndexes = 1024;

class Catalog {
 public:
  // `budget` and `counts` (may be nullptr) are shared by all indexes. `backend` outlives the catalog and every index in
  // use.
  Catalog(Backend* backend, std::shared_ptr<MemoryBudget> budget, std::shared_ptr<Counts> counts = nullptr)
      : backend_(backend), budget_(std::move(budget)), counts_(std::move(counts)) {}

  // INVALID_ARGUMENT naming the field of IndexConfig; ALREADY_EXISTS, also where an index of that name is being made;
  // RESOURCE_EXHAUSTED beyond kMaxIndexes, those being made included.
  absl::StatusOr<std::shared_ptr<Index>> Create(const IndexConfig& config);
  std::shared_ptr<Index> Find(absl::string_view name) const;  // nullptr: there is none
  std::shared_ptr<Index> Remove(absl::string_view name);      // the index taken out, nullptr: there is none
  std::vector<std::shared_ptr<Index>> List() const;           // by name

 private:
  class Claim;

  // Whether an index of that name may be made. Needs mutex_ held.
  absl::Status CheckNew(const std::string& name) const;

  Backend* const backend_;
  const std::shared_ptr<MemoryBudget> budget_;
  const std::shared_ptr<Counts> counts_;
  mutable std::shared_mutex mutex_;
  std::map<std::string, std::shared_ptr<Index>, std::less<>> indexes_;  // guarded by mutex_
  std::set<std::string, std::less<>> claimed_;                          // of indexes being made; guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_SERVICE_CATALOG_H_
