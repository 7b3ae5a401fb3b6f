// The commands of `seine`. Each group adds its subcommands to the parser; parsing chooses Session::action, main runs
// it.
#ifndef SEINE_CLIENT_CLI_COMMANDS_H_
#define SEINE_CLIENT_CLI_COMMANDS_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "client/cli/base/output.h"
#include "client/client.h"

namespace seine::cli {

struct Session {
  std::string server;
  std::string fleet;  // a description's file, which finds the server; empty: `server` is it
  client::Security security;
  double timeout_seconds = 30;
  double wait_seconds = 0;  // > 0: a server that does not answer yet is waited for
  bool json = false;
  bool draws = false;                      // the command has the terminal's screen for itself
  bool needs_server = true;                // commands on files alone say no
  std::unique_ptr<client::Client> client;  // connected before `action` runs; null without needs_server
  std::function<absl::Status()> action;

  // `text` is only called for tables, so that each form costs nothing under the other.
  void Print(const Json& json_form, const std::function<std::string()>& text) const {
    json ? PrintJson(json_form) : PrintText(text());
  }
};

// A sequence named on the command line: INDEX ID [--generation N].
void AddSequenceArguments(CLI::App* command, client::Sequence* sequence);

void AddAdminCommands(CLI::App* app, Session* session);     // health, version, head describe
void AddIndexCommands(CLI::App* app, Session* session);     // index create | list | get | delete
void AddSequenceCommands(CLI::App* app, Session* session);  // seq list | get | create | fork | truncate | delete
void AddDataCommands(CLI::App* app, Session* session);      // query, append
void AddEvictionCommands(CLI::App* app, Session* session);  // evict, diagnose
void AddSubspaceCommands(CLI::App* app, Session* session);  // subspace show | save | load | calibrate
void AddProfileCommands(CLI::App* app, Session* session);   // calibrate, profile show
void AddCallCommands(CLI::App* app, Session* session);      // call
void AddTopCommand(CLI::App* app, Session* session);        // top
void AddFleetCommands(CLI::App* app, Session* session);     // fleet status | rank
void AddFamilyCommands(CLI::App* app, Session* session);    // family list | migrate
void AddDrainCommand(CLI::App* app, Session* session);      // drain

// Returns the address to which --fleet sends a command: that of the node that has the sequence, or that will have it
// where the command `creates` it.
absl::StatusOr<std::string> AddressInFleet(const Session& session, const std::string& index, const std::string& id,
                                           bool creates);
void AddRecallCommand(CLI::App* app, Session* session);  // recall

}  // namespace seine::cli

#endif  // SEINE_CLIENT_CLI_COMMANDS_H_
