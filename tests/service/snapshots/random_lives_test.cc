// Servers that live, end and start again over one folder, at random: what a model says was written last is found again.
//
// A life is a process of its own. It restores, creates, appends, forks and deletes, and ends in order, on a full disk,
// or killed at a step of its files. For one life, files are damaged, of a newer version or hidden, settings are others,
// the index is missing or made by a client, and folders go behind links. Once that is over, every family must be back,
// no older than the last end that said it wrote it. SEINE_LIVES: how many lives; SEINE_SEED: of the first.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "kernels/backend.h"
#include "service/catalog.h"
#include "service/snapshots/exit_snapshots.h"
#include "service/snapshots/files/exit_files.h"
#include "service/snapshots/files/snapshot_folder.h"
#include "tests/service/families/kept_server.h"

namespace seine::test {
namespace {

namespace fs = std::filesystem;

using Contents = std::map<std::string, int64_t>;  // tokens by sequence; no two states have the same number

constexpr int64_t kAbsent = -1;                       // in place of a number of tokens
constexpr int kClean = 0, kNotAll = 5, kKilled = 99;  // exit codes of a life
constexpr int64_t kSmallMemory = 60'000;              // bytes of an index that not every file fits

enum class Hindrance : uint8_t {
  kNone,
  kDamage,
  kVersion,
  kHidden,
  kSeed,
  kMemory,
  kNoIndex,
  kClientIndex,
  kClientSeed
};
constexpr int kHindrances = 9;
enum class End : uint8_t { kClean, kKilled, kFull };

struct Plan {
  Hindrance hindrance = Hindrance::kNone;
  End end = End::kClean;
  int at = -1;  // the step of its files at which it is killed, or the disk full
  uint32_t seed = 0;
  int64_t first_number = 0;  // of tokens
};

bool HasIndex(Hindrance h) { return h != Hindrance::kNoIndex; }
bool HasOtherSeed(Hindrance h) { return h == Hindrance::kSeed || h == Hindrance::kClientSeed; }
// Whether everything that was written under the life's own settings must be found.
bool FindsAll(Hindrance h) { return h == Hindrance::kNone || h == Hindrance::kClientIndex || HasOtherSeed(h); }
bool MadeByClient(Hindrance h) { return h == Hindrance::kClientIndex || h == Hindrance::kClientSeed; }

// The server of one life, with what it does and what it says of it.
class Life {
 public:
  Life(const std::string& folder, const Plan& plan)
      : plan_(plan), chance_(plan.seed), core_(Options(), MakeCpuBackend(1)) {
    const SnapshotOptions options{.folder = folder, .at_exit = true, .restore_on_start = true};
    if (HasIndex(plan.hindrance) && !MadeByClient(plan.hindrance)) {
      EXPECT_TRUE(core_.catalog.Create(*ConfigFrom(OwnSpec(), "spec", nullptr)).ok());
    }
    EXPECT_TRUE(PrepareSnapshots(options, &core_).ok());
    if (MadeByClient(plan.hindrance)) {
      v1::CreateIndexRequest request;
      v1::CreateIndexResponse response;
      *request.mutable_spec() = OwnSpec();
      EXPECT_TRUE(CreateIndex(core_, request, &response).ok());
    }
    files_.fail_at = plan.end == End::kFull ? plan.at : -1;
    files_.kill_at = plan.end == End::kKilled ? plan.at : -1;
    core_.exit_files.SetFiles(&files_);
  }

  Contents Held() {
    Contents held;
    if (!HasIndex(plan_.hindrance)) return held;
    for (const SequenceInfo& one : core_.catalog.Find("", "a")->ListSequences()) {
      held[one.handle.id] = one.layer_tokens[0];
    }
    return held;
  }

  // Some calls of clients. Every state gets a number of tokens that no other has had.
  void Act() {
    if (!HasIndex(plan_.hindrance)) return;
    number_ = plan_.first_number;
    for (int left = Below(6); left >= 0; --left) {
      const Contents held = Held();
      if (held.empty() || (held.size() < 6 && Below(2) == 0)) {
        Create(absl::StrCat("s", Below(8)));
        continue;
      }
      auto one = held.begin();
      std::advance(one, Below(static_cast<int>(held.size())));
      const int what = Below(8);
      if (what == 0) Delete(one->first);
      if (what == 1) Fork(one->first, absl::StrCat("s", Below(8)));
      if (what > 1) Grow(one->first);
    }
  }

