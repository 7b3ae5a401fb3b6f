// seine call: any method of the server by its name, requests and answers as JSON.
#include <cstdio>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/base/exit_code.h"
#include "client/cli/commands.h"
#include "client/cli/input/line_source.h"
#include "client/methods.h"

namespace seine::cli {
namespace {

struct CallArguments {
  std::string method, json = "{}";
  bool list = false, describe = false;
};

std::string Streamed(bool streams, const std::string& message) { return (streams ? "stream " : "") + message; }

absl::Status ListMethods(const Session& session) {
  Json json = Json::array();
  Table table({"method", "request", "answer"});
  for (const client::Method& method : client::Methods()) {
    json.push_back({{"method", method.name},
                    {"request", method.request},
                    {"answer", method.response},
                    {"streams_requests", method.streams_requests},
                    {"streams_answers", method.streams_responses}});
    table.AddRow({method.name, Streamed(method.streams_requests, method.request),
                  Streamed(method.streams_responses, method.response)});
  }
  session.Print(json, [&] { return table.ToString(); });
  return absl::OkStatus();
}

absl::Status DescribeMethod(const Session& session, const client::Method& method) {
  const std::vector<std::string> request = client::DescribeMessage(method.request);
  const std::vector<std::string> answer = client::DescribeMessage(method.response);
  session.Print({{"method", method.name}, {"request", request}, {"answer", answer}}, [&] {
    return absl::StrCat("# ", method.name, "\n\n# request: ", Streamed(method.streams_requests, method.request), "\n",
                        absl::StrJoin(request, "\n"),
                        "\n# answer: ", Streamed(method.streams_responses, method.response), "\n",
                        absl::StrJoin(answer, "\n"));
  });
  return absl::OkStatus();
}

// A request that is none is an error of the command line; `where` opens it.
absl::Status WriteRequest(client::JsonCall* call, const std::string& request, const std::string& where) {
  const absl::Status status = call->Write(request);
  if (absl::IsInvalidArgument(status)) return UsageError(absl::StrCat(where, status.message()));
  return absl::OkStatus();  // the call has ended: Finish says why
}

// Prints each answer as it comes, whether or not requests still follow.
absl::Status PrintAnswers(client::JsonCall* call) {
  for (;;) {
    const absl::StatusOr<std::optional<std::string>> answer = call->Read();
    if (!answer.ok()) return answer.status();
    if (!answer->has_value()) return absl::OkStatus();
    PrintText(**answer);
    if (!(*answer)->ends_with('\n')) PrintText("\n");
    std::fflush(stdout);
  }
}

absl::Status CallWithLines(std::unique_ptr<client::JsonCall> call) {
  LineSource lines;
  absl::Status written;
  std::thread writer([&] {
    std::string line;
    while (written.ok() && lines.Next(&line)) {
      written = WriteRequest(call.get(), line, absl::StrCat("standard input, line ", lines.number(), ": "));
    }
    if (written.ok()) written = lines.status();
    call->WritesDone();
  });
  const absl::Status printed = PrintAnswers(call.get());
  lines.Stop();
  writer.join();
  const absl::Status finished = call->Finish();
  if (!written.ok()) return written;
  return printed.ok() ? finished : printed;
}

absl::Status CallMethod(const Session& session, const client::Method& method, std::string request) {
  const bool from_input = request == "-";
  if (from_input && method.streams_requests) return CallWithLines(session.client->OpenCall(method));
  if (LineSource input; from_input && !input.ReadAll(&request)) return input.status();
  const std::unique_ptr<client::JsonCall> call = session.client->OpenCall(method);
  const absl::Status written = WriteRequest(call.get(), request, from_input ? "standard input: " : "");
  if (!written.ok()) return written;
  call->WritesDone();
  const absl::Status printed = PrintAnswers(call.get());
  const absl::Status finished = call->Finish();
  return printed.ok() ? finished : printed;
}

// The method that is to be called, and whether a request on the command line is one: no server is asked for what is
// not.
absl::StatusOr<client::Method> CheckCall(const CallArguments& arguments) {
  absl::StatusOr<client::Method> method = client::FindMethod(arguments.method);
  if (!method.ok()) return UsageError(absl::StrCat("call: ", method.status().message(), " (seine call --list)"));
  if (arguments.describe || arguments.json == "-") return method;
  const absl::Status valid = client::BytesOfJson(method->request, arguments.json).status();
  if (!valid.ok())
    return UsageError(absl::StrCat("call: ", valid.message(), " (seine call ", arguments.method, " --describe)"));
  return method;
}

}  // namespace

void AddCallCommands(CLI::App* app, Session* session) {
  CLI::App* call = app->add_subcommand("call", "Call any method of the server by its name, in protobuf's JSON");
  auto arguments = std::make_shared<CallArguments>();
  CLI::Option* name = call->add_option("METHOD", arguments->method, "Retrieve, or seine.v1.RetrievalService/Retrieve");
  call->add_option("JSON", arguments->json,
                   "The request; - reads it from standard input, for a stream one on each line (default: {})");
  CLI::Option* list = call->add_flag("--list", arguments->list, "List the methods and their messages")->excludes(name);
  call->add_flag("--describe", arguments->describe, "Show the fields of the method's request and answer")
      ->excludes(list);
  call->footer(
      "Answers are JSON whatever --output says, of a stream one on each line. Bytes are base64, 64-bit numbers are "
      "strings.\n\nExamples:\n  seine call --list\n  seine call Retrieve --describe\n"
      "  seine call GetIndex '{\"name\": \"llama\"}'\n  seine call Decode -    # steps from standard input, one on "
      "each line");
  call->callback([=] {
    if (!arguments->list && name->empty()) throw CLI::RequiredError("METHOD");
    session->needs_server = false;
    if (arguments->list) {
      session->action = [=] { return ListMethods(*session); };
      return;
    }
    const absl::StatusOr<client::Method> method = CheckCall(*arguments);
    session->needs_server = method.ok() && !arguments->describe;
    session->action = [=] {
      if (!method.ok()) return method.status();
      return arguments->describe ? DescribeMethod(*session, *method) : CallMethod(*session, *method, arguments->json);
    };
  });
}

}  // namespace seine::cli
