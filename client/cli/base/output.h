// What the programs print: tables for people, JSON for programs, a progress bar on a terminal.
#ifndef SEINE_CLIENT_CLI_BASE_OUTPUT_H_
#define SEINE_CLIENT_CLI_BASE_OUTPUT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace seine::cli {

using Json = nlohmann::ordered_json;  // keys in the order they were written

// Columns as wide as their widest cell; columns whose cells are all numbers line up at the right.
class Table {
 public:
  explicit Table(std::vector<std::string> headers) : rows_{std::move(headers)} {}
  void AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string ToString() const;  // ends with a newline

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Two columns without headers: names and values.
std::string ToString(const std::vector<std::pair<std::string, std::string>>& fields);

void PrintText(const std::string& text);  // to stdout
void PrintJson(const Json& json);         // indented, to stdout

std::string FormatBytes(int64_t bytes);  // "12.3 MiB"
std::string FormatDouble(double value, int digits);
std::string FormatRuns(const std::vector<int32_t>& ascending);  // "16-19 40 42-43"

// A line on stderr that shows how far a loop has come, drawn at most ten times a second and only on a terminal; cleared
// at the end, so that nothing of it stays between results. A terminal that is stopped (Ctrl-S) is not waited for.
class ProgressBar {
 public:
  ProgressBar(std::string title, int64_t total);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void Update(int64_t done);

 private:
  const std::string title_;
  const int64_t total_;
  const bool shown_;
  absl::Time start_, next_;
};

// For as long as it lives: where nothing else is printed or drawn for two seconds, a line on stderr, on a terminal
// alone, that says how long a command has waited, and how long it may yet. Cleared before anything is printed, and at
// the end.
class WaitingLine {
 public:
  // `most`: of the whole, or with `of_each` of each of its calls.
  WaitingLine(std::string what, absl::Duration most, bool of_each, absl::Duration patience = absl::Seconds(2));
  ~WaitingLine();
  WaitingLine(const WaitingLine&) = delete;
  WaitingLine& operator=(const WaitingLine&) = delete;

 private:
  void Work();

  const std::string what_;
  const absl::Duration most_, patience_;
  const bool of_each_;
  const absl::Time start_;
  absl::Notification ends_;
  std::thread thread_;
};

}  // namespace seine::cli

#endif  // SEINE_CLIENT_CLI_BASE_OUTPUT_H_
