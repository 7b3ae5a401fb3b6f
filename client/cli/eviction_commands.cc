// seine evict and diagnose.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/cli/base/exit_code.h"
#include "client/cli/commands.h"
#include "client/cli/flags/eviction_flags.h"
#include "client/settings.h"
#include "profile/filters.h"
#include "profile/io/tensor_file.h"
#include "profile/scorer_list.h"

namespace seine::cli {
namespace {

struct EvictionArguments {
  client::EvictRequest evict;
  client::DiagnoseRequest diagnose;
  std::string budget = "25%", path, tensor, filters, projection, projection_tensor;
  std::optional<float> softmax_scale;
  std::vector<std::string> scorers = {"keydiff", "manifoldkv", "knorm"};
};

// "25%": the share kept; else tokens a head.
absl::Status ParseBudget(const std::string& text, v1::Budget* budget) {
  absl::string_view number = text;
  double share = 0;
  int64_t tokens = 0;
  if (absl::ConsumeSuffix(&number, "%")) {
    if (!absl::SimpleAtod(number, &share) || !(share > 0 && share < 100)) {
      return UsageError(absl::StrCat("--budget: ", text, " is no share between 0% and 100%"));
    }
    budget->set_ratio(1 - share / 100);
    return absl::OkStatus();
  }
  if (!absl::SimpleAtoi(number, &tokens) || tokens < 1) {
    return UsageError(absl::StrCat("--budget: ", text, " is neither a number of tokens nor a share such as 25%"));
  }
  budget->set_tokens(tokens);
  return absl::OkStatus();
}

// What the tensors of a call point to.
struct ScorerInputsStorage {
  std::vector<float> queries, filters, projection;
};

// Queries of the last positions out of a file.
absl::Status ReadQueries(const EvictionArguments& arguments, std::vector<float>* storage, client::ScorerInputs* given) {
  if (arguments.path.empty()) {
    return arguments.tensor.empty() ? absl::OkStatus() : UsageError("--tensor: needs --queries");
  }
  const absl::StatusOr<TensorFile> file = TensorFile::Read(arguments.path);
  if (!file.ok()) return FileError(file.status());
  const absl::StatusOr<TensorFile::Tensor> tensor = file->Get(arguments.tensor);
  if (!tensor.ok()) return FileError(tensor.status());
  if (tensor->shape.size() != 3) {
    return FileError(absl::InvalidArgumentError(
        absl::StrCat(arguments.path, ": ", arguments.tensor, " is not [positions, query heads, head_dim]")));
  }
  absl::StatusOr<std::vector<float>> values = TensorFile::ToFloat32(*tensor);
  if (!values.ok()) return FileError(values.status());
  *storage = *std::move(values);
  given->queries = {storage->data(), client::DType::kFloat32, {tensor->shape[0], tensor->shape[1], tensor->shape[2]}};
  return absl::OkStatus();
}

// A layer's directions out of a file of the whole model's, which must be of the index's geometry.
absl::Status ReadFiltersOfLayer(const Session& session, const EvictionArguments& arguments, const std::string& index,
                                int layer, std::vector<float>* storage, client::ScorerInputs* given) {
  if (arguments.filters.empty()) return absl::OkStatus();
  const absl::StatusOr<v1::IndexInfo> info = session.client->GetIndex(index);
  if (!info.ok()) return info.status();
  const v1::Geometry& g = info->spec().geometry();
  if (layer < 0 || layer >= g.num_layers()) {
    return UsageError(absl::StrCat("--layer: ", layer, " is none of the ", g.num_layers(), " of ", index));
  }
  auto filters = ReadFilters(arguments.filters, /*negated=*/true, g.num_layers(), g.num_kv_heads(), g.head_dim());
  if (!filters.ok()) return FileError(filters.status());
  *storage = std::move((*filters)[layer]);
  given->filters = {storage->data(), client::DType::kFloat32, {g.num_kv_heads(), g.head_dim()}};
  return absl::OkStatus();
}

// A layer's output projection, o_proj.weight [hidden_size, query heads * head_dim] as models store it.
absl::Status ReadProjection(const Session& session, const EvictionArguments& arguments, const std::string& index,
                            std::vector<float>* storage, client::ScorerInputs* given) {
  if (arguments.projection.empty()) {
    return arguments.projection_tensor.empty() ? absl::OkStatus()
                                               : UsageError("--projection-tensor: needs --output-projection");
  }
  if (arguments.evict.scorer.value_weight() != v1::VALUE_WEIGHT_PROJECTED) {
    return UsageError("--output-projection: only --value-weight projected takes it");
  }
  const absl::StatusOr<v1::IndexInfo> info = session.client->GetIndex(index);
  if (!info.ok()) return info.status();
  const v1::Geometry& g = info->spec().geometry();
  const absl::StatusOr<TensorFile> file = TensorFile::Read(arguments.projection);
  if (!file.ok()) return FileError(file.status());
  const absl::StatusOr<TensorFile::Tensor> tensor = file->Get(arguments.projection_tensor);
  if (!tensor.ok()) return FileError(tensor.status());
  if (tensor->shape.size() != 2 || tensor->shape[1] != int64_t{g.num_q_heads()} * g.head_dim()) {
    return FileError(absl::InvalidArgumentError(absl::StrCat(arguments.projection, ": ", arguments.projection_tensor,
                                                             " is not [hidden_size, ", g.num_q_heads(),
                                                             " query heads * ", g.head_dim(), "]")));
  }
  absl::StatusOr<std::vector<float>> values = TensorFile::ToFloat32(*tensor);
  if (!values.ok()) return FileError(values.status());
  *storage = *std::move(values);
  given->output_projection = {
      storage->data(), client::DType::kFloat32, {tensor->shape[0], g.num_q_heads(), g.head_dim()}};
  return absl::OkStatus();
}

// What comes with a call on a layer that is scored by `scorers`.
absl::Status ReadScorerInputs(const Session& session, const EvictionArguments& arguments, const std::string& index,
                              int layer, const std::vector<std::string>& scorers, ScorerInputsStorage* storage,
                              client::ScorerInputs* given) {
  const bool taken = std::find(scorers.begin(), scorers.end(), "qfilters") != scorers.end();
  if (!arguments.filters.empty() && !taken) return UsageError("--filters: only the scorer qfilters takes them");
  given->softmax_scale = arguments.softmax_scale;
  if (absl::Status s = ReadQueries(arguments, &storage->queries, given); !s.ok()) return s;
  if (absl::Status s = ReadProjection(session, arguments, index, &storage->projection, given); !s.ok()) return s;
  return ReadFiltersOfLayer(session, arguments, index, layer, &storage->filters, given);
}

absl::Status Evict(const Session& session, EvictionArguments arguments) {
  client::EvictRequest& request = arguments.evict;
  ScorerInputsStorage storage;
  if (absl::Status s = ParseBudget(arguments.budget, &request.budget); !s.ok()) return s;
  absl::Status given = ReadScorerInputs(session, arguments, request.sequence.index, request.layer,
                                        {request.scorer.name()}, &storage, &request.given);
  if (!given.ok()) return given;
  const absl::StatusOr<client::Evicted> evicted = session.client->Evict(request);
  if (!evicted.ok()) return evicted.status();
  const Json json = {{"index", request.sequence.index},
                     {"sequence", request.sequence.id},
                     {"layer", request.layer},
                     {"dry_run", request.dry_run},
                     {"tokens_evicted", evicted->tokens_evicted},
                     {"bytes_freed", evicted->bytes_freed},
                     {"kept", evicted->kept}};
  session.Print(json, [&] {
    std::string text =
        absl::StrCat(request.dry_run ? "would evict " : "evicted ", evicted->tokens_evicted, " tokens, heads together",
                     request.dry_run ? "" : absl::StrCat("; freed ", FormatBytes(evicted->bytes_freed)), "\n");
    for (size_t h = 0; h < evicted->kept.size(); ++h) {
      absl::StrAppend(&text, "KV head ", h, " keeps ", evicted->kept[h].size(), ": ", FormatRuns(evicted->kept[h]),
                      "\n");
    }
    return text;
  });
  return absl::OkStatus();
}

Json ToJson(const client::HeadDiagnosis& head, size_t scorers) {
  const auto square = [scorers](const std::vector<float>& values) {
    Json rows = Json::array();
    for (size_t i = 0; i + scorers <= values.size() && scorers > 0; i += scorers) {
      rows.push_back(std::vector<float>(values.begin() + static_cast<int64_t>(i),
                                        values.begin() + static_cast<int64_t>(i + scorers)));
    }
    return rows;
  };
  return {{"tokens", head.tokens},
          {"two_nn", head.two_nn},
          {"mle", head.mle},
          {"pca95", head.pca95},
          {"cosine_mean", head.cosine_mean},
          {"cosine_std", head.cosine_std},
          {"norm_mean", head.norm_mean},
          {"norm_std", head.norm_std},
          {"dilution", head.dilution},
          {"overlap", square(head.overlap)},
          {"correlation", square(head.correlation)},
          {"attention_correlation", head.attention_correlation},
          {"attention_tokens", head.attention_tokens}};
}

// A figure a head, then for each pair of scorers the mean over heads.
std::string ToText(const std::vector<client::HeadDiagnosis>& heads, const std::vector<std::string>& scorers) {
  Table table({"KV HEAD", "TOKENS", "TWO-NN", "MLE", "PCA 95%", "COSINE", "+-", "NORM", "+-", "DILUTION"});
  for (size_t h = 0; h < heads.size(); ++h) {
    const client::HeadDiagnosis& d = heads[h];
    table.AddRow({absl::StrCat(h), absl::StrCat(d.tokens), FormatDouble(d.two_nn, 1), FormatDouble(d.mle, 1),
                  absl::StrCat(d.pca95), FormatDouble(d.cosine_mean, 3), FormatDouble(d.cosine_std, 3),
                  FormatDouble(d.norm_mean, 2), FormatDouble(d.norm_std, 2), FormatDouble(d.dilution, 2)});
  }
  const size_t n = scorers.size();
  const auto mean = [&](const std::vector<float> client::HeadDiagnosis::*values, size_t at) {
    double sum = 0;
    for (const auto& head : heads) sum += at < (head.*values).size() ? (head.*values)[at] : 0;
    return FormatDouble(sum / static_cast<double>(heads.size()), 3);
  };
  Table pairs({"SCORERS", "KEPT IN COMMON", "RANK CORRELATION"});
  for (size_t a = 0; a < n; ++a) {
    for (size_t b = a + 1; b < n; ++b) {
      pairs.AddRow({absl::StrCat(scorers[a], ", ", scorers[b]), mean(&client::HeadDiagnosis::overlap, a * n + b),
                    mean(&client::HeadDiagnosis::correlation, a * n + b)});
    }
  }
  // A head is observed where queries saw its tokens.
  const auto observed = [](const client::HeadDiagnosis& head) { return !head.attention_correlation.empty(); };
  const auto heads_seen = std::count_if(heads.begin(), heads.end(), observed);
  Table attention({"SCORER", "RANK CORRELATION WITH ATTENTION"});
  for (size_t a = 0; a < n && heads_seen > 0; ++a) {
    double sum = 0;
    for (const auto& head : heads) sum += observed(head) ? head.attention_correlation.at(a) : 0;
    attention.AddRow({scorers[a], FormatDouble(sum / static_cast<double>(heads_seen), 3)});
  }
  std::string seen;
  for (const auto& head : heads) absl::StrAppend(&seen, seen.empty() ? "" : ", ", head.attention_tokens);
  return absl::StrCat(
      table.ToString(), n > 1 ? "\n" + pairs.ToString() : "",
      heads_seen > 0 ? "\n" + attention.ToString() + "Over the tokens that the queries saw, by KV head: " + seen + ".\n"
                     : "\nNo correlation with attention: queries saw fewer than two tokens (--queries).\n");
}

absl::Status Diagnose(const Session& session, EvictionArguments arguments) {
  client::DiagnoseRequest& request = arguments.diagnose;
  ScorerInputsStorage storage;
  if (absl::Status s = ParseBudget(arguments.budget, &request.budget); !s.ok()) return s;
  absl::Status given = ReadScorerInputs(session, arguments, request.sequence.index, request.layer, arguments.scorers,
                                        &storage, &request.given);
  if (!given.ok()) return given;
  for (const std::string& name : arguments.scorers) request.scorers.emplace_back().set_name(name);
  const absl::StatusOr<std::vector<client::HeadDiagnosis>> heads = session.client->Diagnose(request);
  if (!heads.ok()) return heads.status();
  Json json = {{"index", request.sequence.index},
               {"sequence", request.sequence.id},
               {"layer", request.layer},
               {"scorers", arguments.scorers},
               {"heads", Json::array()}};
  for (const client::HeadDiagnosis& head : *heads) json["heads"].push_back(ToJson(head, arguments.scorers.size()));
  session.Print(json, [&] { return ToText(*heads, arguments.scorers); });
  return absl::OkStatus();
}

void AddGivenOptions(CLI::App* command, EvictionArguments* arguments) {
  command->add_option("--budget", arguments->budget, "Tokens a head, or the share kept: 2048 or 25% (default: 25%)");
  command->add_option("--queries", arguments->path,
                      "File with queries of the last positions, for scorers that need them");
  command->add_option("--tensor", arguments->tensor, "Of that file: [positions, query heads, head_dim]");
  command->add_option("--filters", arguments->filters,
                      "qfilters: a model's directions as published, safetensors with q_filters [layers, KV heads, "
                      "head_dim], negated (default: the queries', else the profile's)");
  command->add_option("--softmax-scale", arguments->softmax_scale,
                      "Of the logits where attention is computed (default: the index's)");
}

}  // namespace

void AddEvictionCommands(CLI::App* app, Session* session) {
  auto arguments = std::make_shared<EvictionArguments>();  // one of them runs, so they share
  client::EvictRequest& request = arguments->evict;
  CLI::App* evict = app->add_subcommand("evict", "Cut a layer back to a budget, or say what would be kept");
  evict->footer(
      "Example:\n  seine evict llama chat --layer 0 --scorer keydiff --budget 25% --sinks 4 --recent 64 --dry-run");
  AddSequenceArguments(evict, &request.sequence);
  evict->add_option("--layer", request.layer, "Layer")->required();
  evict->add_option_function<std::string>(
      "--scorer", [arguments](const std::string& name) { arguments->evict.scorer.set_name(name); },
      ScorerChoice() + " (default: keydiff)");
  AddGivenOptions(evict, arguments.get());
  AddFieldFlags({evict}, *v1::Budget::descriptor(), [arguments] { return &arguments->evict.budget; });
  AddFieldFlags({evict}, *v1::Keep::descriptor(), [arguments] { return &arguments->evict.keep; });
  evict
      ->add_option_function<std::vector<int32_t>>(
          "--positions",
          [arguments](const std::vector<int32_t>& positions) {
            client::SetPositions(positions, &arguments->evict.keep);
          },
          "Further positions, always kept: 5,17,230")
      ->delimiter(',');
  evict->add_option("--output-projection", arguments->projection,
                    "value_weight projected: safetensors file with the layer's o_proj.weight");
  evict->add_option("--projection-tensor", arguments->projection_tensor,
                    "Of that file: [hidden_size, query heads * head_dim]");
  evict->add_flag("--dry-run", request.dry_run, "Change nothing");
  AddScorerFlags({evict, "--", "Options of scorers"}, [arguments] { return &arguments->evict.scorer; });
  evict->callback([=] { session->action = [=] { return Evict(*session, *arguments); }; });

  CLI::App* diagnose = app->add_subcommand("diagnose", "What a layer's keys look like to eviction");
  diagnose->footer("Example:\n  seine diagnose llama chat --layer 0 --scorers keydiff,knorm");
  AddSequenceArguments(diagnose, &arguments->diagnose.sequence);
  diagnose->add_option("--layer", arguments->diagnose.layer, "Layer")->required();
  diagnose->add_option("--scorers", arguments->scorers, "Compared with each other (default: keydiff,manifoldkv,knorm)")
      ->delimiter(',');
  diagnose->add_option("--window", arguments->diagnose.window, "Of the dilution, tokens (default: 4096)");
  AddGivenOptions(diagnose, arguments.get());
  diagnose->callback([=] { session->action = [=] { return Diagnose(*session, *arguments); }; });
}

}  // namespace seine::cli
