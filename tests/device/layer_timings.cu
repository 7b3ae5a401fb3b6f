// Times of kernels that take a whole layer, against their counted bytes: eviction's scores and selection, and what
// subspaces do.
#include <cstring>

#include "kernels/device/cuda_stream.h"
#include "kernels/device/stream_context.h"
#include "kernels/math.h"
#include "kernels/ops/learn/oja_items.h"
#include "kernels/ops/learn/oja_rule.h"
#include "tests/device/timing.h"
#include "tests/kernels/random_data.h"

namespace seine::device {
namespace {

// A layer's subspaces: rows and bases on the device, codes in page-locked memory. Two layers take turns, too.
class LowRankLayer {
 public:
  static constexpr int kRank = 96, kTurns = 2;
  static constexpr int64_t kRows = 16384, kLearnt = 2048;

  bool Make(Backend* gpu, cuda::StreamContext* lane) {
    rows_ = gpu->Allocate(kTurns * kHeads * kRows * kDim * sizeof(float), MemorySpace::kCodes);
    out_ = gpu->Allocate(kHeads * kRows * kDim * sizeof(float), MemorySpace::kCodes);
    codes_ = gpu->Allocate(kTurns * kHeads * kRows * kRank * 2, MemorySpace::kStore);
    state_ = gpu->Allocate(kHeads * kStateBytes, MemorySpace::kCodes);
    if (!rows_ || !out_ || !codes_ || !state_ || lane->Open() != 0) return false;
    memset(codes_.data(), 0, codes_.size());
    return Fill(lane);
  }

  // Project, rebuild and learn, a mark before each and at the end.
  bool Run(cuda::Device* device, cuda::StreamContext* lane, int turn, Marks* marks) {
    cuda::ViewWriter views(lane);
    if (views.Reserve(size_t{1} << 18) != 0) return false;
    std::vector<cuda::ProjectItem> project(kHeads);
    std::vector<cuda::RebuildItem> rebuild(kHeads);
    std::vector<cuda::LearnItem> learn(kHeads);
    std::vector<int32_t> places(kRows);
    for (int i = 0; i < kRows; ++i) places[i] = i;
    const int32_t* all = views.Put(places.data(), places.size());
    for (int h = 0; h < kHeads; ++h) {
      uint8_t* state = state_.data() + h * kStateBytes;
      auto* basis = reinterpret_cast<float*>(state);
      const auto* rows = reinterpret_cast<const float*>(rows_.data()) + (turn * kHeads + h) * kRows * kDim;
      auto* out = reinterpret_cast<float*>(out_.data()) + h * kRows * kDim;
      project[h] = {basis, kDim, kRank, rows, kRows, DType::kFloat16, reinterpret_cast<uint8_t*>(out), nullptr};
      LowRankRun run;
      run.codes = codes_.data() + (turn * kHeads + h) * kRows * kRank * 2;
      run.basis = reinterpret_cast<const uint16_t*>(state + kHalfAt);
      rebuild[h].rows.runs = views.Put(&run, 1);
      rebuild[h].rows.num_runs = 1;
      rebuild[h].rows.head_dim = kDim;
      rebuild[h].rows.rank = kRank;
      rebuild[h].rows.dtype = DType::kFloat16;
      rebuild[h].places = all;
      rebuild[h].count = kRows;
      rebuild[h].out = out;
      learn[h].task = {OjaOptions(), kDim, kRank, basis, rows, kLearnt, reinterpret_cast<OjaStats*>(state + kStatsAt)};
      learn[h].scratch = reinterpret_cast<float*>(state + kScratchAt);
    }
    const cuda::ProjectArgs project_args = {views.Put(project.data(), kHeads), kHeads, kRows, kDim};
    const cuda::RebuildArgs rebuild_args = {views.Put(rebuild.data(), kHeads), kHeads, kRows, kDim};
    const cuda::LearnArgs learn_args = {views.Put(learn.data(), kHeads), kHeads};
    if (views.Send() != 0) return false;
    marks->Mark();
    if (device->Launch(project_args, lane->stream) != 0) return false;
    marks->Mark();
    if (device->Launch(rebuild_args, lane->stream) != 0) return false;
    marks->Mark();
    if (device->Launch(learn_args, lane->stream) != 0) return false;
    marks->Mark();
    return device->Finish(lane->stream) == 0;
  }

