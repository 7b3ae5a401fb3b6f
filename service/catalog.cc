#include "service/catalog.h"

#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "profile/field_error.h"

namespace seine {

// The name of an index being made, given back at the latest when this goes.
class Catalog::Claim {
 public:
  // Needs mutex_ held.
  Claim(Catalog* catalog, const std::string& name) : catalog_(*catalog), name_(name) { catalog_.claimed_.insert(name); }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim() {
    if (!held_) return;
    const std::unique_lock<std::shared_mutex> lock(catalog_.mutex_);
    Release();
  }
  // Needs mutex_ held.
  void Release() {
    catalog_.claimed_.erase(name_);
    held_ = false;
  }

 private:
  Catalog& catalog_;
  const std::string name_;
  bool held_ = true;
};

absl::Status Catalog::CheckNew(const std::string& name) const {
  if (indexes_.contains(name)) {
    return FieldError(absl::StatusCode::kAlreadyExists, "name", absl::StrCat("there is an index '", name, "' already"));
  }
  if (claimed_.contains(name))
    return FieldError(absl::StatusCode::kAlreadyExists, "name", absl::StrCat("an index '", name, "' is being made"));
  if (indexes_.size() + claimed_.size() < kMaxIndexes) return absl::OkStatus();
  return absl::ResourceExhaustedError("the server holds as many indexes as it may");
}

absl::StatusOr<std::shared_ptr<Index>> Catalog::Create(const IndexConfig& config) {
  std::optional<Claim> claim;
  absl::Status refused;
  {
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    refused = CheckNew(config.name);
    if (refused.ok()) claim.emplace(this, config.name);
  }
  if (!refused.ok()) {
    const absl::Status wrong = Validate(config);  // is told before a name that is taken
    return wrong.ok() ? refused : wrong;
  }
  auto index = Index::Create(config, backend_, budget_, counts_);
  if (!index.ok()) return index.status();
  std::shared_ptr<Index> shared = *std::move(index);
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  claim->Release();
  indexes_.emplace(config.name, shared);
  return shared;
}

std::shared_ptr<Index> Catalog::Find(absl::string_view name) const {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  const auto it = indexes_.find(name);
  return it == indexes_.end() ? nullptr : it->second;
}

std::shared_ptr<Index> Catalog::Remove(absl::string_view name) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  const auto it = indexes_.find(name);
  if (it == indexes_.end()) return nullptr;
  std::shared_ptr<Index> removed = std::move(it->second);
  indexes_.erase(it);
  return removed;
}

std::vector<std::shared_ptr<Index>> Catalog::List() const {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  std::vector<std::shared_ptr<Index>> all;
  for (const auto& [name, index] : indexes_) all.push_back(index);
  return all;
}

}  // namespace seine
