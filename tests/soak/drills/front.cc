#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/soak/drills/drills.h"
#include "tests/soak/drills/front_steps.h"
#include "tests/soak/drills/fronts.h"
#include "tests/soak/server/raw_connection.h"
#include "tests/soak/server/soaked_server.h"

namespace seine::soak {
namespace {

constexpr double kMostGrown = 64;  // MiB, of the server behind a front
constexpr char kToken[] = "s3cret";
constexpr char kTokens[] =
    "- {sha256: 1ec1c26b50d5d3c58d9583181af8076655fe00756bf7285940ba3670f99fcba0, tenant: acme, role: admin}\n";

// What a flood did.
struct Flood {
  std::atomic<int64_t> resets{0}, connections{0}, cut{0};
  std::atomic<bool> stop{false};

  // Connection after connection, each with as many calls as the front lets through.
  void Work(const Endpoint& front) {
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()),
                10);  // as any attack: it shares the cores with who it attacks
    while (!stop) {
      RawConnection connection(front.ToString());
      if (!connection.Open() || !connection.Handshake(5000)) {
        Sleep(.01);
        continue;
      }
      ++connections;
      for (uint32_t stream = 1; stream < 60'000 && !stop;) {
        std::string calls;
        for (int i = 0; i < 32; ++i, stream += 2) calls += RawConnection::OpenedAndReset(stream);
        if (!connection.Drain() || !connection.Send(calls)) {
          ++cut;
          break;
        }
        resets += 32;
      }
    }
  }
};

class FrontDrill {
 public:
  FrontDrill(const FrontProgram& program, const RunOptions& options, Result* result)
      : program_(program), options_(options), result_(*result) {}

  void Run() {
    std::ofstream(folder_.path + "/tokens.yaml") << kTokens;
    if (!MakeCertificate(folder_.path)) return result_.Break("openssl made no certificate");
    const Endpoint entry{absl::StrCat("127.0.0.1:", FreePort()), folder_.path};
    SoakedServer server({"--auth-tokens-file", folder_.path + "/tokens.yaml"}, 0, 2, Transport::kTcp);
    Front front(program_, folder_.path, entry.port(), server.endpoint().port());
    FrontSteps steps(entry.address, {.tls_ca = folder_.path + "/server.pem", .token = kToken});
    if (!steps.status().ok()) {
      ++result_.crashes;
      result_.Note(absl::StrCat(steps.status().ToString(), "\n", front.process().Output(), server.process().Output()));
      return;
    }
    const auto before = static_cast<double>(server.process().ResidentBytes());
    steps.Start();
    MakeFlood(entry, steps);
    steps.Stop();
    Report(steps);
    Judge(server, front, before);
    server.End(&result_);
  }

 private:
  void MakeFlood(const Endpoint& front, const FrontSteps& steps) {
    Flood flood;
    std::thread first([&] { flood.Work(front); }), second([&] { flood.Work(front); });
    const double most = 6 * options_.seconds + 60;
    const auto made = [&] {
      return flood.resets >= result_.stated.faults && steps.answered() >= result_.stated.ops && flood.cut > 0;
    };
    for (double waited = 0; waited < options_.seconds || (!made() && waited < most); waited += .05) Sleep(.05);
    flood.stop = true;
    first.join();
    second.join();
    result_.faults = flood.resets;
    result_.figures["connections"] = flood.connections.load();
    result_.figures["cut_off"] = flood.cut.load();
    if (flood.cut == 0) result_.Break("the front cut nobody off");
  }
  void Report(const FrontSteps& steps) {
    result_.ops = static_cast<int64_t>(steps.steps().all.size());
    result_.figures["step_p50_ms"] = steps.steps().Quantile(.5);
    result_.figures["step_p99_ms"] = steps.steps().Quantile(.99);
    result_.figures["step_max_ms"] = steps.steps().Max();
    if (steps.steps().Max() > kHangMs) ++result_.hangs;
    if (!steps.failure().ok()) result_.Break("a step through the front: " + steps.failure().ToString());
  }
  void Judge(SoakedServer& server, Front& front, double before) {
    const double grown = (static_cast<double>(server.process().PeakResidentBytes()) - before) / kMiB;
    result_.figures["rss_grown_mib"] = grown;
    result_.figures["front_rss_mib"] = static_cast<double>(front.process().PeakResidentBytes()) / kMiB;
    if (grown > kMostGrown) result_.over_mib = std::max(result_.over_mib, grown - kMostGrown);
    if (!front.process().Alive()) result_.Break("the front has ended: " + front.process().Output());
  }

  const FrontProgram& program_;
  const RunOptions& options_;
  Result& result_;
  TemporaryFolder folder_;
};

}  // namespace

void RunFront(const FrontProgram& program, const RunOptions& options, Result* result) {
  FrontDrill(program, options, result).Run();
}

}  // namespace seine::soak
