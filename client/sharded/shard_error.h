// Errors of shards, and work on all shards at once.
#ifndef SEINE_CLIENT_SHARDED_SHARD_ERROR_H_
#define SEINE_CLIENT_SHARDED_SHARD_ERROR_H_

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace seine::client {

// The same error with other words; what FieldOf and ReasonOf read stays.
inline absl::Status WithMessage(const absl::Status& status, absl::string_view message) {
  absl::Status out(status.code(), message);
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { out.SetPayload(url, payload); });
  return out;
}

// "shard 2: ..."; OK stays OK.
inline absl::Status OfShard(int shard, const absl::Status& status) {
  return status.ok() ? status : WithMessage(status, absl::StrCat("shard ", shard, ": ", status.message()));
}

// Runs work(shard) for each of `shards`, side by side where there are several. What each returned, its shard named.
std::vector<absl::Status> OnShards(const std::vector<int>& shards, const std::function<absl::Status(int)>& work);

// The first that is not OK.
absl::Status FirstError(const std::vector<absl::Status>& statuses);

}  // namespace seine::client

#endif  // SEINE_CLIENT_SHARDED_SHARD_ERROR_H_
