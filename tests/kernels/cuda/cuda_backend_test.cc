// The CUDA backend over a device whose memory the host cannot touch: the CPU backend's answers, and every call of the
// device failing once.
#include "kernels/backends/cuda/cuda_backend.h"
#include "kernels/codecs/kinds/rsq.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "kernels/device/stream_context.h"
#include "tests/kernels/cuda/host_device.h"
#include "tests/kernels/test_util.h"

namespace seine {
namespace {

using cuda::Device;
using cuda::HostDevice;
using cuda::HostDeviceControl;

// A head's zone as an index keeps it: segments and counts in memory of the backend's, keys in its store.
struct BackendZone {
  static constexpr int kSegmentKeys = 256;

  BackendZone(Backend* owner, std::shared_ptr<const Codec> the_codec, const std::vector<float>& keys)
      : backend(owner), codec(std::move(the_codec)), dim(codec->layout().head_dim) {
    num_keys = static_cast<int>(keys.size()) / dim;
    outcome = Fill(keys);
  }

  Outcome Fill(const std::vector<float>& keys) {
    const CodeLayout& layout = codec->layout();
    const size_t row = dim * sizeof(float);
    store = backend->Allocate(keys.size() * sizeof(float), MemorySpace::kStore);
    counts = backend->Allocate(static_cast<size_t>(dim) / 8 * 256 * sizeof(uint32_t), MemorySpace::kCodes);
    if (!store || !counts) return Outcome::kNoMemory;
    memcpy(store.data(), keys.data(), keys.size() * sizeof(float));
    chunk = store.data();
    std::vector<EncodeTask> encodes;
    std::vector<CountTask> count_tasks;
    if (codec->centre() == Centre::kGlobal) shared = codec->MakeSharedCentre({keys.data(), row, DType::kFloat32}, 64);
    for (int first = 0; first < num_keys; first += kSegmentKeys) {
      const int count = std::min(kSegmentKeys, num_keys - first);
      buffers.push_back(backend->Allocate(CodeBytes(layout, kSegmentKeys), MemorySpace::kCodes));
      if (!buffers.back()) return Outcome::kNoMemory;
      const CodePlanes planes = PlanesAt(layout, kSegmentKeys, buffers.back().data());
      segments.push_back(AsConst(planes));
      encodes.push_back({codec.get(),
                         {keys.data() + static_cast<size_t>(first) * dim, row, DType::kFloat32},
                         count,
                         codec->centre() == Centre::kGlobal ? &shared : nullptr,
                         planes});
      count_tasks.push_back({segments.back(), &layout, 0, count, 1, reinterpret_cast<uint32_t*>(counts.data())});
    }
    Outcome o = backend->Encode(encodes.data(), static_cast<int>(encodes.size()));
    if (o == Outcome::kDone) o = backend->Zero(counts.data(), counts.size());
    if (o == Outcome::kDone && layout.coarse_bytes >= dim / 8) {
      o = backend->CountCodes(count_tasks.data(), static_cast<int>(count_tasks.size()));
    }
    return o;
  }

  SearchTask Task(const std::vector<float>& queries) const {
    SearchTask t;
    t.codec = codec.get();
    t.segments = segments.data();
    t.segment_keys = kSegmentKeys;
    t.num_keys = num_keys;
    t.shared_centre = codec->centre() == Centre::kGlobal ? &shared : nullptr;
    t.collision_counts = reinterpret_cast<const uint32_t*>(counts.data());
    t.counted_keys = t.num_keys;
    t.keys = {&chunk, num_keys, dim, DType::kFloat32};
    t.dense.push_back({{chunk, dim * sizeof(float), DType::kFloat32}, 40});
    t.queries = queries.data();
    t.group = static_cast<int>(queries.size()) / dim;
    return t;
  }

