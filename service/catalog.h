// The indexes of a server by tenant and name: a name means something within a tenant alone. A call holds the index that
// it works on, so deleting one under it is safe: the index goes when the last call lets go.
//
// Making an index may take seconds, for a profile's moments are decomposed. No lock is held meanwhile: the name is
// claimed first, and the index is seen once it is whole.
//
// Thread safety: every method may be called from any thread.
#ifndef SEINE_SERVICE_CATALOG_H_
#define SEINE_SERVICE_CATALOG_H_

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
#include "index/counts/counts.h"
#include "index/idle/idle_tier.h"
#include "index/index.h"
#include "index/memory/memory_budget.h"
#include "index/quality/monitor.h"
#include "kernels/backend.h"
#include "service/access/tenant.h"

namespace seine {

inline constexpr size_t kMaxIndexes = 1024;

class Catalog {
 public:
  // `budget`, `counts` and `quality` (may be nullptr) are shared by all indexes. `backend` outlives the catalog and
  // every index in use.
  Catalog(Backend* backend, std::shared_ptr<MemoryBudget> budget, std::shared_ptr<Counts> counts = nullptr,
          std::shared_ptr<QualityMonitor> quality = nullptr)
      : backend_(backend), budget_(std::move(budget)), counts_(std::move(counts)), quality_(std::move(quality)) {}

  // The idle tier serves the indexes made from now on. To be called before calls come.
  void SetIdleTier(std::shared_ptr<IdleTier> idle) { idle_ = std::move(idle); }

  // An index of config.tenant, which counts in `owner`'s budget; nullptr: in the catalog's. INVALID_ARGUMENT naming the
  // field of IndexConfig; ALREADY_EXISTS, also where an index of that name is being made; RESOURCE_EXHAUSTED beyond
  // kMaxIndexes or the owner's quota, those being made included.
  absl::StatusOr<std::shared_ptr<Index>> Create(const IndexConfig& config, const Tenant* owner = nullptr);
  // A tenant's index. nullptr: it has none of that name, whatever others have.
  std::shared_ptr<Index> Find(absl::string_view tenant, absl::string_view name) const;
  // The index taken out, as Find has it.
  std::shared_ptr<Index> Remove(absl::string_view tenant, absl::string_view name);
  std::vector<std::shared_ptr<Index>> List() const;                          // of all tenants, by tenant and name
  std::vector<std::shared_ptr<Index>> List(absl::string_view tenant) const;  // by name

 private:
  class Claim;

  using Key = std::pair<std::string, std::string>;  // tenant, name
  struct Less {
    using is_transparent = void;
    using View = std::pair<absl::string_view, absl::string_view>;
    bool operator()(const View& a, const View& b) const { return a < b; }
  };

  // Returns OK if an index of that name may be made. Needs mutex_ held.
  absl::Status CheckNew(const Key& key, const Tenant* owner) const;

  Backend* const backend_;
  const std::shared_ptr<MemoryBudget> budget_;
  const std::shared_ptr<Counts> counts_;
  const std::shared_ptr<QualityMonitor> quality_;
  std::shared_ptr<IdleTier> idle_;  // nullptr: sequences stay in memory
  mutable std::shared_mutex mutex_;
  std::map<Key, std::shared_ptr<Index>, Less> indexes_;  // guarded by mutex_
  std::set<Key, Less> claimed_;                          // of indexes being made; guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_SERVICE_CATALOG_H_
