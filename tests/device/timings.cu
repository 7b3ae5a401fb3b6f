// Times on the device: copy and link bandwidth, each kernel of a search against its counted bytes, whole decode steps
// of Llama-3.1-8B's geometry, encoding and gathering. Every layer has codes of its own, so that none is read from a
// cache.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>

#include "kernels/cuda/codec_cache.h"
#include "kernels/cuda/lane.h"
#include "kernels/cuda/search_launch.h"
#include "kernels/cuda/traffic.h"
#include "tests/device/suite.h"
#include "tests/device/zone.h"
#include "tests/kernels/random_data.h"

namespace seine::device {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kLayers = 32, kHeads = 8, kGroup = 4, kDim = 128, kRepeats = 5;

double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v[v.size() / 2];
}

// A stretch of a stream between two marks.
class Marks {
 public:
  explicit Marks(cudaStream_t stream) : stream_(stream) {}
  Marks(const Marks&) = delete;
  ~Marks() {
    for (cudaEvent_t e : events_) cudaEventDestroy(e);
  }
  void Mark() {
    events_.emplace_back();
    cudaEventCreate(&events_.back());
    cudaEventRecord(events_.back(), stream_);
  }
  // Microseconds between mark i and the next, after the stream has ended.
  double Between(size_t i) const {
    float ms = 0;
    cudaEventElapsedTime(&ms, events_[i], events_[i + 1]);
    return static_cast<double>(ms) * 1e3;
  }
  size_t size() const { return events_.size(); }

 private:
  cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
};

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
  Buffer store = backend->Allocate(static_cast<size_t>(keys) * kDim * 2, Place::kStore);
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

