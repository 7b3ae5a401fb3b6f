// Calls by method: begun, ended by code, their time, and their messages. A Decode step is a message each way.
// Thread-safe; adding takes no lock.
#ifndef SEINE_SERVICE_UNDER_WAY_CALL_COUNTS_H_
#define SEINE_SERVICE_UNDER_WAY_CALL_COUNTS_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "index/counts/histogram.h"
#include "index/counts/thread_local_counters.h"

namespace seine {

class CallCounts {
 public:
  static constexpr int kCodes = 17;  // of gRPC
  static constexpr int kNone = -1;   // of a method that is not counted

  explicit CallCounts(bool on);  // false: counts nothing

  // Methods are those of the contract, as its protos name them, numbered from 0.
  static int NumberOf(const char* method);  // kNone: there is none of this name
  struct Method {
    std::string service, name;  // "seine.v1.IndexService", "CreateIndex"
    bool client_streams = false, server_streams = false;
  };
  static const Method& MethodOf(int number);
  static int decode();
  static int size();

  void Started(int method) { Add(method, kStarted); }
  void Received(int method) { Add(method, kReceived); }
  void Sent(int method) { Add(method, kSent); }
  // `began`: when the call did.
  void Ended(int method, absl::StatusCode code, std::chrono::steady_clock::time_point began);

  int64_t started(int method) const { return Read(method, kStarted); }
  int64_t received(int method) const { return Read(method, kReceived); }
  int64_t sent(int method) const { return Read(method, kSent); }
  int64_t ended(int method, int code) const { return Read(method, kFirstCode + code); }
  HistogramReading times(int method) const;

 private:
  enum : int { kStarted = Histogram::kCells, kReceived, kSent, kFirstCode, kCellsEach = kFirstCode + kCodes };
  void Add(int method, int cell) {
    if (cells_ && method != kNone) cells_->Add(method * kCellsEach + cell, 1);
  }
  int64_t Read(int method, int cell) const { return cells_ ? cells_->Read(method * kCellsEach + cell) : 0; }

  mutable std::optional<ThreadLocalCounters> cells_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_UNDER_WAY_CALL_COUNTS_H_
