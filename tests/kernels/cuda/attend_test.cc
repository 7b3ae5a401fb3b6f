// Attention on a device, run on the host: the host's attention and float64 over random shapes, what is empty, logits
// far apart, what a search has just found, and every call of the device failing once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels/codecs/codec_util.h"
#include "kernels/codecs/kinds/rsq.h"
#include "kernels/ops/attend/attend_cuda.h"
#include "kernels/ops/attend/attention.h"
#include "tests/kernels/cuda/host_device.h"
#include "tests/kernels/same_bits.h"

namespace seine {
namespace {

using cuda::Device;
using cuda::HostDeviceControl;

// Rows of one head in chunks of a backend's memory, and as numbers.
struct Rows {
  Rows(Backend* backend, const std::vector<float>& x, int dim, DType dtype, int chunk_tokens) : values(x.size()) {
    const size_t row = BytesOf(dtype, dim);
    const Typed typed(x, dim, dtype);
    values = typed.values;
    const int64_t count = static_cast<int64_t>(x.size()) / dim;
    for (int64_t first = 0; first < count; first += chunk_tokens) {
      buffers.push_back(backend->Allocate(chunk_tokens * row, MemorySpace::kStore));
      for (int64_t i = first; i < std::min(first + chunk_tokens, count); ++i) {
        memcpy(buffers.back().data() + (i - first) * row, typed.rows.row(i), row);
      }
      chunks.push_back(buffers.back().data());
    }
    view = {chunks.data(), chunk_tokens, dim, dtype};
  }
  std::vector<float> values;
  std::vector<Buffer> buffers;
  std::vector<const uint8_t*> chunks;
  ChunkedRows view;
};

// Means of the windows of a zone from place `begin` on.
struct ZoneMeans {
  ZoneMeans(Backend* backend, const Rows& keys, const Rows& values, int dim, int begin, int count, int chunk_windows) {
    const size_t record = WindowMeansBytes(dim);
    for (int w = 0; w < count; ++w) {
      if (w % chunk_windows == 0) {
        buffers.push_back(backend->Allocate(chunk_windows * record, MemorySpace::kStore));
        chunks.push_back(buffers.back().data());
      }
      const int64_t first = int64_t{begin + w * kWindowTokens} * dim;
      EncodeWindowMeans(&keys.values[first], &values.values[first], dim,
                        buffers.back().data() + w % chunk_windows * record);
    }
    view = {chunks.data(), chunk_windows};
  }
  std::vector<Buffer> buffers;
  std::vector<const uint8_t*> chunks;
  ChunkedWindows view;
};

struct Answer {
  explicit Answer(const cpu::AttentionTask& task)
      : output(static_cast<size_t>(task.group) * task.keys.head_dim, 7.0f), log_sum_exp(task.group, 7.0f) {}
  std::vector<float> output, log_sum_exp;
  int64_t attended = -1;
};

Answer OnHost(const cpu::AttentionTask& task) {
  Answer answer(task);
  answer.attended = cpu::Attend(task, answer.output.data(), answer.log_sum_exp.data());
  return answer;
}

Answer OnDevice(Backend* device, const cpu::AttentionTask& task) {
  Answer answer(task);
  AttendTask of_device;
  of_device.attention = task;
  of_device.output = answer.output.data();
  of_device.log_sum_exp = answer.log_sum_exp.data();
  EXPECT_EQ(device->attention()->Attend(nullptr, 0, {}, nullptr, &of_device, 1), Outcome::kDone);
  answer.attended = of_device.attended;
  return answer;
}

// In float64, of the rows and records as they are stored.
Answer InFloat64(const cpu::AttentionTask& task, const Rows& keys, const Rows& values) {
  Answer answer(task);
  const int dim = task.keys.head_dim;
  const auto capped = [&](double logit) {
    return task.softcap > 0 ? task.softcap * std::tanh(logit / task.softcap) : logit;
  };
  for (int g = 0; g < task.group; ++g) {
    std::vector<std::pair<double, std::vector<double>>> seen;  // logits and values, of windows with their counts
    std::vector<double> counts;
    const float* query = task.queries + static_cast<size_t>(g) * dim;
    const auto add_row = [&](int64_t place) {
      const float* value = &values.values[place * dim];
      seen.emplace_back(capped(double{task.scale} * Dot64(&keys.values[place * dim], query, dim)),
                        std::vector<double>(value, value + dim));
      counts.push_back(1);
    };
    for (const cpu::PlaceRun& run : task.dense) {
      for (int64_t place = run.begin; place < run.end; ++place) add_row(place);
    }
    static const std::vector<std::vector<int32_t>> kNone(1);
    const auto& sets = task.sets == nullptr ? kNone : *task.sets;
    const std::vector<int32_t>& set = sets[sets.size() == 1 ? 0 : g];
    for (const int32_t place : set) add_row(place);
    std::vector<int8_t> query8(dim);
    const double step8 = Quantise8(query, dim, query8.data());
    for (int64_t w = 0; w < task.num_windows; ++w) {
      int left = kWindowTokens;
      for (const int32_t place : set) left -= (place - task.zone_begin) / kWindowTokens == w;
      if (left == 0) continue;
      const uint8_t* record =
          task.windows.chunks[w / task.windows.chunk_windows] + w % task.windows.chunk_windows * WindowMeansBytes(dim);
      const auto* means = reinterpret_cast<const int8_t*>(record);
      const WindowSteps steps = StepsOf(record, dim);
      double dot = 0;
      std::vector<double> value(dim);
      for (int j = 0; j < dim; ++j) {
        dot += query8[j] * step8 * means[j] * double{steps.key};
        value[j] = means[dim + j] * double{steps.value};
      }
      seen.emplace_back(capped(dot * task.scale), value);
      counts.push_back(left);
    }
    double most = -INFINITY, total = 0;
    for (const auto& [logit, value] : seen) most = std::max(most, logit);
    std::vector<double> sum(dim, 0.0);
    for (size_t i = 0; i < seen.size(); ++i) {
      const double weight = counts[i] * std::exp(seen[i].first - most);
      total += weight;
      for (int j = 0; j < dim; ++j) sum[j] += weight * seen[i].second[j];
    }
    for (int j = 0; j < dim; ++j) answer.output[g * dim + j] = static_cast<float>(total > 0 ? sum[j] / total : 0);
    answer.log_sum_exp[g] = static_cast<float>(total > 0 ? most + std::log(total) : -INFINITY);
  }
  return answer;
}

void ExpectNear(const Answer& got, const Answer& want, double within = 1e-5) {
  for (size_t g = 0; g < want.log_sum_exp.size(); ++g) {
    if (std::isinf(want.log_sum_exp[g])) {
      ASSERT_EQ(got.log_sum_exp[g], want.log_sum_exp[g]) << g;
    } else {
      ASSERT_NEAR(got.log_sum_exp[g], want.log_sum_exp[g], within) << g;
    }
  }
  for (size_t i = 0; i < want.output.size(); ++i) ASSERT_NEAR(got.output[i], want.output[i], within) << i;
}

// Everything that a task can be, drawn from a seed.
class RandomCase {
 public:
  RandomCase(Backend* backend, uint32_t seed) : random_(seed) {
    dim_ = kHeadDims[Draw(static_cast<int>(std::size(kHeadDims)))];
    task.group = 1 + Draw(16);
    task.scale = (.2f + .1f * static_cast<float>(Draw(10))) / std::sqrt(static_cast<float>(dim_));
    if (Draw(2) == 0) task.softcap = .3f + static_cast<float>(Draw(40));
    const int sink = Draw(3) == 0 ? 0 : Draw(150), windows = Draw(3) == 0 ? 0 : Draw(130), local = Draw(500);
    const int zone_end = sink + windows * kWindowTokens, n = zone_end + local;
    const int chunk = 1 + Draw(300);
    keys_ = std::make_unique<Rows>(backend, Keys(n, dim_, seed), dim_, kDTypes[Draw(3)], chunk);
    values_ = std::make_unique<Rows>(backend, Gaussian(n * dim_, seed + 1), dim_, kDTypes[Draw(3)], 1 + Draw(300));
    task.keys = keys_->view;
    task.values = values_->view;
    queries_ = Gaussian(task.group * dim_, seed + 2);
    task.queries = queries_.data();
    task.dense = {{0, sink}, {zone_end, n}};
    if (windows == 0) return;
    ChooseSets(sink, zone_end);
    if (task.sets == nullptr || Draw(3) == 0) return;
    windows_ = std::make_unique<ZoneMeans>(backend, *keys_, *values_, dim_, sink, windows, 1 + Draw(40));
    task.windows = windows_->view;
    task.num_windows = windows;
    task.zone_begin = sink;
  }
  const Rows& keys() const { return *keys_; }
  const Rows& values() const { return *values_; }