 private:
  // A head's state: the basis in fp32, its transpose in fp16, what was learnt, and what learning works in.
  static constexpr int64_t kHalfAt = kDim * kRank * 4, kStatsAt = kHalfAt + kDim * kRank * 2,
                           kScratchAt = kStatsAt + 256;
  const int64_t kStateBytes =
      kScratchAt + (static_cast<int64_t>(OjaScratch::Floats(kDim, kRank, OjaOptions().interval)) * 4 + 255) / 256 * 256;

  // The first axes as every head's basis, and random rows.
  bool Fill(cuda::StreamContext* lane) {
    std::vector<uint8_t> state(kScratchAt);
    for (int i = 0; i < kRank; ++i) {
      const float one = 1;
      const uint16_t half = FloatToHalf(one);
      memcpy(&state[(i * kRank + i) * 4], &one, 4);
      memcpy(&state[kHalfAt + (i * kDim + i) * 2], &half, 2);
    }
    const OjaStats stats;
    memcpy(&state[kStatsAt], &stats, sizeof(stats));
    const std::vector<float> rows = Gaussian(kRows * kDim, 21);
    const size_t bytes = rows.size() * sizeof(float);
    for (int h = 0; h < kHeads; ++h) {
      if (lane->device->Copy(state_.data() + h * kStateBytes, state.data(), state.size(), lane->stream) != 0)
        return false;
    }
    for (int h = 0; h < kTurns * kHeads; ++h) {
      if (lane->device->Copy(rows_.data() + h * bytes, rows.data(), bytes, lane->stream) != 0) return false;
    }
    return lane->device->Finish(lane->stream) == 0;
  }

