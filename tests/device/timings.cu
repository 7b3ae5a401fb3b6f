// Times on the device: copy and link bandwidth, each kernel of a search against its counted bytes, whole decode steps
// of Llama-3.1-8B's geometry, callers at once, encoding and gathering. Every layer has codes of its own, so that none
// is read from a cache.
#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "kernels/codecs/kinds/balanced.h"
#include "kernels/codecs/kinds/rsq.h"
#include "kernels/device/codec_cache.h"
#include "kernels/device/cuda_stream.h"
#include "kernels/device/launcher.h"
#include "kernels/device/stream_context.h"
#include "kernels/device/traffic.h"
#include "kernels/ops/search/search_plan.h"
#include "tests/device/suite.h"
#include "tests/device/timing.h"
#include "tests/device/zone.h"
#include "tests/kernels/random_data.h"

namespace seine::device {
namespace {

constexpr int kLayers = 32, kRepeats = 5;
constexpr int kDenseRows = 640;  // sink, local and buffer, as by default

// GB/s of a copy, both directions counted within the device.
double CopyBandwidth(size_t bytes, cudaMemcpyKind kind) {
  void *from = nullptr, *to = nullptr;
  const bool link = kind == cudaMemcpyHostToDevice;
  if ((link ? cudaMallocHost(&from, bytes) : cudaMalloc(&from, bytes)) != cudaSuccess) return 0;
  if (cudaMalloc(&to, bytes) != cudaSuccess) return 0;
  std::vector<double> gb_s;
  for (int i = 0; i < 8; ++i) {
    Marks marks(nullptr);
    marks.Mark();
    cudaMemcpyAsync(to, from, bytes, kind, nullptr);
    marks.Mark();
    cudaDeviceSynchronize();
    if (i > 2) gb_s.push_back(static_cast<double>(bytes) * (link ? 1 : 2) / marks.Between(0) / 1e3);
  }
  link ? cudaFreeHost(from) : cudaFree(from);
  cudaFree(to);
  return Median(gb_s);
}

// Keys around a mean, fp16, filled by all threads.
Buffer RandomKeys(Backend* backend, int64_t keys) {
  Buffer store = backend->Allocate(static_cast<size_t>(keys) * kDim * 2, MemorySpace::kStore);
  if (!store) return store;
  backend->Run(256, [&](int part) {
    const int64_t begin = keys * part / 256, end = keys * (part + 1) / 256;
    for (int64_t i = begin * kDim; i < end * kDim; ++i) {
      const uint64_t bits = SplitMix64(11, static_cast<uint64_t>(i));
      float sum = 0;
      for (int j = 0; j < 4; ++j) sum += static_cast<float>(bits >> (16 * j) & 0xFFFF) / 65536 - .5f;
      const _Float16 half = static_cast<_Float16>(sum * 1.7f + (i % 7 == 0 ? 1.0f : 0.0f));
      memcpy(store.data() + i * 2, &half, 2);
    }
  });
  return store;
}

// A step's geometry and how it is searched. beta 0: the share that the codec takes by default.
struct Shape {
  int64_t num_keys = 0;
  int batch = 1, group = 4;
  double beta = 0;
  Bits bits = Bits::kOne;
  GqaReduce reduce = GqaReduce::kSoftmaxSum;
  std::string Name() const {
    return (beta > 0 ? "time-" : "time-default-") + std::to_string(num_keys) + "x" + std::to_string(batch);
  }
};

// All layers' zones of a batch: each (layer, sequence, head) has its own codes, copies of one encoded zone.
struct Step {
  bool Make(Backend* gpu, const Shape& shape, std::shared_ptr<const Codec> codec, const uint8_t* stored) {
    const int count = kLayers * shape.batch * kHeads;
    for (int i = 0; i < count; ++i) {
      zones.push_back(std::make_unique<Zone>(gpu, codec, static_cast<int>(shape.num_keys), stored));
      if (!zones.back()->codes) return false;
      if (i == 0) {
        const auto begin = std::chrono::steady_clock::now();
        if (zones[0]->Encode() != Outcome::kDone) return false;
        encode_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        continue;
      }
      const CopyTask copy = {zones[i]->codes.data(), zones[0]->codes.data(), zones[0]->codes.size()};
      if (gpu->Copy(&copy, 1) != Outcome::kDone) return false;
    }
    queries = Gaussian(static_cast<size_t>(count) * shape.group * kDim, 5);
    const int dense = shape.reduce == GqaReduce::kSoftmaxSum ? kDenseRows : 0;
    for (int i = 0; i < count; ++i) {
      const float* own = queries.data() + static_cast<size_t>(i) * shape.group * kDim;
      tasks.push_back(zones[i]->Task(own, shape.group, true, dense));
    }
    return true;
  }

