#include "profile/io/mapping.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

#include "absl/strings/str_cat.h"

namespace seine {
namespace {

// One mapping. They are never freed but used again, so that a signal handler may walk them without a lock.
struct Mapped {
  std::atomic<uintptr_t> begin{0}, end{0};  // equal: not in use
  std::string path;
  Mapped* next = nullptr;
};

std::mutex g_mutex;  // of whoever adds or removes one
std::atomic<Mapped*> g_first{nullptr};
std::atomic<CutShort> g_tell{nullptr};
std::atomic_flag g_told;

Mapped* Unused() {
  for (Mapped* one = g_first.load(); one != nullptr; one = one->next) {
    if (one->begin.load() == one->end.load()) return one;
  }
  auto* const added = new Mapped;
  added->next = g_first.load();
  g_first.store(added);
  return added;
}

void OnBusError(int signal_number, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Mapped* one = g_first.load(); one != nullptr; one = one->next) {
    if (at < one->begin.load() || at >= one->end.load()) continue;
    while (g_told.test_and_set()) pause();  // another thread has met the end, and says so once for all
    g_tell.load()(absl::DataLossError(absl::StrCat(one->path, ": cut short while it is read")));
  }
  signal(signal_number, SIG_DFL);  // the read is tried again, and ends the process
}

}  // namespace

void TellOfCutFiles(CutShort tell) {
  g_tell.store(tell);
  struct sigaction action = {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGBUS, &action, nullptr);
}

std::shared_ptr<const uint8_t> MapFile(int fd, size_t count, const std::string& path) {
  void* const data = mmap(nullptr, count, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) return nullptr;
  const std::lock_guard<std::mutex> lock(g_mutex);
  Mapped* const mapped = Unused();
  mapped->path = path;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  mapped->begin.store(begin);
  mapped->end.store(begin + count);
  const auto unmap = [mapped, count](const uint8_t* bytes) {
    const std::lock_guard<std::mutex> again(g_mutex);
    mapped->end.store(mapped->begin.load());
    munmap(const_cast<uint8_t*>(bytes), count);
  };
  return std::shared_ptr<const uint8_t>(static_cast<const uint8_t*>(data), unmap);
}

}  // namespace seine
