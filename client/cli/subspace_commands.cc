// seine subspace show, save, load and calibrate. Files hold bases of layers 0, 1, ...: layers.{l}.key_basis and
// .value_basis, fp32 [num_kv_heads, head_dim, rank]; metadata format "seine-bases-1", frame, model.
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/base/exit_code.h"
#include "client/cli/base/names.h"
#include "client/cli/commands.h"
#include "profile/io/tensor_file.h"
#include "profile/io/tensor_writer.h"

namespace seine::cli {
namespace {

constexpr char kFormat[] = "seine-bases-1";

struct SubspaceArguments {
  client::Sequence sequence;
  client::CalibrateRequest calibrate;
  int layer = 0;
  std::string path;
};

std::string KeyName(int layer) { return absl::StrCat("layers.", layer, ".key_basis"); }
std::string ValueName(int layer) { return absl::StrCat("layers.", layer, ".value_basis"); }

Json ToJson(const client::SubspaceMetrics::Learning& learning) {
  return {{"rows", learning.rows},
          {"updates", learning.updates},
          {"residual", learning.residual},
          {"last_residual", learning.last_residual}};
}

Json ToJson(const client::SubspaceMetrics& head) {
  return {{"low_rank_tokens", head.low_rank_tokens},
          {"full_rank_tokens", head.full_rank_tokens},
          {"code_bytes", head.code_bytes},
          {"full_rank_bytes", head.full_rank_bytes},
          {"basis_bytes", head.basis_bytes},
          {"versions", head.versions},
          {"keys", ToJson(head.keys)},
          {"values", ToJson(head.values)},
          {"angle", head.angle},
          {"overlap", head.overlap},
          {"blocks_without_queries", head.blocks_without_queries}};
}

std::string ToText(const client::LayerSubspace& layer) {
  const client::LayerBases& b = layer.bases;
  Table table({"KV HEAD", "LOW-RANK", "FULL-RANK", "CODES", "FULL", "BASES", "VERSIONS", "UPDATES", "KEYS LEFT OUT",
               "LAST", "VALUES LEFT OUT", "LAST", "ANGLE", "OVERLAP"});
  for (size_t h = 0; h < layer.heads.size(); ++h) {
    const client::SubspaceMetrics& m = layer.heads[h];
    table.AddRow({absl::StrCat(h), absl::StrCat(m.low_rank_tokens), absl::StrCat(m.full_rank_tokens),
                  FormatBytes(m.code_bytes), FormatBytes(m.full_rank_bytes), FormatBytes(m.basis_bytes),
                  absl::StrCat(m.versions), absl::StrCat(m.keys.updates), FormatDouble(m.keys.residual, 4),
                  FormatDouble(m.keys.last_residual, 4), FormatDouble(m.values.residual, 4),
                  FormatDouble(m.values.last_residual, 4), FormatDouble(m.angle, 3), FormatDouble(m.overlap, 3)});
  }
  std::string note;
  for (size_t h = 0; h < layer.heads.size(); ++h) {
    const int64_t blocks = layer.heads[h].blocks_without_queries;
    if (blocks > 0) absl::StrAppend(&note, "KV head ", h, ": no kept query saw ", blocks, " blocks' tokens\n");
  }
  return absl::StrCat("keys ", NameOf(kKeyFrameNames, b.frame), ", rank ", b.key_rank, "; values, rank ", b.value_rank,
                      "; of ", b.head_dim, "\n\n", table.ToString(), note);
}

absl::Status Show(const Session& session, const SubspaceArguments& arguments) {
  const auto layer = session.client->GetBasis(arguments.sequence, arguments.layer);
  if (!layer.ok()) return layer.status();
  const client::LayerBases& b = layer->bases;
  Json json = {{"index", arguments.sequence.index},
               {"sequence", arguments.sequence.id},
               {"layer", arguments.layer},
               {"frame", NameOf(kKeyFrameNames, b.frame)},
               {"head_dim", b.head_dim},
               {"key_rank", b.key_rank},
               {"value_rank", b.value_rank},
               {"heads", Json::array()}};
  for (const client::SubspaceMetrics& head : layer->heads) json["heads"].push_back(ToJson(head));
  session.Print(json, [&] { return ToText(*layer); });
  return absl::OkStatus();
}

// Writes what `bases_of` gives for each of the index's layers.
template <typename BasesOf>
absl::Status WriteLayers(const Session& session, const std::string& index, const std::string& path, BasesOf bases_of) {
  const absl::StatusOr<v1::IndexInfo> info = session.client->GetIndex(index);
  if (!info.ok()) return info.status();
  std::vector<OutputTensor> tensors;
  std::string frame;
  const int layers = info->spec().geometry().num_layers();
  std::optional<ProgressBar> bar(std::in_place, "bases of layers", layers);
  for (int l = 0; l < layers; ++l) {
    bar->Update(l);
    const absl::StatusOr<client::LayerBases> bases = bases_of(l);
    if (!bases.ok()) return bases.status();
    frame = NameOf(kKeyFrameNames, bases->frame);
    for (const bool values : {false, true}) {
      OutputTensor& tensor = tensors.emplace_back();
      const std::vector<float>& numbers = values ? bases->values : bases->keys;
      tensor.name = values ? ValueName(l) : KeyName(l);
      tensor.shape = {bases->num_kv_heads, bases->head_dim, values ? bases->value_rank : bases->key_rank};
      tensor.bytes.assign(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
    }
  }
  bar.reset();
  absl::Status status =
      WriteTensors(tensors, {{"format", kFormat}, {"frame", frame}, {"model", info->spec().model()}}, path);
  if (!status.ok()) return FileError(status);
  session.Print(Json{{"file", path}, {"layers", layers}, {"frame", frame}},
                [&] { return absl::StrCat("wrote the bases of ", layers, " layers to ", path, "\n"); });
  return absl::OkStatus();
}

absl::Status Save(const Session& session, const SubspaceArguments& arguments) {
  return WriteLayers(session, arguments.sequence.index, arguments.path,
                     [&](int l) -> absl::StatusOr<client::LayerBases> {
                       auto layer = session.client->GetBasis(arguments.sequence, l);
                       if (!layer.ok()) return layer.status();
                       return std::move(layer->bases);
                     });
}

absl::Status Calibrate(const Session& session, const SubspaceArguments& arguments) {
  return WriteLayers(session, arguments.calibrate.index, arguments.path, [&](int l) {
    client::CalibrateRequest request = arguments.calibrate;
    request.layer = l;
    return session.client->CalibrateBasis(request);
  });
}

absl::StatusOr<client::LayerBases> ReadLayer(const TensorFile& file, int layer) {
  client::LayerBases bases;
  for (const bool of_values : {false, true}) {
    const std::string name = of_values ? ValueName(layer) : KeyName(layer);
    const absl::StatusOr<TensorFile::Tensor> tensor = file.Get(name);
    if (!tensor.ok()) return tensor.status();
    if (tensor->shape.size() != 3) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.path(), ": ", name, " is not [num_kv_heads, head_dim, rank]"));
    }
    absl::StatusOr<std::vector<float>> numbers = TensorFile::ToFloat32(*tensor);
    if (!numbers.ok()) return numbers.status();
    bases.num_kv_heads = static_cast<int>(tensor->shape[0]);
    bases.head_dim = static_cast<int>(tensor->shape[1]);
    (of_values ? bases.value_rank : bases.key_rank) = static_cast<int>(tensor->shape[2]);
    (of_values ? bases.values : bases.keys) = *std::move(numbers);
  }
  return bases;
}

