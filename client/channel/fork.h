// What fork() leaves of a client: nothing that works. The child has neither the threads that would answer it nor a
// connection of its own, and what it sends would be its parent's. So all that is made before a fork refuses in the
// child, at once, and its end there does nothing. Internal to client/ and engines/.
#ifndef SEINE_CLIENT_CHANNEL_FORK_H_
#define SEINE_CLIENT_CHANNEL_FORK_H_

#include <unistd.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "client/client.h"

namespace seine::client {

// How many forks lie between this process and the one that first asked. No system call. Thread-safe.
int64_t Forks();

// The process that something was made in. A copy is of the same process. Thread-safe.
class MadeHere {
 public:
  bool here() const { return forks_ == Forks(); }
  absl::Status Check() const;  // FAILED_PRECONDITION: made before fork

 private:
  int64_t forks_ = Forks();
  pid_t process_ = getpid();
};

// Keeps what a parent has made, and ends it never: its end would wait for threads that the child does not have.
void KeepForEver(std::shared_ptr<void> made);

// The same stream or call, which a child of fork refuses. `made`: of the client; nullptr where that is not here.
std::unique_ptr<DecodeStream> OfThisProcess(std::unique_ptr<DecodeStream> stream);
std::unique_ptr<JsonCall> OfThisProcess(std::unique_ptr<JsonCall> call, const MadeHere& made);

}  // namespace seine::client

#endif  // SEINE_CLIENT_CHANNEL_FORK_H_