  const std::set<std::string>& deleted() const { return deleted_; }
  std::vector<PassedOverFile> PassedOver() const { return core_.exit_files.List(); }

  int Finish() { return WriteExitSnapshots(&core_, absl::Seconds(60)) ? kClean : kNotAll; }

 private:
  static CoreOptions Options() {
    CoreOptions options;
    options.workers = options.threads = 1;
    options.channels = 0;
    return options;
  }
  v1::IndexSpec OwnSpec() const {
    v1::IndexSpec spec = Spec("a");
    if (HasOtherSeed(plan_.hindrance)) spec.mutable_codec()->set_seed(4711);
    if (plan_.hindrance == Hindrance::kMemory) spec.set_memory_limit_bytes(kSmallMemory);
    return spec;
  }
  int Below(int n) { return static_cast<int>(chance_() % static_cast<uint32_t>(n)); }

  void AppendTo(const std::string& id, int64_t from, int64_t tokens) {
    v1::SequenceHandle handle;
    handle.set_index("a");
    handle.set_id(id);
    for (int layer = 0; layer < kLayers; ++layer) {
      v1::AppendRequest request;
      v1::AppendResponse response;
      *request.mutable_item() = Item(handle, layer, from, tokens);
      if (!Append(core_, request, &response).ok()) return;  // no room
    }
  }
  void Create(const std::string& id) {
    v1::CreateSequenceRequest request;
    v1::CreateSequenceResponse response;
    request.set_index("a");
    request.set_id(id);
    if (CreateSequence(core_, request, &response).ok()) AppendTo(id, 0, ++number_);
  }
  void Grow(const std::string& id) {
    const int64_t held = Held()[id];
    if (++number_ > held) AppendTo(id, held, number_ - held);
  }
  void Fork(const std::string& id, const std::string& to) {
    v1::ForkSequenceRequest request;
    v1::ForkSequenceResponse response;
    request.mutable_source()->set_index("a");
    request.mutable_source()->set_id(id);
    request.set_new_id(to);
    if (ForkSequence(core_, request, &response).ok()) Grow(to);
  }
  void Delete(const std::string& id) {
    v1::DeleteSequenceRequest request;
    v1::DeleteSequenceResponse response;
    request.mutable_handle()->set_index("a");
    request.mutable_handle()->set_id(id);
    EXPECT_TRUE(DeleteSequence(core_, request, &response).ok());
    deleted_.insert(id);
  }

  const Plan plan_;
  std::mt19937 chance_;
  StoppedFiles files_;
  Core core_;
  int64_t number_ = 0;
  std::set<std::string> deleted_;
};

// What a life held at its start and before its end, and what it has deleted, made anew or not.
struct Lived {
  Contents first, last;
  std::set<std::string> deleted;
};

using Written = std::map<std::string, std::set<int64_t>>;  // numbers of tokens that each may be back with

// What lies under a file's name for one life, and what it was.
struct Spoilt {
  std::string path, bytes;
};

class RandomLives {
  static auto Pairs() {
    return [](std::string* out, const auto& one) { absl::StrAppend(out, " ", one.first, "=", one.second); };
  }

 public:
  RandomLives(const std::string& folder, uint32_t seed) : folder_(folder), chance_(seed) {}

  // Another life. What is wrong, if anything is.
  std::string Live() {
    Plan plan;
    plan.hindrance = Below(2) == 0 ? Hindrance::kNone : static_cast<Hindrance>(Below(kHindrances));
    plan.end = Below(2) == 0 ? End::kClean : static_cast<End>(Below(3));
    plan.at = Below(30);
    plan.seed = static_cast<uint32_t>(chance_());
    plan.first_number = next_number_;
    next_number_ += 16;
    if (Below(10) == 0) PutBehindLink();
    const std::vector<Spoilt> spoilt = Hinder(plan.hindrance);
    const std::optional<Lived> lived = Run(plan);
    std::string wrong = Judge(plan, lived);
    if (wrong.empty()) wrong = Lift(plan.hindrance, spoilt);
    Note(plan, spoilt, lived);
    return wrong.empty() ? "" : wrong + history_;
  }

 private:
  int Below(int n) { return static_cast<int>(chance_() % static_cast<uint32_t>(n)); }
  std::string Ends() const { return folder_ + "/s/own/at-exit/index-a"; }
  std::vector<std::string> Files() const { return SnapshotsIn(Ends()).value_or(std::vector<std::string>()); }

