// Flags with a setting's values, in any of the spellings that the server and seine take.
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

}  // namespace seine::bench

#endif  // SEINE_BENCH_COMMANDS_VALUE_FLAG_H_
