// seine index create | list | get | delete.
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/base/names.h"
#include "client/cli/commands.h"
#include "client/cli/flags/eviction_flags.h"
#include "client/cli/flags/field_flags.h"
#include "client/cli/flags/subspace_options.h"
#include "profile/spelling.h"

namespace seine::cli {
namespace {

// The specification of an index: names as its flags have them.
Json ToJson(const v1::IndexInfo& info) {
  const v1::IndexSpec& spec = info.spec();
  const v1::Rope& rope = spec.geometry().rope();
  Json json = {{"name", spec.name()}, {"model", spec.model()}};
  AddFields(*v1::Geometry::descriptor(), &spec.geometry(), "", &json);
  const bool stated = rope.inv_freq_size() > 0;
  json["rope_style"] = stated ? Json(SpellValue("RopeStyle", rope.style())) : Json();
  json["rope_inv_freq"] = stated ? Json(std::vector<double>(rope.inv_freq().begin(), rope.inv_freq().end())) : Json();
  json["rope_rotary_dim"] = stated && rope.rotary_dim() > 0 ? Json(rope.rotary_dim()) : Json();
  json["layer_ropes"] = Json::array();
  for (const v1::LayerRope& group : spec.geometry().layer_ropes()) {
    const auto& turns = group.rope().inv_freq();
    json["layer_ropes"].push_back({{"layers", std::vector<int>(group.layers().begin(), group.layers().end())},
                                   {"rope_inv_freq", std::vector<double>(turns.begin(), turns.end())}});
  }
  AddFields(*v1::Zones::descriptor(), &spec.zones(), "", &json);
  AddFields(*v1::CodecSettings::descriptor(), &spec.codec(), "", &json);
  AddFields(*v1::RetrievalSettings::descriptor(), &spec.retrieval(), "", &json);
  json["kv_store"] = SpellValue("KvStore", spec.kv_store());
  json["memory_limit_bytes"] = spec.memory_limit_bytes();
  AddFields(*v1::IndexInfo::descriptor(), &info, "", &json);
  AddEvictionFields(spec.has_eviction() ? &spec.eviction() : nullptr, &json);
  AddFields(*v1::SubspaceSettings::descriptor(), spec.has_subspace() ? &spec.subspace() : nullptr, "subspace_", &json);
  return json;
}

// A field's value in a line of a table.
std::string InALine(const Json& value) {
  constexpr size_t kMostNumbers = 8;
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array() && value.size() > kMostNumbers) return absl::StrCat(value.size(), " values; -o json has them");
  return value.dump();
}

// Prints an index; a setting that is absent takes no line. `closing`: a line below the table.
void Show(const Session& session, const v1::IndexInfo& info, const std::string& closing = "") {
  const Json json = ToJson(info);
  session.Print(json, [&] {
    std::vector<std::pair<std::string, std::string>> fields;
    for (const auto& [name, value] : json.items()) {
      if (!value.is_null()) fields.emplace_back(name, InALine(value));
    }
    return ToString(fields) + closing;
  });
}

absl::Status List(const Session& session) {
  const absl::StatusOr<std::vector<v1::IndexInfo>> indexes = session.client->ListIndexes();
  if (!indexes.ok()) return indexes.status();
  Json json = Json::array();
  Table table({"NAME", "LAYERS", "Q HEADS", "KV HEADS", "HEAD DIM", "DTYPE", "SEQUENCES", "CODES", "STORE"});
  for (const v1::IndexInfo& info : *indexes) {
    json.push_back(ToJson(info));
    const v1::Geometry& geometry = info.spec().geometry();
    table.AddRow({info.spec().name(), absl::StrCat(geometry.num_layers()), absl::StrCat(geometry.num_q_heads()),
                  absl::StrCat(geometry.num_kv_heads()), absl::StrCat(geometry.head_dim()),
                  SpellValue("DType", geometry.dtype()), absl::StrCat(info.num_sequences()),
                  FormatBytes(info.code_bytes()), FormatBytes(info.store_bytes())});
  }
  session.Print({{"indexes", json}}, [&] {
    return indexes->empty() ? "no index yet (next: seine index create --help)\n" : table.ToString();
  });
  return absl::OkStatus();
}

constexpr char kBalanced[] = "Balanced code";

// RoPE: --rope-theta T is short for --rope '{"rope_theta": T}'.
void AddRopeOptions(CLI::App* create, v1::IndexSpec* spec) {
  const auto rope = [spec] { return spec->mutable_geometry()->mutable_rope(); };
  CLI::Option* theta = create->add_option_function<double>(
      "--rope-theta",
      [=](double base) {
        rope()->set_config_json(Json{{"rope_theta", base}}.dump());
      },
      "Base of the model's RoPE without scaling (default: the profile's own RoPE)");
  CLI::Option* json = create->add_option_function<std::string>(
      "--rope", [=](const std::string& text) { rope()->set_config_json(text); },
      "RoPE as JSON: config.json's rope_parameters, or rope_theta and rope_scaling");
  theta->group(kBalanced)->excludes(json);
  json->group(kBalanced);
  create
      ->add_option_function<int>(
          "--rope-style", [=](int style) { rope()->set_style(static_cast<v1::RopeStyle>(style)); },
          "half_split or interleaved (default: half_split)")
      ->transform(Names("RopeStyle"))
      ->type_name("ENUM")
      ->group(kBalanced);
}

void AddGeometryOptions(CLI::App* create, v1::IndexSpec* spec) {
  const auto number = [=](const char* flag, void (v1::Geometry::*set)(int32_t), const char* help) {
    create
        ->add_option_function<int>(
            flag, [=](int value) { (spec->mutable_geometry()->*set)(value); }, help)
        ->required();
  };
  create
      ->add_option_function<std::string>(
          "NAME", [=](const std::string& name) { spec->set_name(name); }, "Name of the new index")
      ->required();
  number("--layers", &v1::Geometry::set_num_layers, "Layers of the model");
  number("--q-heads", &v1::Geometry::set_num_q_heads, "Query heads of a layer");
  number("--kv-heads", &v1::Geometry::set_num_kv_heads, "KV heads of a layer");
  number("--head-dim", &v1::Geometry::set_head_dim, "64, 80, 96, 128, 192, 256 or 512");
  spec->mutable_geometry()->set_dtype(v1::D_TYPE_FLOAT16);
  create
      ->add_option_function<int>(
          "--dtype", [=](int dtype) { spec->mutable_geometry()->set_dtype(static_cast<v1::DType>(dtype)); },
          "Of keys and values as appended: fp32, fp16 or bf16 (default: fp16)")
      ->transform(Names("DType"))
      ->type_name("ENUM");
}

void AddCreateOptions(CLI::App* create, v1::IndexSpec* spec, std::string* filters) {
  create->footer(
      "Examples:\n"
      "  seine index create llama --layers 32 --q-heads 32 --kv-heads 8 --head-dim 128 --dtype bf16\n"
      "  seine index create m --profile smollm2-135m --layers 30 --q-heads 9 --kv-heads 3 --head-dim 64");
  AddGeometryOptions(create, spec);
  AddFieldFlags({create, "--", "Zones (tokens)"}, *v1::Zones::descriptor(), [=] { return spec->mutable_zones(); });
  AddFieldFlags({create, "--", "Codec"}, *v1::CodecSettings::descriptor(), [=] { return spec->mutable_codec(); });
  AddRopeOptions(create, spec);
  AddEvictionFlags(create, spec, filters);
  AddSubspaceOptions(create, spec);
  AddFieldFlags({create, "--", "Retrieval"}, *v1::RetrievalSettings::descriptor(),
                [=] { return spec->mutable_retrieval(); });
  AddFieldFlags({create}, *v1::IndexSpec::descriptor(), [=] { return spec; });
}

}  // namespace

void AddIndexCommands(CLI::App* app, Session* session) {
  CLI::App* index = app->add_subcommand("index", "Create, list, show and delete indexes");

  CLI::App* create = index->add_subcommand("create", "Create an index; what is not given takes the server's default");
  auto spec = std::make_shared<v1::IndexSpec>();
  auto filters = std::make_shared<std::string>();
  AddCreateOptions(create, spec.get(), filters.get());
  create->callback([=] {
    session->action = [=]() -> absl::Status {
      if (absl::Status s = ReadEvictFilters(*filters, spec.get()); !s.ok()) return s;
      const absl::StatusOr<v1::IndexInfo> info = session->client->CreateIndex(*spec);
      if (info.ok())
        Show(*session, *info, absl::StrCat("made, and empty (next: seine seq create ", spec->name(), ")\n"));
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
      const absl::StatusOr<v1::IndexInfo> info = session->client->GetIndex(*name);
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
