// seine query and append: data from files, by hand.
#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/base/exit_code.h"
#include "client/cli/base/names.h"
#include "client/cli/base/retained_output.h"
#include "client/cli/commands.h"
#include "client/cli/flags/selector_flags.h"
#include "client/cli/input/vector_file.h"
#include "profile/io/tensor_file.h"

namespace seine::cli {
namespace {

struct QueryArguments {
  client::Sequence sequence;
  int layer = 0;
  VectorSource vector;
  v1::Selector selector;
};

struct AppendArguments {
  client::Sequence sequence;
  int layer = 0;
  std::string path, keys, values, queries;
  std::optional<int64_t> position;
  int64_t first = 0;
  std::optional<int64_t> count;
  client::RetainedReport report = client::RetainedReport::kNone;
};

// Sets with their heads. A single vector belongs to one query head, and only that head's set means anything.
Json SetsToJson(const client::Answer& answer, std::optional<int> only_head) {
  Json sets = Json::array();
  for (int i = 0; i < answer.num_sets; ++i) {
    if (only_head && *only_head != i) continue;
    Json set = {{"head", i}, {"positions", answer.set(i)}};
    if (!answer.masses.empty()) set["mass"] = answer.masses[i];
    if (!answer.scores.empty()) set["scores"] = answer.set_scores(i);
    sets.push_back(std::move(set));
  }
  return sets;
}

std::string SetsToText(const Json& sets) {
  std::string text;
  for (const Json& set : sets) {
    const auto positions = set["positions"].get<std::vector<int32_t>>();
    absl::StrAppend(&text, "head ", set["head"].get<int>(), ", ", positions.size(), " tokens");
    if (set.contains("mass")) absl::StrAppend(&text, " of mass ", FormatDouble(set["mass"].get<float>(), 3));
    absl::StrAppend(&text, ": ", FormatRuns(positions), "\n");
    if (!set.contains("scores")) continue;
    const auto scores = set["scores"].get<std::vector<float>>();
    std::vector<int> order(positions.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return scores[a] > scores[b]; });
    Table table({"  POSITION", "SCORE"});
    for (int i : order) table.AddRow({absl::StrCat(positions[i]), FormatDouble(scores[i], 5)});
    text += table.ToString();
  }
  return text;
}

// A single vector is one query head's.
absl::Status FillSelector(const Queries& queries, v1::Selector* selector) {
  if (!queries.head) return absl::OkStatus();
  if (selector->scope() == v1::SCOPE_PER_KV_HEAD) return UsageError("--scope: a single vector needs the scope q_head");
  selector->set_scope(v1::SCOPE_PER_Q_HEAD);
  return absl::OkStatus();
}

// What a head attends besides its set; of retained tokens, which are no ranges, nothing.
std::string WithTheDense(const client::Answer& answer) {
  const int64_t dense = answer.num_tokens - (answer.zone_end - answer.zone_begin);
  if (!answer.dense_positions.empty() || answer.zone_end <= answer.zone_begin) return "";
  return absl::StrCat("a head attends its set and the ", dense, " tokens outside the zone, of ", answer.num_tokens,
                      "\n");
}

absl::Status Query(const Session& session, const QueryArguments& arguments) {
  const absl::StatusOr<v1::IndexInfo> index = session.client->GetIndex(arguments.sequence.index);
  if (!index.ok()) return index.status();
  const v1::Geometry& geometry = index->spec().geometry();
  const absl::StatusOr<Queries> queries = ReadQueries(arguments.vector, geometry);
  if (!queries.ok()) return queries.status();
  v1::Selector selector = arguments.selector;
  absl::Status filled = FillSelector(*queries, &selector);
  if (!filled.ok()) return filled;

  const client::RetrieveItem item = {
      arguments.sequence,
      arguments.layer,
      {queries->values.data(), client::DType::kFloat32, {geometry.num_q_heads(), geometry.head_dim()}}};
  const absl::StatusOr<client::RetrieveResult> result = session.client->Retrieve({item}, selector);
  if (!result.ok()) return result.status();
  if (result->answers.size() != 1) return absl::InternalError("the server did not answer the one item");
  const client::Answer& answer = result->answers[0];
  if (!answer.status.ok()) return answer.status;

  const Json sets = SetsToJson(answer, queries->head);
  const bool per_q_head = (selector.scope() == v1::SCOPE_UNSPECIFIED ? index->spec().retrieval().scope()
                                                                     : selector.scope()) == v1::SCOPE_PER_Q_HEAD;
  Json json = {{"index", arguments.sequence.index},
               {"sequence", arguments.sequence.id},
               {"layer", arguments.layer},
               {"path", NameOf(kSearchModeNames, answer.path)},
               {"scope", per_q_head ? "q_head" : "kv_head"},
               {"num_tokens", answer.num_tokens},
               {"zone_begin", answer.zone_begin},
               {"zone_end", answer.zone_end},
               {"all_returned", answer.all_returned},
               {"codes_stale", answer.codes_stale},
               {"server_us", result->server_us},
               {"sets", sets}};
  if (selector.has_mass_p()) json["capped"] = answer.capped;
  session.Print(json, [&] {
    return absl::StrCat(
        "path ", NameOf(kSearchModeNames, answer.path), ", ", answer.num_tokens, " tokens, zone [", answer.zone_begin,
        ", ", answer.zone_end, "), sets per ", per_q_head ? "query" : "KV", " head, ", result->server_us, " us\n",
        answer.codes_stale ? "the codes are made for other positions: recall may be lower\n" : "", SetsToText(sets),
        answer.capped ? "--mass-cap ended a set before its mass reached --mass-p\n" : "", WithTheDense(answer));
  });
  return absl::OkStatus();
}

// A tensor [tokens, heads, head_dim] as it lies in the file; `what` it holds, for errors.
absl::StatusOr<client::ConstTensor> OpenTensor(const TensorFile& file, const std::string& name,
                                               absl::string_view what) {
  const absl::StatusOr<TensorFile::Tensor> tensor = file.Get(name);
  if (!tensor.ok()) return FileError(tensor.status());
  const auto bad = [&](const auto&... parts) {
    return FileError(absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor ", name, ": ", parts...)));
  };
  client::ConstTensor out;
  out.data = tensor->data;
  switch (tensor->type) {
    case TensorFile::Type::kF16:
      out.dtype = client::DType::kFloat16;
      break;
    case TensorFile::Type::kBF16:
      out.dtype = client::DType::kBFloat16;
      break;
    case TensorFile::Type::kF32:
      out.dtype = client::DType::kFloat32;
      break;
    default:
      return bad("dtype ", TensorFile::NameOf(tensor->type), "; ", what, " are F16, BF16 or F32");
  }
  const std::vector<int64_t>& shape = tensor->shape;
  if (shape.size() != 3) {
    return bad("has ", shape.size(), " dimensions; ", what, " are [tokens, ",
               what == "queries" ? "num_q_heads" : "num_kv_heads", ", head_dim]");
  }
  out.shape = {shape[0], shape[1], shape[2]};
  return out;
}

// Rows [first, first + count) of a tensor.
client::ConstTensor Rows(const client::ConstTensor& tensor, int64_t first, int64_t count) {
  const int64_t size = tensor.dtype == client::DType::kFloat32 ? 4 : 2;
  client::ConstTensor out = tensor;
  out.data = static_cast<const uint8_t*>(tensor.data) + first * tensor.shape[1] * tensor.shape[2] * size;
  out.shape[0] = count;
  return out;
}

// The tokens asked for of a tensor of keys or values.
absl::StatusOr<client::ConstTensor> Tokens(const TensorFile& file, const std::string& name,
                                           const AppendArguments& arguments) {
  const absl::StatusOr<client::ConstTensor> tensor = OpenTensor(file, name, "keys");
  if (!tensor.ok()) return tensor.status();
  const int64_t tokens = tensor->shape[0];
  const int64_t count = arguments.count.value_or(tokens - arguments.first);
  if (arguments.first < 0 || arguments.first >= tokens) {
    return UsageError(absl::StrCat("--first: ", arguments.first, " is not in [0, ", tokens, ")"));
  }
  if (count < 1 || count > tokens - arguments.first) {
    return UsageError(absl::StrCat("--count: ", count, " is not in [1, ", tokens - arguments.first, "]"));
  }
  return Rows(*tensor, arguments.first, count);
}

// Where a file's queries begin among its `tokens`: traces say so, else they are of the last ones.
absl::StatusOr<int64_t> QueryStart(const TensorFile& file, const client::ConstTensor& queries, int64_t tokens) {
  int64_t start = tokens - queries.shape[0];
  const auto said = file.metadata().find("query_start");
  const bool read = said == file.metadata().end() || absl::SimpleAtoi(said->second, &start);
  if (read && queries.shape[0] > 0 && start >= 0 && start <= tokens - queries.shape[0]) return start;
  return FileError(absl::InvalidArgumentError(
      absl::StrCat(file.path(), ": ", queries.shape[0], " queries do not fit ", tokens, " tokens",
                   said == file.metadata().end() ? "" : absl::StrCat(" from query_start '", said->second, "' on"))));
}

// The queries of the last tokens that are taken of the keys, as many as the file has.
absl::StatusOr<client::ConstTensor> QueriesOf(const TensorFile& file, const AppendArguments& arguments, int64_t taken,
                                              const v1::Geometry& geometry) {
  const absl::StatusOr<client::ConstTensor> queries = OpenTensor(file, arguments.queries, "queries");
  if (!queries.ok()) return queries.status();
  if (queries->shape[1] != geometry.num_q_heads() || queries->shape[2] != geometry.head_dim()) {
    return FileError(absl::InvalidArgumentError(absl::StrCat(
        file.path(), ": tensor ", arguments.queries, ": has the shape [", absl::StrJoin(queries->shape, ", "),
        "]; queries of this index are [tokens, ", geometry.num_q_heads(), ", ", geometry.head_dim(), "]")));
  }
  const absl::StatusOr<TensorFile::Tensor> keys = file.Get(arguments.keys);
  if (!keys.ok()) return FileError(keys.status());
  const absl::StatusOr<int64_t> start = QueryStart(file, *queries, keys->shape[0]);
  if (!start.ok()) return start.status();
  const int64_t last = arguments.first + taken - 1, end = *start + queries->shape[0];
  if (last < *start || last >= end) {
    return UsageError(absl::StrCat("--queries: ", arguments.queries, " holds those of tokens [", *start, ", ", end,
                                   "), and not that of the last token to append, ", last));
  }
  const int64_t first = std::max(arguments.first, *start);
  return Rows(*queries, first - *start, last + 1 - first);
}

// What the arguments name of the file. `item` points into it.
absl::Status FillItem(const Session& session, const AppendArguments& arguments, const TensorFile& file,
                      client::AppendItem* item) {
  absl::StatusOr<client::ConstTensor> keys = Tokens(file, arguments.keys, arguments);
  if (!keys.ok()) return keys.status();
  item->keys = *std::move(keys);
  if (!arguments.values.empty()) {
    absl::StatusOr<client::ConstTensor> values = Tokens(file, arguments.values, arguments);
    if (!values.ok()) return values.status();
    item->values = *std::move(values);
  }
  if (arguments.queries.empty()) return absl::OkStatus();
  const absl::StatusOr<v1::IndexInfo> index = session.client->GetIndex(arguments.sequence.index);
  if (!index.ok()) return index.status();
  absl::StatusOr<client::ConstTensor> queries =
      QueriesOf(file, arguments, item->keys.shape[0], index->spec().geometry());
  if (!queries.ok()) return queries.status();
  item->queries = *std::move(queries);
  return absl::OkStatus();
}

absl::Status Append(const Session& session, const AppendArguments& arguments) {
  const absl::StatusOr<TensorFile> file = TensorFile::Open(arguments.path);
  if (!file.ok()) return FileError(file.status());
  client::AppendItem item = {arguments.sequence, arguments.layer, 0, {}, {}};
  item.report = arguments.report;
  if (absl::Status status = FillItem(session, arguments, *file, &item); !status.ok()) return status;
  if (arguments.position) {
    item.position = *arguments.position;
  } else {
    const absl::StatusOr<client::SequenceInfo> info = session.client->GetSequence(arguments.sequence);
    if (!info.ok()) return info.status();
    const auto& layers = info->layer_tokens;
    if (arguments.layer >= 0 && arguments.layer < static_cast<int>(layers.size()))
      item.position = layers[arguments.layer];
  }

  const int64_t asked = arguments.queries.empty() ? 0 : item.queries.shape[0];
  absl::StatusOr<client::AppendTotals> totals;
  {
    ProgressBar bar(absl::StrCat("append ", arguments.keys), item.keys.shape[0]);
    totals = session.client->AppendStream({item}, [&](int64_t tokens) { bar.Update(tokens); });
  }
  if (!totals.ok()) return totals.status();
  const Json json = {{"index", arguments.sequence.index},
                     {"sequence", arguments.sequence.id},
                     {"layer", arguments.layer},
                     {"position", item.position},
                     {"tokens", totals->tokens},
                     {"pieces", totals->pieces},
                     {"queries", asked},
                     {"retained", RetainedJson(totals->retained)}};
  session.Print(json, [&] {
    return absl::StrCat("layer ", arguments.layer, ": ", totals->tokens, " tokens at position ", item.position,
                        asked > 0 ? absl::StrCat(", with the queries of the last ", asked) : "", "\n",
                        RetainedText(totals->retained));
  });
  return absl::OkStatus();
}

void AddSelectorOptions(CLI::App* query, v1::Selector* selector) {
  const FlagGroup group{query, "--", kSelection};
  AddSelectorFlags(group, selector);
  AddFieldFlags(group, *v1::MassP::descriptor(), [selector] {
    if (!selector->has_mass_p()) {
      selector->mutable_mass_p()->set_floor(1);
      selector->mutable_mass_p()->set_cap(100);
    }
    return selector->mutable_mass_p();
  });
  CLI::Option* const mass_p = query->get_option("--mass-p");
  mass_p->excludes(query->get_option("--top-k"));
  for (const char* flag : {"--mass-floor", "--mass-cap"}) query->get_option(flag)->needs(mass_p);
}

}  // namespace

void AddDataCommands(CLI::App* app, Session* session) {
  CLI::App* query =
      app->add_subcommand("query", "Retrieve the tokens that matter to a query from a .npy or safetensors file");
  query->footer(
      "The file's array is [num_q_heads, head_dim]; [rows, num_q_heads, head_dim] with --row; or one vector "
      "[head_dim] with --head. fp16, bf16, fp32 or fp64.\n"
      "Example:\n"
      "  seine query llama chat --layer 0 --vector trace.safetensors --tensor layers.0.q --row 511");
  auto query_arguments = std::make_shared<QueryArguments>();
  AddSequenceArguments(query, &query_arguments->sequence);
  query->add_option("--layer", query_arguments->layer, "Layer, from 0")->required();
  query->add_option("--vector", query_arguments->vector.path, "File with the queries")->required();
  query->add_option("--tensor", query_arguments->vector.tensor, "Tensor of a safetensors file (default: the only one)");
  query->add_option("--row", query_arguments->vector.row, "Row of a leading dimension, from 0");
  query->add_option("--head", query_arguments->vector.head, "Query head of a single vector");
  AddSelectorOptions(query, &query_arguments->selector);
  query->callback([=] { session->action = [=] { return Query(*session, *query_arguments); }; });

  CLI::App* append =
      app->add_subcommand("append", "Append a layer's keys (and values) from a safetensors or .npy file");
  append->footer(
      "Tensors are [tokens, num_kv_heads, head_dim] in the index's dtype; queries [tokens, num_q_heads, head_dim] in "
      "any float type, of the file's last tokens (or, in a trace, from its query_start on): those of the last tokens "
      "appended are sent.\n"
      "Example:\n"
      "  seine append llama chat --layer 0 --file trace.safetensors --tensor layers.0.k");
  auto append_arguments = std::make_shared<AppendArguments>();
  AddSequenceArguments(append, &append_arguments->sequence);
  append->add_option("--layer", append_arguments->layer, "Layer, from 0")->required();
  append->add_option("--file", append_arguments->path, "File with the keys")->required();
  append->add_option("--tensor", append_arguments->keys, "Tensor of the keys (.npy: array)")->required();
  append->add_option("--values", append_arguments->values, "Tensor of the values, where the index stores them");
  append->add_option("--queries", append_arguments->queries,
                     "Tensor of the last tokens' queries, for an index that keeps some to evict by");
  append->add_option("--position", append_arguments->position,
                     "Position of the first token (default: the layer's end)");
  append->add_option("--first", append_arguments->first, "First token of the tensor to take (default: 0)");
  append->add_option("--count", append_arguments->count, "Tokens to take (default: all that follow)");
  append
      ->add_option("--report", append_arguments->report,
                   "Show what the append dropped, or what the heads have kept, by KV head: dropped or kept")
      ->transform(Names(kReportNames));
  append->callback([=] { session->action = [=] { return Append(*session, *append_arguments); }; });
}

}  // namespace seine::cli
