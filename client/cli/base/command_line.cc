// Unknown words, fields and flags.
#include "client/cli/base/command_line.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/client.h"
#include "profile/io/json.h"
#include "profile/spelling.h"

namespace seine::cli {
namespace {

std::vector<std::string> CommandsOf(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* child : command.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(child->get_name());
  }
  return names;
}

// Flags that the command takes, its parents' among them.
std::vector<std::string> FlagsOf(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::App* app = &command; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    }
  }
  return flags;
}

std::string DidYouMean(const std::string& word, const std::vector<std::string>& known) {
  const std::string nearest = NearestWord(word, known);
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?");
}

// A flag that came more often than it may, under whichever of its names; empty: `error` is another.
std::string GivenTwice(const CLI::App& command, const std::string& error) {
  for (const CLI::App* app = &command; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      const std::string name = option->get_name();
      if (!absl::StartsWith(error, name + ": At Most 1 required")) continue;
      std::string what = name + ": given more than once";
      for (const std::string& other : option->get_lnames()) {
        if ("--" + other != name) absl::StrAppend(&what, "; --", other, " is the same setting");
      }
      return what;
    }
  }
  return "";
}

// The word that nothing takes: a flag before others, for what follows one may be its value.
std::string Unknown(const std::vector<std::string>& remaining) {
  const auto flag = std::find_if(remaining.begin(), remaining.end(),
                                 [](const std::string& word) { return word.size() > 1 && word[0] == '-'; });
  return flag != remaining.end() ? *flag : remaining.front();
}

// Fields whose flag has another name than the field's last part.
constexpr std::pair<const char*, const char*> kFlags[] = {
    {"geometry.num_layers", "--layers"},
    {"geometry.num_q_heads", "--q-heads"},
    {"geometry.num_kv_heads", "--kv-heads"},
    {"codec.name", "--codec"},
    {"codec.centre_window", "--window"},
    {"rope.config_json", "--rope"},
    {"rope.style", "--rope-style"},
    {"memory_limit_bytes", "--memory-limit"},
    {"eviction.budget.tokens", "--evict-budget"},
    {"eviction.scorer.name", "--evict-scorer"},
    {"subspace.error_threshold", "--subspace-threshold"},
    {"subspace.value_rank", "--subspace-rank"},
    {"subspace.key_ranks", "--subspace-key-ranks"},
    {"subspace.value_ranks", "--subspace-value-ranks"},
    {"budget.tokens", "--budget"},
    {"budget.ratio", "--budget"},
    {"budget.heads", "--heads"},
    {"scorer.name", "--scorer"},
    {"given.queries", "--queries"},
    {"given.filters", "--filters"},
    {"mass_p.p", "--mass-p"},
    {"mass_p.floor", "--mass-floor"},
    {"mass_p.cap", "--mass-cap"},
    {"sequences", "--sequence"},
    {"item.queries", "--queries"},
    {"item.values", "--values"},
    {"item.keys", "--tensor"},
    {"keys.shape", "--tensor"},
    {"queries.shape", "--queries"},
    {"values.shape", "--values"},
};

}  // namespace

const CLI::App* GivenCommand(const CLI::App& program) {
  const CLI::App* command = &program;
  for (auto given = command->get_subcommands(); !given.empty(); given = command->get_subcommands()) {
    command = given.back();
  }
  return command;
}

std::string PathOf(const CLI::App& command) {
  std::string path;
  for (const CLI::App* app = &command; app->get_parent() != nullptr; app = app->get_parent()) {
    path = absl::StrCat(app->get_name(), path.empty() ? "" : " ", path);
  }
  return path;
}

absl::Status ExplainParseError(const CLI::App& program, const CLI::ParseError& error) {
  const CLI::App& command = *GivenCommand(program);
  const std::string path = PathOf(command), help = absl::StrCat(program.get_name(), path.empty() ? "" : " ", path);
  const std::vector<std::string> remaining = program.remaining(true), commands = CommandsOf(command);
  std::string what = GivenTwice(command, error.what());
  if (what.empty()) what = error.what();
  if (!remaining.empty()) {  // whatever else is missing: what was meant may be it
    const bool begins_with_a_command = !commands.empty() && !absl::StartsWith(remaining.front(), "-");
    const std::string word = begins_with_a_command ? remaining.front() : Unknown(remaining);
    if (absl::StartsWith(word, "-")) {
      const std::string flag = word.substr(0, word.find('='));
      what = absl::StrCat("unknown flag ", flag, DidYouMean(flag, FlagsOf(command)));
    } else if (!commands.empty()) {
      const std::string meant = DidYouMean(word, commands);
      what = absl::StrCat("unknown command ", word,
                          meant.empty() ? "; there are " + absl::StrJoin(commands, ", ") : meant);
    } else {
      what = absl::StrCat("unexpected argument ", word);
    }
  }
  return UsageError(absl::StrCat(path, path.empty() ? "" : ": ", what, " (", help, " --help)"));
}

