#include "service/event_log.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "profile/spelling.h"
#include "service/access/caller.h"
#include "service/log.h"

namespace seine {
namespace {

// The logger of StartLog; nullptr where there is none. It lives as long as the process.
spdlog::logger* Log() {
  spdlog::logger* log = spdlog::default_logger_raw();
  return log != nullptr && log->name() == kLogName ? log : nullptr;
}

}  // namespace

std::optional<int64_t> LineLimit::Admit(absl::Time now) {
  if (last_ != absl::InfinitePast()) {
    const double seconds = std::max(0.0, absl::ToDoubleSeconds(now - last_));
    allowed_ = std::min(kBurst, allowed_ + seconds * kPerSecond);
  }
  last_ = now;
  if (allowed_ < 1) {
    ++left_out_;
    return std::nullopt;
  }
  --allowed_;
  return std::exchange(left_out_, 0);
}

void EventLog::Created(const Index& index) {
  spdlog::logger* const log = Log();
  if (log == nullptr) return;
  const IndexConfig& c = index.config();
  const auto wire = [](auto value) { return static_cast<int>(value) + 1; };  // wire_enum.h
  log->info("index {}: created; {} layers, {} query heads on {} KV heads of {}, {}, codec {}, stores {}",
            NameInLog(c.tenant, c.name), c.geometry.num_layers, c.geometry.num_q_heads, c.geometry.num_kv_heads,
            c.geometry.head_dim, SpellValue("DType", wire(c.geometry.dtype)), c.codec.name,
            SpellValue("KvStore", wire(c.kv_store)));
}

void EventLog::Deleted(absl::string_view index_name) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    evictions_.erase(std::string(index_name));  // another of this name begins anew
  }
  if (spdlog::logger* const log = Log()) log->info("index {}: deleted", std::string(index_name));
}

void EventLog::Say(const std::string& kind, int level, const std::string& text) {
  spdlog::logger* const log = Log();
  const auto at = static_cast<spdlog::level::level_enum>(level);
  if (log == nullptr || !log->should_log(at)) return;
  std::optional<int64_t> left_out;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    left_out = limits_[kind].Admit(absl::Now());
  }
  if (!left_out) return;
  const std::string more = *left_out > 0 ? absl::StrCat(" (and ", *left_out, " more since the line before)") : "";
  log->log(at, "{}: {}{}", kind, text, more);
}

void EventLog::Ended(const CallRecord& call, const absl::Status& status) {
  const int64_t slow = slow_.load(std::memory_order_relaxed);
  const auto took = std::chrono::steady_clock::now() - call.began;
  if (status.ok() && (slow == 0 || took < std::chrono::milliseconds(slow))) return;
  const auto ms = static_cast<double>(std::chrono::duration_cast<std::chrono::microseconds>(took).count()) / 1000;
  const std::string where = absl::StrFormat("[%s, %.1f ms]", call.peer, ms);
  if (status.ok()) return Say(absl::StrCat(call.method, ": slow"), spdlog::level::warn, where);
  const bool refused = absl::IsResourceExhausted(status);
  Say(absl::StrCat(refused ? "refused " : "", call.method, ": ", absl::StatusCodeToString(status.code())),
      refused ? spdlog::level::warn : spdlog::level::info, absl::StrCat(std::string(status.message()), " ", where));
}

void EventLog::CutOff(const char* method, const std::string& peer) {
  Say(absl::StrCat("cut off ", method), spdlog::level::warn,
      absl::StrCat("the client has not read its answer in time [", peer, "]"));
}

void EventLog::CutOffForResets(const std::string& peer) {
  Say("cut off connection", spdlog::level::warn, absl::StrCat("the client opens streams and resets them [", peer, "]"));
}

void EventLog::SeriesTogether(size_t named, const char* label) const {
  spdlog::logger* const log = Log();
  if (log != nullptr)
    log->warn("metrics: indexes beyond the first {} have series together, index=\"{}\"", named, label);
}

void EventLog::SteppedBack(const IndexConfig& index, int layer, double lost) const {
  spdlog::logger* const log = Log();
  if (log != nullptr) {
    log->warn("index {}: layer {} attends exactly from now on: its codes lose {:.3f} of its attention",
              NameInLog(index.tenant, index.name), layer, lost);
  }
}

void EventLog::Failed(const std::string& what, const absl::Status& why) {
  Say(what, spdlog::level::err, std::string(why.message()));
}

void EventLog::Snapshots(const std::string& what, int64_t count) {
  spdlog::logger* const log = Log();
  if (log != nullptr && count > 0) log->info("snapshots: {} {}", count, what);
}

void EventLog::ByCall::Evicted(int64_t tokens) {
  const std::lock_guard<std::mutex> lock(log_.mutex_);
  Evictions& counted = log_.evictions_[name_];
  counted.layers += tokens > 0 ? 1 : 0;
  counted.tokens += tokens;
}

bool EventLog::WantsEvictions() const {
  spdlog::logger* const log = Log();
  return log != nullptr && log->should_log(spdlog::level::debug);
}

void EventLog::EvictedByThemselves(const std::vector<std::shared_ptr<Index>>& indexes) {
  spdlog::logger* const log = Log();
  const std::unique_lock<std::shared_mutex> none_by_call(evicting_, std::try_to_lock);
  if (log == nullptr || !none_by_call.owns_lock()) return;  // the next call says it
  for (const auto& index : indexes) {
    if (!index->config().eviction) continue;
    const IndexStats stats = index->stats();
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::string name = NameInLog(index->config().tenant, index->config().name);
    Evictions& counted = evictions_[name];
    const int64_t layers = stats.evictions - counted.layers, tokens = stats.evicted_tokens - counted.tokens;
    if (layers <= 0) continue;
    counted = {stats.evictions, stats.evicted_tokens};
    log->debug("index {}: evicted {} tokens by itself, heads together, in {} layers", name, tokens, layers);
  }
}

}  // namespace seine
