// Validators of flags: a setting's values, in any of the spellings that the server and seine take, and seeds.
#ifndef SEINE_BENCH_COMMANDS_VALUE_FLAG_H_
#define SEINE_BENCH_COMMANDS_VALUE_FLAG_H_

#include <CLI/CLI.hpp>
#include <string>

#include "profile/spelling.h"

namespace seine::bench {

// For Option::transform: any spelling of a value of the wire's enum `type` becomes the first one.
inline CLI::Validator ValueOf(const std::string& type) {
  return CLI::Validator(
      [type](std::string& text) -> std::string {
        const int number = FindValue(type, text);
        if (number == 0) return "must be one of " + ListValues(type) + ", not " + text;
        text = SpellValue(type, number);
        return "";
      },
      "");
}

// For Option::check: CLI11 reads -1 as the largest number of an unsigned type.
inline CLI::Validator NoSign() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        return text.find('-') == std::string::npos ? "" : "must be 0 or more, not " + text;
      },
      "");
}

}  // namespace seine::bench

#endif  // SEINE_BENCH_COMMANDS_VALUE_FLAG_H_
