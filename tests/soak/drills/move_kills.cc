#include <signal.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/fleet/fleet_client.h"
#include "tests/soak/drills/drills.h"
#include "tests/soak/drills/killed_sequence.h"
#include "tests/soak/drills/move_node.h"
#include "tests/soak/drills/mover.h"

namespace seine::soak {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMoveTokens = 3000;  // of a family before it moves
constexpr int kMoveAttempts = 20;      // a kill, before the drill gives up: the call may end before
constexpr double kExitSeconds = 30;    // of a process that was killed on a loaded machine
constexpr double kMoverSeconds = 100;  // a freeze of a minute, and what comes after

// Appends a token after another to a family, to every layer, until a call fails or it is told to stop.
class Appender {
 public:
  Appender(const std::string& address, const std::string& family)
      : client_(address), family_(family), thread_([this] { Work(); }) {}
  ~Appender() { Stop(); }
  // Returns the family's tokens that were acknowledged.
  int64_t Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return tokens_;
  }

 private:
  void Work() {
    for (; !stop_; ++tokens_) {
      for (int layer = 0; layer < kLayers; ++layer) {
        if (!AppendOne(client_, family_, layer, tokens_)) return;
      }
      Sleep(.001);
    }
  }

  Client client_;
  const std::string family_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> tokens_{kMoveTokens};
  std::thread thread_;
};

class MoveKills {
 public:
  MoveKills(const RunOptions& options, Result* result) : self_(options.self), result_(*result), random_(options.seed) {
    std::ofstream(folder_.path + "/seined.yaml") << kKillConfig;
    for (const char* name : {"n0", "n1"}) nodes_.push_back(std::make_unique<MoveNode>(folder_.path, name));
  }

  void Run() {
    if (!Both(&MoveNode::Start) || !Learn()) return;
    const int64_t wanted = result_.stated.faults;
    for (int64_t i = 0; i < kMoveAttempts * wanted && result_.faults < wanted && result_.crashes == 0; ++i) {
      if (!Kill(static_cast<Victim>(result_.faults % kVictims))) return;
    }
    Both(&MoveNode::End);
  }

 private:
  enum Victim : uint8_t { kSource, kTarget, kMover, kVictims };

  bool Both(bool (MoveNode::*what)(Result*)) {
    return (nodes_[0].get()->*what)(&result_) && (nodes_[1].get()->*what)(&result_);
  }
  MoveNode& source() { return *nodes_[from_]; }
  MoveNode& target() { return *nodes_[1 - from_]; }
  void Count(const char* name) { result_.figures[name] = result_.figures.value(name, int64_t{0}) + 1; }

  // Makes a family at the source, which an orderly end has written to a file.
  bool Make() {
    family_ = absl::StrCat("chat", ++made_);
    if (Prompt(source().client(), kKillIndex, family_, kMoveTokens, 7).id().empty()) {
      result_.Break("a family was not made");
      return false;
    }
    return source().End(&result_) && source().Start(&result_);
  }
  // Learns which calls a move makes, and how long they take.
  bool Learn() {
    if (!Make()) return false;
    ChildProcess mover({self_, "--mover", Order().ToString()}, folder_.path, "mover", 0, 0);
    if (mover.Wait(kMoverSeconds) != 0) result_.Break("a move that nobody disturbs fails: " + mover.Output());
    usual_ = CallsIn(mover.Output());
    const auto copies = std::find_if(usual_.begin(), usual_.end(),
                                     [](const MoverCall& call) { return call.method == "ListSequences"; });
    const auto last_word = std::find_if(usual_.rbegin(), usual_.rend(),
                                        [](const MoverCall& call) { return call.method == "SetFamilyState"; });
    first_ = copies - usual_.begin();
    word_ = usual_.rend() - last_word - 1;
    if (copies == usual_.end()) result_.Break("a move makes no copy");
    if (word_ == 0 || usual_[static_cast<size_t>(word_) - 1].method != "Restore" || usual_.back().method != "Restore") {
      result_.Break("a move does not hold, give up and bring up");
    }
    Forget();
    return result_.breaks == 0;
  }
  MoverOrder Order() { return {.source = source().address(), .target = target().address(), .family = family_}; }