// All layers are read before the first is sent.
absl::Status Load(const Session& session, const SubspaceArguments& arguments) {
  const absl::StatusOr<TensorFile> file = TensorFile::Read(arguments.path);
  if (!file.ok()) return FileError(file.status());
  const auto value = [&](const char* key) {
    const auto found = file->metadata().find(key);
    return found == file->metadata().end() ? std::string() : found->second;
  };
  if (value("format") != kFormat) {
    return FileError(absl::InvalidArgumentError(absl::StrCat(arguments.path, ": is no file of bases (", kFormat, ")")));
  }
  std::vector<client::LayerBases> layers;
  for (int l = 0; l < static_cast<int>(file->names().size() / 2); ++l) {
    absl::StatusOr<client::LayerBases> bases = ReadLayer(*file, l);
    if (!bases.ok()) return FileError(bases.status());
    bases->frame = value("frame") == "pre_rope" ? client::KeyFrame::kPreRope : client::KeyFrame::kPostRope;
    layers.push_back(*std::move(bases));
  }
  std::optional<ProgressBar> bar(std::in_place, "bases of layers", static_cast<int64_t>(layers.size()));
  for (size_t l = 0; l < layers.size(); ++l) {
    bar->Update(static_cast<int64_t>(l));
    absl::Status status = session.client->LoadBasis(arguments.sequence, static_cast<int>(l), layers[l]);
    if (!status.ok()) return absl::Status(status.code(), absl::StrCat("layer ", l, ": ", status.message()));
  }
  bar.reset();
  session.Print(Json{{"file", arguments.path}, {"layers", layers.size()}}, [&] {
    return absl::StrCat("put the bases of ", layers.size(), " layers in place; what is stored keeps its own\n");
  });
  return absl::OkStatus();
}

}  // namespace