  cpu::AttentionTask task;

 private:
  int Draw(int below) { return static_cast<int>(random_() % below); }

  void ChooseSets(int begin, int end) {
    const int kind = Draw(4);
    if (kind == 0) return;
    sets_.resize(kind == 1 ? 1 : task.group);
    for (std::vector<int32_t>& set : sets_) {
      const int every = 1 + Draw(60), from = Draw(6) == 0 ? end : begin + Draw(end - begin);
      for (int place = from; place < end; ++place) {
        if (Draw(every) == 0) set.push_back(place);
      }
      if (Draw(5) == 0) {  // the first window wholly
        set.clear();
        for (int i = 0; i < kWindowTokens; ++i) set.push_back(begin + i);
      }
    }
    task.sets = &sets_;
    if (kind != 3) return;
    logits_.resize(task.group);
    for (int g = 0; g < task.group; ++g) {
      for (const int32_t place : sets_[g]) {
        const double dot = Dot64(&keys_->values[int64_t{place} * dim_], task.queries + g * dim_, dim_);
        logits_[g].push_back(static_cast<float>(task.scale * dot));
      }
    }
    task.logits = &logits_;
  }

  std::mt19937 random_;
  int dim_ = 0;
  std::unique_ptr<Rows> keys_, values_;
  std::unique_ptr<ZoneMeans> windows_;
  std::vector<float> queries_;
  std::vector<std::vector<int32_t>> sets_;
  std::vector<std::vector<float>> logits_;
};

TEST(CudaAttend, RandomShapesEqualTheHostAndFloat64) {
  const auto device = cuda::BackendOn(std::make_shared<HostDeviceControl>());
  int with_windows = 0, with_logits = 0, shared = 0;
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    const RandomCase c(device.get(), seed * 7919);
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " head_dim " << c.task.keys.head_dim << " group "
                                      << c.task.group << " windows " << c.task.num_windows);
    const Answer got = OnDevice(device.get(), c.task), want = OnHost(c.task);
    EXPECT_EQ(got.attended, want.attended);
    ExpectNear(got, want);
    ExpectNear(got, InFloat64(c.task, c.keys(), c.values()));
    if (::testing::Test::HasFailure()) return;
    with_windows += c.task.num_windows > 0;
    with_logits += c.task.logits != nullptr;
    shared += c.task.sets != nullptr && c.task.sets->size() == 1;
  }
  EXPECT_GT(with_windows, 10);
  EXPECT_GT(with_logits, 5);
  EXPECT_GT(shared, 5);
}

