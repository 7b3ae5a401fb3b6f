#include "service/process/signals.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <initializer_list>

namespace seine {
namespace {

// Whether the process has a controlling terminal that can still be used: a closed one fails to open.
bool HasTerminal() {
  const int fd = open("/dev/tty", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

// Ignores `signal` unless somebody takes it.
void Ignore(int signal) {
  struct sigaction now = {};
  if (sigaction(signal, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != SIG_DFL) return;
  now.sa_handler = SIG_IGN;
  sigaction(signal, &now, nullptr);
}

void IgnoreWhatMeansNothing() {
  for (const int signal : {SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGPWR, SIGSTKFLT, SIGXFSZ}) {
    Ignore(signal);
  }
  for (int signal = SIGRTMIN; signal <= SIGRTMAX; ++signal) Ignore(signal);
}

void FaultLine(int signal) {
  constexpr char kLine[] = "seined: ended by a fault that it cannot survive, such as want of memory\n";
  pollfd out = {STDERR_FILENO, POLLOUT, 0};
  if (poll(&out, 1, 0) == 1) [[maybe_unused]]
    const ssize_t written = write(STDERR_FILENO, kLine, sizeof(kLine) - 1);
  raise(signal);  // whose handler is the system's again
}

}  // namespace

void WriteLineOnFaults() {
  struct sigaction line = {};
  line.sa_handler = &FaultLine;
  line.sa_flags = static_cast<int>(SA_RESETHAND) | SA_NODEFER;
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(signal, &line, nullptr);
}

Signals::Signals() : had_terminal_(HasTerminal()) {
  struct sigaction hang_up = {};
  hang_up_ignored_ = sigaction(SIGHUP, nullptr, &hang_up) == 0 && hang_up.sa_handler == SIG_IGN;
  IgnoreWhatMeansNothing();
  sigemptyset(&taken_);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&taken_, signal);
  pthread_sigmask(SIG_BLOCK, &taken_, nullptr);
}

Signals::Event Signals::Wait() const {
  for (;;) {
    siginfo_t info = {};
    const int signal = sigwaitinfo(&taken_, &info);
    if (signal == SIGTERM) return {false, "SIGTERM"};
    if (signal == SIGINT) return {false, "SIGINT"};
    if (signal != SIGHUP) continue;  // EINTR: the process was stopped and goes on
    // The kernel itself sends it when the terminal goes, and a shell that ends so hands it on to its jobs.
    const bool closed = had_terminal_ && (info.si_code == SI_KERNEL || !HasTerminal());
    if (closed && !hang_up_ignored_) return {false, "SIGHUP, the terminal is closed"};
    return {true, "SIGHUP"};
  }
}

void Signals::Release() const {
  sigset_t end;
  sigemptyset(&end);
  for (const int signal : {SIGTERM, SIGINT}) sigaddset(&end, signal);
  pthread_sigmask(SIG_UNBLOCK, &end, nullptr);
}

}  // namespace seine
