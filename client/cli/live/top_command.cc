// seine top: what a server's indexes do, refreshed.
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/base/exit_code.h"
#include "client/cli/base/names.h"
#include "client/cli/commands.h"
#include "client/cli/live/ask.h"
#include "client/cli/live/screen.h"

namespace seine::cli {
namespace {

constexpr int64_t kMicroseconds = 1'000'000;

struct TopArguments {
  bool once = false;
  double interval = 2;
};

// What GetMetrics says at a moment.
struct Reading {
  Json answer;
  absl::Time at;
};

absl::StatusOr<Reading> Read(client::Client* client) {
  absl::StatusOr<Json> answer = Ask(client, "GetMetrics", Json::object());
  if (!answer.ok()) return answer.status();
  return Reading{*std::move(answer), absl::Now()};
}

std::vector<int64_t> BucketsOf(const Json& index) {
  std::vector<int64_t> buckets;
  for (const Json& count : index["step_buckets"]) buckets.push_back(Int(count));
  return buckets;
}

// What an index did between two readings. An index that was made in between, or made anew, began with nothing.
struct IndexView {
  const Json *now = nullptr, *before = nullptr;  // `before` is nullptr where there is none that counts
  int64_t steps = 0, appended = 0;
  std::vector<int64_t> buckets;  // of the steps
};

IndexView ViewOf(const Json& now, const Json* before) {
  IndexView view{&now, nullptr, 0, Int(now["tokens_appended"]), BucketsOf(now)};
  if (before != nullptr) {
    std::vector<int64_t> fewer = view.buckets;
    const std::vector<int64_t> old = BucketsOf(*before);
    for (size_t b = 0; b < std::min(old.size(), fewer.size()); ++b) fewer[b] -= old[b];
    const int64_t appended = view.appended - Int((*before)["tokens_appended"]);
    if (appended >= 0 && std::all_of(fewer.begin(), fewer.end(), [](int64_t n) { return n >= 0; })) {
      view.buckets = std::move(fewer);
      view.appended = appended;
      view.before = before;
    }
  }
  for (const int64_t count : view.buckets) view.steps += count;
  return view;
}

// Seconds that a share of the steps did not take, by straight lines within buckets; absent where there were none.
std::optional<double> Quantile(const IndexView& view, const Json& bounds, double share) {
  const double wanted = share * static_cast<double>(view.steps);
  double before = 0;
  for (size_t b = 0; b < view.buckets.size(); ++b) {
    const auto here = static_cast<double>(view.buckets[b]);
    if (here > 0 && before + here >= wanted) {
      const double low = b == 0 ? 0 : bounds.at(b - 1).get<double>();
      return b < bounds.size() ? low + (bounds[b].get<double>() - low) * (wanted - before) / here : low;
    }
    before += here;
  }
  return std::nullopt;
}

// The mean of a figure of live quality, by its sum and its number of sets: of the interval, or where nothing was
// compared in it, since the server began. Null where nothing was at all.
Json Sampled(const IndexView& view, const char* sets, const char* sum) {
  const Json &now = *view.now, *before = view.before;
  int64_t count = Int(now[sets]);
  double total = now[sum].get<double>();
  if (before != nullptr && Int((*before)[sets]) < count) {
    count -= Int((*before)[sets]);
    total -= (*before)[sum].get<double>();
  }
  return count > 0 ? Json(total / static_cast<double>(count)) : Json();
}

// The busiest first.
std::vector<IndexView> ViewsOf(const Reading& before, const Reading& now) {
  std::map<std::string, const Json*> old;
  for (const Json& index : before.answer["indexes"]) old[index["name"].get<std::string>()] = &index;
  std::vector<IndexView> views;
  for (const Json& index : now.answer["indexes"]) {
    const auto found = old.find(index["name"].get<std::string>());
    views.push_back(ViewOf(index, found == old.end() ? nullptr : found->second));
  }
  std::stable_sort(views.begin(), views.end(), [](const auto& a, const auto& b) { return a.steps > b.steps; });
  return views;
}

Json ToJson(const Reading& before, const Reading& now) {
  const double seconds = absl::ToDoubleSeconds(now.at - before.at);
  const auto rate = [&](const char* name) {
    return static_cast<double>(Int(now.answer[name]) - Int(before.answer[name])) / seconds;
  };
  Json json = {{"counting", now.answer["counting"]},
               {"seconds", seconds},
               {"uptime_seconds", now.answer["uptime_seconds"]},
               {"calls_per_s", rate("calls")},
               {"errors_per_s", rate("errors")},
               {"executor_queue", now.answer["executor_queue"]},
               {"executor_refused", Int(now.answer["executor_refused"])},
               {"indexes", Json::array()}};
  const Json& bounds = now.answer["bucket_seconds"];
  for (const IndexView& view : ViewsOf(before, now)) {
    const Json& index = *view.now;
    const auto time = [&](double share) {
      const std::optional<double> at = Quantile(view, bounds, share);
      return at ? Json(*at * kMicroseconds) : Json();
    };
    json["indexes"].push_back(
        {{"name", index["name"]},
         {"steps_per_s", static_cast<double>(view.steps) / seconds},
         {"step_p50_us", time(.5)},
         {"step_p99_us", time(.99)},
         {"sampled_recall", Sampled(view, "quality_sets", "quality_recall_sum")},
         {"sampled_attention_mass", Sampled(view, "quality_sets", "quality_attention_mass_sum")},
         {"predicted_recall", Sampled(view, "quality_predicted_sets", "quality_predicted_recall_sum")},
         {"quality_samples", Int(index["quality_samples"])},
         {"tokens_appended_per_s", static_cast<double>(view.appended) / seconds},
         {"num_sequences", Int(index["num_sequences"])},
         {"codes_on_device", index["codes_on_device"]},
         {"code_bytes", Int(index["code_bytes"])},
         {"store_bytes", Int(index["store_bytes"])},
         {"subspace_bytes", Int(index["subspace_bytes"])},
         {"query_bytes", Int(index["query_bytes"])},
         {"other_bytes", Int(index["other_bytes"])}});
  }
  return json;
}

// `rows`: indexes that are shown.
std::string ToText(const Json& json, size_t rows) {
  std::string text = absl::StrCat("up ", FormatDouble(json["uptime_seconds"].get<double>(), 0), " s, ",
                                  FormatDouble(json["calls_per_s"].get<double>(), 1), " calls/s, ",
                                  FormatDouble(json["errors_per_s"].get<double>(), 1), " errors/s, queue ",
                                  Int(json["executor_queue"]), ", refused ", Int(json["executor_refused"]), "\n");
  if (!json["counting"].get<bool>()) absl::StrAppend(&text, "the server does not count steps (metrics.count is off)\n");
  Table table({"index", "steps/s", "p50 us", "p99 us", "recall", "tokens/s", "sequences", "codes", "store", "subspace",
               "queries", "other"});
  const Json& indexes = json["indexes"];
  for (size_t i = 0; i < std::min(rows, indexes.size()); ++i) {
    const Json& index = indexes[i];
    const auto number = [&](const char* name) {
      return index[name].is_null() ? "-" : FormatDouble(index[name].get<double>(), 1);
    };
    const Json& sampled = index["sampled_recall"];
    const std::string recall = sampled.is_null() ? "-" : FormatDouble(sampled.get<double>(), 3);
    const auto bytes = [&](const char* name) { return FormatBytes(Int(index[name])); };
    table.AddRow({index["name"].get<std::string>(), number("steps_per_s"), number("step_p50_us"), number("step_p99_us"),
                  recall, number("tokens_appended_per_s"), absl::StrCat(Int(index["num_sequences"])),
                  bytes("code_bytes"), bytes("store_bytes"), bytes("subspace_bytes"), bytes("query_bytes"),
                  bytes("other_bytes")});
  }
  absl::StrAppend(&text, "\n", table.ToString());
  if (rows < indexes.size()) absl::StrAppend(&text, "and ", indexes.size() - rows, " more\n");
  return text;
}

absl::Status Top(const Session& session, const TopArguments& arguments) {
  const absl::Duration interval = absl::Seconds(arguments.interval);
  absl::StatusOr<Reading> before = Read(session.client.get());
  if (!before.ok()) return before.status();
  if (arguments.once) {
    absl::SleepFor(interval);
    const absl::StatusOr<Reading> now = Read(session.client.get());
    if (!now.ok()) return now.status();
    const Json json = ToJson(*before, *now);
    session.Print(json, [&] { return ToText(json, SIZE_MAX); });
    return absl::OkStatus();
  }
  Screen screen;
  screen.Show("reading ...\n");
  while (!Screen::Leaves(interval)) {
    absl::StatusOr<Reading> now = Read(session.client.get());
    if (!now.ok()) return now.status();
    screen.Show(ToText(ToJson(*before, *now), Screen::Rows()));
    before = std::move(now);
  }
  return absl::OkStatus();
}

}  // namespace

void AddTopCommand(CLI::App* app, Session* session) {
  CLI::App* top = app->add_subcommand("top", "Show what every index does, refreshed; q leaves");
  auto arguments = std::make_shared<TopArguments>();
  top->add_flag("--once", arguments->once, "Print one interval's figures and end");
  top->add_option("--interval", arguments->interval, "Seconds between two looks (default: 2)")
      ->check(Between(0.1, 3600));
  top->footer(
      "Examples:\n"
      "  seine top\n"
      "  seine top --once --interval 10 -o json\n"
      "A step is a layer's Decode step. Percentiles are within some 12 %. Recall is what was compared with exact "
      "answers (seined's quality.sample): in the interval, or before it where nothing was.");
  top->callback([=] {
    session->draws = !arguments->once;
    session->action = [=]() -> absl::Status {
      if (!arguments->once && session->json) return UsageError("top: -o json needs --once");
      if (!arguments->once && (isatty(STDIN_FILENO) == 0 || isatty(STDOUT_FILENO) == 0)) {
        return UsageError("top: there is no terminal; give --once");
      }
      return Top(*session, *arguments);
    };
  });
}

}  // namespace seine::cli