// Several tasks in one call answer as each would alone.
TEST(CudaAttend, ManyTasksAtOnce) {
  const auto device = cuda::BackendOn(std::make_shared<HostDeviceControl>());
  std::vector<std::unique_ptr<RandomCase>> cases;
  std::vector<Answer> answers;
  std::vector<AttendTask> tasks;
  for (uint32_t seed = 1; seed <= 9; ++seed) {
    cases.push_back(std::make_unique<RandomCase>(device.get(), seed * 104729));
    answers.emplace_back(cases.back()->task);
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    AttendTask& task = tasks.emplace_back();
    task.attention = cases[i]->task;
    task.output = answers[i].output.data();
    task.log_sum_exp = answers[i].log_sum_exp.data();
  }
  ASSERT_EQ(device->attention()->Attend(nullptr, 0, {}, nullptr, tasks.data(), static_cast<int>(tasks.size())),
            Outcome::kDone);
  for (size_t i = 0; i < cases.size(); ++i) {
    const Answer alone = OnDevice(device.get(), cases[i]->task);
    EXPECT_EQ(answers[i].output, alone.output) << i;
    EXPECT_EQ(answers[i].log_sum_exp, alone.log_sum_exp) << i;
  }
}

// Parts without rows, beside others and alone: flash decoding's empty splits, of which e^(-inf - -inf) would be NaN.
TEST(CudaAttend, NothingAndOneKey) {
  constexpr int kDim = 64, kRows = 200;
  const auto device = cuda::BackendOn(std::make_shared<HostDeviceControl>());
  const Rows keys(device.get(), Keys(kRows, kDim, 1), kDim, DType::kFloat16, 48);
  const Rows values(device.get(), Gaussian(kRows * kDim, 2), kDim, DType::kFloat16, 48);
  const std::vector<float> queries = Gaussian(3 * kDim, 3);
  const std::vector<std::vector<int32_t>> none = {{}}, own = {{}, {77}, {}};
  cpu::AttentionTask task;
  task.queries = queries.data();
  task.group = 3;
  task.keys = keys.view;
  task.values = values.view;
  for (const auto* sets : {static_cast<const std::vector<std::vector<int32_t>>*>(nullptr), &none, &own}) {
    task.sets = sets;
    for (const std::vector<cpu::PlaceRun>& dense : std::vector<std::vector<cpu::PlaceRun>>{
             {}, {{0, 0}, {200, 200}}, {{199, 200}}, {{0, 0}, {5, 6}}, {{0, 64}}, {{0, 65}, {65, 65}, {90, 200}}}) {
      task.dense = dense;
      const Answer got = OnDevice(device.get(), task);
      ExpectNear(got, OnHost(task));
      ExpectNear(got, InFloat64(task, keys, values));
    }
  }
  task.sets = &own;
  task.dense = {};
  const Answer one = OnDevice(device.get(), task);
  EXPECT_EQ(one.log_sum_exp[0], -INFINITY);
  EXPECT_TRUE(std::isfinite(one.log_sum_exp[1]));
  for (int j = 0; j < kDim; ++j) {
    EXPECT_EQ(one.output[j], 0);
    EXPECT_EQ(one.output[kDim + j], values.values[77 * kDim + j]);
  }
}

