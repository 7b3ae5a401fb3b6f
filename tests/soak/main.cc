// seine-soak: each attack against a seined of its own, with a bystander beside it. The last line is JSON:
// {"cases", "crashes", "hangs", "contract_breaks", "rss_over_limit_mib"}. Exit code 0 where the last four are 0.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/soak/attacks.h"
#include "tests/soak/bystander.h"
#include "tests/soak/raw_connection.h"
#include "tests/soak/server_process.h"

namespace seine::soak {
namespace {

constexpr int64_t kMiB = 1 << 20, kMemoryLimit = 256 * kMiB;
constexpr int kGrace = 2;
constexpr double kHangMs = 2000;

constexpr char kUsage[] =
    R"(usage: seine-soak [--quick | --brief | --seconds N] [--only NAME[,NAME]] [--seed N] [--list]

Attacks a seined of its own, one way after another, on a Unix socket, while a bystander decodes beside them; then ends
the server under attack. Prints a line for each, and a JSON line at the end.

  --quick       each for 10 s (some 6 minutes); the default
  --brief       each for 1 s; hangs are counted, but not held against it: the machine may be busy with other things
  --seconds N   each for N seconds
  --only NAMES  these alone
  --seed N      of what is random (default 1)
  --list        the attacks
)";

struct Result {
  int64_t cases = 0, crashes = 0, hangs = 0, breaks = 0;
  double over_mib = 0;
};

// "memory: at most 256MiB + 10 % + 672MiB (...": the second size.
int64_t ConstantBytes(const std::string& log) {
  const size_t at = log.find("memory: at most ");
  const size_t plus = at == std::string::npos ? at : log.find("% + ", at);
  int64_t mib = 0;
  if (plus == std::string::npos) return 0;
  const std::string rest = log.substr(plus + 4);
  return absl::SimpleAtoi(rest.substr(0, rest.find("MiB")), &mib) ? mib * kMiB : 0;
}

std::string Row(const std::vector<std::string>& cells) {
  std::string row;
  const int widths[] = {-21, 9, 8, 8, 8, 8, 8, 8, 8, 7};
  for (size_t i = 0; i < cells.size(); ++i) {
    char cell[160];
    snprintf(cell, sizeof(cell), "%*s ", i < std::size(widths) ? widths[i] : 1, cells[i].c_str());
    row += cell;
  }
  return row;
}

std::string Fixed(double value, int digits = 1) {
  char text[32];
  snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

class Soak {
 public:
  Soak(const char* self, double seconds, uint32_t seed, bool brief)
      : self_(self), seconds_(seconds), seed_(seed), brief_(brief) {}

  // nullptr: the bystander alone.
  void Run(const Attack* attack) {
    const std::string name = attack == nullptr ? "(none)" : attack->name;
    TemporaryFolder folder;
    const std::string address = absl::StrCat("unix:", folder.path, "/seine.sock");
    std::vector<std::string> command = {SEINED_PATH, "--listen",          address, "--memory-limit", "256MiB",
                                        "--grace",   absl::StrCat(kGrace)};
    if (attack != nullptr) command.insert(command.end(), attack->flags.begin(), attack->flags.end());
    ChildProcess server(command, folder.path, "seined", attack == nullptr ? 0 : attack->descriptors, 0);
    Result result;
    if (!WaitForLine(server, "memory: at most")) {
      ++result.crashes;
      std::cout << name << ": the server did not start: " << server.Output() << std::endl;
      return Add(result);
    }
    Bystander bystander(address);
    if (!bystander.ok()) {
      ++result.crashes;
      std::cout << name << ": the bystander's prompt failed" << std::endl;
      return Add(result);
    }
    std::unique_ptr<ChildProcess> attacker;
    if (attack != nullptr) {
      attacker = std::make_unique<ChildProcess>(
          std::vector<std::string>{self_, "--attack", name, "--server", address, "--seed", absl::StrCat(seed_)},
          folder.path, "attack", 0, /*niceness=*/10);
      WaitForLine(*attacker, "cases ", 20);
    }
    bystander.expects_refusals = attack != nullptr && attack->refuses_connections;
    bystander.Start();
    if (attack != nullptr && attack->stopped) {
      Sleep(std::min(1.0, seconds_ / 2));
      attacker->Signal(SIGSTOP);
    }
    Sleep(seconds_);
    bystander.Stop();
    const std::string output = attacker == nullptr ? "" : attacker->Output();  // what comes later may be of the end
    const bool crashed = !server.Alive();
    server.Signal(SIGTERM);
    const auto begin = std::chrono::steady_clock::now();
    const int code = server.Wait(kGrace + 20);
    const double end = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    result.cases = CountOf(output) + static_cast<int64_t>(bystander.steps().all.size() + bystander.health().all.size());
    result.crashes += crashed || (code != 0 && code != 3) ? 1 : 0;
    result.hangs +=
        std::max({bystander.steps().Max(), bystander.health().Max(), bystander.connections().Max()}) > kHangMs;
    result.hangs += end > kGrace + 1 ? 1 : 0;
    result.breaks = Breaks(output) + bystander.wrong_answers() + bystander.failures();
    const double promised = 1.1 * kMemoryLimit + static_cast<double>(ConstantBytes(server.Output()));
    const double peak = static_cast<double>(server.PeakResidentBytes());
    result.over_mib = std::max(0.0, (peak - promised) / kMiB);
    std::cout << Row({name, absl::StrCat(result.cases), Fixed(bystander.steps().Quantile(.5), 2),
                      Fixed(bystander.steps().Quantile(.99), 2), Fixed(bystander.steps().Max(), 0),
                      Fixed(bystander.health().Quantile(.99)), Fixed(bystander.connections().Quantile(.99)),
                      Fixed(peak / kMiB, 0), Fixed(end, 2), absl::StrCat(result.breaks)})
              << std::endl;
    if (crashed || (code != 0 && code != 3))
      std::cout << "  CRASH, exit " << code << ":\n" << Tail(server.Output()) << std::endl;
    if (code == 3 || end > kGrace + .5) std::cout << "  end: " << LastLine(server.Output()) << std::endl;
    if (!bystander.first_failure().empty()) std::cout << "  bystander: " << bystander.first_failure() << std::endl;
    if (bystander.wrong_answers() > 0)
      std::cout << "  bystander: " << bystander.wrong_answers() << " wrong answers" << std::endl;
    PrintBreaks(output);
    Add(result);
  }

  static void Header() {
    std::cout << Row({"attack", "cases", "step p50", "p99", "max", "health", "connect", "RSS MiB", "end s", "breaks"})
              << "\n(latencies of a bystander in ms: Decode steps; p99 of GetServerInfo and of new connections)\n";
  }
  int End() const {
    const nlohmann::ordered_json json = {{"cases", total_.cases},
                                         {"crashes", total_.crashes},
                                         {"hangs", total_.hangs},
                                         {"contract_breaks", total_.breaks},
                                         {"rss_over_limit_mib", std::round(total_.over_mib * 10) / 10}};
    std::cout << json.dump() << std::endl;
    const int64_t hangs = brief_ ? 0 : total_.hangs;
    return total_.crashes + hangs + total_.breaks > 0 || total_.over_mib > 0 ? 1 : 0;
  }

 private:
  static void Sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }
  static bool WaitForLine(ChildProcess& child, const char* text, double seconds = 10) {
    for (double waited = 0; waited < seconds && child.Alive(); waited += .02) {
      if (child.Output().find(text) != std::string::npos) return true;
      Sleep(.02);
    }
    return child.Output().find(text) != std::string::npos;
  }
  static int64_t CountOf(const std::string& output) {
    const size_t at = output.rfind("cases ");
    int64_t count = 0;
    if (at == std::string::npos) return 0;
    const std::string rest = output.substr(at + 6);
    return absl::SimpleAtoi(rest.substr(0, rest.find('\n')), &count) ? count : 0;
  }
  static int64_t Breaks(const std::string& output) {
    int64_t count = 0;
    for (size_t at = output.find("break: "); at != std::string::npos; at = output.find("break: ", at + 1)) ++count;
    return count;
  }
  static void PrintBreaks(const std::string& output) {
    std::istringstream lines(output);
    std::string line;
    for (int printed = 0; printed < 4 && std::getline(lines, line);) {
      if (line.rfind("cases ", 0) == 0) continue;
      std::cout << "  " << line.substr(0, 300) << std::endl;
      ++printed;
    }
  }
  static std::string LastLine(const std::string& text) {
    const size_t at = text.rfind('\n', text.size() - 2);
    return at == std::string::npos ? text : text.substr(at + 1, text.size() - at - 2);
  }
  static std::string Tail(const std::string& text) { return text.substr(text.size() > 1500 ? text.size() - 1500 : 0); }
  void Add(const Result& result) {
    total_.cases += result.cases;
    total_.crashes += result.crashes;
    total_.hangs += result.hangs;
    total_.breaks += result.breaks;
    total_.over_mib = std::max(total_.over_mib, result.over_mib);
  }

  const char* const self_;
  const double seconds_;
  const uint32_t seed_;
  const bool brief_;
  Result total_;
};

const Attack* Find(const std::string& name) {
  for (const Attack& attack : Attacks()) {
    if (name == attack.name) return &attack;
  }
  return nullptr;
}

// The child's part.
int RunAttack(const std::string& name, const std::string& address, uint32_t seed) {
  const Attack* const attack = Find(name);
  if (attack == nullptr) return 2;
  static Tally tally;
  std::thread([] {
    for (;;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (tally.cases() > 0) printf("cases %lld\n", static_cast<long long>(tally.cases()));
      fflush(stdout);
    }
  }).detach();
  attack->run(address, seed, tally);
  for (;;) pause();
}

int Main(int argc, char** argv) {
  double seconds = 10;
  std::string only, attack, server;
  int seed = 1;
  bool brief = false;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--quick") continue;
    if (flag == "--help") {
      std::cout << kUsage;
      return 0;
    }
    if (flag == "--list") {
      for (const Attack& a : Attacks()) std::cout << a.name << ": " << a.what << "\n";
      return 0;
    }
    if (flag == "--brief") {
      seconds = 1;
      brief = true;
      continue;
    }
    bool known = true;
    if (flag == "--seconds") {
      known = absl::SimpleAtod(value, &seconds) && seconds > 0 && seconds < 1e6;
    } else if (flag == "--seed") {
      known = absl::SimpleAtoi(value, &seed);
    } else if (flag == "--only") {
      only = value;
    } else if (flag == "--attack") {
      attack = value;
    } else if (flag == "--server") {
      server = value;
    } else {
      known = false;
    }
    if (!known) {
      std::cerr << "seine-soak: " << flag << " " << value << ": not understood\n" << kUsage;
      return 2;
    }
    ++i;
  }
  std::istringstream names(only);
  for (std::string name; std::getline(names, name, ',');) {
    if (Find(name) != nullptr) continue;
    std::cerr << "seine-soak: --only " << name << ": no such attack; --list shows them" << std::endl;
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  if (!attack.empty()) return RunAttack(attack, server, static_cast<uint32_t>(seed));
  Soak soak(argv[0], seconds, static_cast<uint32_t>(seed), brief);
  Soak::Header();
  soak.Run(nullptr);
  for (const Attack& a : Attacks()) {
    if (only.empty() || ("," + only + ",").find(absl::StrCat(",", a.name, ",")) != std::string::npos) soak.Run(&a);
  }
  return soak.End();
}

}  // namespace
}  // namespace seine::soak

int main(int argc, char** argv) { return seine::soak::Main(argc, argv); }