void AddSubspaceCommands(CLI::App* app, Session* session) {
  auto arguments = std::make_shared<SubspaceArguments>();  // one of them runs, so they share
  CLI::App* subspace = app->add_subcommand("subspace", "Bases that a sequence's zone is kept low-rank in");
  CLI::App* show = subspace->add_subcommand("show", "What a layer's bases take and leave out, by KV head");
  show->footer("Example:\n  seine subspace show llama chat --layer 0");
  AddSequenceArguments(show, &arguments->sequence);
  show->add_option("--layer", arguments->layer, "Layer")->required();
  show->callback([=] { session->action = [=] { return Show(*session, *arguments); }; });

  CLI::App* save = subspace->add_subcommand("save", "Write the newest bases of all layers to a file");
  save->footer("Example:\n  seine subspace save llama chat bases.safetensors");
  AddSequenceArguments(save, &arguments->sequence);
  save->add_option("FILE", arguments->path, "safetensors file")->required();
  save->callback([=] { session->action = [=] { return Save(*session, *arguments); }; });

  CLI::App* load = subspace->add_subcommand("load", "Put a file's bases in place; what is stored keeps its own");
  load->footer("Example:\n  seine subspace load llama chat bases.safetensors");
  AddSequenceArguments(load, &arguments->sequence);
  load->add_option("FILE", arguments->path, "as save and calibrate write it")->required();
  load->callback([=] { session->action = [=] { return Load(*session, *arguments); }; });

  CLI::App* calibrate =
      subspace->add_subcommand("calibrate", "Write bases for an index from one of the server's profiles");
  client::CalibrateRequest& request = arguments->calibrate;
  calibrate->footer("Example:\n  seine subspace calibrate llama bases.safetensors --profile llama --energy 0.9");
  calibrate->add_option("INDEX", request.index, "Index with subspaces: its geometry and frame")->required();
  calibrate->add_option("FILE", arguments->path, "safetensors file to write")->required();
  calibrate->add_option("--profile", request.profile, "Name of a profile")->required();
  calibrate->add_option("--key-rank", request.key_rank, "0: as --energy wants it");
  calibrate->add_option("--value-rank", request.value_rank, "0: as --energy wants it");
  calibrate->add_option("--energy", request.energy, "Share of the moment that bases hold, in (0, 1]");
  calibrate->add_option("--carried-to", request.carried_to, "post_rope: positions that moments are carried to");
  calibrate->add_flag("--stack-queries", request.stack_queries, "Keys and queries share the basis");
  calibrate->callback([=] { session->action = [=] { return Calibrate(*session, *arguments); }; });
}

}  // namespace seine::cli
