// seine recall: what an index finds of the exact answers, of the queries that it was asked lately.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/base/names.h"
#include "client/cli/commands.h"
#include "client/cli/flags/selector_flags.h"
#include "client/cli/live/ask.h"

namespace seine::cli {
namespace {

struct RecallArguments {
  std::string index, sequence;
  std::vector<int> layers;
  int samples = 200;
  v1::Selector selector;
};

// A head of the answer; predicted_recall is null where the codec makes no prediction.
Json HeadToJson(const Json& head) {
  return {{"layer", head["layer"]},
          {"kv_head", head["kv_head"]},
          {"sets", Int(head["sets"])},
          {"recall", head["recall"]},
          {"least_recall", head["least_recall"]},
          {"attention_mass", head["attention_mass"]},
          {"predicted_recall", head.value("predicted_recall", Json())}};
}

// The mean of a figure over all sets; null where a head lacks it, or there is none.
Json MeanOf(const Json& heads, const char* name) {
  double sum = 0, sets = 0;
  for (const Json& head : heads) {
    if (head[name].is_null()) return {};
    sum += head[name].get<double>() * head["sets"].get<double>();
    sets += head["sets"].get<double>();
  }
  return sets > 0 ? Json(sum / sets) : Json();
}

Json ToJson(const RecallArguments& arguments, const Json& answer) {
  Json heads = Json::array();
  for (const Json& head : answer["heads"]) heads.push_back(HeadToJson(head));
  const auto worst = std::min_element(heads.begin(), heads.end(), [](const Json& a, const Json& b) {
    return a["recall"].get<double>() < b["recall"].get<double>();
  });
  return {{"index", arguments.index},
          {"sequence", arguments.sequence.empty() ? Json() : Json(arguments.sequence)},
          {"compared", Int(answer["compared"])},
          {"dropped", Int(answer["dropped"])},
          {"recall", MeanOf(heads, "recall")},
          {"attention_mass", MeanOf(heads, "attention_mass")},
          {"predicted_recall", MeanOf(heads, "predicted_recall")},
          {"worst", worst == heads.end() ? Json() : *worst},
          {"heads", heads}};
}

std::string Share(const Json& value) { return value.is_null() ? "-" : FormatDouble(value.get<double>(), 4); }

std::string ToText(const Json& json) {
  Table table({"layer", "KV head", "sets", "recall", "least", "attention mass", "predicted recall"});
  for (const Json& head : json["heads"]) {
    table.AddRow({absl::StrCat(head["layer"].get<int>()), absl::StrCat(head["kv_head"].get<int>()),
                  absl::StrCat(head["sets"].get<int64_t>()), Share(head["recall"]), Share(head["least_recall"]),
                  Share(head["attention_mass"]), Share(head["predicted_recall"])});
  }
  std::string text = absl::StrCat(table.ToString(), "\n", json["compared"].get<int64_t>(), " items compared");
  if (const auto dropped = json["dropped"].get<int64_t>(); dropped > 0) {
    absl::StrAppend(&text, ", ", dropped, " dropped, for they changed meanwhile");
  }
  absl::StrAppend(&text, ": recall ", Share(json["recall"]), ", attention mass ", Share(json["attention_mass"]));
  if (!json["predicted_recall"].is_null()) {
    absl::StrAppend(&text, ", predicted recall ", Share(json["predicted_recall"]));
  }
  if (const Json& worst = json["worst"]; !worst.is_null()) {
    absl::StrAppend(&text, "\nworst: layer ", worst["layer"].get<int>(), ", KV head ", worst["kv_head"].get<int>(),
                    ", recall ", Share(worst["recall"]));
  }
  return text + "\n";
}

absl::Status Recall(const Session& session, const RecallArguments& arguments) {
  const Json request = {{"index", arguments.index},
                        {"sequence", arguments.sequence},
                        {"layers", arguments.layers},
                        {"samples", arguments.samples},
                        {"selector", GivenFields(arguments.selector)}};
  const absl::StatusOr<Json> answer = Ask(session.client.get(), "CompareExact", request);
  if (!answer.ok()) return answer.status();
  const Json json = ToJson(arguments, *answer);
  session.Print(json, [&] { return ToText(json); });
  return absl::OkStatus();
}

}  // namespace

void AddRecallCommand(CLI::App* app, Session* session) {
  CLI::App* recall = app->add_subcommand("recall", "Compare an index's answers with exact ones, by layer and KV head");
  auto arguments = std::make_shared<RecallArguments>();
  recall->add_option("INDEX", arguments->index, "Name of the index")->required();
  recall->add_option("ID", arguments->sequence, "Id of a sequence (default: all of the index's)");
  recall->add_option("--samples", arguments->samples, "Items that are compared at most (default: 200)")
      ->check(Between(1, 10'000));
  recall->add_option("--layer", arguments->layers, "A layer, from 0; may be given again (default: all)");
  AddSelectorFlags({recall, "--", kSelection}, &arguments->selector, {"with_scores", "exact"});
  recall->footer(
      "The queries are a sample of what each layer of a sequence was asked: the first 128 steps, then one in eight in "
      "place of the oldest. They are asked again of all that is held now, and answered exactly besides. Predicted "
      "recall is what the index's profile promises; another model's profile promises more than is found.\n"
      "Examples:\n"
      "  seine recall llama\n"
      "  seine recall llama chat --samples 1000 --layer 3 --scope q_head -o json");
  recall->callback([=] { session->action = [=] { return Recall(*session, *arguments); }; });
}

}  // namespace seine::cli
