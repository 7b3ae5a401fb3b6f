#include <signal.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/soak/attacks/channel_holder.h"
#include "tests/soak/drills/drills.h"
#include "tests/soak/server/bystander.h"
#include "tests/soak/server/made_requests.h"
#include "tests/soak/server/soaked_server.h"

namespace seine::soak {
namespace {

constexpr double kBackSeconds = 2;
constexpr int kSpare = 4;  // descriptors: gRPC keeps one for each thread that has waited; a client's would be 200

class KillDrill {
 public:
  KillDrill(const RunOptions& options, Result* result) : options_(options), result_(*result), random_(options.seed) {}

  void Run() {
    Bystander bystander(server_.address());
    Client client(server_.address());
    if (!bystander.ok() || Prompt(client, kHeldIndex, kHeldId, 1000, 9).id().empty()) {
      ++result_.crashes;
      return result_.Note("the server did not start: " + server_.process().Output());
    }
    const int descriptors = server_.Descriptors();
    const auto resident = static_cast<double>(server_.process().ResidentBytes());
    bystander.Start();
    for (int64_t i = 0; i < result_.stated.faults; ++i) KillOne();
    bystander.Stop();
    bystander.Report(&result_);
    auto& figures = result_.figures;
    figures["back_worst_s"] = worst_;
    figures["descriptors_before"] = descriptors;
    ExpectBack(descriptors);
    figures["descriptors_after"] = server_.Descriptors();
    figures["rss_grown_mib"] = (static_cast<double>(server_.process().ResidentBytes()) - resident) / kMiB;
    server_.End(&result_);
  }

 private:
  void KillOne() {
    ChildProcess child({options_.self, "--attack", kHoldChannel, "--server", server_.address()}, server_.folder(),
                       "holder", 0, /*niceness=*/0);
    if (!WaitForLine(child, "open", 30)) return result_.Break("a client got no channel: " + child.Output());
    Sleep(std::uniform_real_distribution<double>(0, .008)(random_));
    ++result_.ops;
    result_.faults += server_.Metric("seine_channels") == 1;  // killed while it held one
    child.Signal(SIGKILL);
    const auto begin = std::chrono::steady_clock::now();
    const auto took = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
    while (server_.Metric("seine_channels") != 0 && took() < 10 * kBackSeconds) Sleep(.001);
    worst_ = std::max(worst_, took());
    if (took() > kBackSeconds) result_.Break(absl::StrCat("a channel was there ", took(), " s after its client"));
  }
  // Checks all of them together, when nobody calls any more.
  void ExpectBack(int descriptors) {
    std::string what;
    if (!server_.Settles(3, kBackSeconds, &what)) result_.Break(what);
    const int most = descriptors + kSpare;
    for (double waited = 0; server_.Descriptors() > most && waited < kBackSeconds; waited += .01) Sleep(.01);
    if (const int now = server_.Descriptors(); now > most) {
      result_.Break(absl::StrCat(now, " descriptors, and ", descriptors, " before"));
    }
  }

  const RunOptions& options_;
  Result& result_;
  SoakedServer server_{{}};
  std::mt19937 random_;
  double worst_ = 0;
};

}  // namespace

void Kills(const RunOptions& options, Result* result) { KillDrill(options, result).Run(); }

}  // namespace seine::soak