  // Kills the victim in a call of the move, from the first copy to the last call. Half of the movers are killed when
  // the target has all of the family, and nobody can call it there. False: the drill cannot go on.
  bool Kill(Victim victim) {
    from_ = static_cast<int>(random_() % 2);
    if (!Make()) return false;
    MoverOrder order = Order();
    const int64_t first = victim == kMover && random_() % 2 == 0 ? word_ - 1 : first_;
    order.call = static_cast<int>(
        std::uniform_int_distribution<int64_t>(first, static_cast<int64_t>(usual_.size()) - 1)(random_));
    order.after_us = std::uniform_int_distribution<int64_t>(0, usual_[static_cast<size_t>(order.call)].us)(random_);
    if (victim != kMover) order.victim = (victim == kSource ? source() : target()).process().pid();
    Appender appender(source().address(), family_);
    ChildProcess mover({self_, "--mover", order.ToString()}, folder_.path, "mover", 0, 0);
    const bool restarted = Watch(&mover);
    const int code = mover.Wait(0);
    const bool killed = restarted || code == -SIGKILL;
    ++result_.ops;
    result_.faults += killed ? 1 : 0;
    if (killed) Count(victim == kSource ? "killed_sources" : victim == kTarget ? "killed_targets" : "killed_movers");
    if (result_.crashes == 0) Judge(killed ? victim : kVictims, code == 0, appender.Stop());
    if (result_.breaks > 0) {
      result_.Note(absl::StrCat("killed in call ", order.call, " (", usual_[static_cast<size_t>(order.call)].method,
                                ") after ", order.after_us, " us; the mover: ", mover.Output()));
    }
    Forget();
    return result_.breaks == 0 && result_.crashes == 0;
  }
  // Starts a node again that was killed, as a service manager does, until the mover has ended. True: one was.
  bool Watch(ChildProcess* mover) {
    bool restarted = false;
    for (double waited = 0; mover->Alive() && waited < kMoverSeconds; waited += .002) {
      restarted = StartWhatIsGone() || restarted;
      Sleep(.002);
    }
    if (mover->Alive()) result_.Break("a mover does not end");
    Sleep(.02);  // the kill may come with the mover's last call
    for (const auto& node : nodes_) {
      if (node->process().Alive() && !node->Answers()) node->process().Wait(kExitSeconds);  // it is on its way out
    }
    return StartWhatIsGone() || restarted;
  }
  bool StartWhatIsGone() {
    bool gone = false;
    for (const auto& node : nodes_) {
      if (node->process().Alive()) continue;
      gone = true;
      node->Start(&result_);
    }
    return gone;
  }

