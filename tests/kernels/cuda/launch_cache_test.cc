// Which searches become graphs, over calls that are counted and fail one after another; and that no two searches that
// differ in anything share a graph.
#include "kernels/device/launch_cache.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <set>

#include "kernels/backend.h"

namespace seine::cuda {
namespace {

struct Search {
  SearchParams planned;
  SearchGrids grids;
  SearchArgs args;
  LaunchKey key() const { return {planned, grids, args}; }
};

// The search of a sequence that has grown `n` times.
Search Grown(int n) {
  Search s;
  s.grids.scan.x = 100 + n;
  return s;
}

// A stream that runs or records, and graphs that hold the searches recorded.
class FakeCalls final : public GraphCalls {
 public:
  enum Call : uint8_t { kNone, kBegin, kEnqueue, kEnd, kInstantiate, kLaunch };

  Error Begin() override {
    EXPECT_FALSE(recording);
    recording = fails != kBegin;
    return Fails(kBegin);
  }
  Error End(void** graph) override {
    EXPECT_TRUE(recording);
    recording = false;
    if (fails != kEnd) *graph = Made(recorded);
    recorded = 0;
    return Fails(kEnd);
  }
  Error Instantiate(void* graph, void** ready) override {
    if (fails != kInstantiate) *ready = Made(*static_cast<int*>(graph));
    return Fails(kInstantiate);
  }
  Error Launch(void* ready) override {
    EXPECT_FALSE(recording);
    EXPECT_EQ(alive.count(static_cast<int*>(ready)), 1u);
    if (fails != kLaunch) ran = *static_cast<int*>(ready), ++graphs;
    return Fails(kLaunch);
  }
  void Drop(void* graph) override { Unmade(graph); }
  void DropReady(void* ready) override { Unmade(ready), ++dropped; }

  // Enqueues `search` by the cache, and checks that it ran whatever failed.
  void Run(LaunchCache* cache, int search) {
    ran = -1;
    EXPECT_EQ(cache->Launch(Grown(search).key(), [&] { return Enqueue(search); }), 0);
    EXPECT_EQ(ran, search);
    EXPECT_FALSE(recording);
  }
  Error Enqueue(int search) {
    if (!recording) return ran = search, ++plain, 0;
    recorded = search;
    return Fails(kEnqueue);
  }

  Call fails = kNone;
  bool recording = false;
  int ran = -1, recorded = 0;              // searches
  int plain = 0, graphs = 0, dropped = 0;  // launches, launches, graphs that were ready
  std::set<int*> alive;

 private:
  Error Fails(Call call) const { return call == fails ? 901 : 0; }
  void* Made(int search) { return *alive.insert(new int(search)).first; }
  void Unmade(void* graph) {
    EXPECT_EQ(alive.erase(static_cast<int*>(graph)), 1u);
    delete static_cast<int*>(graph);
  }
};

TEST(LaunchCache, SecondSightCapturesAndTheThirdReplays) {
  FakeCalls calls;
  {
    LaunchCache cache(&calls);
    calls.Run(&cache, 7);
    EXPECT_EQ(calls.plain, 1);
    EXPECT_TRUE(calls.alive.empty());
    for (int launches = 1; launches < 4; ++launches) {
      calls.Run(&cache, 7);
      EXPECT_EQ(calls.plain, 1);
      EXPECT_EQ(calls.graphs, launches);
      EXPECT_EQ(calls.alive.size(), 1u) << "what was recorded goes once it has been made ready";
      EXPECT_EQ(cache.counts().captured, 1);
      EXPECT_EQ(cache.counts().launched, launches);
    }
    calls.Run(&cache, 8);
    EXPECT_EQ(calls.plain, 2);
  }
  EXPECT_TRUE(calls.alive.empty());
  EXPECT_EQ(calls.dropped, 1);
}

TEST(LaunchCache, TheLeastRecentlyUsedGoes) {
  constexpr int kMost = LaunchCache::kKept;
  FakeCalls calls;
  LaunchCache cache(&calls);
  for (int i = 0; i < kMost; ++i) calls.Run(&cache, i), calls.Run(&cache, i);
  calls.Run(&cache, 0);  // so the least recently used is 1
  calls.Run(&cache, kMost), calls.Run(&cache, kMost);
  EXPECT_EQ(calls.dropped, 1);
  EXPECT_EQ(calls.alive.size(), LaunchCache::kKept);
  const int plain = calls.plain;
  for (int i = 0; i <= kMost; ++i) {
    if (i != 1) calls.Run(&cache, i);
  }
  EXPECT_EQ(calls.plain, plain);
  calls.Run(&cache, 1);
  EXPECT_EQ(calls.plain, plain + 1);
}

// Neither searches that never come again nor more by turns than are kept make a graph, or cost one.
TEST(LaunchCache, OnlyWhatComesAgainSoonIsCaptured) {
  FakeCalls calls;
  LaunchCache cache(&calls);
  calls.Run(&cache, 0), calls.Run(&cache, 0);
  for (int i = 1; i < 100; ++i) calls.Run(&cache, i);
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i <= LaunchCache::kSeen; ++i) calls.Run(&cache, 200 + static_cast<int>(i));
  }
  EXPECT_EQ(cache.counts().captured, 1);
  EXPECT_EQ(calls.dropped, 0);
  calls.Run(&cache, 0);
  EXPECT_EQ(calls.graphs, 2);
}

