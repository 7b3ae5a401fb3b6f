// Tables, JSON and progress bars.
#include "client/cli/base/output.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace seine::cli {
namespace {

bool IsNumber(const std::string& cell) {
  double value;
  return cell.empty() || cell == "-" || absl::SimpleAtod(cell, &value);
}

// Whether the terminal takes a line now: one that is stopped (Ctrl-S) does not.
bool Takes(int fd) {
  pollfd terminal = {fd, POLLOUT, 0};
  return poll(&terminal, 1, 0) == 1 && (terminal.revents & POLLOUT) != 0;
}

// The terminal's last line: one thing is drawn there at a time.
struct LastLine {
  std::mutex mutex;
  bool waits = false;  // a WaitingLine is drawn
  int bars = 0;        // ProgressBars that live
  absl::Time printed;  // when anything was, by the program; the epoch: nothing yet
  // Needs mutex.
  void Clear() {
    if (std::exchange(waits, false) && Takes(STDERR_FILENO)) std::fputs("\r\033[K", stderr);
    printed = absl::Now();
  }
};

LastLine& Last() {
  static auto* const line = new LastLine;
  return *line;
}

}  // namespace

std::string Table::ToString() const {
  const size_t columns = rows_[0].size();
  std::vector<size_t> width(columns, 0);
  std::vector<bool> right(columns, rows_.size() > 1);
  for (size_t r = 0; r < rows_.size(); ++r) {
    for (size_t c = 0; c < columns; ++c) {
      width[c] = std::max(width[c], rows_[r][c].size());
      if (r > 0 && !IsNumber(rows_[r][c])) right[c] = false;
    }
  }
  std::string out;
  for (const std::vector<std::string>& row : rows_) {
    for (size_t c = 0; c < columns; ++c) {
      const std::string padding(width[c] - row[c].size(), ' ');
      const bool last = c + 1 == columns;
      absl::StrAppend(&out, right[c] ? padding : "", row[c], right[c] || last ? "" : padding, last ? "\n" : "  ");
    }
  }
  return out;
}

std::string ToString(const std::vector<std::pair<std::string, std::string>>& fields) {
  size_t width = 0;
  for (const auto& [name, value] : fields) width = std::max(width, name.size());
  std::string out;
  for (const auto& [name, value] : fields) {
    absl::StrAppend(&out, name, std::string(width - name.size() + 2, ' '), value, "\n");
  }
  return out;
}

void PrintText(const std::string& text) {
  const std::lock_guard<std::mutex> lock(Last().mutex);
  Last().Clear();
  std::fwrite(text.data(), 1, text.size(), stdout);
}

void PrintJson(const Json& json) {
  // Names come from a server and may hold any bytes: what is not UTF-8 is shown as U+FFFD.
  PrintText(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::string FormatBytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string FormatDouble(double value, int digits) { return absl::StrFormat("%.*f", digits, value); }

std::string FormatRuns(const std::vector<int32_t>& ascending) {
  std::string out;
  for (size_t i = 0; i < ascending.size();) {
    size_t last = i;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    absl::StrAppend(&out, out.empty() ? "" : " ", ascending[i]);
    if (last > i) absl::StrAppend(&out, "-", ascending[last]);
    i = last + 1;
  }
  return out;
}

ProgressBar::ProgressBar(std::string title, int64_t total)
    : title_(std::move(title)),
      total_(std::max<int64_t>(1, total)),
      shown_(isatty(STDERR_FILENO)),
      start_(absl::Now()) {
  const std::lock_guard<std::mutex> lock(Last().mutex);
  Last().Clear();
  ++Last().bars;
}

void ProgressBar::Update(int64_t done) {
  const absl::Time now = absl::Now();
  if (!shown_ || now < next_) return;
  next_ = now + absl::Milliseconds(100);
  constexpr int kWidth = 30;
  const double share = std::clamp(static_cast<double>(done) / total_, 0.0, 1.0);
  const int filled = static_cast<int>(share * kWidth);
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
  std::string left;
  if (share > 0.02) left = absl::StrFormat("  %.0f s left", absl::ToDoubleSeconds(now - start_) * (1 - share) / share);
  if (!Takes(STDERR_FILENO)) return;
  std::fprintf(stderr, "\r\033[K%s [%s] %3.0f%%%s", title_.c_str(), bar.c_str(), share * 100, left.c_str());
  std::fflush(stderr);
}

ProgressBar::~ProgressBar() {
  const std::lock_guard<std::mutex> lock(Last().mutex);
  --Last().bars;
  Last().printed = absl::Now();
  if (shown_ && next_ != absl::Time() && Takes(STDERR_FILENO)) std::fprintf(stderr, "\r\033[K");
}

WaitingLine::WaitingLine(std::string what, absl::Duration most, bool of_each, absl::Duration patience)
    : what_(std::move(what)), most_(most), patience_(patience), of_each_(of_each), start_(absl::Now()) {
  if (isatty(STDERR_FILENO)) thread_ = std::thread([this] { Work(); });
}

WaitingLine::~WaitingLine() {
  if (!thread_.joinable()) return;
  ends_.Notify();
  thread_.join();
  const std::lock_guard<std::mutex> lock(Last().mutex);
  Last().Clear();
}

void WaitingLine::Work() {
  while (!ends_.WaitForNotificationWithTimeout(std::min(patience_, absl::Milliseconds(200)))) {
    const absl::Time now = absl::Now();
    const std::lock_guard<std::mutex> lock(Last().mutex);
    if (Last().bars > 0 || now - std::max(start_, Last().printed) < patience_ || !Takes(STDERR_FILENO)) continue;
    const std::string left =
        of_each_ ? absl::StrFormat("each call may take %.0f s", absl::ToDoubleSeconds(most_))
                 : absl::StrFormat("at most %.0f s left",
                                   absl::ToDoubleSeconds(std::max(absl::ZeroDuration(), most_ - (now - start_))));
    std::fprintf(stderr, "\r\033[K%s: %.0f s, %s", what_.c_str(), absl::ToDoubleSeconds(now - start_), left.c_str());
    std::fflush(stderr);
    Last().waits = true;
  }
}

}  // namespace seine::cli
