// `seine-demo`: shows what Seine does. A decode of a real model, recorded with its queries and keys, is answered by a
// running seined; the answers are held against exact attention.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command_line.h"
#include "client/cli/exit_code.h"
#include "client/cli/help.h"
#include "client/cli/names.h"
#include "client/cli/output.h"
#include "client/client.h"
#include "client/demo/replay.h"
#include "client/demo/timing.h"
#include "client/demo/trace.h"
#include "profile/io/standard_output.h"
#include "profile/spelling.h"

namespace seine::demo {
namespace {

using cli::FormatBytes;
using cli::FormatDouble;

// Returns the bytes of one stored key of a head: the index keeps keys as they came.
int StoredKeyBytes(const Trace& trace) { return trace.head_dim() * static_cast<int>(client::SizeOf(trace.dtype())); }

cli::Json ToJson(const Trace& trace, const ReplayOptions& options, const Report& report, const AttentionTimes& times) {
  return {{"model", trace.model()},
          {"text", trace.text()},
          {"layers", trace.model_layers()},
          {"num_tokens", trace.num_tokens()},
          {"num_q_heads", trace.num_q_heads()},
          {"num_kv_heads", trace.num_kv_heads()},
          {"head_dim", trace.head_dim()},
          {"codec", options.profile.empty() ? "rsq" : "balanced"},
          {"profile", options.profile},
          {"steps", options.steps},
          {"top_k", options.top_k},
          {"beta", options.beta},
          {"refine", options.refine},
          {"transport", options.transport == client::Transport::kPolling ? "polling" : "blocking"},
          {"num_queries", report.num_queries},
          {"recall_at_k", report.recall},
          {"recall_at_k_worst_head", report.recall_worst_head},
          {"attention_mass", report.attention_mass},
          {"attention_covered", report.attention_covered},
          {"attention_covered_sink_local", report.dense_covered},
          {"attention_covered_exact", report.exact_covered},
          {"tokens_read", report.tokens_read},
          {"tokens_sink_local", report.tokens_dense},
          {"dense_attention_p50_us", times.dense_us.p50},
          {"dense_attention_p99_us", times.dense_us.p99},
          {"seine_attention_p50_us", times.seine_us.p50},
          {"seine_attention_p99_us", times.seine_us.p99},
          {"step_p50_us", report.step_us.p50},
          {"step_p99_us", report.step_us.p99},
          {"layer_p50_us", report.layer_us.p50},
          {"layer_p99_us", report.layer_us.p99},
          {"server_p50_us", report.server_us.p50},
          {"server_p99_us", report.server_us.p99},
          {"append_tokens_per_s", report.append_tokens_per_second},
          {"bytes_per_key", report.bytes_per_key},
          {"bytes_per_key_with_store", report.bytes_per_key + StoredKeyBytes(trace)},
          {"code_bytes", report.code_bytes},
          {"store_bytes", report.store_bytes},
          {"full_cache_bytes", report.full_cache_bytes},
          {"simd_target", report.simd_target},
          {"threads", report.threads}};
}

std::string Microseconds(const Percentiles& value) {
  return absl::StrCat("p50 ", FormatDouble(value.p50, 0), " us, p99 ", FormatDouble(value.p99, 0), " us");
}

std::string ToText(const Trace& trace, const ReplayOptions& options, const Report& report,
                   const AttentionTimes& times) {
  const int key_bytes = StoredKeyBytes(trace);
  const std::string of_dim = absl::StrCat("(head_dim ", trace.head_dim(), ")");
  const int64_t held = report.code_bytes + report.store_bytes;
  const auto percent = [&](int64_t bytes) {
    return absl::StrCat(
        FormatDouble(100.0 * static_cast<double>(bytes) / static_cast<double>(report.full_cache_bytes), 0), "%");
  };
  const auto covered = [](double share, double tokens) {
    return absl::StrCat(FormatDouble(100 * share, 1), "%  from ", FormatDouble(tokens, 0), " tokens a head");
  };
  return absl::StrCat(
      trace.model(), " reading ", trace.text(), "\n", trace.num_tokens(), " tokens, layers ",
      absl::StrJoin(trace.model_layers(), ", "), ", ", trace.num_q_heads(), " query heads on ", trace.num_kv_heads(),
      " KV heads, head_dim ", trace.head_dim(), "; the last ", options.steps, " tokens decoded one by one\n",
      "\nAttention that a step covers, of all ", trace.num_tokens(), " tokens'\n",
      cli::ToString({
          {"  sink + local alone", covered(report.dense_covered, report.tokens_dense)},
          {"  with Seine", covered(report.attention_covered, report.tokens_read)},
          {absl::StrCat("  with the exact top ", options.top_k), covered(report.exact_covered, report.tokens_read)},
      }),
      "\nWhat Seine finds ", of_dim, "\n",
      cli::ToString({
          {absl::StrCat("  recall@", options.top_k),
           absl::StrCat(FormatDouble(report.recall, 3), "  of each head's exact top ", options.top_k, " (worst head ",
                        FormatDouble(report.recall_worst_head, 3), ")")},
          {"  attention mass", absl::StrCat(FormatDouble(report.attention_mass, 4), "  of what the exact top ",
                                            options.top_k, " would have")},
      }),
      "\nTime of a layer on this machine (", report.threads, " thread", report.threads == 1 ? "" : "s", ", ",
      report.simd_target, ")\n",
      cli::ToString({
          {"  dense attention",
           absl::StrCat(Microseconds(times.dense_us), "  over all ", trace.num_tokens(), " tokens")},
          {"  Seine's attention",
           absl::StrCat(Microseconds(times.seine_us), "  finds and attends; ",
                        FormatDouble(times.seine_us.p50 / std::max(1.0, times.dense_us.p50), 2), " of dense's time")},
          {"  Seine's retrieval",
           absl::StrCat(Microseconds(report.layer_us), "  append + retrieve over gRPC; in the index p50 ",
                        FormatDouble(report.server_us.p50, 0), " us")},
          {"  decode step", absl::StrCat(Microseconds(report.step_us), "  retrieval, ", trace.num_layers(), " layers")},
          {"  prefill", absl::StrCat(FormatDouble(report.append_tokens_per_second / 1000, 0),
                                     " thousand tokens of a layer a second")},
      }),
      "\nMemory ", of_dim, "\n",
      cli::ToString({
          {"  bytes a key", absl::StrCat(FormatDouble(report.bytes_per_key, 1), " of codes + ", key_bytes, " of the ",
                                         SpellValue("DType", static_cast<int>(trace.dtype())),
                                         " key, kept for refine = ", FormatDouble(report.bytes_per_key + key_bytes, 1),
                                         "; a full fp16 cache has ", 4 * trace.head_dim(), ", key and value")},
          {"  codes", absl::StrCat(FormatBytes(report.code_bytes), " = ", percent(report.code_bytes),
                                   " of the full fp16 cache of ", FormatBytes(report.full_cache_bytes))},
          {"  codes + keys", absl::StrCat(FormatBytes(held), " = ", percent(held), " of it, all that Seine holds")},
      }));
}

int Run(int argc, char** argv) {
  std::string server = client::DefaultEndpoint(), path, output = "table", transport = "blocking";
  double wait_seconds = 10;
  ReplayOptions options;
  CLI::App app("Replay a recorded decode of a real model through a running seined, and compare with exact attention.",
               "seine-demo");
  app.formatter(cli::HelpFormatter());
  app.add_option("--server", server,
                 "unix:///path/to/socket, /path/to/socket or host:port (default: the socket that seined listens on)")
      ->envname("SEINE_SERVER");
  app.add_option("--trace", path, "Recorded queries and keys (python -m seine_kv.trace)")->required();
  app.add_option("--steps", options.steps, "Decode steps: the trace's last tokens (default: 512)");
  app.add_option("--top-k", options.top_k, "Tokens retrieved for each query head (default: 100)")
      ->check(CLI::Range(1, 65536));
  app.add_option("--profile", options.profile,
                 "One of the server's model profiles: keys are held in the balanced code instead of ParisKV's");
  app.add_option("--model-layers", options.model_layers,
                 "Layers of the model, as the profile has them (default: up to the last recorded)");
  app.add_option("--beta", options.beta, "Share of the zone kept as candidates (default: .10)");
  app.add_option("--refine", options.refine, "Survivors that are scored exactly (default: 200)");
  app.add_option("--transport", transport, "blocking, or polling: least latency, one core spins (default: blocking)")
      ->check(CLI::IsMember({"blocking", "polling"}).description(""));
  app.add_option("--wait", wait_seconds, "Seconds to wait for the server (default: 10)")->check(cli::Between(0, 1e6));
  app.add_option("-o,--output", output, "table or json (default: table)")
      ->check(CLI::IsMember({"table", "json"}).description(""));
  app.footer(cli::kExitCodeHelp);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      app.exit(error);
      return cli::Report("seine-demo", FinishStandardOutput());
    }
    return cli::Report("seine-demo", cli::ExplainParseError(app, error));
  }
  if (transport == "polling") options.transport = client::Transport::kPolling;