struct Shape {
  int64_t num_keys;
  int batch;
  double beta;
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
    queries = Gaussian(static_cast<size_t>(count) * kGroup * kDim, 5);
    for (int i = 0; i < count; ++i) {
      tasks.push_back(zones[i]->Task(queries.data() + static_cast<size_t>(i) * kGroup * kDim, kGroup, true, 0));
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
    const size_t bytes = static_cast<size_t>(count) * (segments * sizeof(ConstCodePlanes) + kGroup * kDim * 4 +
                                                       sizeof(cuda::SearchItem) + 4096) +
                         static_cast<size_t>(count) * kGroup * (sizeof(cuda::QueryPlan) + sizeof(cuda::SetPlan));
    const CodecTables* tables = nullptr;
    if (lane.Open() != 0 || codecs->Get(*tasks[0].codec, &lane, &tables) != 0 || views.Reserve(bytes) != 0)
      return false;
    std::vector<cuda::SearchItem> items(count);
    for (int i = 0; i < count; ++i) {
      cuda::SearchItem& item = items[i];
      item.codec = tables;
      item.layout = tasks[i].codec->layout();
      item.kind = CodecKind::kBalanced;
      item.segments = views.Put(tasks[i].segments, segments);
      item.segment_keys = tasks[i].segment_keys;
      item.num_keys = tasks[i].num_keys;
      item.chunks = views.Put(tasks[i].keys.chunks, 1);
      item.chunk_tokens = tasks[i].keys.chunk_tokens;
      item.key_dtype = DType::kFloat16;
      item.queries = views.Put(tasks[i].queries, kGroup * kDim);
      item.group = kGroup;
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

  cuda::Lane lane;
  std::unique_ptr<cuda::SearchPlan> plan;
  cuda::SearchArgs args;
};

// Each kernel alone (medians over layers and repeats), and all layers' kernels one behind another.
bool TimeKernels(const std::vector<std::unique_ptr<PreparedLayer>>& layers, double copy_gb_s, double link_gb_s,
                 Json* out) {
  const auto stream = static_cast<cudaStream_t>(layers[0]->lane.stream);
  const std::vector<cuda::StepTraffic> traffic = cuda::CountTraffic(*layers[0]->plan);
  std::vector<std::vector<double>> us(traffic.size());
  for (int r = 0; r < kRepeats; ++r) {
    for (const auto& layer : layers) {
      Marks marks(stream);
      marks.Mark();
      if (cuda::LaunchSearch(*layer->plan, layer->args, stream, [&] { marks.Mark(); }) != cudaSuccess) return false;
      if (cudaStreamSynchronize(stream) != cudaSuccess || marks.size() != traffic.size() + 1) return false;
      for (size_t i = 0; i < traffic.size(); ++i) us[i].push_back(marks.Between(i));
    }
  }
  Json steps = Json::array();
  for (size_t i = 0; i < traffic.size(); ++i) {
    const double least = traffic[i].device_bytes / (copy_gb_s * 1e3) + traffic[i].link_bytes / (link_gb_s * 1e3);
    const double median = Median(us[i]);
    steps.push_back({{"step", traffic[i].step},
                     {"device_bytes", traffic[i].device_bytes},
                     {"link_bytes", traffic[i].link_bytes},
                     {"us", median},
                     {"share_of_bandwidth", least / median}});
  }
  (*out)["kernels"] = steps;
  std::vector<double> ms;
  for (int r = 0; r < kRepeats; ++r) {
    Marks marks(stream);
    marks.Mark();
    for (const auto& layer : layers) {
      if (cuda::LaunchSearch(*layer->plan, layer->args, stream) != cudaSuccess) return false;
    }
    marks.Mark();
    if (cudaStreamSynchronize(stream) != cudaSuccess) return false;
    ms.push_back(marks.Between(0) / 1e3);
  }
  (*out)["step_kernels_ms"] = Median(ms);
  return true;
}

// Through the backend, a call a layer: tables sent, kernels, answers read.
bool TimeBackend(Backend* gpu, const Step& step, int per_layer, const SearchParams& params, Json* out) {
  std::vector<double> ms;
  std::vector<SearchOutput> outputs(per_layer);
  for (int r = 0; r < kRepeats; ++r) {
    const auto begin = std::chrono::steady_clock::now();
    for (int layer = 0; layer < kLayers; ++layer) {
      const SearchTask* tasks = step.tasks.data() + static_cast<size_t>(layer) * per_layer;
      if (gpu->Search(tasks, per_layer, params, outputs.data()) != Outcome::kDone) return false;
    }
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  (*out)["step_backend_ms"] = Median(ms);
  return true;
}

Json TimeShape(Backend* gpu, cuda::Device* device, const Shape& shape, const Buffer& keys, double copy, double link) {
  Json out = {{"num_keys", shape.num_keys},
              {"batch", shape.batch},
              {"layers", kLayers},
              {"kv_heads", kHeads},
              {"group", kGroup},
              {"head_dim", kDim},
              {"codec", "balanced, half a bit scanned"},
              {"beta", shape.beta}};
  SearchParams params;
  params.beta = shape.beta;
  params.reduce = GqaReduce::kMax;
  const auto codec = MakeBalancedCodec(RandomBalanced(kDim, 3, /*half_bit=*/true));
  Step step;
  const int per_layer = shape.batch * kHeads;
  std::vector<std::unique_ptr<PreparedLayer>> layers;
  bool done = step.Make(gpu, shape, codec, keys.data());
  cuda::CodecCache codecs(device);
  for (int layer = 0; done && layer < kLayers; ++layer) {
    layers.push_back(std::make_unique<PreparedLayer>(device));
    done = layers.back()->Make(step.tasks.data() + static_cast<size_t>(layer) * per_layer, per_layer, params, &codecs);
  }
  done = done && TimeKernels(layers, copy, link, &out) && TimeBackend(gpu, step, per_layer, params, &out);
  out["encode_keys_per_s"] = step.encode_s > 0 ? static_cast<double>(shape.num_keys) / step.encode_s : 0;
  out["done"] = done;
  std::fprintf(stderr, "%lld keys, batch %d: %s\n", static_cast<long long>(shape.num_keys), shape.batch,
               done ? out.dump().c_str() : "not done, no memory or an error");
  return out;
}

// 100 rows of 8 heads, K and V, from page-locked memory, as one decode step of a layer fetches them.
Json TimeGather(Backend* gpu, cuda::Device* device, const Buffer& keys, double link) {
  constexpr int kRows = 100, kItems = 2 * kHeads;
  const int64_t stored = static_cast<int64_t>(keys.size()) / (kDim * 2);
  const Buffer out = gpu->Allocate(size_t{kItems} * kRows * kDim * 2, Place::kCodes);
  cuda::Lane lane(device);
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
    Marks marks(static_cast<cudaStream_t>(lane.stream));
    marks.Mark();
    if (device->Gather(args, lane.stream) != 0) return {{"done", false}};
    marks.Mark();
    if (device->Finish(lane.stream) != 0) return {{"done", false}};
    us.push_back(marks.Between(0));
  }
  const double gb_s = static_cast<double>(out.size()) / Median(us) / 1e3;
  return {{"done", true}, {"rows", kRows * kItems}, {"us", Median(us)}, {"gb_s", gb_s}, {"share_of_link", gb_s / link}};
}

// Scoring and selection of a layer of 8 heads of 64K keys that lie on the device: KeyDiff's score, a quarter kept. Two
// layers take turns, so that neither is read from a cache.
Json TimeEvict(Backend* gpu, cuda::Device* device, const Buffer& keys, double copy) {
  constexpr int64_t kKeys = 65536, kKept = kKeys / 4, kTurns = 2;
  const size_t head_bytes = kKeys * kDim * 2, layer_bytes = head_bytes * kHeads;
  const Buffer resident = gpu->Allocate(kTurns * layer_bytes, Place::kCodes);
  const Buffer work = gpu->Allocate(kHeads * (kKeys + kKept) * 4 + kHeads * sizeof(cuda::SelectState), Place::kCodes);
  cuda::Lane lane(device);
  if (!resident || !work || keys.size() < layer_bytes || lane.Open() != 0) return {{"done", false}};
  for (int turn = 0; turn < kTurns; ++turn) {
    if (device->Copy(resident.data() + turn * layer_bytes, keys.data(), layer_bytes, lane.stream) != 0) return {};
  }
  const std::vector<float> anchor = Gaussian(kDim, 3);
  auto* scores = reinterpret_cast<float*>(work.data());
  auto* places = reinterpret_cast<uint32_t*>(scores + kHeads * kKeys);
  auto* states = reinterpret_cast<cuda::SelectState*>(places + kHeads * kKept);
  std::vector<double> score_us, select_us;
  for (int r = 0; r < 20; ++r) {
    cuda::ViewWriter views(&lane);
    if (views.Reserve(size_t{1} << 16) != 0) return {{"done", false}};
    std::vector<cuda::ScoreItem> score(kHeads);
    std::vector<cuda::SelectItem> select(kHeads);
    for (int h = 0; h < kHeads; ++h) {
      const uint8_t* head = resident.data() + r % kTurns * layer_bytes + h * head_bytes;
      score[h].chunks = views.Put(&head, 1);
      score[h].chunk_tokens = score[h].count = score[h].window = kKeys;
      score[h].head_dim = kDim;
      score[h].dtype = DType::kFloat16;
      score[h].kind = KeyScore::kNegCosine;
      score[h].anchors = views.Put(anchor.data(), anchor.size());
      score[h].out = scores + h * kKeys;
      select[h] = {score[h].out, kKeys, kKept, states + h, places + h * kKept};
    }
    const cuda::ScoreArgs score_args = {views.Put(score.data(), score.size()), kHeads, kKeys};
    const cuda::SelectArgs select_args = {views.Put(select.data(), select.size()), kHeads};
    if (views.Send() != 0) return {{"done", false}};
    Marks marks(static_cast<cudaStream_t>(lane.stream));
    marks.Mark();
    if (device->Score(score_args, lane.stream) != 0) return {{"done", false}};
    marks.Mark();
    if (device->Select(select_args, lane.stream) != 0) return {{"done", false}};
    marks.Mark();
    if (device->Finish(lane.stream) != 0) return {{"done", false}};
    score_us.push_back(marks.Between(0));
    select_us.push_back(marks.Between(1));
  }
  const double least = static_cast<double>(layer_bytes) / (copy * 1e3);
  return {{"done", true},
          {"keys", kKeys * kHeads},
          {"score_us", Median(score_us)},
          {"select_us", Median(select_us)},
          {"share_of_bandwidth", least / Median(score_us)}};
}

}  // namespace

Json DescribeMachine() {
  cudaDeviceProp p;
  int driver = 0, runtime = 0;
  if (cudaGetDeviceProperties(&p, 0) != cudaSuccess) return {};
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  return {{"device", p.name},
          {"compute_capability", std::to_string(p.major) + "." + std::to_string(p.minor)},
          {"multiprocessors", p.multiProcessorCount},
          {"memory_bytes", p.totalGlobalMem},
          {"l2_bytes", p.l2CacheSize},
          {"driver", driver},
          {"runtime", runtime},
          {"host_threads", std::thread::hardware_concurrency()}};
}

Json RunTimings(Backend* gpu) {
  Json out;
  const double copy = CopyBandwidth(size_t{4} << 30, cudaMemcpyDeviceToDevice);
  const double link = CopyBandwidth(size_t{1} << 30, cudaMemcpyHostToDevice);
  out["copy_gb_s"] = copy;
  out["link_gb_s"] = link;
  std::string why;
  const auto device = cuda::OpenDevice(&why);
  const Buffer keys = RandomKeys(gpu, 1 << 20);
  if (device == nullptr || !keys || copy == 0 || link == 0) return out;
  out["gather"] = TimeGather(gpu, device.get(), keys, link);
  out["evict"] = TimeEvict(gpu, device.get(), keys, copy);
  out["shapes"] = Json::array();
  for (const Shape& shape :
       {Shape{131072, 1, .02}, Shape{131072, 8, .02}, Shape{1048576, 1, .01}, Shape{1048576, 8, .01}}) {
    out["shapes"].push_back(TimeShape(gpu, device.get(), shape, keys, copy, link));
  }
  return out;
}

}  // namespace seine::device