// A NaN in a row's logit is in all that its head is answered, wherever the row is, and in no other head's.
TEST(CudaAttend, ANaNStays) {
  constexpr int kDim = 64, kRows = 700, kHeads = 3;
  const auto device = cuda::BackendOn(std::make_shared<HostDeviceControl>());
  std::vector<float> queries = Gaussian(kHeads * kDim, 1);
  const Rows keys(device.get(), Gaussian(kRows * kDim, 2), kDim, DType::kFloat16, 256);
  const Rows values(device.get(), Gaussian(kRows * kDim, 3), kDim, DType::kFloat16, 256);
  cpu::AttentionTask task;
  task.queries = queries.data();
  task.group = kHeads;
  task.scale = .1f;
  task.keys = keys.view;
  task.values = values.view;
  std::vector<std::vector<int32_t>> sets(kHeads);
  std::vector<std::vector<float>> logits(kHeads);
  for (int h = 0; h < kHeads; ++h) {
    for (int32_t place = 100; place < 300; ++place) sets[h].push_back(place), logits[h].push_back(.01f * place);
  }
  for (const bool in_query : {false, true}) {
    for (const float cap : {0.0f, 5.0f}) {
      task.softcap = cap;
      task.dense = {{0, 100}, {300, kRows}};
      task.sets = &sets;
      task.logits = &logits;
      const Answer want = OnHost(task);
      float* const at = in_query ? &queries[kDim + 3] : &logits[1][170];
      const float before = *at;
      *at = NAN;
      const Answer got = OnDevice(device.get(), task);
      *at = before;
      EXPECT_TRUE(std::isnan(got.log_sum_exp[1])) << got.log_sum_exp[1];
      for (int h = 0; h < kHeads; ++h) {
        if (h != 1) {
          EXPECT_NEAR(got.log_sum_exp[h], want.log_sum_exp[h], 1e-5);
        }
        for (int j = h * kDim; j < (h + 1) * kDim; ++j) {
          ASSERT_TRUE(h == 1 ? std::isnan(got.output[j]) : std::abs(got.output[j] - want.output[j]) < 1e-5f) << j;
        }
      }
    }
  }
}