  const absl::StatusOr<Trace> trace = Trace::Open(path);
  if (!trace.ok()) return cli::Report("seine-demo", cli::FileError(trace.status()));
  client::Options connection;
  connection.connect_timeout = absl::Seconds(wait_seconds);
  connection.wait_for_server = true;
  connection.security = client::SecurityFromEnvironment();
  const auto client = client::Client::Connect(server, connection);
  if (absl::IsInvalidArgument(client.status()))
    return cli::Report("seine-demo", cli::UsageError(client.status().message()));
  if (!client.ok()) return cli::Report("seine-demo", client.status());
  const absl::StatusOr<Report> report = Replay(client->get(), *trace, options);
  if (!report.ok()) return cli::Report("seine-demo", report.status());
  const absl::StatusOr<AttentionTimes> times = TimeAttention(client->get(), *trace, options);
  if (!times.ok()) return cli::Report("seine-demo", times.status());
  if (output == "json") {
    cli::PrintJson(ToJson(*trace, options, *report, *times));
  } else {
    cli::PrintText(ToText(*trace, options, *report, *times));
  }
  return cli::Report("seine-demo", FinishStandardOutput());
}

}  // namespace
}  // namespace seine::demo

int main(int argc, char** argv) {
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);  // errors are ours to print, once
  return seine::demo::Run(argc, argv);
}
