#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/soak/drills/drills.h"
#include "tests/soak/drills/killed_sequence.h"
#include "tests/soak/server/made_requests.h"
#include "tests/soak/server/soaked_server.h"

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
  SnapshotKills(const RunOptions& options, Result* result) : result_(*result), random_(options.seed) {
    std::ofstream(folder_.path + "/seined.yaml") << kKillConfig;
  }

  void Run() {
    if (!Prepare()) return;
    const int64_t wanted = result_.stated.faults;
    for (int64_t i = 0; i < kKillAttempts * wanted && result_.faults < wanted && result_.crashes == 0; ++i) {
      Kill(static_cast<Work>(result_.faults % kWorks));
      Check();
    }
    result_.figures["back_worst_s"] = worst_;
    if (server_ != nullptr) server_->End(&result_);
  }

 private:
  enum Work : uint8_t { kSnapshot, kRestore, kStart, kEnd, kWorks };

  std::vector<std::string> Flags() const {
    return {"--threads",
            "1",
            "--config",
            folder_.path + "/seined.yaml",
            "--snapshots-dir",
            folder_.path + "/snapshots",
            "--snapshots-at-exit",
            "--snapshots-restore-on-start"};
  }
  // Starts a server. False: it does not serve.
  bool Start() {
    server_ = nullptr;
    const Clock::time_point begin = Clock::now();
    server_ = std::make_unique<SoakedServer>(Flags());
    usual_[kStart] = SecondsSince(begin);
    worst_ = std::max(worst_, usual_[kStart]);
    client_ = std::make_unique<Client>(server_->address());
    if (server_->Serves()) return true;
    ++result_.crashes;
    result_.Note("the server did not start: " + server_->process().Output());
    return false;
  }
  // Makes the sequence, both of its snapshots, and measures how long each work usually takes.
  bool Prepare() {
    if (!Start()) return false;
    const bool made = !Prompt(*client_, kKillIndex, kKillId, kKillTokens, 7).id().empty();
    expected_ = AnswersOf(*client_, kKillId);
    usual_[kSnapshot] = Timed([this] { return Snapshot(*client_); });
    usual_[kRestore] = Timed([this] { return Delete(*client_, kKillId) && Restore(*client_, kKillId); });
    usual_[kEnd] = Timed([this] { return server_->End(&result_) == 0; });
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
      server_->process().Signal(SIGTERM);
      Sleep(after);
      server_->process().Signal(SIGKILL);
      done = server_->process().Wait(30) != -SIGKILL;
    } else {
      auto call = std::async(std::launch::async, [this, work] {
        return work == kSnapshot ? Snapshot(*client_) : Restore(*client_, "killed");
      });
      Sleep(after);
      server_->process().Signal(SIGKILL);
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
    server_->process().Signal(SIGKILL);
    server_->process().Wait(30);
    std::vector<std::string> command = {SEINED_PATH, "--listen", absl::StrCat("unix:", folder_.path, "/start.sock")};
    for (const std::string& flag : Flags()) command.push_back(flag);
    ChildProcess starting(command, folder_.path, "starting", 0, 0);
    Sleep(after);
    const bool serves = absl::StrContains(starting.Output(), "listens on");
    starting.Signal(SIGKILL);
    return serves;
  }

  // The next server has all that was completed, and nothing that was not.
  void Check() {
    if (!Start()) return;
    ++result_.ops;
    if (AnswersOf(*client_, kKillId) != expected_) result_.Break("a restart lost the sequence or changed its answers");
    if (!AnswersOf(*client_, "killed").empty()) result_.Break("a restore that was killed is there after a restart");
    if (!Restore(*client_, "copy") || AnswersOf(*client_, "copy") != expected_) {
      result_.Break("a snapshot that was completed is not restored as it was");
    }
    if (!Delete(*client_, "copy")) result_.Break("a restored sequence cannot be deleted");
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path + "/snapshots")) {
      if (absl::EndsWith(entry.path().string(), ".partial")) result_.Break("half a file is left after a start");
    }
  }

  Result& result_;
  std::mt19937 random_;
  TemporaryFolder folder_;
  std::unique_ptr<SoakedServer> server_;
  std::unique_ptr<Client> client_;
  std::string expected_;
  double usual_[kWorks] = {}, worst_ = 0;
};

}  // namespace

void KillSnapshots(const RunOptions& options, Result* result) { SnapshotKills(options, result).Run(); }

}  // namespace seine::soak
