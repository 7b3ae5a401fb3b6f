#include <signal.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/soak/drills/drills.h"
#include "tests/soak/drills/killed_sequence.h"
#include "tests/soak/drills/killed_server.h"

namespace seine::soak {
namespace {

constexpr int kIdleFamilies = 6, kIdleAskers = 2;
constexpr int64_t kIdleTokens = 4000;
constexpr int kIdleAttempts = 20;       // a kill, before the drill gives up
constexpr double kLongestTraffic = .4;  // s, before the kill
constexpr char kSpillAfter[] = "20ms";  // families go to files while the others are asked

std::string IdleFamily(int number) { return absl::StrCat("f", number); }

// Asks families by chance until a call fails, and compares what they answer.
class IdleAskers {
 public:
  IdleAskers(const std::string& address, const std::vector<std::string>& expected, uint32_t seed)
      : expected_(expected) {
    for (int i = 0; i < kIdleAskers; ++i) {
      threads_.emplace_back([this, address, seed, i] { Work(address, seed * kIdleAskers + static_cast<uint32_t>(i)); });
    }
  }
  ~IdleAskers() { Join(); }
  // Once the server is killed.
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  int64_t asked() const { return asked_; }
  int64_t wrong() const { return wrong_; }

 private:
  void Work(const std::string& address, uint32_t seed) {
    std::mt19937 random(seed);
    Client client(address);
    for (;;) {
      const auto number = static_cast<size_t>(random() % expected_.size());
      const std::string answers = AnswersOf(client, IdleFamily(static_cast<int>(number)));
      if (answers.empty()) return;
      ++asked_;
      if (answers != expected_[number]) ++wrong_;
      Sleep(std::uniform_real_distribution<double>(0, .04)(random));
    }
  }

  const std::vector<std::string>& expected_;
  std::atomic<int64_t> asked_{0}, wrong_{0};
  std::vector<std::thread> threads_;
};

class IdleKills {
 public:
  IdleKills(const RunOptions& options, Result* result) : result_(*result), random_(options.seed) {}

  void Run() {
    if (!Prepare()) return;
    const int64_t wanted = result_.stated.faults;
    for (int64_t i = 0; i < kIdleAttempts * wanted && result_.faults < wanted && result_.crashes == 0; ++i) {
      Kill();
      Check();
    }
    killed_.End(&result_);
  }

 private:
  // Makes the families, which an orderly end writes to files.
  bool Prepare() {
    if (!killed_.Start(&result_)) return false;
    for (int i = 0; i < kIdleFamilies; ++i) {
      Prompt(killed_.client(), kKillIndex, IdleFamily(i), kIdleTokens, static_cast<uint8_t>(i));
      expected_.push_back(AnswersOf(killed_.client(), IdleFamily(i)));
      if (expected_.back().empty()) result_.Break("a family was not made");
    }
    if (killed_.End(&result_) != 0) result_.Break("the server did not end in order");
    return result_.breaks == 0 && killed_.Start(&result_);
  }

  // Kills the server while families go to files and come back. It is a fault where both have happened.
  void Kill() {
    late_ = absl::StrCat("late", result_.ops);
    if (Prompt(killed_.client(), kKillIndex, late_, kIdleTokens, 9).id().empty())
      result_.Break("a family was not made");
    IdleAskers askers(killed_.server().address(), expected_, random_());
    const double traffic = std::uniform_real_distribution<double>(0, kLongestTraffic)(random_);
    const auto both = [this] {
      return killed_.server().Metric("seine_spill_restore_seconds_count").value_or(0) > 0 &&
             killed_.server().SumOf("seine_spills_total") > 0;
    };
    bool seen = both();
    for (double waited = 0; !seen && waited < 20 && killed_.server().process().Alive(); waited += .02) {
      Sleep(.02);
      seen = both();
    }
    Sleep(traffic);
    killed_.server().process().Signal(SIGKILL);
    askers.Join();
    result_.ops += askers.asked();
    result_.faults += seen ? 1 : 0;
    if (askers.wrong() > 0) result_.Break(absl::StrCat(askers.wrong(), " answers have changed on the way to a file"));
  }
  // The next server has what the last orderly end has written, and nothing of the idle tier's.
  void Check() {
    if (!killed_.Start(&result_)) return;
    for (int i = 0; i < kIdleFamilies; ++i, ++result_.ops) {
      if (AnswersOf(killed_.client(), IdleFamily(i)) != expected_[static_cast<size_t>(i)]) {
        result_.Break("a restart lost a family or changed its answers");
      }
    }
    if (!AnswersOf(killed_.client(), late_).empty())
      result_.Break("a family that no snapshot has is there after a restart");
  }

  Result& result_;
  std::mt19937 random_;
  KilledServer killed_{{"--idle-dir", "FOLDER", "--idle-spill-after", kSpillAfter}};
  std::vector<std::string> expected_;
  std::string late_;
};

}  // namespace

void KillIdle(const RunOptions& options, Result* result) { IdleKills(options, result).Run(); }

}  // namespace seine::soak
