// Counts, as one JSON object.
#include "engines/llama.cpp/report.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "engines/llama.cpp/settings.h"

namespace seine::llama {

namespace {

constexpr size_t kMostReasons = 256;  // that differ, for a server's may have numbers in them

// As JSON's string; bytes that are no UTF-8 are replaced.
std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void SayOnce(const std::string& line) { SayOnce(line, line); }

void SayOnce(const std::string& key, const std::string& line) {
  static auto* const mutex = new std::mutex();
  static auto* const said = new std::set<std::string>();
  const std::lock_guard<std::mutex> lock(*mutex);
  if (said->size() > kMostReasons || !said->insert(key).second) return;
  std::fprintf(stderr, "seine: %s\n", said->size() > kMostReasons ? "further lines are left out" : line.c_str());
}

void SayAnswered(int64_t cells, const std::string& how, const std::string& profile) {
  const std::string by = absl::StrCat(how, ", ", profile.empty() ? "no profile" : absl::StrCat("profile ", profile));
  SayOnce(by, absl::StrCat("attention over ", cells, " cells is answered ", by));
}

void SayLeft(const std::string& reason) { SayOnce(absl::StrCat("llama.cpp attends by itself: ", reason)); }

Report& Report::Get() {
  static Report* const report = [] {
    auto* made = new Report();
    if (!settings().report.empty()) std::atexit([] { Get().Write(); });
    return made;
  }();
  return *report;
}

void Report::Answered(int64_t ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++answered_;
  answered_ns_ += ns;
}

void Report::AnsweredPrompt(int64_t ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++prompt_answered_;
  prompt_ns_ += ns;
}

void Report::Prompt(const PromptCounts& counts) {
  const std::lock_guard<std::mutex> lock(mutex_);
  prompt_.Add(counts);
}

void Report::ComparedPrompt(int64_t ns, int64_t plain_ns, double difference) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++prompt_compared_;
  prompt_compared_ns_ += ns;
  prompt_plain_ns_ += plain_ns;
  worst_prompt_difference_ = std::max(worst_prompt_difference_, difference);
}

void Report::Declined(const std::string& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool kept = declined_.size() < kMostReasons || declined_.count(reason) > 0;
  ++declined_[kept ? reason : "other reasons"];
}

void Report::Encoded(int64_t keys, int64_t ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  encoded_keys_ += keys;
  encode_ns_ += ns;
}

void Report::Checked(double error, double plain_error, int64_t stale_windows) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++checked_;
  stale_windows_ += stale_windows;
  sum_error_ += error;
  worst_error_ = std::max(worst_error_, error);
  sum_plain_error_ += plain_error;
  worst_plain_error_ = std::max(worst_plain_error_, plain_error);
}

void Report::Gated(double lost) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++gate_checks_;
  sum_lost_ += lost;
  worst_lost_ = std::max(worst_lost_, lost);
}

void Report::SteppedBack(int layer, double lost) {
  const std::lock_guard<std::mutex> lock(mutex_);
  gate_layers_[layer] = lost;
}

void Report::AnsweredExactly() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++gate_answers_;
}

void Report::Changed(int64_t windows) {
  const std::lock_guard<std::mutex> lock(mutex_);
  changed_windows_ += windows;
}

void Report::Remote(int64_t steps, int64_t grpc_steps, int64_t bytes, int64_t waiting_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  remote_steps_ += steps;
  remote_grpc_steps_ += grpc_steps;
  remote_bytes_ += bytes;
  remote_waiting_ns_ += waiting_ns;
}

void Report::GaveBack(int64_t cells) {
  const std::lock_guard<std::mutex> lock(mutex_);
  given_back_cells_ += cells;
}

void Report::Bytes(int64_t codes, int64_t cache) {
  const std::lock_guard<std::mutex> lock(mutex_);
  code_bytes_ += codes;
  cache_bytes_ += cache;
}

void Report::HugePages(int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  huge_page_bytes_ += bytes;
}

void Report::Uses(const std::string& codec, const std::string& profile) {
  const std::lock_guard<std::mutex> lock(mutex_);
  codec_ = codec;
  profile_ = profile;
}

std::string Report::Json() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const double checks = checked_ > 0 ? static_cast<double>(checked_) : 1;
  std::string json = absl::StrCat(
      "{\"top_k\": ", top_k(), ", \"codec\": ", Quoted(codec_), ", \"profile\": ", Quoted(profile_),
      ", \"answered\": ", answered_, ", \"ms_answering\": ", answered_ns_ / 1e6, ", \"encoded_keys\": ", encoded_keys_,
      ", \"ms_encoding\": ", encode_ns_ / 1e6, ", \"code_bytes\": ", code_bytes_, ", \"cache_bytes\": ", cache_bytes_,
      ", \"huge_page_bytes\": ", huge_page_bytes_, ", \"changed_windows\": ", changed_windows_,
      ", \"checked\": ", checked_, ", \"stale_windows\": ", stale_windows_, ", \"remote_steps\": ", remote_steps_,
      ", \"remote_grpc_steps\": ", remote_grpc_steps_, ", \"remote_bytes\": ", remote_bytes_,
      ", \"given_back_cells\": ", given_back_cells_, ", \"ms_remote_waiting\": ", remote_waiting_ns_ / 1e6,
      ", \"worst_error\": ", worst_error_, ", \"mean_error\": ", sum_error_ / checks,
      ", \"worst_plain_error\": ", worst_plain_error_, ", \"mean_plain_error\": ", sum_plain_error_ / checks,
      ", \"prompt_answered\": ", prompt_answered_, ", \"ms_prompt\": ", prompt_ns_ / 1e6,
      ", \"prompt_blocks\": ", prompt_.blocks, ", \"prompt_exact_blocks\": ", prompt_.exact_blocks,
      ", \"prompt_runs_seen\": ", prompt_.seen, ", \"prompt_runs_taken\": ", prompt_.taken,
      ", \"prompt_compared\": ", prompt_compared_, ", \"ms_prompt_compared\": ", prompt_compared_ns_ / 1e6,
      ", \"ms_prompt_plain\": ", prompt_plain_ns_ / 1e6, ", \"worst_prompt_difference\": ", worst_prompt_difference_,
      ", \"gate_checks\": ", gate_checks_,
      ", \"mean_lost\": ", sum_lost_ / static_cast<double>(std::max<int64_t>(gate_checks_, 1)),
      ", \"worst_lost\": ", worst_lost_, ", \"gate_answers\": ", gate_answers_, ", \"gate_layers\": {");
  const char* between = "";
  for (const auto& [layer, lost] : gate_layers_) {
    absl::StrAppend(&json, between, "\"", layer, "\": ", lost);
    between = ", ";
  }
  absl::StrAppend(&json, "}, \"declined\": {");
  between = "";
  for (const auto& [reason, count] : declined_) {
    absl::StrAppend(&json, between, Quoted(reason), ": ", count);
    between = ", ";
  }
  return json + "}}";
}

void Report::Write() {
  const std::string json = Json() + "\n";
  if (settings().report == "-") {
    std::fputs(json.c_str(), stderr);
    return;
  }
  std::ofstream file(settings().report);
  if (!(file << json)) std::fprintf(stderr, "seine: %s: cannot be written\n", settings().report.c_str());
}

}  // namespace seine::llama
