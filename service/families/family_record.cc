#include "service/families/family_record.h"

#include <algorithm>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "index/types.h"
#include "service/fields/checked_text.h"

namespace seine {
namespace {

constexpr char kRecordTitle[] = "seine family ", kRecordVersion[] = "1";

absl::Status DamagedRecord() { return absl::DataLossError("the record of a family is damaged"); }

// Whether a server can have written it: names are those that calls take.
bool CanBe(const FamilyRecord& record) {
  const FamilyHome& home = record.home;
  if (!IsSequenceId(record.family) || FamilyOfId(record.family) != record.family) return false;
  if (!record.moved()) return home.address.empty() && home.held.empty();
  const bool right =
      std::all_of(home.held.begin(), home.held.end(), [](const auto& name) { return IsSequenceId(name); });
  if (!right || home.held.size() > FamilyHome::kMostHeld) return false;
  return IsSequenceId(home.node) && IsSequenceId(home.address) && home.generation > 0;
}

// Builds of before write no such line, and pass over it.
std::string HeldLine(const FamilyHome& home) {
  return home.held.empty() ? "" : absl::StrCat("held=", absl::StrJoin(home.held, " "), "\n");
}

}  // namespace

std::string FileOfFamily(absl::string_view family) { return ChecksumOf(family); }

std::string ToText(const FamilyRecord& record) {
  return WithChecksum(absl::StrCat(kRecordTitle, kRecordVersion, "\nfamily=", record.family,
                                   "\ngeneration=", record.home.generation, "\nnode=", record.home.node,
                                   "\naddress=", record.home.address, "\nuntil=", absl::ToUnixSeconds(record.until),
                                   "\n", HeldLine(record.home)));
}

absl::StatusOr<FamilyRecord> ParseFamilyRecord(absl::string_view text) {
  if (!TakeChecksum(&text) || !absl::ConsumePrefix(&text, kRecordTitle)) return DamagedRecord();
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (lines[0] != kRecordVersion) return absl::FailedPreconditionError("the record of a family is of a newer build");
  std::map<absl::string_view, absl::string_view> values;
  for (const absl::string_view line : lines) values.insert(absl::StrSplit(line, absl::MaxSplits('=', 1)));
  FamilyRecord record;
  int64_t until = 0;
  if (!absl::SimpleAtoi(values["generation"], &record.home.generation) || !absl::SimpleAtoi(values["until"], &until)) {
    return DamagedRecord();
  }
  record.family = std::string(values["family"]);
  record.home.node = std::string(values["node"]);
  record.home.address = std::string(values["address"]);
  record.home.held = absl::StrSplit(values["held"], ' ', absl::SkipEmpty());
  record.until = absl::FromUnixSeconds(until);
  if (!CanBe(record)) return DamagedRecord();
  return record;
}

}  // namespace seine
