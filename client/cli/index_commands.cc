// seine index create | list | get | delete.
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/base/names.h"
#include "client/cli/commands.h"
#include "client/cli/flags/eviction_flags.h"
#include "client/cli/flags/subspace_options.h"

namespace seine::cli {
namespace {

template <typename T>
Json Optional(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

// The specification of an index: names as its flags have them.
Json ToJson(const client::IndexInfo& info) {
  const client::IndexSpec& spec = info.spec;
  const bool rope = !spec.rope.inv_freq.empty();
  Json json = {{"name", spec.name},
               {"model", spec.model},
               {"num_layers", spec.geometry.num_layers},
               {"num_q_heads", spec.geometry.num_q_heads},
               {"num_kv_heads", spec.geometry.num_kv_heads},
               {"head_dim", spec.geometry.head_dim},
               {"dtype", NameOf(kDTypeNames, spec.geometry.dtype)},
               {"rope_style", rope ? Json(NameOf(kRopeStyleNames, spec.rope.style)) : Json()},
               {"rope_inv_freq", rope ? Json(spec.rope.inv_freq) : Json()},
               {"sink", Optional(spec.sink)},
               {"local", Optional(spec.local)},
               {"update_buffer", Optional(spec.update_buffer)},
               {"dense_threshold", Optional(spec.dense_threshold)},
               {"codec", spec.codec},
               {"seed", Optional(spec.seed)},
               {"centre", NameOf(kCentreNames, spec.centre)},
               {"window", Optional(spec.centre_window)},
               {"profile", spec.profile},
               {"horizon", Optional(spec.horizon)},
               {"coarse_bits", Optional(spec.coarse_bits)},
               {"total_bits", Optional(spec.total_bits)},
               {"top_k", Optional(spec.top_k)},
               {"beta", Optional(spec.beta)},
               {"refine", Optional(spec.refine)},
               {"coarse", NameOf(kCoarseNames, spec.coarse)},
               {"rho", Optional(spec.rho)},
               {"scope", NameOf(kScopeNames, spec.scope)},
               {"gqa_reduce", NameOf(kReduceNames, spec.gqa_reduce)},
               {"softmax_scale", Optional(spec.softmax_scale)},
               {"kv_store", NameOf(kKvStoreNames, spec.kv_store)},
               {"memory_limit_bytes", spec.memory_limit_bytes},
               {"num_sequences", info.num_sequences},
               {"code_bytes", info.code_bytes},
               {"store_bytes", info.store_bytes},
               {"query_bytes", info.query_bytes},
               {"reencoded_layers", info.reencoded_layers},
               {"reencoded_unfit_layers", info.reencoded_unfit_layers},
               {"reencoded_keys", info.reencoded_keys},
               {"queries_not_kept", info.queries_not_kept},
               {"evictions", info.evictions},
               {"evicted_tokens", info.evicted_tokens}};
  AddEvictionFields(spec.eviction, &json);
  AddSubspaceFields(spec.subspace, &json);
  return json;
}

// A field's value in a line of a table.
std::string InALine(const Json& value) {
  constexpr size_t kMostNumbers = 8;
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array() && value.size() > kMostNumbers) return absl::StrCat(value.size(), " values; -o json has them");
  return value.dump();
}

// What is not set takes no line of the table.
void Show(const Session& session, const client::IndexInfo& info) {
  const Json json = ToJson(info);
  session.Print(json, [&] {
    std::vector<std::pair<std::string, std::string>> fields;
    for (const auto& [name, value] : json.items()) {
      if (!value.is_null()) fields.emplace_back(name, InALine(value));
    }
    return ToString(fields);
  });
}

absl::Status List(const Session& session) {
  const absl::StatusOr<std::vector<client::IndexInfo>> indexes = session.client->ListIndexes();
  if (!indexes.ok()) return indexes.status();
  Json json = Json::array();
  Table table({"NAME", "LAYERS", "Q HEADS", "KV HEADS", "HEAD DIM", "DTYPE", "SEQUENCES", "CODES", "STORE"});
  for (const client::IndexInfo& info : *indexes) {
    json.push_back(ToJson(info));
    const client::Geometry& geometry = info.spec.geometry;
    table.AddRow({info.spec.name, absl::StrCat(geometry.num_layers), absl::StrCat(geometry.num_q_heads),
                  absl::StrCat(geometry.num_kv_heads), absl::StrCat(geometry.head_dim),
                  NameOf(kDTypeNames, geometry.dtype), absl::StrCat(info.num_sequences), FormatBytes(info.code_bytes),
                  FormatBytes(info.store_bytes)});
  }
  session.Print({{"indexes", json}}, [&] { return table.ToString(); });
  return absl::OkStatus();
}

// RoPE: --rope-theta T is short for --rope '{"rope_theta": T}'.
void AddBalancedOptions(CLI::App* create, client::IndexSpec* spec) {
  const char* group = "Balanced code";
  create->add_option("--profile", spec->profile, "Model profile, by its name on the server (see seine version)")
      ->group(group);
  create->add_option("--model", spec->model, "Model, e.g. meta-llama/Llama-3.1-8B: finds the profile of the last part")
      ->group(group);
  create
      ->add_option("--horizon", spec->horizon,
                   "Tokens ahead of the encoded ones that queries come from (default: 32768)")
      ->group(group);
  create
      ->add_option("--coarse-bits", spec->coarse_bits,
                   "A coordinate, of what every scan reads: 0.5, 1 or 2 (default: 1)")
      ->group(group);
  create->add_option("--total-bits", spec->total_bits, "A coordinate, of the whole code: 2 to 4 (default: 2)")
      ->group(group);
  CLI::Option* theta = create->add_option_function<double>(
      "--rope-theta",
      [spec](double base) {
        spec->rope.config_json = Json{{"rope_theta", base}}.dump();
      },
      "Base of the model's RoPE without scaling (default: the profile's own RoPE)");
  CLI::Option* json = create->add_option("--rope", spec->rope.config_json,
                                         "RoPE as JSON: config.json's rope_parameters, or rope_theta and rope_scaling");
  theta->group(group)->excludes(json);
  json->group(group);
  create->add_option("--rope-style", spec->rope.style, "half_split or interleaved (default: half_split)")
      ->transform(Names(kRopeStyleNames))
      ->group(group);
}

void AddCreateOptions(CLI::App* create, client::IndexSpec* spec, std::string* filters) {
  create->footer(
      "Examples:\n"
      "  seine index create llama --layers 32 --q-heads 32 --kv-heads 8 --head-dim 128 --dtype bf16\n"
      "  seine index create m --profile smollm2-135m --layers 30 --q-heads 9 --kv-heads 3 --head-dim 64");
  create->add_option("NAME", spec->name, "Name of the new index")->required();
  client::Geometry& geometry = spec->geometry;
  create->add_option("--layers", geometry.num_layers, "Layers of the model")->required();
  create->add_option("--q-heads", geometry.num_q_heads, "Query heads of a layer")->required();
  create->add_option("--kv-heads", geometry.num_kv_heads, "KV heads of a layer")->required();
  create->add_option("--head-dim", geometry.head_dim, "64, 80, 96, 128, 192 or 256")->required();
  create->add_option("--dtype", geometry.dtype, "Of keys and values as appended: fp32, fp16 or bf16 (default: fp16)")
      ->transform(Names(kDTypeNames));

  create->add_option("--sink", spec->sink, "First tokens, always visible (default: 128)")->group("Zones (tokens)");
  create->add_option("--local", spec->local, "Last tokens, always visible (default: 512)")->group("Zones (tokens)");
  create->add_option("--update-buffer", spec->update_buffer, "Tokens encoded at a time (default: 512)")
      ->group("Zones (tokens)");
  create->add_option("--dense-threshold", spec->dense_threshold, "Below so many all are visible (default: 2048)")
      ->group("Zones (tokens)");

  create
      ->add_option("--codec", spec->codec,
                   "rsq or balanced (default: balanced where a profile is given or the server has one of --model)")
      ->group("Codec");
  create->add_option("--seed", spec->seed, "Of the rotation (default: 1)")->group("Codec");
  create->add_option("--centre", spec->centre, "none, global or window (default: window)")
      ->transform(Names(kCentreNames))
      ->group("Codec");
  create->add_option("--window", spec->centre_window, "Tokens that share a centre (default: 64)")->group("Codec");
  AddBalancedOptions(create, spec);
  AddEvictionFlags(create, spec, filters);
  AddSubspaceOptions(create, spec);

  create->add_option("--top-k", spec->top_k, "Tokens of an answer (default: 100)")->group("Retrieval");
  create
      ->add_option("--beta", spec->beta,
                   "Share of the zone kept as candidates; 0: .05, of long balanced zones less (default: 0)")
      ->group("Retrieval");
  create->add_option("--refine", spec->refine, "Survivors that are scored exactly (default: 200)")->group("Retrieval");
  create->add_option("--coarse", spec->coarse, "sign_ip or collision (default: sign_ip)")
      ->transform(Names(kCoarseNames))
      ->group("Retrieval");
  create->add_option("--rho", spec->rho, "Share that collision's tiers cover (default: 0.2)")->group("Retrieval");
  create->add_option("--scope", spec->scope, "One set for each kv_head or q_head (default: kv_head)")
      ->transform(Names(kScopeNames))
      ->group("Retrieval");
  create->add_option("--gqa-reduce", spec->gqa_reduce, "softmax_sum, max or mean (default: softmax_sum)")
      ->transform(Names(kReduceNames))
      ->group("Retrieval");
  create->add_option("--softmax-scale", spec->softmax_scale, "Of the logits (default: 1 / sqrt(head_dim))")
      ->group("Retrieval");

  create->add_option("--kv-store", spec->kv_store, "none, keys or keys_values (default: keys)")
      ->transform(Names(kKvStoreNames))
      ->group("Memory");
  create->add_option("--memory-limit", spec->memory_limit_bytes, "For codes and stores, e.g. 8GiB (default: none)")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->group("Memory");
}

}  // namespace

void AddIndexCommands(CLI::App* app, Session* session) {
  CLI::App* index = app->add_subcommand("index", "Create, list, show and delete indexes");

  CLI::App* create = index->add_subcommand("create", "Create an index; what is not given takes the server's default");
  auto spec = std::make_shared<client::IndexSpec>();
  auto filters = std::make_shared<std::string>();
  AddCreateOptions(create, spec.get(), filters.get());
  create->callback([=] {
    session->action = [=]() -> absl::Status {
      if (absl::Status s = ReadEvictFilters(*filters, spec.get()); !s.ok()) return s;
      const absl::StatusOr<client::IndexInfo> info = session->client->CreateIndex(*spec);
      if (info.ok()) Show(*session, *info);
      return info.status();
    };
  });

  CLI::App* list = index->add_subcommand("list", "List the indexes");
  list->footer("Example:\n  seine index list -o json");
  list->callback([=] { session->action = [=] { return List(*session); }; });

  CLI::App* get =
      index->add_subcommand("get", "Show an index with every setting that it has; -o json names the others too");
  auto name = std::make_shared<std::string>();
  get->footer("Example:\n  seine index get llama");
  get->add_option("NAME", *name, "Name of the index")->required();
  get->callback([=] {
    session->action = [=]() -> absl::Status {
      const absl::StatusOr<client::IndexInfo> info = session->client->GetIndex(*name);
      if (info.ok()) Show(*session, *info);
      return info.status();
    };
  });

  CLI::App* remove = index->add_subcommand("delete", "Delete an index with all its sequences");
  remove->footer("Example:\n  seine index delete llama");
  remove->add_option("NAME", *name, "Name of the index")->required();
  remove->callback([=] {
    session->action = [=]() -> absl::Status {
      absl::Status status = session->client->DeleteIndex(*name);
      if (status.ok()) session->Print({{"deleted", *name}}, [&] { return absl::StrCat("deleted ", *name, "\n"); });
      return status;
    };
  });
}

}  // namespace seine::cli
