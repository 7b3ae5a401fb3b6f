// Snapshots as an index reads them: alone, and in a chain in which each adds to those before. An input is up to three
// files in a short form: without checksums, and of arrays only their first bytes. What follows is that of right files.
// So inputs are small, and changes reach what reads the numbers.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "index/snapshot/snapshot_base.h"
#include "profile/io/json.h"
#include "tests/fuzz/mutate/snapshot_parts.h"
#include "tests/fuzz/mutate/steps.h"
#include "tests/fuzz/targets/targets.h"
#include "tests/index/snapshot/states.h"

namespace seine::fuzz {
namespace {

constexpr size_t kMostOfChain = 3;
constexpr int64_t kMemory = int64_t{64} << 20, kMostAsked = 2000;
// Bits of a file's kind: it is read and held; it is read as it is. The others name the state.
constexpr uint8_t kHold = 1, kAsItIs = 2;
constexpr int kStateShift = 2;

constexpr const char* kStates[] = {
    "family", "evicted_unevenly_and_forked", "evicts_by_queries", "evicts_by_sums", "low_rank_evicted", "balanced"};

void CheckRefusal(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kAlreadyExists:
      break;
    default:
      Fail(status.ToString());
  }
  if (!IsUtf8(status.message())) Fail("an error is no UTF-8");
  for (const char c : status.message()) {
    if ((c >= 0 && c < ' ') || c == '\x7f') Fail(absl::StrCat("an error is not printable: ", status.ToString()));
  }
}

// An index, and the right files of a chain that it reads.
struct SnapshotWorld {
  testing::TestBackend backend;
  std::unique_ptr<Index> index;
  std::vector<SnapshotParts> chain;
};

// A file of a chain is called by its place in the input, and adds to `base`.
std::string Fitted(const Step& step, const SnapshotWorld& world, size_t place, const SnapshotName& base) {
  std::optional<SnapshotParts> parts = SplitSnapshot(step.bytes, SnapshotForm::kShort);
  if (!parts || (step.kind & kAsItIs) != 0) return step.bytes;
  SnapshotName name{};
  name[0] = static_cast<uint8_t>(place + 1);
  const std::vector<SnapshotSection>& right = world.chain[place].sections;
  for (size_t i = 0; i < parts->sections.size(); ++i) {
    SnapshotSection& section = parts->sections[i];
    if (section.kind == kChainSection && section.bytes.size() == 2 * name.size()) {
      memcpy(section.bytes.data(), name.data(), name.size());
      memcpy(section.bytes.data() + name.size(), base.data(), base.size());
    } else if (section.kind == kArraySection && i < right.size() && section.bytes.size() < right[i].bytes.size()) {
      section.bytes.append(right[i].bytes.substr(section.bytes.size()));
    }
  }
  return JoinSnapshot(*parts, SnapshotForm::kFile);
}

const testing::StateCase& StateNamed(absl::string_view name) {
  for (const testing::StateCase& state : testing::AllStates()) {
    if (state.name == name) return state;
  }
  Fail(absl::StrCat("no state ", name));
}

std::vector<SnapshotParts> ChainOf(Index* index) {
  WrittenBase base;
  std::vector<SnapshotParts> files;
  for (const int tokens : {0, 3, 70}) {
    if (tokens > 0) testing::Extend(index, "a", tokens);
    testing::WaitForBackground(*index);
    StringSink sink;
    const auto written = index->Snapshot({"a", 0}, SnapshotScope::kFamily, &sink, &base);
    if (!written.ok()) Fail(written.status().ToString());
    files.push_back(*SplitSnapshot(sink.text(), SnapshotForm::kFile));
  }
  return files;
}

std::unique_ptr<SnapshotWorld> MakeWorld(absl::string_view name) {
  auto world = std::make_unique<SnapshotWorld>();
  const testing::StateCase& state = StateNamed(name);
  world->chain = ChainOf(testing::MakeState(state, &world->backend).get());
  IndexConfig config = state.config();
  config.memory_limit_bytes = kMemory;
  world->index = testing::MakeIndex(config, &world->backend);
  return world;
}

// What was restored answers, grows and goes.
void Use(Index* index) {
  for (const SequenceInfo& info : index->ListSequences()) {
    const auto longest = std::max_element(info.layer_tokens.begin(), info.layer_tokens.end());
    if (*longest < kMostAsked) {
      testing::AnswersOf(*index, info.handle.id);
      testing::Extend(index, info.handle.id, 2);
      testing::WaitForBackground(*index);
    }
    if (const absl::Status s = index->DeleteSequence(info.handle); !s.ok()) Fail(s.ToString());
  }
}

class SnapshotTarget : public Target {
 public:
  SnapshotTarget() {
    GTEST_FLAG_SET(break_on_failure, true);
    for (const char* name : kStates) worlds_.push_back(MakeWorld(name));
    for (const std::string& seed : Seeds()) Run(seed);
    if (read_ != worlds_.size() * (kMostOfChain + 1)) Fail("a right snapshot is refused");
  }

