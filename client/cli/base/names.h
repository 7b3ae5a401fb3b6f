// Names of enumerated settings, on the command line and in JSON.
#ifndef SEINE_CLIENT_CLI_BASE_NAMES_H_
#define SEINE_CLIENT_CLI_BASE_NAMES_H_

#include <CLI/CLI.hpp>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/types.h"
#include "profile/spelling.h"

namespace seine::cli {

// The wire's enum of a setting, whose values' spellings profile/spelling.h has.
template <typename Enum>
struct NameTable {
  const char* type;
};

inline constexpr NameTable<client::RetainedReport> kReportNames{"RetainedReport"};
inline constexpr NameTable<client::KeyFrame> kKeyFrameNames{"KeyFrame"};
inline constexpr NameTable<client::SearchMode> kSearchModeNames{"SearchMode"};

template <typename Enum>
std::string NameOf(const NameTable<Enum>& table, Enum value) {
  return SpellValue(table.type, static_cast<int>(value));  // client enums carry the wire's numbers (convert.cc)
}

// Takes any spelling of a value of the wire's enum `type` on the command line; another text is an error that lists the
// values.
inline CLI::Validator Names(const std::string& type) {
  return CLI::Validator(
      [type](std::string& input) -> std::string {
        const int number = FindValue(type, input);
        if (number == 0) return "must be one of " + ListValues(type) + ", not " + input;
        input = std::to_string(number);
        return "";
      },
      "");
}

template <typename Enum>
CLI::Validator Names(const NameTable<Enum>& table) {
  return Names(std::string(table.type));
}

// Takes a number in [low, high]; CLI11's own Range lets a NaN pass.
inline CLI::Validator Between(double low, double high) {
  return CLI::Validator(
      [low, high](const std::string& input) -> std::string {
        double value = 0;
        if (absl::SimpleAtod(input, &value) && value >= low && value <= high) return "";
        return absl::StrCat("must be a number from ", low, " to ", high, ", not ", input);
      },
      "");
}

}  // namespace seine::cli

#endif  // SEINE_CLIENT_CLI_BASE_NAMES_H_
