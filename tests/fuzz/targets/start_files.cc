// What a server reads as it starts: records of families that have moved, and the files that its last end has written.
// An input is up to four files.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "absl/strings/str_cat.h"
#include "profile/io/json.h"
#include "service/families/family_record.h"
#include "service/families/sequence_families.h"
#include "service/fields/checked_text.h"
#include "service/fields/names.h"
#include "service/snapshots/files/exit_files.h"
#include "service/snapshots/files/snapshot_folder.h"
#include "tests/fuzz/mutate/steps.h"
#include "tests/fuzz/targets/targets.h"
#include "tests/service/families/kept_server.h"
#include "tests/temp_folder.h"

namespace seine::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostStartFiles = 4;
constexpr char kFamily[] = "chat";
// What a step is; other numbers are taken modulo the last. The checksum of the first and third is made to fit.
enum StartFile : uint8_t { kRecord, kRecordAsItIs, kNotes, kEnd, kStartFileKinds };

std::string FileBytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::string WithChecksum(absl::string_view record) {
  const absl::string_view body = record.substr(0, record.rfind("xxh3="));
  return absl::StrCat(body, "xxh3=", ChecksumOf(body), "\n");
}

// As service/snapshots/exit_file.h has it. What follows the lines is left as it is, but for the checksum.
std::string Notes(const std::string& snapshot, absl::string_view lines) {
  return absl::StrCat(snapshot, lines, ChecksumOf(lines), absl::Hex(lines.size(), absl::kZeroPad8), "SEINEGEN");
}

class StartTarget : public Target {
 public:
  StartTarget() {
    GTEST_FLAG_SET(break_on_failure, true);
    test::KeptServer server(options_);
    v1::CreateSequenceRequest create;
    v1::CreateSequenceResponse created;
    create.set_index("a");
    create.set_id(kFamily);
    if (!CreateSequence(server.core(), create, &created).ok() || !server.Exit()) Fail("a server does not end");
    snapshot_ = FileBytes(fs::directory_iterator(ends_)->path());
  }

  std::vector<std::string> Seeds() override {
    const FamilyHome home{.node = "n1", .address = "host:7700", .generation = 3},
        held{.node = "n1", .address = "host:7700", .generation = 3, .held = {"0123456789abcdef", "b"}},
        here{.node = "", .address = "", .generation = 2};
    const absl::Time until = absl::FromUnixSeconds(int64_t{1} << 33);
    return {Pack({{kRecord, ToText({kFamily, home, until})}, {kEnd, snapshot_}}),
            Pack({{kRecord, ToText({kFamily, held, until})}, {kEnd, snapshot_}}),
            Pack({{kRecordAsItIs, ToText({kFamily, here, absl::UnixEpoch()})}, {kNotes, "chat 2\nother 7\n"}}),
            Pack({{kNotes, "chat 1\n"}, {kEnd, Notes(snapshot_, "chat 4\n")}})};
  }

  void Run(absl::string_view input) override {
    Clear();
    int number = 0;
    for (const Step& step : Unpack(input, kMostStartFiles)) Put(step, ++number);
    test::KeptServer server(options_);
    if (!server.started.ok()) Fail(absl::StrCat("the server does not start: ", server.started.ToString()));
    for (const KnownFamily& known : server.core().families.List("", "a")) CheckKnown(known);
    for (const auto& [family, record] : records_) {
      if (!record.ok() && server.Holds(family)) Fail("a family whose record is damaged is back");
      if (record.ok() && server.Generation(family) < record->home.generation && !Swept(*record)) {
        Fail(absl::StrCat("a record of generation ", record->home.generation, " is not heeded"));
      }
      if (record.ok() && server.Holds(family) && server.SaysMoved(family)) Fail("a family is here and has moved");
    }
  }

  std::string Mutate(std::string input, Random& random, const ByteMutator& bytes) override {
    if (seeds_.empty()) seeds_ = Seeds();
    return MutateSteps(input, kMostStartFiles, seeds_, random, [&](Step* step) {
      if (random.OneIn(16)) step->kind = static_cast<uint8_t>(random.Below(kStartFileKinds));
      const bool whole =
          step->kind % kStartFileKinds != kEnd || step->bytes.size() < snapshot_.size() || random.OneIn(8);
      const size_t at = whole ? 0 : snapshot_.size();  // what stands behind the snapshot
      step->bytes = step->bytes.substr(0, at) + bytes(step->bytes.substr(at));
    });
  }

 private:
  // Whether the start needs the record no more: callers are not told of a home for ever, and without files of an older
  // end nothing can come back.
  bool Swept(const FamilyRecord& record) const {
    return record.moved() ? record.until <= absl::Now() : fs::is_empty(ends_);
  }

  static void CheckKnown(const KnownFamily& known) {
    if (!CheckId(known.family, "family").ok()) Fail("a family's name is none");
    for (const std::string& text : {known.home.node, known.home.address}) {
      if (!text.empty() && !CheckId(text, "node").ok()) Fail("callers are told of a node that is none");
    }
    for (const std::string& name : known.home.held) {
      if (!CheckId(name, "held").ok()) Fail("callers are told of a name that is none");
    }
    if (known.home.held.size() > FamilyHome::kMostHeld) Fail("callers are told of too many names");
  }

  void Clear() {
    records_.clear();
    for (const std::string& folder : {ends_, families_}) {
      fs::remove_all(folder);
      fs::create_directories(folder);
    }
  }
  void Put(const Step& step, int number) {
    const int kind = step.kind % kStartFileKinds;
    if (kind == kRecord) return PutRecord(WithChecksum(step.bytes));
    if (kind == kRecordAsItIs) return PutRecord(step.bytes);
    std::ofstream(absl::StrCat(ends_, "/", number, ".snapshot"), std::ios::binary)
        << (kind == kNotes ? Notes(snapshot_, step.bytes) : step.bytes);
  }
  void PutRecord(const std::string& text) {
    const absl::StatusOr<FamilyRecord> record = ParseFamilyRecord(text);
    const std::string family = record.ok() ? record->family : kFamily;
    if (record.ok() && ToText(*record) != ToText(*ParseFamilyRecord(ToText(*record))))
      Fail("a record is read as another");
    records_.insert_or_assign(family, record);
    std::ofstream(absl::StrCat(families_, "/", FileOfFamily(family), ".family"), std::ios::binary) << text;
  }

  const TempFolder folder_;
  const SnapshotOptions options_{.folder = folder_.Path("s"), .at_exit = true, .restore_on_start = true};
  const std::string ends_ = options_.folder + "/own/at-exit/index-a",
                    families_ = options_.folder + "/own/families/index-a";
  std::string snapshot_;  // of a family that holds nothing
  std::vector<std::string> seeds_;
  std::map<std::string, absl::StatusOr<FamilyRecord>> records_;  // by family, of this input
};

}  // namespace

void AddStartTarget(std::vector<TargetEntry>* out) {
  out->push_back({"start", "records of families and files of the last end, as a server starts", 250,
                  [] { return std::make_unique<StartTarget>(); }});
}

}  // namespace seine::fuzz
