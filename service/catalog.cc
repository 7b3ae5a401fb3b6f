#include "service/catalog.h"

#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"

namespace seine {

absl::StatusOr<std::shared_ptr<Index>> Catalog::Create(const IndexConfig& config) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  if (indexes_.contains(config.name))
    return absl::AlreadyExistsError(absl::StrCat("name: there is an index '", config.name, "' already"));
  if (indexes_.size() >= kMaxIndexes) return absl::ResourceExhaustedError("the server holds as many indexes as it may");
  auto index = Index::Create(config, backend_, budget_);
  if (!index.ok()) return index.status();
  std::shared_ptr<Index> shared = *std::move(index);
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