  Backend* backend;
  std::shared_ptr<const Codec> codec;
  int dim, num_keys = 0;
  Outcome outcome = Outcome::kDone;
  Buffer store, counts;
  std::vector<Buffer> buffers;
  std::vector<ConstCodePlanes> segments;
  SharedCentre shared;
  const uint8_t* chunk = nullptr;
};

void ExpectSame(const SearchOutput& a, const SearchOutput& b) {
  ASSERT_EQ(a.positions, b.positions);
  ASSERT_EQ(a.candidates, b.candidates);
  ASSERT_EQ(a.scores.size(), b.scores.size());
  for (size_t r = 0; r < a.scores.size(); ++r) {
    ASSERT_EQ(a.scores[r].size(), b.scores[r].size());
    if (a.scores[r].empty()) continue;
    EXPECT_EQ(memcmp(a.scores[r].data(), b.scores[r].data(), a.scores[r].size() * sizeof(float)), 0);
  }
}

TEST(CudaBackend, AnswersAsTheCpuDoes) {
  auto control = std::make_shared<HostDeviceControl>();
  {
    const auto cpu = MakeCpuBackend(1), gpu = cuda::BackendOn(control, 2);
    EXPECT_EQ(gpu->name(), "cuda");
    EXPECT_TRUE(gpu->codes_on_device());
    for (const Centre centre : {Centre::kNone, Centre::kGlobal, Centre::kWindow}) {
      for (const Coarse coarse : {Coarse::kSignIp, Coarse::kCollision}) {
        constexpr int kDim = 64;
        const auto codec = MakeRsqCodec({.head_dim = kDim, .centre = centre});
        SearchParams params;
        params.top_k = 20;
        params.coarse = coarse;
        params.with_candidates = true;
        std::vector<SearchTask> tasks[2];
        std::vector<std::unique_ptr<BackendZone>> zones;
        std::vector<std::vector<float>> queries;
        for (int i = 0; i < 3; ++i) queries.push_back(Gaussian(static_cast<size_t>(i + 1) * kDim, 50 + i));
        for (int i = 0; i < 3; ++i) {  // ragged
          const std::vector<float> keys = Keys(64 * (5 + 7 * i), kDim, 9 + i);
          for (int b = 0; b < 2; ++b) {
            zones.push_back(std::make_unique<BackendZone>(b == 0 ? cpu.get() : gpu.get(), codec, keys));
            ASSERT_EQ(zones.back()->outcome, Outcome::kDone);
            tasks[b].push_back(zones.back()->Task(queries[i]));
          }
        }
        for (auto& t : tasks) t.push_back(t[0]), t.back().num_keys = 0;
        std::vector<SearchOutput> outputs[2] = {std::vector<SearchOutput>(4), std::vector<SearchOutput>(4)};
        ASSERT_EQ(cpu->Search(tasks[0].data(), 4, params, outputs[0].data()), Outcome::kDone);
        ASSERT_EQ(gpu->Search(tasks[1].data(), 4, params, outputs[1].data()), Outcome::kDone);
        for (int i = 0; i < 4; ++i) ExpectSame(outputs[0][i], outputs[1][i]);
      }
    }
  }
  EXPECT_EQ(control->device_bytes, 0);
  EXPECT_EQ(control->host_bytes, 0);
}

// More keys than the lane's rows hold at once, and more queries than one launch takes.
TEST(CudaBackend, LargeCallsAreCutInPieces) {
  const auto cpu = MakeCpuBackend(1), gpu = cuda::BackendOn(std::make_shared<HostDeviceControl>(), 2);
  constexpr int kDim = 256;
  const auto codec = MakeRsqCodec({.head_dim = kDim});
  const std::vector<float> keys = Keys(9216, kDim, 3), queries = Gaussian(kMaxGroup * kDim, 4);
  const BackendZone a(cpu.get(), codec, keys), b(gpu.get(), codec, keys);
  ASSERT_EQ(b.outcome, Outcome::kDone);
  SearchParams params;
  params.top_k = 10;
  const SearchTask tasks[] = {a.Task(queries), b.Task(queries)};
  SearchOutput one, other;
  ASSERT_EQ(cpu->Search(&tasks[0], 1, params, &one), Outcome::kDone);
  ASSERT_EQ(gpu->Search(&tasks[1], 1, params, &other), Outcome::kDone);
  ExpectSame(one, other);

  const auto small = MakeRsqCodec({.head_dim = 64});
  const std::vector<float> few = Gaussian(kMaxGroup * 64, 7);
  const BackendZone zone(gpu.get(), small, Keys(64, 64, 8));
  params.top_k = 2;
  std::vector<SearchTask> many(4096 / kMaxGroup + 2, zone.Task(few));
  std::vector<SearchOutput> outputs(many.size());
  ASSERT_EQ(gpu->Search(many.data(), static_cast<int>(many.size()), params, outputs.data()), Outcome::kDone);
  for (const SearchOutput& output : outputs) ExpectSame(outputs[0], output);
}

// Searches that would work in more memory than a launch may have are several launches, with the same answers.
TEST(CudaBackend, ALaunchHasABoundOnWhatItWorksIn) {
  const auto codec = MakeRsqCodec({.head_dim = 64});
  const std::vector<float> keys = Keys(2048, 64, 5), queries = Gaussian(8 * 64, 6);
  std::vector<SearchOutput> outputs[2];
  int64_t worked_in[2];
  size_t launches[2];
  SearchParams params;
  params.recall_target = .9;  // room for half the zone a query
  for (int which = 0; which < 2; ++which) {
    const size_t bound = which == 0 ? cuda::kWorkspaceBytes : size_t{1} << 20;
    const auto control = std::make_shared<HostDeviceControl>();
    std::string why;
    const auto gpu = cuda::MakeCudaBackend(std::make_unique<HostDevice>(control), 1, &why, bound);
    const BackendZone zone(gpu.get(), codec, keys);
    const std::vector<SearchTask> tasks(12, zone.Task(queries));
    outputs[which].resize(tasks.size());
    const int64_t before = control->device_bytes;
    ASSERT_EQ(gpu->Search(tasks.data(), 12, params, outputs[which].data()), Outcome::kDone);
    worked_in[which] = control->device_bytes - before;
    launches[which] = control->searches.size();
  }
  EXPECT_EQ(launches[0], 1u);
  EXPECT_GT(launches[1], 2u);
  EXPECT_LT(launches[1], 12u);
  EXPECT_LT(worked_in[1], worked_in[0] / 2);
  for (size_t i = 0; i < outputs[0].size(); ++i) ExpectSame(outputs[0][i], outputs[1][i]);
}

TEST(CudaBackend, CopiesWithinTheDevice) {
  const auto gpu = cuda::BackendOn(std::make_shared<HostDeviceControl>(), 2);
  const auto codec = MakeRsqCodec({.head_dim = 64});
  const std::vector<float> keys = Keys(256, 64, 5), queries = Gaussian(64, 6);
  BackendZone zone(gpu.get(), codec, keys);
  SearchParams params;
  params.top_k = 5;
  SearchOutput before, after;
  SearchTask task = zone.Task(queries);
  ASSERT_EQ(gpu->Search(&task, 1, params, &before), Outcome::kDone);
  Buffer copy = gpu->Allocate(zone.buffers[0].size(), MemorySpace::kCodes);
  const CopyTask halves[] = {{copy.data(), zone.buffers[0].data(), 1000},
                             {copy.data() + 1000, zone.buffers[0].data() + 1000, copy.size() - 1000}};
  ASSERT_EQ(gpu->Copy(halves, 2), Outcome::kDone);
  zone.buffers[0] = std::move(copy);
  const ConstCodePlanes planes = AsConst(PlanesAt(codec->layout(), BackendZone::kSegmentKeys, zone.buffers[0].data()));
  task.segments = &planes;
  ASSERT_EQ(gpu->Search(&task, 1, params, &after), Outcome::kDone);
  ExpectSame(before, after);
}

// What a codec leaves on the device goes with it, also where another comes to lie at its address.
TEST(CudaBackend, TablesOfCodecsThatAreGoneAreDropped) {
  auto control = std::make_shared<HostDeviceControl>();
  const auto cpu = MakeCpuBackend(1), gpu = cuda::BackendOn(control, 2);
  int64_t held = 0;
  for (int i = 0; i < 20; ++i) {
    const std::vector<float> keys = Keys(128, 64, 5), queries = Gaussian(64, 6);
    SearchParams params;
    params.top_k = 5;
    const auto codec = MakeRsqCodec({.head_dim = 64, .seed = static_cast<uint64_t>(i)});
    BackendZone a(cpu.get(), codec, keys), b(gpu.get(), codec, keys);
    SearchOutput one, other;
    const SearchTask tasks[] = {a.Task(queries), b.Task(queries)};
    ASSERT_EQ(cpu->Search(&tasks[0], 1, params, &one), Outcome::kDone);
    ASSERT_EQ(gpu->Search(&tasks[1], 1, params, &other), Outcome::kDone);
    ExpectSame(one, other);
    if (i == 1) held = control->device_bytes;
    EXPECT_EQ(control->device_bytes, i > 1 ? held : control->device_bytes.load());
  }
}

TEST(CudaBackend, CallersHaveLanesOfTheirOwn) {
  const auto gpu = cuda::BackendOn(std::make_shared<HostDeviceControl>(), 2);
  const auto codec = MakeRsqCodec({.head_dim = 64});
  const BackendZone zone(gpu.get(), codec, Keys(512, 64, 5));
  SearchParams params;
  params.top_k = 8;
  std::vector<SearchOutput> alone(4);
  std::vector<std::vector<float>> queries;
  for (int i = 0; i < 4; ++i) {
    queries.push_back(Gaussian(64, 70 + i));
    const SearchTask task = zone.Task(queries[i]);
    ASSERT_EQ(gpu->Search(&task, 1, params, &alone[i]), Outcome::kDone);
  }
  std::vector<std::thread> callers;
  for (int i = 0; i < 12; ++i) {
    callers.emplace_back([&, i] {
      SearchOutput out;
      const SearchTask task = zone.Task(queries[i % 4]);
      for (int round = 0; round < 5; ++round) {
        ASSERT_EQ(gpu->Search(&task, 1, params, &out), Outcome::kDone);
        ExpectSame(alone[i % 4], out);
      }
    });
  }
  for (std::thread& t : callers) t.join();
}

// Layers and steps of one shape are one launch to the device (launch_cache.h), so that a graph may stand for them; one
// more block of the scan is another.
TEST(CudaBackend, SearchesOfOneShapeAreOneLaunch) {
  auto control = std::make_shared<HostDeviceControl>();
  const auto gpu = cuda::BackendOn(control, 1);
  const auto codec = MakeRsqCodec({.head_dim = 64});
  const BackendZone layers[] = {{gpu.get(), codec, Keys(4096, 64, 5)},
                                {gpu.get(), codec, Keys(4096, 64, 6)},
                                {gpu.get(), codec, Keys(8192, 64, 7)}};
  SearchOutput out;
  for (const int layer : {2, 0, 1, 0, 2}) {  // the largest first, for which the lane's memory grows
    const std::vector<float> queries = Gaussian(64, 8 + control->searches.size());
    const SearchTask task = layers[layer].Task(queries);
    ASSERT_EQ(gpu->Search(&task, 1, SearchParams(), &out), Outcome::kDone);
  }
  const std::vector<cuda::LaunchKey>& launches = control->searches;
  EXPECT_TRUE(launches[1] == launches[2] && launches[1] == launches[3]);
  EXPECT_TRUE(launches[0] == launches[4]);
  EXPECT_FALSE(launches[0] == launches[1]);
}

// One call of the device after another fails, in a life that allocates, encodes, counts, copies and searches. Memory
// that runs out costs that operation; any other error loses the device, and that is said.
TEST(CudaBackend, EveryCallOfTheDeviceFailsOnce) {
  const auto codec = MakeRsqCodec({.head_dim = 64});
  const std::vector<float> keys = Keys(320, 64, 5), queries = Gaussian(128, 6);
  SearchParams params;
  params.top_k = 5;
  SearchOutput expected;
  {
    const auto cpu = MakeCpuBackend(1);
    const BackendZone zone(cpu.get(), codec, keys);
    const SearchTask task = zone.Task(queries);
    ASSERT_EQ(cpu->Search(&task, 1, params, &expected), Outcome::kDone);
  }
  for (const Device::Error error : {Device::kOutOfMemory, 719}) {
    int failures = 0, refused = 0, lost = 0;
    for (int fail = 0;; ++fail) {
      SCOPED_TRACE(testing::Message() << "error " << error << " at call " << fail);
      auto control = std::make_shared<HostDeviceControl>();
      control->error = error;
      control->fail_call = fail;
      std::string why;
      auto gpu = cuda::MakeCudaBackend(std::make_unique<HostDevice>(control), 1, &why);
      if (gpu == nullptr) {
        ++failures;
        EXPECT_NE(why.find("planted error"), std::string::npos) << why;
        continue;
      }
      {
        BackendZone zone(gpu.get(), codec, keys);
        Outcome outcome = zone.outcome;
        SearchOutput found;
        if (outcome == Outcome::kDone) {
          Buffer spare = gpu->Allocate(zone.buffers[0].size(), MemorySpace::kCodes);
          const CopyTask copy = {spare.data(), zone.buffers[0].data(), spare.size()};
          outcome = !spare ? Outcome::kNoMemory : gpu->Copy(&copy, 1);
          const SearchTask task = zone.Task(queries);
          if (outcome == Outcome::kDone) outcome = gpu->Search(&task, 1, params, &found);
          if (outcome == Outcome::kDone) ExpectSame(expected, found);
        }
        if (!gpu->loss().empty()) {
          ++lost;
          EXPECT_EQ(gpu->Zero(zone.counts.data(), zone.counts.size()), Outcome::kLost);
          EXPECT_FALSE(gpu->Allocate(100, MemorySpace::kStore));
        } else if (outcome == Outcome::kNoMemory) {  // the next try has memory
          ++refused;
          BackendZone again(gpu.get(), codec, keys);
          const SearchTask task = again.Task(queries);
          ASSERT_EQ(again.outcome, Outcome::kDone);
          ASSERT_EQ(gpu->Search(&task, 1, params, &found), Outcome::kDone);
          ExpectSame(expected, found);
        }
      }
      gpu.reset();
      if (control->calls <= fail) break;  // the whole life, to its end, without the failure
      ++failures;
      EXPECT_TRUE(control->device_bytes == 0 || lost > 0);
    }
    EXPECT_GE(failures, 35) << "calls of the device in one life";
    EXPECT_GE(error == Device::kOutOfMemory ? refused : lost, 8);
  }
}

// A growth that fails leaves the room that was there: others count on it without asking again.
TEST(CudaBackend, AnAreaThatCannotGrowStaysAsItIs) {
  auto control = std::make_shared<HostDeviceControl>();
  control->error = Device::kOutOfMemory;
  HostDevice device(control);
  for (const auto where : {cuda::Area::Where::kHost, cuda::Area::Where::kDevice}) {
    cuda::Area area(&device, where);
    ASSERT_EQ(area.Reserve(1000), Device::kNoError);
    const uint8_t* data = area.data();
    const size_t size = area.size();
    control->fail_call = control->calls.load();
    EXPECT_EQ(area.Reserve(100000), Device::kOutOfMemory);
    EXPECT_EQ(area.data(), data);
    EXPECT_EQ(area.size(), size);
    EXPECT_EQ(area.Reserve(100000), Device::kNoError);
    EXPECT_GE(area.size(), 100000u);
  }
}

// Each growth of a large search fails once; what is counted afterwards, in views of the same context, is right.
TEST(CudaBackend, CountsAfterAGrowthThatFailed) {
  const auto codec = MakeRsqCodec({.head_dim = 64});
  const std::vector<float> keys = Keys(1024, 64, 5), queries = Gaussian(32 * 64, 6);
  int refused = 0;
  for (int fail = 0; fail < 12; ++fail) {
    auto control = std::make_shared<HostDeviceControl>();
    control->error = Device::kOutOfMemory;
    const auto gpu = cuda::BackendOn(control, 1);
    const BackendZone zone(gpu.get(), codec, keys);
    ASSERT_EQ(zone.outcome, Outcome::kDone);
    const std::vector<SearchTask> tasks(10, zone.Task(queries));  // their views are more than a context's least
    std::vector<SearchOutput> outputs(tasks.size());
    control->fail_call = control->calls + fail;
    refused +=
        gpu->Search(tasks.data(), static_cast<int>(tasks.size()), SearchParams(), outputs.data()) == Outcome::kNoMemory;
    control->fail_call = -1;
    const BackendZone again(gpu.get(), codec, keys);
    EXPECT_EQ(again.outcome, Outcome::kDone);
  }
  EXPECT_GE(refused, 4);
}

TEST(MakeBackend, NamesWhatIsMissing) {
  std::string why;
  for (const char* name : {"tpu", "", "cuda:", "cuda:x", "cuda1", "cuda:-1", "cuda:1 ", "cuda:1234", "CUDA"}) {
    EXPECT_EQ(MakeBackend(name, 1, &why), nullptr) << name;
    EXPECT_NE(why.find("auto, cpu, cuda and cuda:N"), std::string::npos) << why;
  }
  EXPECT_EQ(MakeBackend("cpu", 1, &why)->name(), "cpu");
  EXPECT_EQ(why, "");
  const auto best = MakeBackend("auto", 1, &why);
  ASSERT_NE(best, nullptr);
  if (best->name() == "cpu") {
    EXPECT_NE(why, "");
    for (const char* name : {"cuda", "cuda:0", "cuda:7"}) {
      EXPECT_EQ(MakeBackend(name, 1, &why), nullptr);
      EXPECT_NE(why.find("CUDA"), std::string::npos) << why;
    }
  }
}

}  // namespace
}  // namespace seine
