#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/soak/drills/drills.h"
#include "tests/soak/drills/end_clients.h"
#include "tests/soak/server/soaked_server.h"

namespace seine::soak {
namespace {

constexpr int kEndGrace = 10;
constexpr int64_t kAnsweredBefore = 100;  // of all clients together, before the signal comes

// One server. Every second one takes calls for a second more; of each of those every second one polls.
class EndDrill {
 public:
  EndDrill(int64_t number, std::mt19937& random, Result* result)
      : delayed_(number % 2 == 1), random_(random), result_(*result), server_(Flags(number), 0, kEndGrace) {}

  void Run() {
    if (!server_.Serves()) {
      ++result_.crashes;
      return result_.Note("the server did not start: " + server_.process().Output());
    }
    auto clients = std::make_unique<EndClients>(server_.address());
    const EndWitness& witness = clients->witness();
    for (double waited = 0; witness.answered() < kAnsweredBefore && waited < 30; waited += .005) Sleep(.005);
    Sleep(std::uniform_real_distribution<double>(0, .1)(random_));
    ++result_.faults;
    if (const int code = server_.End(&result_); code != 0) result_.Break(absl::StrCat("exit code ", code));
    clients->Join();
    Judge(*clients);
  }

 private:
  static std::vector<std::string> Flags(int64_t number) {
    std::vector<std::string> flags = {"--threads", "1"};
    if (number % 4 >= 2) flags.emplace_back("--polling");
    if (number % 2 == 1) flags.insert(flags.end(), {"--drain-delay", "1"});
    return flags;
  }
  void Judge(const EndClients& clients) {
    const EndWitness& witness = clients.witness();
    result_.ops += witness.answered();
    Count("refused", witness.refused());
    Count("read_back", clients.read_back());
    for (const std::string& what : witness.breaks()) result_.Break(what);
    if (witness.refused() != EndClients::kClients) result_.Break("a client's last call has no end");
    if (delayed_ && !witness.HealthCameFirst()) {
      result_.Break("a call was refused before health said NOT_SERVING: " + clients.health());
    }
  }
  void Count(const char* name, int64_t more) { result_.figures[name] = result_.figures.value(name, int64_t{0}) + more; }

  const bool delayed_;
  std::mt19937& random_;
  Result& result_;
  SoakedServer server_;
};

}  // namespace

void Ends(const RunOptions& options, Result* result) {
  std::mt19937 random(options.seed);
  for (int64_t i = 0; i < result->stated.faults; ++i) EndDrill(i, random, result).Run();
}

}  // namespace seine::soak