TEST(LaunchCache, EachFailureFallsBackIsCountedAndNotRepeated) {
  for (const auto call :
       {FakeCalls::kBegin, FakeCalls::kEnqueue, FakeCalls::kEnd, FakeCalls::kInstantiate, FakeCalls::kLaunch}) {
    SCOPED_TRACE(testing::Message() << "call " << call);
    FakeCalls calls;
    {
      LaunchCache cache(&calls);
      calls.Run(&cache, 1);
      calls.fails = call;
      calls.Run(&cache, 1);
      EXPECT_EQ(calls.plain, 2);
      EXPECT_TRUE(calls.alive.empty());
      calls.fails = FakeCalls::kNone;
      for (int i = 0; i < 3; ++i) calls.Run(&cache, 1);
      EXPECT_EQ(calls.plain, 5) << "a key that failed gets no other graph";
      EXPECT_EQ(cache.counts().failed, 1);
      calls.Run(&cache, 2), calls.Run(&cache, 2);
      EXPECT_EQ(calls.graphs, 1) << "another key does";
      calls.fails = call;
      for (int i = 10; i < 20; ++i) calls.Run(&cache, i), calls.Run(&cache, i);
      EXPECT_EQ(cache.counts().failed, static_cast<int64_t>(LaunchCache::kMostFailures));
      calls.fails = FakeCalls::kNone;
      const int graphs = calls.graphs;
      calls.Run(&cache, 30), calls.Run(&cache, 30);
      EXPECT_EQ(calls.graphs, graphs) << "after so many failures none is made";
      calls.Run(&cache, 2);
      EXPECT_EQ(calls.graphs, graphs + 1) << "what was made before is kept";
    }
    EXPECT_TRUE(calls.alive.empty());
  }
}

// A graph that was launched for long fails: it goes, and the others stay where they are.
TEST(LaunchCache, AGraphThatFailsLateIsDropped) {
  FakeCalls calls;
  LaunchCache cache(&calls);
  for (int i = 0; i < 3; ++i) calls.Run(&cache, i), calls.Run(&cache, i);
  calls.fails = FakeCalls::kLaunch;
  calls.Run(&cache, 1);
  calls.fails = FakeCalls::kNone;
  EXPECT_EQ(calls.dropped, 1);
  const int graphs = calls.graphs;
  for (int i = 0; i < 3; ++i) calls.Run(&cache, i);
  EXPECT_EQ(calls.graphs, graphs + 2);
}

// The search's own error is not the graph's.
TEST(LaunchCache, ASearchThatFailsWithoutAGraphSaysSo) {
  FakeCalls calls;
  LaunchCache cache(&calls);
  const auto fails = [] { return 719; };
  EXPECT_EQ(cache.Launch(Grown(1).key(), fails), 719);
  EXPECT_EQ(cache.Launch(Grown(1).key(), fails), 719);
  EXPECT_FALSE(calls.recording);
  EXPECT_TRUE(calls.alive.empty());
}

