// seine health, version, head describe.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/base/exit_code.h"
#include "client/cli/base/names.h"
#include "client/cli/commands.h"

namespace seine::cli {
namespace {

// Asks until the server serves or the time to wait is over: it may be starting, or ending before another starts.
absl::StatusOr<bool> AskUntil(const Session& session, const std::string& service, absl::Time deadline) {
  for (;;) {
    absl::StatusOr<bool> serving = session.client->IsServing(service);
    const bool settled = serving.ok() ? *serving : !absl::IsUnavailable(serving.status());
    if (settled || absl::Now() >= deadline) return serving;
    absl::SleepFor(std::min(absl::Milliseconds(50), deadline - absl::Now()));
  }
}

absl::Status Health(const Session& session, const std::string& service, absl::Time deadline) {
  const absl::StatusOr<bool> serving = AskUntil(session, service, deadline);
  if (absl::IsNotFound(serving.status())) {
    return absl::NotFoundError(absl::StrCat("--service: the server has no service '", service, "'"));
  }
  if (!serving.ok()) return serving.status();
  session.Print({{"service", service}, {"serving", *serving}},
                [&] { return *serving ? "serving\n" : "not serving\n"; });
  if (*serving) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(session.server, " is not serving"));
}

Json PassedOver(const v1::GetServerInfoResponse& info) {
  Json files = Json::array();
  for (const v1::PassedOverFile& file : info.passed_over()) {
    files.push_back(
        {{"index", file.index()}, {"file", file.file()}, {"bytes", file.bytes()}, {"reason", file.reason()}});
  }
  return files;
}

std::string DescribePassedOver(const v1::GetServerInfoResponse& info) {
  if (info.passed_over().empty()) return "none";
  int64_t bytes = 0;
  std::map<std::string, int> reasons;
  for (const v1::PassedOverFile& file : info.passed_over()) {
    bytes += file.bytes();
    ++reasons[file.reason()];
  }
  const std::string why = absl::StrJoin(reasons, ", ", absl::PairFormatter(" "));
  return absl::StrCat(info.passed_over().size(), " files of an earlier end, ", FormatBytes(bytes), ": ", why);
}

absl::Status Version(const Session& session) {
  const absl::StatusOr<v1::GetServerInfoResponse> info = session.client->GetServerInfo();
  if (!info.ok()) return info.status();
  const Json json = {{"client", SEINE_VERSION},
                     {"server", info->version()},
                     {"backend", info->backend()},
                     {"simd_target", info->simd_target()},
                     {"num_threads", info->num_threads()},
                     {"memory_limit_bytes", info->memory_limit_bytes()},
                     {"memory_bytes", info->memory_bytes()},
                     {"device_memory_limit_bytes", info->device_memory_limit_bytes()},
                     {"device_memory_bytes", info->device_memory_bytes()},
                     {"num_indexes", info->num_indexes()},
                     {"num_sequences", info->num_sequences()},
                     {"uptime_seconds", info->uptime_seconds()},
                     {"queue_capacity", info->queue_capacity()},
                     {"max_message_bytes", info->max_message_bytes()},
                     {"profiles", std::vector<std::string>(info->profiles().begin(), info->profiles().end())},
                     {"instance", info->instance()},
                     {"passed_over", PassedOver(*info)}};
  session.Print(json, [&] {
    const auto held = [](int64_t bytes, int64_t limit) {
      return absl::StrCat(FormatBytes(bytes), " of ", limit > 0 ? FormatBytes(limit) : "no limit");
    };
    return ToString(
        {{"client", SEINE_VERSION},
         {"server", info->version()},
         {"backend", absl::StrCat(info->backend(), " (", info->simd_target(), "), ", info->num_threads(), " threads")},
         {"memory", held(info->memory_bytes(), info->memory_limit_bytes())},
         {"device memory", held(info->device_memory_bytes(), info->device_memory_limit_bytes())},
         {"holds", absl::StrCat(info->num_indexes(), " indexes, ", info->num_sequences(), " sequences")},
         {"uptime", absl::StrCat(info->uptime_seconds(), " s")},
         {"queue", absl::StrCat(info->queue_capacity())},
         {"message limit", FormatBytes(info->max_message_bytes())},
         {"profiles", info->profiles().empty() ? "none" : absl::StrJoin(info->profiles(), ", ")},
         {"passed over", DescribePassedOver(*info)}});
  });
  return absl::OkStatus();
}

// What the transform was made for.
std::string Balanced(const client::HeadInfo& head) {
  if (head.profile.empty()) return "no";
  std::string text = absl::StrCat("by ", head.profile, ", ", head.coarse_bits, " + ",
                                  head.total_bits - head.coarse_bits, " bits a coordinate, ");
  if (!head.horizon) return text + "RoPE not stated";
  if (!head.position) return text + "nothing encoded";
  return absl::StrCat(text, "for queries at [", *head.position, ", ", *head.position + *head.horizon, "]");
}

// What the transform's query moments are, and whether those that ask are such.
std::string Fit(const client::HeadInfo& head) {
  if (head.query_moments.empty()) return "-";
  const std::string made_for = head.query_moments == "live" ? "learnt from those asked" : "as in the profile";
  if (!head.predicted_loss) return made_for + ", too few asked yet to compare";
  return absl::StrCat(made_for, ", predicted loss ", FormatDouble(*head.predicted_loss, 2));
}

absl::Status DescribeHead(const Session& session, const client::Sequence& sequence, int layer, int kv_head) {
  const absl::StatusOr<client::HeadInfo> head = session.client->DescribeHead(sequence, layer, kv_head);
  if (!head.ok()) return head.status();
  const Json json = {{"index", sequence.index},
                     {"sequence", sequence.id},
                     {"layer", layer},
                     {"kv_head", kv_head},
                     {"num_tokens", head->num_tokens},
                     {"num_retained", head->num_retained},
                     {"zone_begin", head->zone_begin},
                     {"zone_end", head->zone_end},
                     {"num_segments", head->num_segments},
                     {"code_bytes", head->code_bytes},
                     {"store_bytes", head->store_bytes},
                     {"bytes_per_key", head->bytes_per_key},
                     {"codec", head->codec},
                     {"coarse", head->coarse},
                     {"centre", head->centre},
                     {"coarse_bytes", head->coarse_bytes},
                     {"fine_bytes", head->fine_bytes},
                     {"profile", head->profile},
                     {"position", head->position ? Json(*head->position) : Json()},
                     {"horizon", head->horizon ? Json(*head->horizon) : Json()},
                     {"coarse_bits", head->coarse_bits},
                     {"total_bits", head->total_bits},
                     {"query_moments", head->query_moments},
                     {"predicted_loss", head->predicted_loss ? Json(*head->predicted_loss) : Json()},
                     {"lambda", head->lambda}};
  session.Print(json, [&] {
    return ToString({{"tokens", absl::StrCat(head->num_tokens)},
                     {"retained", absl::StrCat(head->num_retained)},
                     {"zone", absl::StrCat("[", head->zone_begin, ", ", head->zone_end, ")")},
                     {"segments", absl::StrCat(head->num_segments)},
                     {"codes", FormatBytes(head->code_bytes)},
                     {"store", FormatBytes(head->store_bytes)},
                     {"bytes a key", absl::StrCat(FormatDouble(head->bytes_per_key, 1), " (", head->coarse_bytes,
                                                  " scanned, ", head->fine_bytes, " for candidates)")},
                     {"codec", absl::StrCat(head->codec, ", coarse ", head->coarse, ", centre ", head->centre)},
                     {"balanced", Balanced(*head)},
                     {"queries", Fit(*head)}});
  });
  return absl::OkStatus();
}

}  // namespace

