// The table of spellings, and the distance between words.
#include "profile/spelling.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace seine {
namespace {

const ValueSpellings* FindType(absl::string_view type) {
  for (const ValueSpellings& spellings : AllValueSpellings()) {
    if (spellings.type == type) return &spellings;
  }
  return nullptr;
}

// Optimal string alignment: as Levenshtein's, and two neighbours that changed places cost one.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  const size_t width = b.size() + 1;
  std::vector<size_t> cost((a.size() + 1) * width);
  const auto at = [&](size_t i, size_t j) -> size_t& { return cost[i * width + j]; };
  for (size_t i = 0; i <= a.size(); ++i) at(i, 0) = i;
  for (size_t j = 0; j <= b.size(); ++j) at(0, j) = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, replaced});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
    }
  }
  return at(a.size(), b.size());
}

}  // namespace

const std::vector<ValueSpellings>& AllValueSpellings() {
  static const auto* const kAll = new std::vector<ValueSpellings>{
      {"DType", {{"fp32", "float32", "f32"}, {"fp16", "float16", "f16"}, {"bf16", "bfloat16"}}},
      {"Scope", {{"kv_head", "per_kv_head"}, {"q_head", "per_q_head"}}},
      {"GqaReduce", {{"softmax_sum"}, {"max"}, {"mean"}}},
      {"Coarse", {{"sign_ip"}, {"collision"}}},
      {"Centre", {{"none"}, {"global"}, {"window"}}},
      {"RopeStyle", {{"half_split"}, {"interleaved"}}},
      {"KvStore", {{"none"}, {"keys"}, {"keys_values"}}},
      {"KeyFrame", {{"post_rope"}, {"pre_rope"}}},
      {"Anchor", {{"unit_mean"}, {"mean"}, {"median"}, {"pairwise"}}},
      {"Similarity", {{"cosine"}, {"dot"}, {"euclid", "euclidean"}}},
      {"Metric", {{"l2"}, {"l1"}, {"linf"}}},
      {"ValueWeight", {{"none"}, {"norm"}, {"projected"}}},
      {"HeadBudget", {{"uniform"}, {"adaptive"}, {"pyramid"}}},
      {"RetainedReport", {{"dropped"}, {"kept"}}},
      {"SearchMode", {{"index"}, {"dense"}, {"exact"}, {"gate"}}},
  };
  return *kAll;
}

int FindValue(absl::string_view type, absl::string_view text) {
  const ValueSpellings* spellings = FindType(type);
  if (spellings == nullptr) return 0;
  const std::string plain = absl::StrReplaceAll(absl::AsciiStrToLower(text), {{"-", "_"}});
  for (size_t i = 0; i < spellings->values.size(); ++i) {
    const std::vector<std::string>& value = spellings->values[i];
    if (std::find(value.begin(), value.end(), plain) != value.end()) return static_cast<int>(i) + 1;
  }
  return 0;
}

std::string SpellValue(absl::string_view type, int number) {
  const ValueSpellings* spellings = FindType(type);
  const bool known = spellings != nullptr && number >= 1 && number <= static_cast<int>(spellings->values.size());
  return known ? spellings->values[number - 1].front() : "unknown";
}

std::string ListValues(absl::string_view type) {
  const ValueSpellings* spellings = FindType(type);
  std::string list;
  for (size_t i = 0; spellings != nullptr && i < spellings->values.size(); ++i) {
    absl::StrAppend(&list, i > 0 ? ", " : "", spellings->values[i].front());
  }
  return list;
}

std::string OneOf(absl::string_view type) {
  std::string list = ListValues(type);
  const size_t last = list.rfind(", ");
  return last == std::string::npos ? list : list.replace(last, 2, " or ");
}

std::string NearestWord(absl::string_view word, absl::Span<const std::string> candidates) {
  std::string nearest;
  size_t fewest = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t edits = EditDistance(word, candidate);
    if (edits >= fewest) continue;
    fewest = edits;
    nearest = candidate;
  }
  return nearest;
}

}  // namespace seine
