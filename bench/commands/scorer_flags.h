// Flags for the options of scorers, with the names that seine gives them.
#ifndef SEINE_BENCH_COMMANDS_SCORER_FLAGS_H_
#define SEINE_BENCH_COMMANDS_SCORER_FLAGS_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "bench/commands/value_flag.h"
#include "index/scorers/scorer.h"
#include "profile/scorer_list.h"
#include "profile/spelling.h"

namespace seine::bench {

// An option of scorers that was given.
struct GivenOption {
  std::string name;
  std::function<void(ScorerConfig*)> set;
};

// Adds a flag of the same name for each option of scorers. What is given goes to `given`, in order.
inline void AddScorerFlags(CLI::App* app, std::vector<GivenOption>* given) {
  ForEachScorerOption([=](const auto& option) {
    using Value = std::decay_t<decltype(option.usual)>;
    const std::string flag = absl::StrCat("--", absl::StrReplaceAll(option.name, {{"_", "-"}}));
    const std::string owners = absl::StrCat(ScorersWith(option.name), ": "), name = option.name;
    const auto field = option.field;
    const auto add = [=](Value value) {
      given->push_back({name, [=](ScorerConfig* scorer) { scorer->*field = value; }});
    };
    CLI::Option* made = nullptr;
    if constexpr (std::is_enum_v<Value>) {
      const std::string type = option.type;
      const std::string usual = SpellValue(type, static_cast<int>(option.usual) + 1);
      made = app->add_option_function<std::string>(
          flag, [=](const std::string& text) { add(static_cast<Value>(FindValue(type, text) - 1)); },
          absl::StrCat(owners, ListValues(type), " (default: ", usual, ")"));
      made->transform(ValueOf(type));
    } else {
      const std::string usual =
          std::is_same_v<Value, bool> ? (option.usual ? "true" : "false") : absl::StrCat(option.usual);
      made = app->add_option_function<Value>(flag, add, absl::StrCat(owners, option.help, " (default: ", usual, ")"));
    }
    made->group("Options of scorers");
  });
}

}  // namespace seine::bench

#endif  // SEINE_BENCH_COMMANDS_SCORER_FLAGS_H_
