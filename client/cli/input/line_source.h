// The lines of standard input, for a thread that another thread can stop while it waits.
#ifndef SEINE_CLIENT_CLI_INPUT_LINE_SOURCE_H_
#define SEINE_CLIENT_CLI_INPUT_LINE_SOURCE_H_

#include <string>

#include "absl/status/status.h"

namespace seine::cli {

class LineSource {
 public:
  LineSource();
  ~LineSource();
  LineSource(const LineSource&) = delete;
  LineSource& operator=(const LineSource&) = delete;

  // The next line without its end, empty ones left out. False: there is none, Stop was called, or `status` says why.
  bool Next(std::string* line);
  bool ReadAll(std::string* text);
  void Stop();  // from any thread
  const absl::Status& status() const { return status_; }
  int number() const { return number_; }  // of the line, from 1

 private:
  bool Fill();  // appends to buffer_; false: nothing follows

  int stop_;
  std::string buffer_;
  size_t begin_ = 0;  // of what Next has not returned yet
  bool ended_ = false;
  int number_ = 0;
  absl::Status status_;
};

}  // namespace seine::cli

#endif  // SEINE_CLIENT_CLI_INPUT_LINE_SOURCE_H_
