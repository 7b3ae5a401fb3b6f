#include "client/sharded/shard_error.h"

#include <system_error>
#include <thread>

namespace seine::client {

std::vector<absl::Status> OnShards(const std::vector<int>& shards, const std::function<absl::Status(int)>& work) {
  std::vector<absl::Status> statuses(shards.size());
  const auto run = [&](size_t i) { statuses[i] = OfShard(shards[i], work(shards[i])); };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < shards.size(); ++i) {
    try {
      threads.emplace_back(run, i);
    } catch (const std::system_error&) {  // no thread to be had: one after another
      run(i);
    }
  }
  if (!shards.empty()) run(0);
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

absl::Status FirstError(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace seine::client
