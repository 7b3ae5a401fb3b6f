// Flags for the options of codecs, with the names that seine gives them.
#ifndef SEINE_BENCH_COMMANDS_CODEC_FLAGS_H_
#define SEINE_BENCH_COMMANDS_CODEC_FLAGS_H_

#include <CLI/CLI.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/codecs/codec_list.h"

namespace seine::bench {

// Adds a flag of the same name for each option of codecs.
inline void AddCodecFlags(CLI::App* app, CodecOptions* options, const std::string& group) {
  ForEachCodecOption([=](const auto& option) {
    const std::string flag = absl::StrCat("--", absl::StrReplaceAll(option.name, {{"_", "-"}}));
    app->add_option(flag, options->*option.field, option.help)->capture_default_str()->group(group);
  });
}

}  // namespace seine::bench

#endif  // SEINE_BENCH_COMMANDS_CODEC_FLAGS_H_