  std::vector<std::unique_ptr<Zone>> zones;
  std::vector<float> queries;
  std::vector<SearchTask> tasks;  // layer by layer
  double encode_s = 0;
};

// One layer's launch, ready in a lane of its own.
struct PreparedLayer {
  PreparedLayer(cuda::Device* device) : lane(device) {}
  bool Make(const SearchTask* tasks, int count, const SearchParams& params, cuda::CodecCache* codecs) {
    cuda::ViewWriter views(&lane);
    const int64_t segments = (tasks[0].num_keys + tasks[0].segment_keys - 1) / tasks[0].segment_keys;
    const int group = tasks[0].group;
    const size_t bytes = static_cast<size_t>(count) *
                             (segments * sizeof(ConstCodePlanes) + group * kDim * 4 + sizeof(cuda::SearchItem) + 4096) +
                         static_cast<size_t>(count) * group * (sizeof(cuda::QueryPlan) + sizeof(cuda::SetPlan));
    const CodecTables* tables = nullptr;
    if (lane.Open() != 0 || codecs->Get(*tasks[0].codec, &lane, &tables) != 0 || views.Reserve(bytes) != 0)
      return false;
    std::vector<cuda::SearchItem> items(count);
    for (int i = 0; i < count; ++i) {
      cuda::SearchItem& item = items[i];
      item.codec = tables;
      item.layout = tasks[i].codec->layout();
      item.kind = tasks[i].codec->Tables().kind;
      item.segments = views.Put(tasks[i].segments, segments);
      item.segment_keys = tasks[i].segment_keys;
      item.num_keys = tasks[i].num_keys;
      item.usual_share = tasks[i].codec->DefaultCandidateFraction(tasks[i].num_keys);
      item.chunks = views.Put(tasks[i].keys.chunks, 1);
      item.chunk_tokens = tasks[i].keys.chunk_tokens;
      item.key_dtype = DType::kFloat16;
      for (const DenseRun& run : tasks[i].dense) {
        const cuda::DenseRows rows = {static_cast<const uint8_t*>(run.keys.data), run.keys.stride_bytes, run.count,
                                      run.keys.dtype};
        item.dense = views.Put(&rows, 1);
        item.num_dense = 1;
        item.dense_tokens = run.count;
      }
      item.queries = views.Put(tasks[i].queries, group * kDim);
      item.group = group;
    }
    plan = std::make_unique<cuda::SearchPlan>(params, items);
    if (lane.workspace.Reserve(plan->workspace_bytes()) != 0 || lane.answers.Reserve(plan->answer_bytes()) != 0)
      return false;
    plan->Place(lane.workspace.data(), lane.answers.data());
    args.params = params;
    args.items = views.Put(plan->items().data(), plan->items().size());
    args.queries = views.Put(plan->queries().data(), plan->queries().size());
    args.sets = views.Put(plan->sets().data(), plan->sets().size());
    return views.Send() == 0 && lane.device->Finish(lane.stream) == 0;
  }

