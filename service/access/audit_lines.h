// Lines on their way into the audit file: a thread of its own writes them, and whoever has one waits for it, but not
// for ever. So a line is in the file before its call is answered, unless the disk hangs.
//
// Thread-safe.
#ifndef SEINE_SERVICE_ACCESS_AUDIT_LINES_H_
#define SEINE_SERVICE_ACCESS_AUDIT_LINES_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace seine {

class AuditLines {
 public:
  static constexpr std::chrono::milliseconds kPatience{1000};  // with a file that takes nothing
  static constexpr size_t kMostWaiting = 4096;

  // Takes the descriptor. `cut`: what is in the file ends within a line. `failed` is told why a line is lost, on any
  // thread; it must not wait. Throws std::system_error where the system has no thread.
  AuditLines(int fd, bool cut, std::function<void(const std::string& why)> failed);
  // Waits for lines as Write does. What the file has not taken by then goes on without this process's other ends.
  ~AuditLines();
  AuditLines(const AuditLines&) = delete;
  AuditLines& operator=(const AuditLines&) = delete;

  // Returns once the line is written or lost, or once the file has taken nothing for kPatience. The line is then in a
  // queue; where kMostWaiting are, it is lost.
  void Write(std::string line);

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state, bool cut);
  const std::shared_ptr<State> state_;  // shared with the thread, which nobody joins
};

}  // namespace seine

#endif  // SEINE_SERVICE_ACCESS_AUDIT_LINES_H_
