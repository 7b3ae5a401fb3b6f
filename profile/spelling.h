// Spellings of settings' values, from one table for the server's file, the command lines and the bench; and the known
// word that is nearest to a wrong one. A value's number is the wire's (proto/seine/v1).
#ifndef SEINE_PROFILE_SPELLING_H_
#define SEINE_PROFILE_SPELLING_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace seine {

// The values of one enumerated setting. values[i] has the wire's number i + 1. The first spelling of a value is the one
// that command lines print; the others are accepted as well, and the wire's own name is among them.
struct ValueSpellings {
  std::string type;  // the wire's enum: "DType"
  std::vector<std::vector<std::string>> values;
};

const std::vector<ValueSpellings>& AllValueSpellings();

// Number of the value that `text` spells, in either case and with - for _; 0: no value of `type`, or no such type.
int FindValue(absl::string_view type, absl::string_view text);
// First spelling of the value; "unknown" for a number that is none.
std::string SpellValue(absl::string_view type, int number);
// First spellings of all values: "fp32, fp16, bf16".
std::string ListValues(absl::string_view type);
// The same in words: "fp32, fp16 or bf16".
std::string OneOf(absl::string_view type);

// The candidate at the fewest edits (insert, delete, replace, swap neighbours) from `word`, where these are at most a
// third of its letters and at least one; empty where none is so near. Of two as near, the first.
std::string NearestWord(absl::string_view word, absl::Span<const std::string> candidates);

}  // namespace seine

#endif  // SEINE_PROFILE_SPELLING_H_