  cuda::StreamContext lane;
  std::unique_ptr<cuda::SearchPlan> plan;
  cuda::SearchArgs args;
};

// Each kernel alone (medians over layers and repeats), and all layers' kernels one behind another.
bool TimeKernels(const std::vector<std::unique_ptr<PreparedLayer>>& layers, double copy_gb_s, double link_gb_s,
                 Json* out) {
  const auto stream = cuda::Cuda(layers[0]->lane.stream);
  const std::vector<cuda::StepTraffic> traffic = cuda::CountTraffic(*layers[0]->plan);
  std::vector<std::vector<double>> us(traffic.size());
  for (int r = 0; r < kRepeats; ++r) {
    for (const auto& layer : layers) {
      Marks marks(stream);
      marks.Mark();
      if (cuda::Launch(cuda::SearchLaunch{layer->plan.get(), layer->args}, stream, [&] { marks.Mark(); }) !=
          cudaSuccess)
        return false;
      if (cudaStreamSynchronize(stream) != cudaSuccess || marks.size() != traffic.size() + 1) return false;
      for (size_t i = 0; i < traffic.size(); ++i) us[i].push_back(marks.Between(i));
    }
  }
  Json steps = Json::array();
  for (size_t i = 0; i < traffic.size(); ++i) steps.push_back(LineOf(traffic[i], us[i], copy_gb_s, link_gb_s));
  (*out)["kernels"] = steps;
  std::vector<double> ms;
  for (int r = 0; r < kRepeats; ++r) {
    Marks marks(stream);
    marks.Mark();
    for (const auto& layer : layers) {
      if (cuda::Launch(cuda::SearchLaunch{layer->plan.get(), layer->args}, stream) != cudaSuccess) return false;
    }
    marks.Mark();
    if (cudaStreamSynchronize(stream) != cudaSuccess) return false;
    ms.push_back(marks.Between(0) / 1e3);
  }
  (*out)["step_kernels_ms"] = Median(ms);
  return true;
}

// Steps of kLayers calls, one after another: their median, in ms, after two that are not timed, in which every layer is
// seen and captured. 0 where a call fails.
template <typename Layer>
double MedianStep(const Layer& run) {
  std::vector<double> ms;
  for (int r = -2; r < kRepeats; ++r) {
    const auto begin = std::chrono::steady_clock::now();
    for (int layer = 0; layer < kLayers; ++layer) {
      if (!run(layer)) return 0;
    }
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    if (r >= 0) ms.push_back(took.count());
  }
  return Median(ms);
}

// Each layer launched and waited for: kernel by kernel, and as a graph.
bool TimeLaunches(const std::vector<std::unique_ptr<PreparedLayer>>& layers, Json* out) {
  const double plain = MedianStep([&](int i) {
    const PreparedLayer& layer = *layers[i];
    return cuda::Launch(cuda::SearchLaunch{layer.plan.get(), layer.args}, cuda::Cuda(layer.lane.stream)) ==
               cudaSuccess &&
           layer.lane.device->Finish(layer.lane.stream) == 0;
  });
  const double graph = MedianStep([&](int i) {
    const PreparedLayer& layer = *layers[i];
    return layer.lane.device->Launch(cuda::SearchLaunch{layer.plan.get(), layer.args}, layer.lane.stream) == 0 &&
           layer.lane.device->Finish(layer.lane.stream) == 0;
  });
  int64_t launched = 0, failed = 0;
  for (const auto& layer : layers) {
    const cuda::LaunchCache::Counts& counts = cuda::StateOf(layer->lane.stream)->searches.counts();
    launched += counts.launched, failed += counts.failed;
  }
  (*out)["step_launched"] = {
      {"plain_ms", plain}, {"graph_ms", graph}, {"graphs_launched", launched}, {"graphs_failed", failed}};
  return plain > 0 && graph > 0 && launched > 0;
}

// The same machine's backend twice: one that launches kernels alone, one with graphs.
struct Backends {
  std::unique_ptr<Backend> plain, graph;
};

// Through the backend, a call a layer: tables sent, kernels, answers read.
bool TimeBackends(const Backends& backends, const Step& step, int per_layer, const SearchParams& params, Json* out) {
  std::vector<SearchOutput> outputs(per_layer);
  const auto time = [&](Backend* gpu) {
    return MedianStep([&](int layer) {
      const SearchTask* tasks = step.tasks.data() + static_cast<size_t>(layer) * per_layer;
      return gpu->Search(tasks, per_layer, params, outputs.data()) == Outcome::kDone;
    });
  };
  const double plain = time(backends.plain.get()), graph = time(backends.graph.get());
  (*out)["step_backend"] = {{"plain_ms", plain}, {"graph_ms", graph}};
  return plain > 0 && graph > 0;
}

SearchParams ParamsOf(const Shape& shape) {
  SearchParams params;
  params.candidate_fraction = shape.beta;
  params.gqa_reduce = shape.reduce;
  return params;
}

std::shared_ptr<const Codec> CodecOf(const Shape& shape) {
  if (shape.bits == Bits::kRsq) return MakeRsqCodec({.head_dim = kDim});
  return MakeBalancedCodec(RandomBalanced(kDim, 3, shape.bits == Bits::kHalf));
}

Json DescribeShape(const Shape& shape) {
  const char* bits[] = {"balanced, half a bit scanned", "balanced, one bit scanned", "rsq"};
  const char* reduces[] = {"sum", "max", "mean"};
  return {{"num_keys", shape.num_keys},
          {"batch", shape.batch},
          {"layers", kLayers},
          {"kv_heads", kHeads},
          {"group", shape.group},
          {"head_dim", kDim},
          {"codec", bits[static_cast<int>(shape.bits)]},
          {"reduce", reduces[static_cast<int>(shape.reduce)]},
          {"beta", shape.beta}};
}

// Needs of every timing: a device of its own, keys, and the bandwidths that times are held against.
struct Tools {
  explicit Tools(const Rig& rig, int64_t num_keys) : gpu(rig.gpu), device(cuda::OpenDevice(&why)) {
    copy = CopyBandwidth(size_t{4} << 30, cudaMemcpyDeviceToDevice);
    link = CopyBandwidth(size_t{1} << 30, cudaMemcpyHostToDevice);
    keys = RandomKeys(rig.gpu, num_keys);
    setenv("SEINE_CUDA_GRAPHS", "OFF", /*overwrite=*/1);
    backends.plain = MakeBackend("cuda", 1, &why);
    setenv("SEINE_CUDA_GRAPHS", "ON", /*overwrite=*/1);
    backends.graph = MakeBackend("cuda", 1, &why);
  }
  bool ready() const { return device != nullptr && backends.plain && backends.graph && keys && copy > 0 && link > 0; }

