// What a server says of its own in the log that StartLog began: indexes that come and go, calls that fail, calls that
// are refused for want of room, and what indexes evict by themselves. Without StartLog (tests, benches) it says
// nothing.
//
// Thread safety: every method may be called from any thread.
#ifndef SEINE_SERVICE_EVENT_LOG_H_
#define SEINE_SERVICE_EVENT_LOG_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "index/index.h"

namespace seine {

// How many lines of one kind are written: a burst, then so many a second; the rest is counted. Not thread-safe.
class LineLimit {
 public:
  static constexpr double kBurst = 10, kPerSecond = 1;
  // Lines left out since the last one that was written, if this one may be; absent: leave it out.
  std::optional<int64_t> Admit(absl::Time now);

 private:
  double allowed_ = kBurst;
  absl::Time last_ = absl::InfinitePast();
  int64_t left_out_ = 0;
};

// A call as the log tells of it.
struct CallRecord {
  const char* method;
  std::string peer;  // "unix:", "ipv4:127.0.0.1:40022": where it comes from, not who it is
  std::chrono::steady_clock::time_point began;
};

class EventLog {
 public:
  void Created(const Index& index);            // info
  void Deleted(absl::string_view index_name);  // info

  // A call that has ended. Not OK: info "METHOD: CODE: message [peer, duration]", or, RESOURCE_EXHAUSTED, warning
  // "refused ..."; the message begins with the field that is wrong. OK: warning "METHOD: slow" where it took longer
  // than SetSlow says. As many lines as LineLimit has for each method and code.
  void Ended(const CallRecord& call, const absl::Status& status);
  // A client that has not read its answer: warning.
  void CutOff(const char* method, const std::string& peer);
  // A client that opens streams and resets them: warning.
  void CutOffForResets(const std::string& peer);
  // Indexes beyond the first `named` have one series of metrics together, `label`: warning.
  void SeriesTogether(size_t named, const char* label) const;
  // A layer whose codes lose too much of its attention (RetrievalSettings.gate): warning.
  void SteppedBack(const IndexConfig& index, int layer, double lost) const;
  // Something of the server's own that did not go well: error "WHAT: why".
  void Failed(const std::string& what, const absl::Status& why);
  // Files or sequences that snapshots had to do with: info "snapshots: COUNT WHAT", nothing where there were none.
  void Snapshots(const std::string& what, int64_t count);
  void SetSlow(std::chrono::milliseconds slow) { slow_.store(slow.count(), std::memory_order_relaxed); }  // 0: none is

  // Held while an index evicts as a call asks it to, and told what that evicted, so that it does not pass for the
  // index's own doing.
  class ByCall {
   public:
    ByCall(EventLog& log, std::string index_name) : log_(log), name_(std::move(index_name)), lock_(log.evicting_) {}
    void Evicted(int64_t tokens);

   private:
    EventLog& log_;
    const std::string name_;
    const std::shared_lock<std::shared_mutex> lock_;
  };
  // Debug: what each index has evicted by itself since it was asked last. Costs nothing above that level.
  bool WantsEvictions() const;
  void EvictedByThemselves(const std::vector<std::shared_ptr<Index>>& indexes);

 private:
  struct Evictions {
    int64_t layers = 0, tokens = 0;  // said, or by a call
  };
  void Say(const std::string& kind, int level, const std::string& text);  // where the kind's limit admits it

  std::atomic<int64_t> slow_{1000};  // milliseconds
  std::mutex mutex_;
  std::map<std::string, LineLimit> limits_;     // by method and code; guarded by mutex_
  std::map<std::string, Evictions> evictions_;  // by index; guarded by mutex_
  std::shared_mutex evicting_;                  // before mutex_
};

}  // namespace seine

#endif  // SEINE_SERVICE_EVENT_LOG_H_