  std::vector<std::string> Seeds() override {
    std::vector<std::string> seeds;
    for (size_t i = 0; i < worlds_.size(); ++i) {
      const auto of_state = static_cast<uint8_t>(i << kStateShift);
      std::vector<Step> files;
      for (const SnapshotParts& file : worlds_[i]->chain) {
        files.push_back({static_cast<uint8_t>(of_state | kHold), JoinSnapshot(file, SnapshotForm::kShort)});
      }
      files.back().kind = of_state;
      seeds.push_back(Pack(files));
      seeds.push_back(Pack({{of_state, files[0].bytes}}));
    }
    return seeds;
  }

  void Run(absl::string_view input) override {
    const std::vector<Step> files = Unpack(input, kMostOfChain);
    if (files.empty()) return;
    const SnapshotWorld& world = *worlds_[(files[0].kind >> kStateShift) % worlds_.size()];
    Index* const index = world.index.get();
    const int64_t before = HeldBy(*index);
    ReadBase base;
    for (size_t i = 0; i < files.size(); ++i) ReadOne(files[i], i, world, &base);
    BringUp(index, &base);
    base = {};
    testing::WaitForBackground(*index);
    if (HeldBy(*index) != before) Fail(absl::StrCat(HeldBy(*index) - before, " bytes are left"));
  }

  std::string Mutate(std::string input, Random& random, const ByteMutator& bytes) override {
    return MutateSteps(input, kMostOfChain, {}, random, [&](Step* file) {
      if (random.OneIn(16)) file->kind ^= static_cast<uint8_t>(1 << random.Below(2));
      std::optional<SnapshotParts> parts = SplitSnapshot(file->bytes, SnapshotForm::kShort);
      if (!parts || parts->sections.size() < 2 || random.OneIn(32)) {
        file->bytes = bytes(std::move(file->bytes));
        return;
      }
      // Settings are compared as a whole, and arrays are mostly numbers of any kind; the state is what is read.
      const size_t at = random.OneIn(4) ? random.Below(parts->sections.size()) : 1;
      std::string& section = parts->sections[at].bytes;
      if (random.OneIn(2) && !section.empty()) {
        section[random.Below(section.size())] ^= static_cast<char>(1 << random.Below(8));
      } else {
        section = bytes(std::move(section));
      }
      file->bytes = JoinSnapshot(*parts, SnapshotForm::kShort);
    });
  }

 private:
  static int64_t HeldBy(const Index& index) {
    const IndexStats stats = index.stats();
    return stats.code_bytes + stats.store_bytes + stats.other_bytes + stats.query_bytes;
  }

  void ReadOne(const Step& file, size_t place, const SnapshotWorld& world, ReadBase* base) {
    Index* const index = world.index.get();
    const SnapshotName name = base->name;
    const size_t known = base->objects.size();
    StringSource source(Fitted(file, world, place, name));
    const bool hold = (file.kind & kHold) != 0;
    const absl::Status status = index->Restore(&source, {.base = base, .hold = hold}).status();
    CheckRefusal(status);
    if (!status.ok() && (base->name != name || base->objects.size() != known)) Fail("an error has changed a base");
    read_ += status.ok() ? 1 : 0;
    if (status.ok() && !hold) return Use(index);
    if (!index->ListSequences().empty()) Fail("what was refused or is held is there");
  }

  // What the last file left held is there without another.
  static void BringUp(Index* index, ReadBase* base) {
    if (base->sequences.empty()) return;
    const absl::Status status = index->RestoreHeld({.base = base}).status();
    if (!status.ok()) Fail(absl::StrCat("what is held is refused: ", status.ToString()));
    Use(index);
  }

  std::vector<std::unique_ptr<SnapshotWorld>> worlds_;
  size_t read_ = 0;  // files that were not refused
};

}  // namespace

void AddSnapshotTarget(std::vector<TargetEntry>* out) {
  out->push_back({"snapshots", "snapshots of families, and those that add to others", 300,
                  [] { return std::make_unique<SnapshotTarget>(); }});
}

}  // namespace seine::fuzz