// Splits whose largest logits lie hundreds apart, in either order, and weights that underflow in all but one.
TEST(CudaAttend, LogitsFarApart) {
  constexpr int kDim = 64, kRows = 400;
  const auto device = cuda::BackendOn(std::make_shared<HostDeviceControl>());
  for (const float end : {-800.0f, 800.0f}) {
    std::vector<float> rows = Gaussian(kRows * kDim, 1), query(kDim, 0.0f);
    query[0] = 1;
    for (int i = 0; i < kRows; ++i) rows[i * kDim] = end * static_cast<float>(i) / kRows;
    const Rows keys(device.get(), rows, kDim, DType::kFloat32, 100);
    const Rows values(device.get(), Gaussian(kRows * kDim, 2), kDim, DType::kFloat32, 100);
    cpu::AttentionTask task;
    task.queries = query.data();
    task.keys = keys.view;
    task.values = values.view;
    task.dense = {{0, kRows}};
    const Answer got = OnDevice(device.get(), task);
    EXPECT_NEAR(got.log_sum_exp[0], InFloat64(task, keys, values).log_sum_exp[0], 1e-4);
    ExpectNear(got, OnHost(task), 1e-4);
  }
}

// Every row and window is some block's, once, however many there are.
TEST(CudaAttend, SplitsCoverEverything) {
  for (const int dim : {64, 128, 256, 512}) {
    for (const int group : {1, 4, 8, 9, 32}) {
      for (const int num_sets : {0, 1, group}) {
        for (const int count : {0, 1, 63, 64, 65, 4095, 100000, 1 << 20}) {
          cuda::AttendItem item;
          item.head_dim = dim;
          item.group = group;
          item.dense_rows = count;
          item.num_windows = count / 2;
          item.num_sets = num_sets;
          const int32_t in_set = count / 3;
          const std::vector<cuda::AttendSet> sets(num_sets, {&in_set, nullptr, nullptr});
          item.sets = sets.data();
          cuda::SplitAttention(&item, in_set);
          ASSERT_LE(item.splits(), cuda::kMostSplitsOfHead);
          std::vector<int64_t> seen(group, 0);
          std::vector<std::vector<int>> splits(group, std::vector<int>(item.splits(), 0));
          for (int block = 0; block < cuda::BlocksOf(item); ++block) {
            const cuda::AttendPart part = cuda::PartOf(item, block);
            ASSERT_LE(part.first_head + part.heads, group);
            for (int g = part.first_head; g < part.first_head + part.heads; ++g) {
              seen[g] += std::max(0, part.end - part.begin);
              ++splits[g][part.split];
            }
          }
          const int64_t want = int64_t{count} + count / 2 + (num_sets > 0 ? in_set : 0);
          EXPECT_EQ(seen, std::vector<int64_t>(group, want)) << dim << " " << group << " " << num_sets << " " << count;
          for (const auto& of_head : splits) EXPECT_EQ(of_head, std::vector<int>(item.splits(), 1));
        }
      }
    }
  }
}

// A zone with rows, windows and codes in a backend's memory.
struct SearchedZone {
  static constexpr int kDim = 64, kSink = 20, kKeys = 1280, kLocal = 75, kRows = kSink + kKeys + kLocal, kGroup = 3;

  explicit SearchedZone(Backend* backend)
      : codec(MakeRsqCodec({.head_dim = kDim})),
        keys(backend, Keys(kRows, kDim, 5), kDim, DType::kFloat32, 300),
        values(backend, Gaussian(kRows * kDim, 6), kDim, DType::kFloat32, 300),
        windows(backend, keys, values, kDim, kSink, kKeys / kWindowTokens, 7),
        queries(Gaussian(kGroup * kDim, 7)) {
    const CodeLayout& layout = codec->layout();
    codes = backend->Allocate(CodeBytes(layout, kKeys), MemorySpace::kCodes);
    if (!codes) return;
    const CodePlanes planes = PlanesAt(layout, kKeys, codes.data());
    segment = AsConst(planes);
    const ConstRows rows = {&keys.values[kSink * kDim], kDim * sizeof(float), DType::kFloat32};
    const EncodeTask task = {codec.get(), rows, kKeys, nullptr, planes};
    outcome = backend->Encode(&task, 1);
  }
  bool Made() const {
    for (const auto* buffers : {&keys.buffers, &values.buffers, &windows.buffers}) {
      for (const Buffer& buffer : *buffers) {
        if (!buffer) return false;
      }
    }
    return outcome == Outcome::kDone;
  }