  Buffer rows_, out_, codes_, state_;
};

}  // namespace

// Sums, scores and selection of a layer of 8 heads of 64K keys that lie on the device: KeyDiff's, a quarter kept. Two
// layers take turns, so that neither is read from a cache.
Json TimeEvict(Backend* gpu, cuda::Device* device, const Buffer& keys, double copy) {
  constexpr int64_t kKeys = 65536, kKept = kKeys / 4, kTurns = 2;
  const size_t head_bytes = kKeys * kDim * 2, layer_bytes = head_bytes * kHeads;
  const Buffer resident = gpu->Allocate(kTurns * layer_bytes, MemorySpace::kCodes);
  constexpr int kGroups = kKeys / kSumGroup;
  const size_t sum_bytes = kHeads * (kGroups + 1) * kDim * sizeof(double);
  const Buffer work =
      gpu->Allocate(sum_bytes + kHeads * (kKeys + kKept) * 4 + kHeads * sizeof(cuda::SelectState), MemorySpace::kCodes);
  cuda::StreamContext lane(device);
  if (!resident || !work || keys.size() < layer_bytes || lane.Open() != 0) return {{"done", false}};
  for (int turn = 0; turn < kTurns; ++turn) {
    if (device->Copy(resident.data() + turn * layer_bytes, keys.data(), layer_bytes, lane.stream) != 0) return {};
  }
  const std::vector<float> anchor = Gaussian(kDim, 3);
  auto* sums = reinterpret_cast<double*>(work.data());
  auto* scores = reinterpret_cast<float*>(work.data() + sum_bytes);
  auto* places = reinterpret_cast<uint32_t*>(scores + kHeads * kKeys);
  auto* states = reinterpret_cast<cuda::SelectState*>(places + kHeads * kKept);
  std::vector<double> sum_us, score_us, select_us;
  for (int r = 0; r < 20; ++r) {
    cuda::ViewWriter views(&lane);
    if (views.Reserve(size_t{1} << 16) != 0) return {{"done", false}};
    std::vector<cuda::SumItem> sum(kHeads);
    std::vector<cuda::ScoreItem> score(kHeads);
    std::vector<cuda::SelectItem> select(kHeads);
    std::vector<int32_t> begins;  // one window, of groups one behind another
    for (int key = 0; key <= kKeys; key += kSumGroup) begins.push_back(key);
    const int32_t* key_begins = views.Put(begins.data(), begins.size());
    const int32_t window[] = {0, kGroups};
    const int32_t* group_begins = views.Put(window, 2);
    for (int h = 0; h < kHeads; ++h) {
      const uint8_t* head = resident.data() + r % kTurns * layer_bytes + h * head_bytes;
      score[h].chunks = views.Put(&head, 1);
      sum[h].chunks = score[h].chunks;
      sum[h].chunk_tokens = kKeys;
      sum[h].head_dim = kDim;
      sum[h].dtype = DType::kFloat16;
      sum[h].unit = true;
      sum[h].groups = kGroups;
      sum[h].longest = kSumGroup;
      sum[h].key_begins = key_begins;
      sum[h].group_begins = group_begins;
      sum[h].partial = sums + h * (kGroups + 1) * kDim;
      sum[h].sums = sum[h].partial + kGroups * kDim;
      score[h].chunk_tokens = score[h].count = kKeys;
      score[h].head_dim = kDim;
      score[h].dtype = DType::kFloat16;
      score[h].kind = KeyScore::kNegCosine;
      score[h].anchors = views.Put(anchor.data(), anchor.size());
      score[h].out = scores + h * kKeys;
      select[h] = {score[h].out, kKeys, kKept, states + h, places + h * kKept};
    }
    const cuda::SumArgs sum_args = {views.Put(sum.data(), sum.size()), kHeads, kGroups / cuda::SumSlots(kDim), 1};
    const cuda::ScoreArgs score_args = {views.Put(score.data(), score.size()), kHeads, kKeys};
    const cuda::SelectArgs select_args = {views.Put(select.data(), select.size()), kHeads};
    if (views.Send() != 0) return {{"done", false}};
    Marks marks(cuda::Cuda(lane.stream));
    marks.Mark();
    if (device->Launch(sum_args, lane.stream) != 0) return {{"done", false}};
    marks.Mark();
    if (device->Launch(score_args, lane.stream) != 0) return {{"done", false}};
    marks.Mark();
    if (device->Launch(select_args, lane.stream) != 0) return {{"done", false}};
    marks.Mark();
    if (device->Finish(lane.stream) != 0) return {{"done", false}};
    sum_us.push_back(marks.Between(0));
    score_us.push_back(marks.Between(1));
    select_us.push_back(marks.Between(2));
  }
  const auto traffic = cuda::CountTraffic(
      cuda::LayerWork{.heads = kHeads, .head_dim = kDim, .rows = kKeys, .kept = kKept, .keys_on_device = true});
  Json lines = Json::array();
  for (const cuda::StepTraffic& t : traffic) {
    if (t.step == "sum") lines.push_back(LineOf(t, sum_us, copy, 1));
    if (t.step == "score") lines.push_back(LineOf(t, score_us, copy, 1));
    if (t.step == "select") lines.push_back(LineOf(t, select_us, copy, 1));
  }
  return {{"done", true}, {"keys", kKeys * kHeads}, {"kernels", lines}};
}

Json TimeLowRank(Backend* gpu, cuda::Device* device, double copy, double link) {
  cuda::StreamContext lane(device);
  LowRankLayer layer;
  if (!layer.Make(gpu, &lane)) return {{"done", false}};
  std::vector<double> project_us, rebuild_us, learn_us;
  for (int r = 0; r < 10; ++r) {
    Marks marks(cuda::Cuda(lane.stream));
    if (!layer.Run(device, &lane, r % LowRankLayer::kTurns, &marks)) return {{"done", false}};
    project_us.push_back(marks.Between(0));
    rebuild_us.push_back(marks.Between(1));
    learn_us.push_back(marks.Between(2));
  }
  cuda::LayerWork work = {.heads = kHeads, .head_dim = kDim, .rows = LowRankLayer::kRows, .rank = LowRankLayer::kRank};
  Json lines = Json::array();
  for (const cuda::StepTraffic& t : cuda::CountTraffic(work)) {
    if (t.step == "project") lines.push_back(LineOf(t, project_us, copy, link));
    if (t.step == "rebuild") lines.push_back(LineOf(t, rebuild_us, copy, link));
  }
  work.rows = LowRankLayer::kLearnt;
  const cuda::StepTraffic learn = cuda::CountTraffic(work)[0];
  lines.push_back(LineOf(learn, learn_us, copy, link));
  lines.back()["block_gops"] = learn.block_operations / Median(learn_us) / 1e3;
  return {{"done", true},
          {"rank", LowRankLayer::kRank},
          {"rows", LowRankLayer::kRows},
          {"rows_learnt", LowRankLayer::kLearnt},
          {"heads", kHeads},
          {"kernels", lines}};
}

}  // namespace seine::device
