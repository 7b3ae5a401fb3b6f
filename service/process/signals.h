// What a server is told by signals: to end, or to read its settings again.
//
//   SIGTERM, SIGINT   end
//   SIGHUP            end where the terminal that the process was started from is gone; else read again. A process that
//                     began with SIGHUP ignored (nohup) never ends by it.
//   SIGQUIT           end at once with a core dump, as faults do
//   SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGPWR, SIGSTKFLT, SIGXFSZ and real-time signals
//                     nothing: each would end the process at once, sequences and all, and none asks for that. A handler
//                     that is there already (a profiler's) stays.
#ifndef SEINE_SERVICE_PROCESS_SIGNALS_H_
#define SEINE_SERVICE_PROCESS_SIGNALS_H_

#include <signal.h>

namespace seine {

// From now on SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT write a line to stderr, where it takes one, and then do what
// they did. gRPC ends a process that has no memory by one of them.
void WriteLineOnFaults();

class Signals {
 public:
  // Before any thread starts: all inherit the mask, so that only Wait takes the signals.
  Signals();

  struct Event {
    bool reload = false;  // else: end
    const char* name = "";
  };
  Event Wait() const;

  // From now on another SIGTERM or SIGINT ends the process at once.
  void Release() const;

 private:
  sigset_t taken_;
  bool hang_up_ignored_ = false;
  bool had_terminal_ = false;
};

}  // namespace seine

#endif  // SEINE_SERVICE_PROCESS_SIGNALS_H_
