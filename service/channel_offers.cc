#include "service/channel_offers.h"

#include <sys/random.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/channel/memory.h"
#include "service/fields/error.h"

namespace seine {

absl::StatusOr<std::string> ChannelOffers::Promise(int64_t ring_bytes, std::shared_ptr<const Caller> caller) {
  if (path_.empty()) return Explain(absl::FailedPreconditionError(why_not_), "");
  std::string token(channel::kTokenBytes, '\0');
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    return absl::InternalError("the system gives no random bytes");
  }
  const auto now = Clock::now();
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(promised_, [now](const auto& promised) { return promised.second.until < now; });
  if (open_ + static_cast<int>(promised_.size()) >= most_) {
    return Overloaded("TOO_MANY_CHANNELS",
                      absl::StrCat(most_, " same-host channels are open, and no more may be (--channels)"),
                      absl::Seconds(1));
  }
  promised_[token] = {ring_bytes, std::move(caller), now + kGood};
  return token;
}

std::optional<ChannelOffers::Promised> ChannelOffers::Redeem(const std::string& token) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = promised_.find(token);
  if (found == promised_.end()) return std::nullopt;
  Promised promised = std::move(found->second);
  promised_.erase(found);
  if (promised.until < Clock::now()) return std::nullopt;
  ++open_;
  opened_.fetch_add(1, std::memory_order_relaxed);
  return promised;
}

void ChannelOffers::Closed() {
  const std::lock_guard<std::mutex> lock(mutex_);
  --open_;
}

int ChannelOffers::open() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return open_;
}

}  // namespace seine