  Backend* gpu;
  std::string why;
  std::unique_ptr<cuda::Device> device;
  Backends backends;
  Buffer keys;
  double copy = 0, link = 0;
};

// A part of one figure, made by measure(tools, &figures).
template <typename Measure>
PartResult Timed(const Rig& rig, int64_t num_keys, Measure measure) {
  PartResult result;
  result.planned = 1;
  const Tools tools(rig, num_keys);
  if (!tools.ready()) {
    result.error = "no device, no memory or no bandwidth: " + tools.why;
    return result;
  }
  result.figures = {{"copy_gb_s", tools.copy}, {"link_gb_s", tools.link}};
  if (measure(tools, &result.figures)) result.count = 1;
  if (result.count == 0) result.error = "not done: no memory, or an error of the device";
  return result;
}

bool TimeShape(const Tools& tools, const Shape& shape, Json* out) {
  out->update(DescribeShape(shape));
  const SearchParams params = ParamsOf(shape);
  Step step;
  const int per_layer = shape.batch * kHeads;
  std::vector<std::unique_ptr<PreparedLayer>> layers;
  if (!step.Make(tools.gpu, shape, CodecOf(shape), tools.keys.data())) return false;
  cuda::CodecCache codecs(tools.device.get());
  for (int layer = 0; layer < kLayers; ++layer) {
    layers.push_back(std::make_unique<PreparedLayer>(tools.device.get()));
    const SearchTask* tasks = step.tasks.data() + static_cast<size_t>(layer) * per_layer;
    if (!layers.back()->Make(tasks, per_layer, params, &codecs)) return false;
  }
  (*out)["encode_keys_per_s"] = step.encode_s > 0 ? static_cast<double>(shape.num_keys) / step.encode_s : 0;
  return TimeKernels(layers, tools.copy, tools.link, out) && TimeLaunches(layers, out) &&
         TimeBackends(tools.backends, step, per_layer, params, out);
}

// Layers a second through one backend by 1, 2, 4 and 8 callers at once, each with a layer of its own.
bool TimeCallers(const Tools& tools, const Shape& shape, Json* out) {
  out->update(DescribeShape(shape));
  const SearchParams params = ParamsOf(shape);
  Step step;
  const int per_layer = shape.batch * kHeads;
  if (!step.Make(tools.gpu, shape, CodecOf(shape), tools.keys.data())) return false;
  Json lines = Json::array();
  for (const int callers : {1, 2, 4, 8}) {
    constexpr int kCalls = 100;
    std::atomic<bool> done{true};
    const auto begin = std::chrono::steady_clock::now();
    std::clock_t processor = std::clock();
    std::vector<std::thread> threads;
    for (int caller = 0; caller < callers; ++caller) {
      threads.emplace_back([&, caller] {
        std::vector<SearchOutput> outputs(per_layer);
        for (int call = 0; call < kCalls; ++call) {
          const SearchTask* tasks = step.tasks.data() + static_cast<size_t>((caller + call) % kLayers) * per_layer;
          if (tools.gpu->Search(tasks, per_layer, params, outputs.data()) != Outcome::kDone) done = false;
        }
      });
    }
    for (std::thread& t : threads) t.join();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    processor = std::clock() - processor;
    if (!done) return false;
    lines.push_back({{"callers", callers},
                     {"layers_per_s", callers * kCalls / seconds},
                     {"cores_busy", static_cast<double>(processor) / CLOCKS_PER_SEC / seconds}});
  }
  (*out)["callers"] = lines;
  return true;
}

// 100 rows of 8 heads, K and V, from page-locked memory, as one decode step of a layer fetches them.
Json TimeGather(Backend* gpu, cuda::Device* device, const Buffer& keys, double link) {
  constexpr int kRows = 100, kItems = 2 * kHeads;
  const int64_t stored = static_cast<int64_t>(keys.size()) / (kDim * 2);
  const Buffer out = gpu->Allocate(size_t{kItems} * kRows * kDim * 2, MemorySpace::kCodes);
  cuda::StreamContext lane(device);
  if (!out || lane.Open() != 0) return {{"done", false}};
  const uint8_t* chunk = keys.data();
  std::vector<double> us;
  for (int r = 0; r < 50; ++r) {
    cuda::ViewWriter views(&lane);
    if (views.Reserve(size_t{1} << 16) != 0) return {{"done", false}};
    std::vector<cuda::GatherItem> items(kItems);
    for (int i = 0; i < kItems; ++i) {
      std::vector<int32_t> positions(kRows);
      for (int p = 0; p < kRows; ++p) {
        positions[p] = static_cast<int32_t>(SplitMix64(r, static_cast<uint64_t>(i * kRows + p)) % stored);
      }
      items[i] = {views.Put(&chunk, 1),
                  static_cast<int>(stored),
                  kDim * 2,
                  views.Put(positions.data(), kRows),
                  kRows,
                  out.data() + static_cast<size_t>(i) * kRows * kDim * 2};
    }
    const cuda::GatherArgs args = {views.Put(items.data(), items.size()), kItems};
    if (views.Send() != 0) return {{"done", false}};
    Marks marks(cuda::Cuda(lane.stream));
    marks.Mark();
    if (device->Launch(args, lane.stream) != 0) return {{"done", false}};
    marks.Mark();
    if (device->Finish(lane.stream) != 0) return {{"done", false}};
    us.push_back(marks.Between(0));
  }
  const double gb_s = static_cast<double>(out.size()) / Median(us) / 1e3;
  return {{"done", true}, {"rows", kRows * kItems}, {"us", Median(us)}, {"gb_s", gb_s}, {"share_of_link", gb_s / link}};
}

// Shapes that are timed: a list, or the one that the options fix.
std::vector<Shape> Shapes(const SuiteOptions& o) {
  constexpr int64_t kLong = 131072, kMillion = 1048576;
  std::vector<Shape> shapes;
  for (const int64_t keys : {kLong, kMillion}) {
    for (const int batch : {1, 8}) {
      shapes.push_back({keys, batch, 4, keys == kLong ? .02 : .01, Bits::kHalf, GqaReduce::kMax});
      if (keys == kLong || batch == 1) shapes.push_back({keys, batch});
    }
  }
  for (Shape& s : shapes) {
    if (o.keys > 0) s.num_keys = o.keys;
    if (o.batch > 0) s.batch = o.batch;
    if (o.group > 0) s.group = o.group;
    if (o.bits) s.bits = *o.bits;
    if (o.reduce) s.reduce = *o.reduce;
  }
  std::vector<Shape> apart;
  for (const Shape& s : shapes) {
    bool there = false;
    for (const Shape& other : apart) there = there || other.Name() == s.Name();
    if (!there) apart.push_back(s);
  }
  return apart;
}

}  // namespace

std::vector<Part> Timings(const SuiteOptions& options) {
  constexpr int64_t kKeys = 1 << 20;
  std::vector<Part> parts = {LaunchFigures()};
  const auto add = [&](std::string name, std::string what, double limit, int64_t keys, auto measure) {
    parts.push_back({std::move(name), std::move(what), limit, true,
                     [keys, measure](const Rig& rig) { return Timed(rig, keys, measure); }});
  };
  add("time-copy", "copy and link bandwidth", 30, 64, [](const Tools&, Json*) { return true; });
  add("time-gather", "rows fetched over the link", 30, kKeys, [](const Tools& t, Json* out) {
    out->update(TimeGather(t.gpu, t.device.get(), t.keys, t.link));
    return out->value("done", false);
  });
  add("time-evict", "sums, scores and selection of a layer", 30, kKeys, [](const Tools& t, Json* out) {
    out->update(TimeEvict(t.gpu, t.device.get(), t.keys, t.copy));
    return out->value("done", false);
  });
  add("time-lowrank", "projection, reconstruction and learning of a layer", 30, kKeys, [](const Tools& t, Json* out) {
    out->update(TimeLowRank(t.gpu, t.device.get(), t.copy, t.link));
    return out->value("done", false);
  });
  for (const Shape& shape : Shapes(options)) {
    add(shape.Name(), "kernels and steps of a search", 60, shape.num_keys,
        [shape](const Tools& t, Json* out) { return TimeShape(t, shape, out); });
  }
  Shape shared = {131072, 1};
  if (options.keys > 0) shared.num_keys = options.keys;
  add("time-streams", "callers at once", 60, shared.num_keys,
      [shared](const Tools& t, Json* out) { return TimeCallers(t, shared, out); });
  return parts;
}

}  // namespace seine::device
