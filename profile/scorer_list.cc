// The list of scorers as data, and what is asked about it.
#include "profile/scorer_list.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "profile/spelling.h"

namespace seine {
namespace {

constexpr size_t kLongestTypo = 64;  // the wire brings names of any length, and distances cost their product

bool HasWord(absl::string_view words, absl::string_view word) {
  const std::vector<absl::string_view> all = absl::StrSplit(words, ' ');
  return std::find(all.begin(), all.end(), word) != all.end();
}

}  // namespace

bool ScorerEntry::Needs(absl::string_view what) const { return HasWord(needs, what); }
bool ScorerEntry::Has(absl::string_view option) const {
  return HasOwn(option) || HasWord(kCommonScorerOptions, option);
}
bool ScorerEntry::HasOwn(absl::string_view option) const { return HasWord(options, option); }

const std::vector<ScorerEntry>& AllScorers() {
#define SEINE_SCORER_ENTRY(Name, name, formula, needs, options) ScorerEntry{name, formula, needs, options},
  static const auto* const kAll = new std::vector<ScorerEntry>{SEINE_FOR_EACH_SCORER(SEINE_SCORER_ENTRY)};
#undef SEINE_SCORER_ENTRY
  return *kAll;
}

const ScorerEntry* FindScorer(absl::string_view name) {
  for (const ScorerEntry& entry : AllScorers()) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

std::string ScorersWith(absl::string_view option) {
  if (HasWord(kCommonScorerOptions, option)) return "every scorer";
  std::vector<absl::string_view> owners;
  for (const ScorerEntry& entry : AllScorers()) {
    if (entry.Has(option)) owners.emplace_back(entry.name);
  }
  return absl::StrJoin(owners, ", ");
}

std::vector<std::string> ScorerNames() {
  std::vector<std::string> names;
  for (const ScorerEntry& entry : AllScorers()) names.emplace_back(entry.name);
  return names;
}

std::string ScorerChoice() {
  std::vector<std::string> names;
  for (const ScorerEntry& entry : AllScorers()) {
    if (!entry.Needs("scores")) names.emplace_back(entry.name);
  }
  const std::string last = names.back();
  names.pop_back();
  return absl::StrCat(absl::StrJoin(names, ", "), " or ", last);
}

std::string UnknownScorer(absl::string_view name) {
  const std::vector<std::string> names = ScorerNames();
  const std::string nearest = name.size() <= kLongestTypo ? NearestWord(name, names) : "";
  return absl::StrCat("unknown scorer; ", nearest.empty() ? "" : absl::StrCat("did you mean ", nearest, "? "),
                      "there are ", absl::StrJoin(names, ", "));
}

}  // namespace seine