  // `victim`: kVictims where nothing was killed. `told`: the mover was told that the source has given the family up.
  // `tokens`: were acknowledged.
  void Judge(Victim victim, bool told, int64_t tokens) {
    const FamilyAt here = source().Look(family_);
    FamilyAt there = target().Look(family_);
    result_.ops += 2;
    if (here.holds && there.holds) result_.Break("a family lives twice");
    if (told && (here.holds || !here.moved)) result_.Break("the source has what it has given up");
    if (here.moved && here.holds) result_.Break("a node answers for a family that has moved");
    if (here.moved && !there.holds && BroughtUp()) {
      Count("brought_up");
      there = target().Look(family_);
    }
    if (!here.holds && !there.holds) {
      return !here.moved && GivenUpNow() ? Judge(victim, told, tokens) : Recover(victim, here, tokens);
    }
    const bool is_there = there.takes || !here.holds;
    Count(is_there ? "moved" : here.takes ? "stayed" : "frozen");
    // What was acknowledged since the snapshot goes with a source that is killed.
    const int64_t least = victim == kSource ? kMoveTokens : tokens;
    if (CheckWhole(is_there ? target() : source(), is_there ? there : here, least)) return;
    if (!is_there && !here.takes && GivenUpNow()) return Judge(victim, told, tokens);
    result_.Break("a family's answers have changed");
  }
  // What a mover asks with its last breath may be under way for a while.
  bool GivenUpNow() { return source().Look(family_).moved; }
  // Whether a client that looks for the family gets it, out of what the target holds.
  bool BroughtUp() {
    const auto fleet = client::FleetClient::Create(
        {"soak", {{.name = "n0", .address = nodes_[0]->address()}, {.name = "n1", .address = nodes_[1]->address()}}});
    const absl::StatusOr<std::string> node = fleet->NodeOf(kKillIndex, family_);
    return node.ok() && *node == fleet->description().nodes[static_cast<size_t>(1 - from_)].name;
  }
  // The target had the family, and was killed: the move's files have it.
  void Recover(Victim victim, const FamilyAt& here, int64_t tokens) {
    if (victim != kTarget || !here.moved) return result_.Break("a family is lost");
    std::vector<std::string> files;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder_.path + "/snapshots/own", error)) {
      if (absl::StartsWith(entry.path().stem().string(), "move-")) files.push_back(entry.path().stem().string());
    }
    std::sort(files.begin(), files.end());
    const bool restored = !files.empty() && (target().Restore({files.back()}, here.generation) ||
                                             target().Restore(files, here.generation));
    if (!restored) return result_.Break("the files of a move are not restored");
    Count("recovered");
    if (!CheckWhole(target(), target().Look(family_), tokens)) result_.Break("a family's answers have changed");
  }
  // False: the family answers otherwise than one that was made as it was. Other faults are breaks.
  bool CheckWhole(MoveNode& node, const FamilyAt& found, int64_t least) {
    if (!found.holds) return Break("a family that was restored is not there");
    const int64_t shortest = *std::min_element(found.tokens.begin(), found.tokens.end());
    if (shortest < least) return Break(absl::StrCat(least, " tokens were acknowledged, and ", shortest, " are there"));
    const std::string twin = "twin-" + family_;
    if (!MakeTwin(node.client(), twin, found.tokens)) return Break("a second family cannot be made");
    const std::string answers = AnswersOf(node.client(), family_);
    const bool same = !answers.empty() && answers == AnswersOf(node.client(), twin);
    Delete(node.client(), twin);
    return same;
  }
  bool Break(const std::string& what) {
    result_.Break(what);
    return true;
  }
  // A family that was made as the other, token by token.
  static bool MakeTwin(Client& client, const std::string& twin, const std::vector<int64_t>& tokens) {
    if (Prompt(client, kKillIndex, twin, kMoveTokens, 7).id().empty()) return false;
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int64_t at = kMoveTokens; at < tokens[static_cast<size_t>(layer)]; ++at) {
        if (!AppendOne(client, twin, layer, at)) return false;
      }
    }
    return true;
  }
  // What stays frozen, for its mover is dead, goes once it thaws.
  void Forget() {
    for (const std::string& family : left_) {
      if (nodes_[0]->Look(family).holds && nodes_[1]->Look(family).holds) {
        result_.Break("a family lives twice after its mover's death");
      }
    }
    left_.push_back(family_);
    std::erase_if(left_, [this](const std::string& family) {
      return std::all_of(nodes_.begin(), nodes_.end(), [&](const auto& node) { return node->Drop(family); });
    });
    std::error_code error;
    fs::remove_all(folder_.path + "/snapshots/own", error);
  }

  const std::string self_;
  Result& result_;
  std::mt19937 random_;
  TemporaryFolder folder_;
  std::vector<std::unique_ptr<MoveNode>> nodes_;
  int from_ = 0, made_ = 0;
  std::string family_;
  std::vector<std::string> left_;  // families that are not deleted yet
  std::vector<MoverCall> usual_;
  int64_t first_ = 0, word_ = 0;  // of its calls: the first copy, and the last word to the source
};

}  // namespace

void KillMoves(const RunOptions& options, Result* result) { MoveKills(options, result).Run(); }

}  // namespace seine::soak
