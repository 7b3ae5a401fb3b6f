// Which same-host channels a server offers: tokens that were handed out, and how many channels are open. It knows no
// sockets: channel_server.h makes the channels.
//
// Thread-safe, but for Open and Refuse, which are called before calls come.
#ifndef SEINE_SERVICE_CHANNEL_OFFERS_H_
#define SEINE_SERVICE_CHANNEL_OFFERS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "service/access/caller.h"

namespace seine {

class ChannelOffers {
 public:
  static constexpr auto kGood = std::chrono::seconds(10);  // a token, for one connection

  explicit ChannelOffers(int most) : most_(most) {}

  // Channels are made behind the Unix socket `path`; or there are none, since `why`.
  void Open(std::string path) { path_ = std::move(path); }
  void Refuse(std::string why) { why_not_ = std::move(why); }
  const std::string& path() const { return path_; }        // empty: none are made
  const std::string& why_not() const { return why_not_; }  // where none are

  // A token for a channel whose rings have `ring_bytes`. FAILED_PRECONDITION: channels are not made here.
  // RESOURCE_EXHAUSTED: as many as may be are open or promised.
  absl::StatusOr<std::string> Promise(int64_t ring_bytes, std::shared_ptr<const Caller> caller);
  struct Promised {
    int64_t ring_bytes;
    std::shared_ptr<const Caller> caller;  // who asked for it; nullptr: the server asks for no credentials
    std::chrono::steady_clock::time_point until;
  };
  // Takes a token back: what was promised, where it was handed out, not long ago and not taken yet. The channel counts
  // as open from now on, until Closed.
  std::optional<Promised> Redeem(const std::string& token);
  void Closed();

  int open() const;
  int64_t opened() const { return opened_.load(std::memory_order_relaxed); }  // since the start
  // Connections to the second socket that were turned away: a wrong token, another user, no memory.
  int64_t refused() const { return refused_.load(std::memory_order_relaxed); }
  void CountRefused() { refused_.fetch_add(1, std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;

  const int most_;
  std::string path_, why_not_ = "this server makes no same-host channels";
  std::atomic<int64_t> opened_{0}, refused_{0};
  mutable std::mutex mutex_;
  int open_ = 0;                              // guarded by mutex_
  std::map<std::string, Promised> promised_;  // by token; guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_SERVICE_CHANNEL_OFFERS_H_
