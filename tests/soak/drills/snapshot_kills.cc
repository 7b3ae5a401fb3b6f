#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/soak/drills/drills.h"
#include "tests/soak/drills/killed_sequence.h"
#include "tests/soak/drills/killed_server.h"
#include "tests/soak/server/made_requests.h"

namespace seine::soak {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kKillTokens = 20'000;
constexpr int kKillAttempts = 50;  // a kill, before the drill gives up: most come while the work is under way
constexpr char kKillId[] = "chat", kKillFile[] = "named";

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Each call says whether it was answered with OK.
bool Snapshot(Client& client) {
  grpc::ClientContext context;
  v1::SnapshotRequest request;
  v1::SnapshotResponse response;
  *request.mutable_handle() = HandleOf(kKillId);
  request.set_file(kKillFile);
  return client.sequence->Snapshot(&context, request, &response).ok();
}

bool Restore(Client& client, const std::string& id) {
  grpc::ClientContext context;
  v1::RestoreRequest request;
  v1::RestoreResponse response;
  request.set_index(kKillIndex);
  request.set_file(kKillFile);
  request.set_id(id);
  return client.sequence->Restore(&context, request, &response).ok();
}

class SnapshotKills {
 public:
  SnapshotKills(const RunOptions& options, Result* result) : result_(*result), random_(options.seed) {}

  void Run() {
    if (!Prepare()) return;
    const int64_t wanted = result_.stated.faults;
    for (int64_t i = 0; i < kKillAttempts * wanted && result_.faults < wanted && result_.crashes == 0; ++i) {
      Kill(static_cast<Work>(result_.faults % kWorks));
      Check();
    }
    result_.figures["back_worst_s"] = worst_;
    killed_.End(&result_);
  }

 private:
  enum Work : uint8_t { kSnapshot, kRestore, kStart, kEnd, kWorks };

  // Starts a server. False: it does not serve.
  bool Start() {
    const Clock::time_point begin = Clock::now();
    const bool serves = killed_.Start(&result_);
    usual_[kStart] = SecondsSince(begin);
    worst_ = std::max(worst_, usual_[kStart]);
    return serves;
  }
  // Makes the sequence, both of its snapshots, and measures how long each work usually takes.
  bool Prepare() {
    if (!Start()) return false;
    const bool made = !Prompt(killed_.client(), kKillIndex, kKillId, kKillTokens, 7).id().empty();
    expected_ = AnswersOf(killed_.client(), kKillId);
    usual_[kSnapshot] = Timed([this] { return Snapshot(killed_.client()); });
    usual_[kRestore] =
        Timed([this] { return Delete(killed_.client(), kKillId) && Restore(killed_.client(), kKillId); });
    usual_[kEnd] = Timed([this] { return killed_.End(&result_) == 0; });
    if (!made || expected_.empty()) result_.Break("the sequence was not made");
    return result_.breaks == 0 && Start();
  }
  double Timed(const std::function<bool()>& work) {
    const Clock::time_point begin = Clock::now();
    if (!work()) result_.Break("a call failed before anything was killed");
    return SecondsSince(begin);
  }

  // Kills the server at a moment of the work. It is a fault where the work was not done by then.
  void Kill(Work work) {
    bool done = false;
    const double after = std::uniform_real_distribution<double>(0, usual_[work])(random_);
    if (work == kStart) {
      done = KilledStart(after);
    } else if (work == kEnd) {
      killed_.server().process().Signal(SIGTERM);
      Sleep(after);
      killed_.server().process().Signal(SIGKILL);
      done = killed_.server().process().Wait(30) != -SIGKILL;
    } else {
      auto call = std::async(std::launch::async, [this, work] {
        return work == kSnapshot ? Snapshot(killed_.client()) : Restore(killed_.client(), "killed");
      });
      Sleep(after);
      killed_.server().process().Signal(SIGKILL);
      done = call.get();
    }
    ++result_.ops;
    result_.faults += done ? 0 : 1;
    constexpr const char* kNames[] = {"killed_snapshots", "killed_restores", "killed_starts", "killed_ends"};
    auto& figure = result_.figures[kNames[work]];
    figure = (figure.is_null() ? int64_t{0} : figure.get<int64_t>()) + (done ? 0 : 1);
  }
  // Ends the server that is there as a crash would, and kills another while it starts. True: it served before.
  bool KilledStart(double after) {
    killed_.server().process().Signal(SIGKILL);
    killed_.server().process().Wait(30);
    std::vector<std::string> command = {SEINED_PATH, "--listen",
                                        absl::StrCat("unix:", killed_.folder(), "/start.sock")};
    for (const std::string& flag : killed_.flags()) command.push_back(flag);
    ChildProcess starting(command, killed_.folder(), "starting", 0, 0);
    Sleep(after);
    const bool serves = absl::StrContains(starting.Output(), "listens on");
    starting.Signal(SIGKILL);
    return serves;
  }

  // The next server has all that was completed, and nothing that was not.
  void Check() {
    if (!Start()) return;
    ++result_.ops;
    if (AnswersOf(killed_.client(), kKillId) != expected_)
      result_.Break("a restart lost the sequence or changed its answers");
    if (!AnswersOf(killed_.client(), "killed").empty())
      result_.Break("a restore that was killed is there after a restart");
    if (!Restore(killed_.client(), "copy") || AnswersOf(killed_.client(), "copy") != expected_) {
      result_.Break("a snapshot that was completed is not restored as it was");
    }
    if (!Delete(killed_.client(), "copy")) result_.Break("a restored sequence cannot be deleted");
    for (const auto& entry : fs::recursive_directory_iterator(killed_.snapshots())) {
      if (absl::EndsWith(entry.path().string(), ".partial")) result_.Break("half a file is left after a start");
    }
  }

  Result& result_;
  std::mt19937 random_;
  KilledServer killed_;
  std::string expected_;
  double usual_[kWorks] = {}, worst_ = 0;
};

}  // namespace

void KillSnapshots(const RunOptions& options, Result* result) { SnapshotKills(options, result).Run(); }

}  // namespace seine::soak