  SearchTask Search() const {
    SearchTask t;
    t.codec = codec.get();
    t.segments = &segment;
    t.segment_keys = kKeys;
    t.num_keys = t.counted_keys = kKeys;
    t.zone_begin = kSink;
    t.keys = keys.view;
    t.dense.push_back({{keys.chunks[0], kDim * sizeof(float), DType::kFloat32}, kSink});
    t.queries = queries.data();
    t.group = kGroup;
    return t;
  }
  cpu::AttentionTask Attention() const {
    cpu::AttentionTask t;
    t.queries = queries.data();
    t.group = kGroup;
    t.scale = .1f;
    t.keys = keys.view;
    t.values = values.view;
    t.dense = {{0, kSink}, {kSink + kKeys, kRows}};
    t.zone_begin = kSink;
    t.num_windows = kKeys / kWindowTokens;
    t.windows = windows.view;
    return t;
  }

  std::shared_ptr<const Codec> codec;
  Rows keys, values;
  ZoneMeans windows;
  std::vector<float> queries;
  Buffer codes;
  ConstCodePlanes segment;
  Outcome outcome = Outcome::kNoMemory;
};

SearchParams ZoneParams(Scope scope, GqaReduce reduce = GqaReduce::kSoftmaxSum) {
  SearchParams params;
  params.top_k = 30;
  params.rescore_k = 60;
  params.softmax_scale = .1f;
  params.scope = scope;
  params.gqa_reduce = reduce;
  return params;
}

// A search and the host's attention over what it has found.
Answer SearchedOnHost(const SearchedZone& zone, Backend* backend, const SearchParams& params, SearchOutput* found) {
  const SearchTask search = zone.Search();
  EXPECT_EQ(backend->Search(&search, 1, params, found), Outcome::kDone);
  cpu::AttentionTask task = zone.Attention();
  task.sets = &found->positions;
  if (params.scope == Scope::kPerQHead) task.logits = &found->scores;
  return OnHost(task);
}

Outcome SearchedOnDevice(const SearchedZone& zone, Backend* device, const SearchParams& params, SearchOutput* found,
                         Answer* answer) {
  const SearchTask search = zone.Search();
  AttendTask task;
  task.attention = zone.Attention();
  task.search = 0;
  task.output = answer->output.data();
  task.log_sum_exp = answer->log_sum_exp.data();
  const Outcome outcome = device->attention()->Attend(&search, 1, params, found, &task, 1);
  answer->attended = task.attended;
  return outcome;
}

// Attention behind a search, over its own sets: no place comes back to the host before.
TEST(CudaAttend, AttendsWhatASearchHasJustFound) {
  const auto cpu = MakeCpuBackend(1), device = cuda::BackendOn(std::make_shared<HostDeviceControl>());
  const SearchedZone on_cpu(cpu.get()), on_device(device.get());
  ASSERT_TRUE(on_cpu.Made() && on_device.Made());
  for (const Scope scope : {Scope::kPerQHead, Scope::kPerKvHead}) {
    for (const Method method : {Method::kIndex, Method::kExact}) {
      SearchParams params = ZoneParams(scope);
      params.method = method;
      SearchOutput want_found, found;
      const Answer want = SearchedOnHost(on_cpu, cpu.get(), params, &want_found);
      Answer got(on_device.Attention());
      ASSERT_EQ(SearchedOnDevice(on_device, device.get(), params, &found, &got), Outcome::kDone);
      EXPECT_EQ(found.positions, want_found.positions);
      EXPECT_EQ(found.scores, want_found.scores);
      EXPECT_EQ(found.stats.candidates, want_found.stats.candidates);
      EXPECT_EQ(got.attended, want.attended);
      ExpectNear(got, want);
    }
  }
}