  // Whether there is a newer file of the same family: names are END-FAMILY.
  bool IsOlder(const std::string& path) const {
    const auto family = [](const std::string& name) { return name.substr(name.rfind('-')); };
    const std::vector<std::string> files = Files();
    return std::any_of(files.begin(), files.end(),
                       [&](const auto& o) { return o > path && family(o) == family(path); });
  }

  void PutBehindLink() {
    const std::string away = absl::StrCat(folder_, "/away-", ++links_);
    std::error_code error;
    if (Below(2) == 0 && fs::is_directory(Ends(), error) && !fs::is_symlink(Ends(), error)) {
      fs::rename(Ends(), away);
      fs::create_directory_symlink(away, Ends());
    } else if (const std::vector<std::string> files = Files(); !files.empty()) {
      fs::rename(files[0], away);
      fs::create_symlink(away, files[0]);
    }
  }

  std::vector<Spoilt> Hinder(Hindrance hindrance) {
    std::vector<Spoilt> spoilt;
    for (const std::string& path : Files()) {
      if (hindrance > Hindrance::kHidden || hindrance == Hindrance::kNone || Below(2) == 0) continue;
      if (IsOlder(path)) continue;  // the newer one may take its place
      std::ifstream in(path, std::ios::binary);
      std::string bytes(std::istreambuf_iterator<char>(in), {});
      spoilt.push_back({path, bytes});
      if (hindrance == Hindrance::kHidden) {
        fs::rename(path, absl::StrCat(folder_, "/hidden-", spoilt.size()));
        continue;
      }
      // The version stands behind eight bytes; any other bit but those of the magic.
      const size_t at = hindrance == Hindrance::kVersion ? 8 : 8 + static_cast<size_t>(chance_()) % (bytes.size() - 8);
      bytes[at] = static_cast<char>(bytes[at] ^ (hindrance == Hindrance::kVersion ? 64 : 1 << Below(8)));
      std::ofstream(path, std::ios::binary) << bytes;
    }
    return spoilt;
  }
  // Nothing that was in the way may be gone.
  std::string Lift(Hindrance hindrance, const std::vector<Spoilt>& spoilt) {
    for (size_t i = 0; i < spoilt.size(); ++i) {
      if (hindrance == Hindrance::kHidden) {
        fs::rename(absl::StrCat(folder_, "/hidden-", i + 1), spoilt[i].path);
        continue;
      }
      if (!fs::exists(spoilt[i].path)) return absl::StrCat(spoilt[i].path, " was passed over, and is gone");
      std::ofstream(spoilt[i].path, std::ios::binary) << spoilt[i].bytes;
    }
    return "";
  }

  // Absent: the life says nothing.
  std::optional<Lived> Run(const Plan& plan) {
    const std::string report = folder_ + "/report";
    fs::remove(report);
    const pid_t child = fork();
    if (child == 0) {
      Life life(folder_ + "/s", plan);
      const Contents first = life.Held();
      life.Act();
      {
        std::ofstream out(report);
        for (const Contents& contents : {first, life.Held()}) {
          out << contents.size();
          for (const auto& [id, tokens] : contents) out << " " << id << " " << tokens;
          out << "\n";
        }
        out << life.deleted().size();
        for (const std::string& id : life.deleted()) out << " " << id;
        for (const PassedOverFile& file : life.PassedOver()) out << " " << file.file << ":" << ToString(file.reason);
      }
      _exit(::testing::Test::HasFailure() ? 1 : life.Finish());
    }
    int status = 0;
    waitpid(child, &status, 0);
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    std::ifstream in(report);
    Lived lived;
    for (Contents* contents : {&lived.first, &lived.last}) {
      size_t count = 0;
      if (!(in >> count)) return std::nullopt;
      for (std::string id; count > 0 && in >> id; --count) in >> (*contents)[id];
    }
    size_t deleted = 0;
    if (!(in >> deleted)) return std::nullopt;
    for (std::string id; deleted > 0 && in >> id; --deleted) lived.deleted.insert(id);
    std::getline(in >> std::ws, passed_over_);
    return lived;
  }