absl::Status CheckWireText(const CLI::App& command) {
  static constexpr const char* kStayHere[] = {"FILE",
                                              "--file",
                                              "--vector",
                                              "--trace",
                                              "--out",
                                              "--server",
                                              "--tensor",
                                              "--values",
                                              "--queries",
                                              "--filters",
                                              "--evict-filters",
                                              "--output-projection",
                                              "--projection-tensor",
                                              "--tls-ca",
                                              "--tls-cert",
                                              "--tls-key",
                                              "--token",
                                              "--token-file"};
  for (const CLI::App* app = &command; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      const std::string name = option->get_name();
      if (std::find(std::begin(kStayHere), std::end(kStayHere), name) != std::end(kStayHere)) continue;
      for (const std::string& value : option->results()) {
        if (!IsUtf8(value)) return UsageError(absl::StrCat(name, ": must be UTF-8"));
      }
    }
  }
  return absl::OkStatus();
}

bool WantsJson(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const absl::string_view word = argv[i], next = i + 1 < argc ? argv[i + 1] : "";
    if (word == "-ojson" || word == "-o=json" || word == "--output=json") return true;
    if ((word == "-o" || word == "--output") && next == "json") return true;
  }
  return false;
}

std::string FlagOfField(const CLI::App& command, const std::string& field) {
  const std::vector<std::string> flags = FlagsOf(command);
  const auto takes = [&](const std::string& flag) {
    return std::find(flags.begin(), flags.end(), flag) != flags.end();
  };
  const std::string whole =
      field.substr(0, field.ends_with(']') ? field.rfind('[') : field.npos);  // no place in a list
  for (const auto& [end, flag] : kFlags) {
    const bool ends = whole == end || absl::EndsWith(whole, absl::StrCat(".", end));
    if (ends && takes(flag)) return flag;
  }
  const std::string last = absl::StrReplaceAll(field.substr(field.rfind('.') + 1), {{"_", "-"}});
  for (const auto& [group, prefix] : {std::pair{"eviction.", "--evict-"}, {"", "--"}, {"subspace.", "--subspace-"}}) {
    if (absl::StrContains(field, group) && takes(prefix + last)) return prefix + last;
  }
  return "";
}

ErrorReport InWordsOfTheCommandLine(const CLI::App& command, const std::string& object, const absl::Status& status) {
  ErrorReport report{status, object, client::FieldOf(status), "", client::ReasonOf(status)};
  if (report.field.empty()) {  // an error of the command line itself opens with the flag
    const absl::string_view message = status.message();
    if (absl::StartsWith(message, "--")) report.flag = std::string(message.substr(0, message.find_first_of(": =")));
    return report;
  }
  report.flag = FlagOfField(command, report.field);
  absl::string_view what = status.message();
  if (!absl::ConsumePrefix(&what, report.field + ": ")) return report;
  const bool named = object.empty() || absl::StrContains(what, absl::StrCat("'", object, "'"));
  report.message = absl::StrCat(named ? "" : object + ": ", report.flag, report.flag.empty() ? "" : ": ", what, " (",
                                report.field, ")");
  return report;
}

ErrorReport WithNextCommand(ErrorReport report) {
  const std::string index = report.object.substr(0, report.object.find('/'));
  const auto about = [&](absl::string_view end) {
    return report.field == end || absl::EndsWith(report.field, absl::StrCat(".", end));
  };
  std::string next;
  if (absl::IsUnavailable(report.status) && absl::StartsWith(report.status.message(), "no server at ")) {
    next = "seined starts one, --server names another";
  } else if (absl::IsUnauthenticated(report.status)) {
    next = "--token-file FILE, or SEINE_TOKEN_FILE, names a credential";
  } else if (absl::IsDeadlineExceeded(report.status)) {
    next = "--timeout SECONDS waits longer; seine top shows what the server does";
  } else if (absl::IsNotFound(report.status) && about("profile")) {
    next = "seine version, which lists the server's";
  } else if (absl::IsNotFound(report.status) && about("handle")) {
    next = absl::StrCat("seine seq list ", index);
  } else if (absl::IsNotFound(report.status) && (about("index") || about("name"))) {
    next = "seine index list";
  } else if (absl::IsAlreadyExists(report.status) && about("spec.name")) {
    next = absl::StrCat("seine index get ", index);
  } else if (absl::IsAlreadyExists(report.status) && (about("id") || about("new_id"))) {
    next = absl::StrCat("seine seq list ", index);
  }
  if (next.empty()) return report;
  if (report.message.empty()) report.message = std::string(report.status.message());
  absl::StrAppend(&report.message, " (next: ", next, ")");
  return report;
}

}  // namespace seine::cli
