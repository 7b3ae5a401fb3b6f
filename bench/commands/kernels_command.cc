#include "bench/commands/kernels_command.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/commands/value_flag.h"
#include "bench/report/table.h"
#include "kernels/codecs/kinds/registry.h"
#include "kernels/device/traffic.h"
#include "kernels/ops/search/search_plan.h"
#include "kernels/types.h"

namespace seine::bench {

namespace {

constexpr char kKernelsDescription[] =
    "Bytes that each kernel on a CUDA device must move, counted from its shapes, and the least time that takes at the "
    "speeds given: of a layer's search at a decode step, and of subspaces and eviction over all of a layer's keys. A "
    "prediction: `./dev device` measures where there is a device.";

struct KernelsFlags {
  std::vector<int64_t> num_keys = {131072, 1048576};
  std::vector<int> batches = {1, 8};
  int layers = 32, kv_heads = 8, group = 4, head_dim = 128, top_k = 100, refine = 200, dense = 0;
  int rank = 0, interval = 32;
  double beta = .01, coarse_bits = .5, budget = .25, bandwidth = 4300, link = 50, block_gops = 220;
  std::string codec = "balanced", scope = "kv_head", output = "table";
};

// Shapes alone: nothing is read, only `chunks` says that keys are stored.
cuda::SearchItem ItemOf(const KernelsFlags& f, int64_t num_keys) {
  static const uint8_t* const kStored = nullptr;
  cuda::SearchItem item;
  const CodecTraits& traits = TraitsOf(f.codec);
  item.kind = KindOf(traits);
  CodecSpec spec;
  spec.head_dim = f.head_dim, spec.coarse_bits = f.coarse_bits;
  item.layout = traits.layout(spec);
  item.segment_keys = 2048;
  item.num_keys = num_keys;
  item.chunks = &kStored;
  item.chunk_tokens = 2048;
  item.key_dtype = DType::kFloat16;
  item.dense_tokens = f.dense;
  item.group = f.group;
  return item;
}

double LeastUs(const KernelsFlags& f, const cuda::StepTraffic& t) {
  const double moved = t.device_bytes / (f.bandwidth * 1e3) + t.link_bytes / (f.link * 1e3);
  return std::max(moved, t.block_operations / (f.block_gops * 1e3));
}

nlohmann::ordered_json LineOf(const KernelsFlags& f, const cuda::StepTraffic& t) {
  return {{"step", t.step}, {"device_bytes", t.device_bytes}, {"link_bytes", t.link_bytes}, {"us", LeastUs(f, t)}};
}

// Beside searches: of keys alone, for values take as long again.
nlohmann::ordered_json PredictWork(const KernelsFlags& f, int64_t num_keys, int batch) {
  cuda::LayerWork work;
  work.heads = batch * f.kv_heads;
  work.head_dim = f.head_dim;
  work.rows = num_keys;
  work.rank = f.rank > 0 ? f.rank : f.head_dim * 3 / 4;
  work.interval = f.interval;
  work.kept = std::llround(f.budget * static_cast<double>(num_keys));
  nlohmann::ordered_json lines = nlohmann::ordered_json::array();
  for (const cuda::StepTraffic& t : cuda::CountTraffic(work)) lines.push_back(LineOf(f, t));
  return lines;
}

nlohmann::ordered_json Predict(const KernelsFlags& f, int64_t num_keys, int batch) {
  SearchParams params;
  params.top_k = f.top_k;
  params.candidate_fraction = f.beta;
  params.rescore_k = f.refine;
  params.scope = f.scope == "kv_head" ? Scope::kPerKvHead : Scope::kPerQHead;
  const cuda::SearchPlan plan(
      params, std::vector<cuda::SearchItem>(static_cast<size_t>(batch) * f.kv_heads, ItemOf(f, num_keys)));
  nlohmann::ordered_json steps = nlohmann::ordered_json::array();
  double total = 0;
  for (const cuda::StepTraffic& t : cuda::CountTraffic(plan)) {
    steps.push_back(LineOf(f, t));
    total += LeastUs(f, t);
  }
  return {{"num_keys", num_keys},
          {"batch", batch},
          {"steps", steps},
          {"layer_us", total},
          {"layers", f.layers},
          {"step_ms", total * f.layers / 1e3},
          {"predicted", true},
          {"bandwidth_gb_s", f.bandwidth},
          {"link_gb_s", f.link},
          {"workspace_bytes", plan.workspace_bytes()},
          {"answer_bytes", plan.answer_bytes()},
          {"block_gops", f.block_gops},
          {"whole_layer", PredictWork(f, num_keys, batch)}};
}

std::string TableOf(const nlohmann::ordered_json& lines) {
  std::vector<std::vector<std::string>> rows = {{"kernel", "device MB", "link MB", "least us"}};
  for (const auto& s : lines) {
    rows.push_back({s["step"], absl::StrFormat("%.3f", s["device_bytes"].get<double>() / 1e6),
                    absl::StrFormat("%.3f", s["link_bytes"].get<double>() / 1e6),
                    absl::StrFormat("%.2f", s["us"].get<double>())});
  }
  return RenderTable(rows);
}

void PrintTable(const nlohmann::ordered_json& shape) {
  absl::PrintF("%d keys, batch %d: a layer %.1f us, %d layers %.3f ms (predicted, at %.0f and %.0f GB/s)\n%s\n",
               shape["num_keys"].get<int64_t>(), shape["batch"].get<int>(), shape["layer_us"].get<double>(),
               shape["layers"].get<int>(), shape["step_ms"].get<double>(), shape["bandwidth_gb_s"].get<double>(),
               shape["link_gb_s"].get<double>(), TableOf(shape["steps"]));
  absl::PrintF("over all keys of a layer, once each (learn: a block a head at %.0f GFlop/s):\n%s\n",
               shape["block_gops"].get<double>(), TableOf(shape["whole_layer"]));
}

absl::Status Run(const KernelsFlags& f) {
  if (f.rank > f.head_dim) {
    return absl::InvalidArgumentError(absl::StrCat("--rank: ", f.rank, " is above --head-dim ", f.head_dim));
  }
  nlohmann::ordered_json shapes = nlohmann::ordered_json::array();
  for (const int64_t n : f.num_keys) {
    if (n % kWindowTokens != 0) {
      return absl::InvalidArgumentError(absl::StrCat("--num-keys: ", n, " is no multiple of ", kWindowTokens));
    }
    for (const int batch : f.batches) shapes.push_back(Predict(f, n, batch));
  }
  if (f.output == "json") {
    std::printf("%s\n", shapes.dump(2).c_str());
    return absl::OkStatus();
  }
  for (const auto& shape : shapes) PrintTable(shape);
  absl::PrintF("Times follow from bytes: a device takes as long at least. None of them was measured.\n");
  return absl::OkStatus();
}

}  // namespace

void AddKernelsCommand(CLI::App* app, std::function<absl::Status()>* run) {
  auto f = std::make_shared<KernelsFlags>();
  CLI::App* command = app->add_subcommand("kernels", kKernelsDescription);
  const auto keys = CLI::Range(int64_t{1}, int64_t{1} << 31);
  const auto rate = CLI::Range(1e-3, 1e6);
  command->add_option("--num-keys", f->num_keys, "Keys of a head, multiples of 64")->delimiter(',')->check(keys);
  command->add_option("--batch", f->batches, "Sequences at once")->delimiter(',')->check(CLI::Range(1, 512));
  command->add_option("--layers", f->layers, "Of a decode step")->check(CLI::Range(1, 1024));
  command->add_option("--kv-heads", f->kv_heads)->check(CLI::Range(1, 128));
  command->add_option("--group", f->group, "Query heads a KV head")->check(CLI::Range(1, kMaxGroup));
  command->add_option("--head-dim", f->head_dim)
      ->check(CLI::IsMember(std::set<int>(std::begin(kHeadDims), std::end(kHeadDims))));
  command->add_option("--codec", f->codec, "balanced (2 bits a coordinate) or rsq")->check(CLI::IsMember(CodecNames()));
  command->add_option("--coarse-bits", f->coarse_bits, "balanced: .5, 1 or 2")->check(CLI::IsMember({.5, 1.0, 2.0}));
  command->add_option("--top-k", f->top_k)->check(CLI::Range(1, 65536));
  command->add_option("--candidate-fraction,--beta", f->beta, "Share of the keys that are candidates")
      ->check(CLI::Range(1e-6, 1.0));
  command->add_option("--rescore-k,--refine", f->refine, "Keys of a query scored exactly")->check(CLI::Range(0, 65536));
  command->add_option("--dense", f->dense, "Dense tokens read for SOFTMAX_SUM, from the host")
      ->check(CLI::Range(0, 1 << 20));
  command->add_option("--scope", f->scope)->transform(ValueOf("Scope"));
  command->add_option("--rank", f->rank, "Of subspaces, at most head_dim; 0: three quarters of it")
      ->check(CLI::Range(0, 256));
  command->add_option("--interval", f->interval, "Rows between a subspace's updates")->check(CLI::Range(1, 128));
  command->add_option("--budget", f->budget, "Share of the keys that eviction keeps")->check(CLI::Range(0.0, 1.0));
  command->add_option("--block-gops", f->block_gops, "fp32 operations of one multiprocessor, 10^9 a second")
      ->check(rate);
  command->add_option("--bandwidth", f->bandwidth, "Of the device's memory, GB/s")->check(rate);
  command->add_option("--link", f->link, "Of the host's link, GB/s")->check(rate);
  command->add_option("-o,--output", f->output, "table or json")->check(CLI::IsMember({"table", "json"}));
  command->callback([f, run] { *run = [f] { return Run(*f); }; });
}

}  // namespace seine::bench