  std::string Judge(const Plan& plan, const std::optional<Lived>& lived) {
    const std::set<int> may_be = plan.end == End::kClean  ? std::set<int>{kClean}
                                 : plan.end == End::kFull ? std::set<int>{kClean, kNotAll}
                                                          : std::set<int>{kClean, kKilled};
    if (!lived || !may_be.contains(code_)) {
      return absl::StrCat("a life with hindrance ", static_cast<int>(plan.hindrance), " and end ",
                          static_cast<int>(plan.end), " ended with exit code ", code_);
    }
    const Contents& first = lived->first;
    Written& written = written_[HasOtherSeed(plan.hindrance)];
    if (FindsAll(plan.hindrance)) {
      for (const auto& [id, may] : written) {
        const auto found = first.find(id);
        const int64_t held = found == first.end() ? kAbsent : found->second;
        if (!may.contains(held))
          return absl::StrCat(id, " is back with ", held, " tokens, not ", absl::StrJoin(may, " or "));
      }
    }
    for (const auto& [id, tokens] : first) {
      const auto known = written.find(id);
      if (known == written.end()) return absl::StrCat(id, " is back, and was deleted");
      if (FindsAll(plan.hindrance)) known->second = {tokens};
    }
    Remember(plan, *lived);
    return "";
  }

  // For whoever has to find out what went wrong.
  void Note(const Plan& plan, const std::vector<Spoilt>& spoilt, const std::optional<Lived>& lived) {
    absl::StrAppend(&history_, "\nhindrance ", static_cast<int>(plan.hindrance), ", end ", static_cast<int>(plan.end),
                    " at ", plan.at, ", exit code ", code_);
    for (const Spoilt& each : spoilt)
      absl::StrAppend(&history_, "\n  spoilt ", fs::path(each.path).filename().string());
    absl::StrAppend(&history_, "\n  passed over ", passed_over_);
    if (lived) {
      absl::StrAppend(&history_, "\n  found", absl::StrJoin(lived->first, "", Pairs()));
      absl::StrAppend(&history_, "\n  left", absl::StrJoin(lived->last, "", Pairs()));
    }
    for (const std::string& path : Files()) absl::StrAppend(&history_, "\n  ", fs::path(path).filename().string());
  }

  // Of what the next start may find.
  void Remember(const Plan& plan, const Lived& lived) {
    const auto& [first, last, deleted] = lived;
    Written &written = written_[HasOtherSeed(plan.hindrance)], &older = older_[HasOtherSeed(plan.hindrance)];
    const bool all = code_ == kClean, sees_all = plan.hindrance != Hindrance::kHidden;
    for (const auto& [id, tokens] : last) {
      std::set<int64_t>& may = written[id];
      if (!first.contains(id)) older[id].insert(may.begin(), may.end());  // made anew while a file was in the way
      if (all && FindsAll(plan.hindrance)) older.erase(id);               // that file is replaced from now on
      if (may.empty() || deleted.contains(id)) may.insert(kAbsent);
      if (all) may.clear();
      may.insert(tokens);
    }
    for (const auto& [id, tokens] : first) {
      if (last.contains(id)) continue;
      std::set<int64_t>& may = written[id];
      if (all && sees_all) {  // what was passed over gives it no more
        may = {kAbsent};
        older.erase(id);
        continue;
      }
      may.insert(kAbsent);
      may.insert(older[id].begin(), older[id].end());
    }
  }

  const std::string folder_;
  std::mt19937 chance_;
  Written written_[2];  // under the usual seed, and under the other
  Written older_[2];    // states of files that were not read as their sequences were made anew
  int64_t next_number_ = 1;
  int code_ = 0, links_ = 0;
  std::string passed_over_, history_;
};

int FromEnvironment(const char* name, int usual) {
  const char* const text = std::getenv(name);
  return text == nullptr ? usual : std::atoi(text);
}

TEST(RandomLivesTest, NothingThatWasWrittenIsLost) {
  const int lives = FromEnvironment("SEINE_LIVES", 200), seed = FromEnvironment("SEINE_SEED", 1), of_each = 25;
  for (int done = 0; done < lives; done += of_each) {
    TempDir dir;
    const auto own_seed = static_cast<uint32_t>(seed + done / of_each);
    RandomLives all(dir.path, own_seed);
    for (int i = 0; i < of_each; ++i) {
      const std::string wrong = all.Live();
      ASSERT_EQ(wrong, "") << "seed " << own_seed << ", life " << i;
    }
  }
}

}  // namespace
}  // namespace seine::test
