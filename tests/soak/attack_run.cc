#include "tests/soak/attack_run.h"

#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <sstream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/soak/attacks/channel_holder.h"
#include "tests/soak/server/bystander.h"
#include "tests/soak/server/soaked_server.h"

namespace seine::soak {
namespace {

using Clock = std::chrono::steady_clock;
constexpr char kStored[] = "seine_memory_bytes";

double Since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// The attacker's own count: the last number behind `word`.
int64_t CountOf(const std::string& output, const std::string& word) {
  const size_t at = output.rfind(word);
  int64_t count = 0;
  if (at == std::string::npos) return 0;
  const std::string rest = output.substr(at + word.size());
  return absl::SimpleAtoi(rest.substr(0, rest.find_first_of(" \n")), &count) ? count : 0;
}

// Where this thread, and what it starts, may run: on the first processor until UseOthers(), and from UseFirst() on.
// Nothing changes where `apart` is false or there is one processor. The end gives all back.
class Processors {
 public:
  explicit Processors(bool apart) : apart_(apart) {
    CPU_ZERO(&all_);
    sched_getaffinity(0, sizeof(all_), &all_);
    UseFirst();
  }
  ~Processors() {
    if (apart_) sched_setaffinity(0, sizeof(all_), &all_);
  }
  void UseFirst() { Use(/*first=*/true); }
  void UseOthers() { Use(/*first=*/false); }

 private:
  void Use(bool first) {
    cpu_set_t some;
    CPU_ZERO(&some);
    int seen = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &all_) && (seen++ == 0) == first) CPU_SET(cpu, &some);
    }
    if (apart_ && CPU_COUNT(&some) > 0) sched_setaffinity(0, sizeof(some), &some);
  }
  const bool apart_;
  cpu_set_t all_;
};

class AttackRun {
 public:
  AttackRun(const Attack* attack, const RunOptions& options, Result* result)
      : attack_(attack),
        processors_(attack != nullptr && attack->apart),
        options_(options),
        result_(*result),
        server_(attack == nullptr ? std::vector<std::string>() : attack->flags,
                attack == nullptr ? 0 : attack->descriptors, /*grace=*/2, options.transport) {}

  void Run() {
    if (!server_.Serves()) return Failed("the server did not start: " + server_.process().Output());
    Bystander bystander(server_.endpoint().ToString(), server_.metrics());
    if (!bystander.ok()) return Failed("the bystander's prompt failed");
    const auto before = static_cast<double>(server_.process().ResidentBytes());
    const double stored = server_.SumOf(kStored);
    bystander.expects_refusals = attack_ != nullptr && attack_->refuses_connections;
    Begin();
    bystander.Start();
    Last();
    bystander.Stop();
    result_.figures["rss_grown_mib"] = (static_cast<double>(server_.process().PeakResidentBytes()) - before) / kMiB;
    if (attack_ != nullptr && attack_->keeps) SetApart((server_.SumOf(kStored) - stored) / kMiB);
    if (attack_ != nullptr) ReadAttacker();
    bystander.Report(&result_);
    if (attack_ != nullptr && attack_->leaves_nothing) ExpectNothingLeft();
    server_.End(&result_);
    HoldMemory();
  }

 private:
  void Failed(const std::string& what) {
    ++result_.crashes;
    result_.Note(what);
  }
  void Begin() {
    if (attack_ == nullptr) return;
    processors_.UseOthers();
    attacker_ = std::make_unique<ChildProcess>(
        std::vector<std::string>{options_.self, "--attack", attack_->name, "--server", server_.endpoint().ToString(),
                                 "--metrics", server_.metrics(), "--seed", absl::StrCat(options_.seed), "--seconds",
                                 absl::StrCat(options_.seconds)},
        server_.folder(), "attack", 0, /*niceness=*/10);
    processors_.UseFirst();
    WaitForLine(*attacker_, "cases ", 20);
  }
  // Until the time is over and what is stated was made; six times as long at most, and a minute.
  void Last() {
    const auto begin = Clock::now();
    if (attack_ != nullptr && attack_->stopped) {
      Sleep(std::min(1.0, options_.seconds / 2));
      while (!MadeStated() && Since(begin) < Most()) Sleep(.1);
      attacker_->Signal(SIGSTOP);
    }
    do {
      Sleep(std::min(.1, options_.seconds));
    } while (Since(begin) < options_.seconds || (!MadeStated() && Since(begin) < Most()));
  }
  double Most() const { return 6 * options_.seconds + 60; }
  bool MadeStated() const {
    if (attacker_ == nullptr) return true;
    const std::string output = attacker_->Output();
    return CountOf(output, "cases ") >= result_.stated.ops && CountOf(output, "faults ") >= result_.stated.faults;
  }
  void ReadAttacker() {
    output_ = attacker_->Output();  // what comes later may be of the end
    result_.ops += CountOf(output_, "cases ");
    result_.faults += CountOf(output_, "faults ");
    std::istringstream lines(output_);
    int noted = 0;
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind("break: ", 0) == 0) ++result_.breaks;
      if (line.rfind("cases ", 0) != 0 && ++noted <= 4) result_.Note(line.substr(0, 300));
    }
  }
  // The bystander's two connections may stay.
  void ExpectNothingLeft() {
    attacker_ = nullptr;
    std::string what;
    if (!server_.Settles(2, 20, &what)) result_.Break(what);
    result_.figures["rss_left_mib"] = static_cast<double>(server_.process().ResidentBytes()) / kMiB;
  }
  // Sets apart what the attack has stored.
  void SetApart(double stored) {
    result_.figures["stored_mib"] = stored;
    result_.figures["own_grown_mib"] = result_.figures["rss_grown_mib"].get<double>() - stored;
  }
  void HoldMemory() {
    const auto& figures = result_.figures;
    const double grown = figures.value("own_grown_mib", figures["rss_grown_mib"].get<double>());
    const double most = MayGrow();
    if (most == 0 || grown <= most) return;
    result_.over_mib = std::max(result_.over_mib, grown - most);
    result_.Note(absl::StrCat("memory: may grow by ", most, " MiB"));
  }
  // MiB; 0: as far as the server promises.
  double MayGrow() const {
    if (attack_ == nullptr) return 0;
    const bool tls = options_.transport == Transport::kTls && attack_->grows_tls_mib > 0;
    return tls ? attack_->grows_tls_mib : attack_->grows_mib;
  }

  const Attack* const attack_;
  Processors processors_;  // before the server, which starts there
  const RunOptions& options_;
  Result& result_;
  SoakedServer server_;
  std::unique_ptr<ChildProcess> attacker_;
  std::string output_;
};

}  // namespace

void RunAttack(const Attack* attack, const RunOptions& options, Result* result) {
  AttackRun(attack, options, result).Run();
}

int MakeAttack(const std::string& name, const std::string& endpoint, const std::string& metrics,
               const RunOptions& options) {
  if (name == kHoldChannel) return HoldChannel(endpoint);
  const auto& all = Attacks();
  const auto attack = std::find_if(all.begin(), all.end(), [&](const Attack& a) { return name == a.name; });
  if (attack == all.end()) return 2;
  static Tally tally;
  std::thread([] {
    for (;;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (tally.cases() > 0) tally.Print();
    }
  }).detach();
  attack->run({endpoint, metrics, options.seed, options.seconds}, tally);
  for (;;) pause();
}

}  // namespace seine::soak
