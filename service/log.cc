#include "service/log.h"

#include <spdlog/async_logger.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/thread_name.h"
#include "service/line_writer.h"

namespace seine {
namespace {

constexpr absl::Duration kStall = absl::Milliseconds(300);
constexpr char kAsItIs[] = "as it is";  // name of the logger whose lines are not formatted

// {"time":"2024-05-01T12:00:00.123Z","level":"info","message":"..."}
class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    spdlog::memory_buf_t time;
    clock_.format(message, time);
    const nlohmann::ordered_json line = {
        {"time", std::string(time.data(), time.size())},
        {"level", std::string(spdlog::level::to_string_view(message.level).data())},
        {"message", std::string(message.payload.data(), message.payload.size())},
    };
    // What is not UTF-8 is replaced: a log line must never be lost, nor throw.
    const std::string text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<formatter> clone() const override { return std::make_unique<JsonFormatter>(); }

 private:
  spdlog::pattern_formatter clock_{"%Y-%m-%dT%H:%M:%S.%eZ", spdlog::pattern_time_type::utc, ""};
};

// How far the log's thread has come.
class Progress {
 public:
  int64_t AskForMark() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return ++asked_;
  }
  void Line() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++lines_;
    changed_.notify_all();
  }
  void Mark() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++marks_;
    changed_.notify_all();
  }
  bool WaitFor(int64_t mark, absl::Time last) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (marks_ < mark) {
      const int64_t before = lines_;
      const absl::Duration most = std::min(kStall, last - absl::Now());
      const auto moved = [&] { return marks_ >= mark || lines_ != before; };
      if (!changed_.wait_for(lock, absl::ToChronoNanoseconds(most), moved)) return false;
    }
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t asked_ = 0, marks_ = 0, lines_ = 0;  // guarded by mutex_
};

// What the log's thread writes with: to the descriptor itself, for a line that stderr does not take would hold stdio's
// lock.
class StderrSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  StderrSink(std::atomic<int64_t>* refused, Progress* progress) : refused_(refused), progress_(progress) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    TellOfLost();
    Write(message);
    progress_->Line();
  }
  void flush_() override {
    TellOfLost();
    progress_->Mark();
  }

 private:
  void Write(const spdlog::details::log_msg& message) {
    spdlog::memory_buf_t line;
    if (message.logger_name == kAsItIs) {
      line.append(message.payload.begin(), message.payload.end());
    } else {
      formatter_->format(message, line);
    }
    if (!out_.Write({line.data(), line.size()})) refused_->fetch_add(1);
  }
  // Those that are lost stood between the line before and the next.
  void TellOfLost() {
    const int64_t lost = LostLogLines();
    if (lost == reported_) return;
    const std::string text =
        absl::StrCat("log: ", lost - reported_, " lines are lost, for stderr did not take them in time");
    reported_ = lost;
    Write({kLogName, spdlog::level::warn, text});
  }

  std::atomic<int64_t>* const refused_;
  Progress* const progress_;
  LineWriter out_{STDERR_FILENO};
  int64_t reported_ = 0;
};

// Lives as long as the process: its thread may wait for stderr for ever, and nobody waits for that thread.
struct AsyncLog {
  AsyncLog() : pool(std::make_shared<spdlog::details::thread_pool>(kLogLines, 1, [] { NameThread("log"); })) {}

  std::atomic<int64_t> refused{0};
  Progress progress;
  std::shared_ptr<spdlog::details::thread_pool> pool;
  std::shared_ptr<spdlog::async_logger> lines, as_it_is;
};
std::atomic<AsyncLog*> g_log{nullptr};

}  // namespace

absl::Status StartLog(const std::string& level, const std::string& format) try {
  auto* const log = new AsyncLog;
  const auto sink = std::make_shared<StderrSink>(&log->refused, &log->progress);
  if (format == "json") {
    sink->set_formatter(std::make_unique<JsonFormatter>());
  } else {
    sink->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
  }
  const auto logger = [&](const char* name) {
    const auto policy = spdlog::async_overflow_policy::overrun_oldest;
    auto one = std::make_shared<spdlog::async_logger>(name, sink, log->pool, policy);
    // spdlog's own would print on stderr from the thread that logs.
    one->set_error_handler([log](const std::string&) { log->refused.fetch_add(1); });
    return one;
  };
  log->lines = logger(kLogName);
  log->as_it_is = logger(kAsItIs);
  log->lines->set_level(spdlog::level::from_str(level));
  g_log.store(log);
  spdlog::set_default_logger(log->lines);
  return absl::OkStatus();
} catch (const std::system_error& error) {
  return absl::ResourceExhaustedError(absl::StrCat("the system has no thread for the log: ", error.what()));
}

void SetLogLevel(const std::string& level) { spdlog::default_logger()->set_level(spdlog::level::from_str(level)); }

bool LogAsItIs(const std::string& line) {
  AsyncLog* const log = g_log.load();
  if (log == nullptr) return false;
  log->as_it_is->critical("{}", line);
  return true;
}

bool FlushLog(absl::Time last) {
  AsyncLog* const log = g_log.load();
  if (log == nullptr) return true;
  const int64_t mark = log->progress.AskForMark();
  log->as_it_is->flush();
  return log->progress.WaitFor(mark, last);
}

int64_t LostLogLines() {
  AsyncLog* const log = g_log.load();
  return log == nullptr ? 0 : log->refused.load() + static_cast<int64_t>(log->pool->overrun_counter());
}

}  // namespace seine
