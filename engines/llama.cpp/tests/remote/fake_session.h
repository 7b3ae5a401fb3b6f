// A session without a server: it numbers sequences, holds no rows, and every call succeeds but a read.
#ifndef SEINE_ENGINES_LLAMA_CPP_TESTS_REMOTE_FAKE_SESSION_H_
#define SEINE_ENGINES_LLAMA_CPP_TESTS_REMOTE_FAKE_SESSION_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engines/llama.cpp/remote/session.h"

namespace seine::llama {

class FakeSession : public Session {
 public:
  explicit FakeSession(std::vector<FoundSequence> found = {}) : found_(std::move(found)) {
    for (const FoundSequence& sequence : found_) last_ = sequence.id;
  }

  const std::vector<FoundSequence>& found() const override { return found_; }
  absl::StatusOr<int> Create() override { return ++last_; }
  absl::StatusOr<int> Fork(int, int64_t) override { return Create(); }
  absl::Status Truncate(int, int64_t) override { return absl::OkStatus(); }
  void Delete(int) override {}
  absl::Status Append(int, int, int64_t, int64_t, const void*, const void*) override { return absl::OkStatus(); }
  absl::Status Attend(int, const std::vector<AttendItem>&, int) override { return absl::OkStatus(); }
  absl::Status Settle() override { return absl::OkStatus(); }
  int failed() const override { return 0; }
  bool is_broken() const override { return false; }
  absl::Status Read(int, int, int64_t, int64_t, std::string*, std::string*) override {
    return absl::NotFoundError("no rows");
  }
  SessionBytes bytes() override { return {}; }
  const SessionCounts& counts() const override { return counts_; }

 private:
  const std::vector<FoundSequence> found_;
  const SessionCounts counts_;
  int last_ = 0;
};

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_TESTS_REMOTE_FAKE_SESSION_H_