// Searches whose working memory together is beyond a launch's bound are attended in several.
TEST(CudaAttend, SearchesWorkInABoundedPart) {
  SearchParams params = ZoneParams(Scope::kPerQHead);
  params.recall_target = .9;  // room for half the zone a query
  std::vector<Answer> answers[2];
  size_t launches[2];
  int64_t worked_in[2];
  for (int which = 0; which < 2; ++which) {
    const auto control = std::make_shared<HostDeviceControl>();
    std::string why;
    const auto device = cuda::MakeCudaBackend(std::make_unique<cuda::HostDevice>(control), 1, &why,
                                              which == 0 ? cuda::kWorkspaceBytes : size_t{1} << 16);
    const SearchedZone zone(device.get());
    ASSERT_TRUE(zone.Made());
    constexpr int kSearches = 12;
    const std::vector<SearchTask> searches(kSearches, zone.Search());
    std::vector<SearchOutput> found(kSearches);
    answers[which].assign(kSearches, Answer(zone.Attention()));
    std::vector<AttendTask> tasks(kSearches);
    for (int i = 0; i < kSearches; ++i) {
      tasks[i].attention = zone.Attention();
      tasks[i].search = i;
      tasks[i].output = answers[which][i].output.data();
      tasks[i].log_sum_exp = answers[which][i].log_sum_exp.data();
    }
    const int64_t before = control->device_bytes;
    ASSERT_EQ(device->attention()->Attend(searches.data(), kSearches, params, found.data(), tasks.data(), kSearches),
              Outcome::kDone);
    launches[which] = control->searches.size();
    worked_in[which] = control->device_bytes - before;
  }
  EXPECT_EQ(launches[0], 1u);
  EXPECT_GT(launches[1], 2u);
  EXPECT_LT(worked_in[1], worked_in[0]);
  for (size_t i = 0; i < answers[0].size(); ++i) {
    EXPECT_EQ(answers[1][i].output, answers[0][i].output);
    EXPECT_EQ(answers[1][i].log_sum_exp, answers[0][i].log_sum_exp);
  }
}

TEST(CudaAttend, EveryCallOfTheDeviceFailsOnce) {
  const auto cpu = MakeCpuBackend(1);
  const SearchParams params = ZoneParams(Scope::kPerQHead);
  SearchOutput want_found;
  const SearchedZone on_cpu(cpu.get());
  const Answer want = SearchedOnHost(on_cpu, cpu.get(), params, &want_found);
  for (const Device::Error error : {Device::kOutOfMemory, 719}) {
    int refused = 0, lost = 0;
    for (int fail = 0;; ++fail) {
      SCOPED_TRACE(::testing::Message() << "error " << error << " at call " << fail << " of attention");
      auto control = std::make_shared<HostDeviceControl>();
      control->error = error;
      const auto device = cuda::BackendOn(control);
      {
        const SearchedZone zone(device.get());
        ASSERT_TRUE(zone.Made());
        SearchOutput found;
        Answer got(zone.Attention());
        const int before = control->calls;
        control->fail_call = before + fail;
        const Outcome outcome = SearchedOnDevice(zone, device.get(), params, &found, &got);
        const bool ended = control->calls <= before + fail;
        control->fail_call = -1;
        if (outcome == Outcome::kDone) {
          ExpectNear(got, want);
        } else if (outcome == Outcome::kNoMemory) {
          ++refused;
          ASSERT_EQ(SearchedOnDevice(zone, device.get(), params, &found, &got), Outcome::kDone);
          EXPECT_EQ(found.positions, want_found.positions);
          ExpectNear(got, want);
        } else {
          ++lost;
          EXPECT_EQ(outcome, Outcome::kLost);
          EXPECT_NE(device->loss().find("planted error"), std::string::npos) << device->loss();
          EXPECT_EQ(SearchedOnDevice(zone, device.get(), params, &found, &got), Outcome::kLost);
        }
        if (ended) break;
      }
    }
    EXPECT_GE(error == Device::kOutOfMemory ? refused : lost, 5);
  }
}

}  // namespace
}  // namespace seine
