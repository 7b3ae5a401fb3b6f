// Settings of the contract as flags and as JSON, from their fields' `flag` option (proto/seine/v1/flag.proto).
// A new setting is a field there: its flag, help, default and JSON follow.
#ifndef SEINE_CLIENT_CLI_FLAGS_FIELD_FLAGS_H_
#define SEINE_CLIENT_CLI_FLAGS_FIELD_FLAGS_H_

#include <google/protobuf/message.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "client/cli/base/output.h"

namespace seine::cli {

// What flags that are added together have in common.
struct FlagGroup {
  CLI::App* command = nullptr;
  std::string prefix = "--";
  std::string name = "";         // of the group in --help; empty: the usual one
  CLI::Option* needs = nullptr;  // the flag without which the others say nothing; nullptr: none

  // Marks a flag that was just added; `own`, unless empty, in place of the group's name.
  void Join(CLI::Option* option, const std::string& own = "") const;
};

// Adds a flag for each field of `type` that has the option, but for those named in `but`. Enums take any spelling that
// profile/spelling.h has. `message` is asked for the message to set, when a flag is given.
void AddFieldFlags(const FlagGroup& group, const google::protobuf::Descriptor& type,
                   const std::function<google::protobuf::Message*()>& message,
                   const std::vector<std::string>& but = {});

// The same for fields whose help is made elsewhere: `help` of a field's name; it has no flag where that is empty.
void AddFieldFlags(const FlagGroup& group, const google::protobuf::Descriptor& type,
                   const std::function<google::protobuf::Message*()>& message,
                   const std::function<std::string(const std::string& field)>& help);

// Adds prefix and flag's name, with _ for -, of each field of `type` that is a number, a word or a list of numbers, in
// the proto's order. A field is null where `message` is nullptr, or where it is optional and not given.
void AddFields(const google::protobuf::Descriptor& type, const google::protobuf::Message* message,
               const std::string& prefix, Json* json);

// The fields of a message that are given, but for messages in it, by their own names, as protobuf's JSON takes them.
Json GivenFields(const google::protobuf::Message& message);

}  // namespace seine::cli

#endif  // SEINE_CLIENT_CLI_FLAGS_FIELD_FLAGS_H_
