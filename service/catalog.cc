#include "service/catalog.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "profile/field_error.h"
#include "service/fields/error.h"

namespace seine {

// The name of an index being made, given back at the latest when this goes.
class Catalog::Claim {
 public:
  // Needs mutex_ held.
  Claim(Catalog* catalog, const Key& key) : catalog_(*catalog), key_(key) { catalog_.claimed_.insert(key); }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim() {
    if (!held_) return;
    const std::unique_lock<std::shared_mutex> lock(catalog_.mutex_);
    Release();
  }
  // Needs mutex_ held.
  void Release() {
    catalog_.claimed_.erase(key_);
    held_ = false;
  }

 private:
  Catalog& catalog_;
  const Key key_;
  bool held_ = true;
};

absl::Status Catalog::CheckNew(const Key& key, const Tenant* owner) const {
  const std::string &tenant = key.first, &name = key.second;
  if (indexes_.contains(key)) {
    return FieldError(absl::StatusCode::kAlreadyExists, "name", absl::StrCat("there is an index '", name, "' already"));
  }
  if (claimed_.contains(key))
    return FieldError(absl::StatusCode::kAlreadyExists, "name", absl::StrCat("an index '", name, "' is being made"));
  const auto is_tenants = [&tenant](const Key& one) { return one.first == tenant; };
  if (owner != nullptr) {
    const auto held =
        std::count_if(indexes_.begin(), indexes_.end(), [&](const auto& one) { return is_tenants(one.first); }) +
        std::count_if(claimed_.begin(), claimed_.end(), is_tenants);
    if (auto s = owner->CheckIndexes(held); !s.ok()) return s;
  }
  if (indexes_.size() + claimed_.size() < kMaxIndexes) return absl::OkStatus();
  return absl::ResourceExhaustedError("the server holds as many indexes as it may");
}

absl::StatusOr<std::shared_ptr<Index>> Catalog::Create(const IndexConfig& config, const Tenant* owner) {
  const Key key(config.tenant, config.name);
  std::optional<Claim> claim;
  absl::Status refused;
  {
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    refused = CheckNew(key, owner);
    if (refused.ok()) claim.emplace(this, key);
  }
  if (!refused.ok()) {
    const absl::Status wrong = Validate(config);  // is told before a name that is taken
    return wrong.ok() ? refused : wrong;
  }
  auto index = Index::Create(config, backend_, owner != nullptr ? owner->budget() : budget_, counts_, quality_, idle_);
  if (!index.ok()) return index.status();
  std::shared_ptr<Index> shared = *std::move(index);
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  claim->Release();
  indexes_.emplace(key, shared);
  return shared;
}

std::shared_ptr<Index> Catalog::Find(absl::string_view tenant, absl::string_view name) const {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  const auto it = indexes_.find(Less::View(tenant, name));
  return it == indexes_.end() ? nullptr : it->second;
}

std::shared_ptr<Index> Catalog::Remove(absl::string_view tenant, absl::string_view name) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  const auto it = indexes_.find(Less::View(tenant, name));
  if (it == indexes_.end()) return nullptr;
  std::shared_ptr<Index> removed = std::move(it->second);
  indexes_.erase(it);
  return removed;
}

std::vector<std::shared_ptr<Index>> Catalog::List() const {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  std::vector<std::shared_ptr<Index>> all;
  for (const auto& [key, index] : indexes_) all.push_back(index);
  return all;
}

std::vector<std::shared_ptr<Index>> Catalog::List(absl::string_view tenant) const {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  std::vector<std::shared_ptr<Index>> all;
  for (auto it = indexes_.lower_bound(Less::View(tenant, "")); it != indexes_.end() && it->first.first == tenant;
       ++it) {
    all.push_back(it->second);
  }
  return all;
}

}  // namespace seine