void ChangeParams(const std::function<void(const std::function<void(SearchParams*)>&)>& with) {
  with([](SearchParams* p) { p->top_k = 7; });
  with([](SearchParams* p) { p->mass_p = .5f; });
  with([](SearchParams* p) { p->mass_floor = 7; });
  with([](SearchParams* p) { p->candidate_fraction = .25; });
  with([](SearchParams* p) { p->recall_target = .5; });
  with([](SearchParams* p) { p->candidates = 77; });
  with([](SearchParams* p) { p->collision_fraction = .25; });
  with([](SearchParams* p) { p->rescore_k = 7; });
  with([](SearchParams* p) { p->coarse = Coarse::kCollision; });
  with([](SearchParams* p) { p->scope = Scope::kPerQHead; });
  with([](SearchParams* p) { p->gqa_reduce = GqaReduce::kMax; });
  with([](SearchParams* p) { p->softmax_scale = .5f; });
  with([](SearchParams* p) { p->method = Method::kExact; });
  with([](SearchParams* p) { p->with_candidates = true; });
}

TEST(LaunchKey, DiffersWithEveryField) {
  const SearchItem item;
  const QueryPlan query;
  const SetPlan set;
  std::vector<LaunchKey> keys = {Search().key()};
  const auto changed = [&](const std::function<void(Search*)>& change) {
    Search s;
    change(&s);
    keys.push_back(s.key());
  };
  ChangeParams([&](const auto& change) { changed([&](Search* s) { change(&s->planned); }); });
  ChangeParams([&](const auto& change) { changed([&](Search* s) { change(&s->args.params); }); });
  for (const auto grid : {&SearchGrids::queries, &SearchGrids::scan, &SearchGrids::choose, &SearchGrids::sets,
                          &SearchGrids::dots, &SearchGrids::rescore}) {
    changed([&](Search* s) { (s->grids.*grid).x = 7; });
    changed([&](Search* s) { (s->grids.*grid).y = 7; });
  }
  changed([](Search* s) { s->grids.low_rank = true; });
  changed([](Search* s) { s->grids.wide = true; });
  changed([](Search* s) { s->grids.coarse_groups = 2; });
  changed([&](Search* s) { s->args.items = &item; });
  changed([&](Search* s) { s->args.queries = &query; });
  changed([&](Search* s) { s->args.sets = &set; });
  EXPECT_EQ(keys.size(), 1 + 2 * 14 + 6 * 2 + 3 + 3u);
  for (size_t i = 0; i < keys.size(); ++i) {
    for (size_t j = 0; j < keys.size(); ++j) EXPECT_EQ(keys[i] == keys[j], i == j) << i << " and " << j;
  }
}

// What lies between the fields does not count: memory is garbage before a search is put there.
TEST(LaunchKey, IgnoresPadding) {
  alignas(Search) uint8_t memory[2][sizeof(Search)];
  const Search* searches[2];
  for (int i = 0; i < 2; ++i) {
    memset(memory[i], i == 0 ? 0x5A : 0xA5, sizeof(Search));
    searches[i] = new (memory[i]) Search;
  }
  EXPECT_TRUE(searches[0]->key() == searches[1]->key());
}

TEST(GraphsSetting, IsOnOrOff) {
  bool on = false;
  std::string why;
  EXPECT_TRUE(ReadGraphsSetting(nullptr, &on, &why) && on);
  EXPECT_TRUE(ReadGraphsSetting("OFF", &on, &why) && !on);
  EXPECT_TRUE(ReadGraphsSetting("ON", &on, &why) && on);
  EXPECT_EQ(why, "");
  for (const char* wrong : {"", "off", "1", "ON "}) {
    why.clear();
    EXPECT_FALSE(ReadGraphsSetting(wrong, &on, &why)) << wrong;
    EXPECT_NE(why.find("SEINE_CUDA_GRAPHS"), std::string::npos) << why;
  }
}

// Said before the device is looked for, so wherever the build has CUDA.
TEST(GraphsSetting, WrongOnesAreSaidWhereTheBackendOpens) {
  std::string why;
  setenv("SEINE_CUDA_GRAPHS", "maybe", 1);
  EXPECT_EQ(MakeBackend("cuda", 1, &why), nullptr);
  unsetenv("SEINE_CUDA_GRAPHS");
  if (why.find("this build has no CUDA") == std::string::npos) {
    EXPECT_NE(why.find("SEINE_CUDA_GRAPHS=maybe"), std::string::npos) << why;
  }
}

}  // namespace
}  // namespace seine::cuda