void AddSequenceArguments(CLI::App* command, client::Sequence* sequence) {
  command->add_option("INDEX", sequence->index, "Name of the index")->required();
  command->add_option("ID", sequence->id, "Id of the sequence")->required();
  command->add_option("--generation", sequence->generation, "Refuse another generation of the id (default: any)");
}

void AddAdminCommands(CLI::App* app, Session* session) {
  CLI::App* health = app->add_subcommand("health", "Ask whether the server serves; exit code 4 if not");
  auto service = std::make_shared<std::string>();
  health->add_option("--service", *service, "One service, e.g. seine.v1.RetrievalService (default: the whole server)");
  health->add_option("--wait", session->wait_seconds, "Seconds to wait until the server serves (default: 0)")
      ->check(Between(0, 1e6));
  health->footer("Example:\n  seine health --wait 10 && echo ready");
  health->callback([=] {
    const absl::Time deadline = absl::Now() + absl::Seconds(session->wait_seconds);
    session->action = [=] { return Health(*session, *service, deadline); };
  });

  CLI::App* version =
      app->add_subcommand("version", "Show the client's and the server's version, and what the server holds");
  version->footer("Example:\n  seine version -o json");
  version->callback([=] { session->action = [=] { return Version(*session); }; });

  CLI::App* head = app->add_subcommand("head", "Look into a head");
  CLI::App* describe = head->add_subcommand("describe", "Show the zone, codes and store of one KV head");
  auto sequence = std::make_shared<client::Sequence>();
  auto place = std::make_shared<std::pair<int, int>>();
  describe->footer("Example:\n  seine head describe llama chat --layer 0 --kv-head 0");
  AddSequenceArguments(describe, sequence.get());
  describe->add_option("--layer", place->first, "Layer, from 0")->required();
  describe->add_option("--kv-head", place->second, "KV head, from 0")->required();
  describe->callback(
      [=] { session->action = [=] { return DescribeHead(*session, *sequence, place->first, place->second); }; });
}

}  // namespace seine::cli
