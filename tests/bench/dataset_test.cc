// Traces are cut as DESIGN.md says, and every fault of one is one clear line.
#include "bench/inputs/dataset.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/math.h"
#include "tests/bench/test_util.h"

namespace seine::bench {
namespace {

constexpr int kTokens = 300, kKvHeads = 2, kHeads = 4, kDim = 64, kQueries = 40;

// A value that names its place.
float KeyAt(int layer, int token, int head, int i) {
  return static_cast<float>(layer * 2000 + token * 4 + head) + i / 64.f;
}
float QueryAt(int layer, int row, int head, int i) { return -KeyAt(layer, row, head, i); }

TestTensor Keys(int layer, int tokens = kTokens, int heads = kKvHeads, int dim = kDim) {
  TestTensor t{"layers." + std::to_string(layer) + ".k", {tokens, heads, dim}, {}};
  for (int p = 0; p < tokens; ++p) {
    for (int h = 0; h < heads; ++h) {
      for (int i = 0; i < dim; ++i) t.values.push_back(KeyAt(layer, p, h, i));
    }
  }
  return t;
}

TestTensor Queries(int layer, int rows = kQueries, int heads = kHeads, int dim = kDim) {
  TestTensor t{"layers." + std::to_string(layer) + ".q", {rows, heads, dim}, {}};
  for (int p = 0; p < rows; ++p) {
    for (int h = 0; h < heads; ++h) {
      for (int i = 0; i < dim; ++i) t.values.push_back(QueryAt(layer, p, h, i));
    }
  }
  return t;
}

DatasetOptions Options(const std::string& path) {
  DatasetOptions o;
  o.trace = path;
  o.sink = 4;
  o.local = 32;
  return o;
}

TEST(DatasetTest, CutsTheZoneAndItsQueries) {
  const TestFolder folder;
  WriteFile(folder.File("t"), Safetensors({Keys(1), Queries(1), Keys(5), Queries(5)}));
  auto dataset = Dataset::Open(Options(folder.File("t")));
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const DatasetInfo& info = (*dataset)->info();
  EXPECT_EQ(info.layers, (std::vector<int>{1, 5}));
  EXPECT_EQ(info.group, 2);
  EXPECT_EQ(info.model, "test model");
  EXPECT_EQ(info.zone_begin, 4);
  EXPECT_EQ(info.zone_end, 4 + (300 - 4 - 32) / 64 * 64);
  EXPECT_EQ(info.num_positions, 32);  // of 40 held
  ASSERT_EQ(info.num_heads(), 4);
  auto head = (*dataset)->Load(3);  // layer 5, KV head 1
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->layer, 5);
  EXPECT_EQ(head->kv_head, 1);
  EXPECT_EQ(head->keys[17 * kDim + 3], KeyAt(5, 17, 1, 3));
  // Rows of the last 32 positions are rows 8 .. 39; query heads 2 and 3 belong to KV head 1.
  EXPECT_EQ(head->queries[0], QueryAt(5, 8, 2, 0));
  EXPECT_EQ(head->queries[(31 * 2 + 1) * kDim + 7], QueryAt(5, 39, 3, 7));
  EXPECT_EQ(head->tokens.size(), size_t{kTokens} * kDim * 4);
}

TEST(DatasetTest, SpreadsFewerQueriesAndEndsWithTheLast) {
  const TestFolder folder;
  WriteFile(folder.File("t"), Safetensors({Keys(0), Queries(0)}));
  DatasetOptions o = Options(folder.File("t"));
  o.num_queries = 4;
  auto dataset = Dataset::Open(o);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  auto head = (*dataset)->Load(0);
  ASSERT_TRUE(head.ok());
  EXPECT_EQ(head->queries.size(), size_t{4} * 2 * kDim);
  EXPECT_EQ(head->queries[3 * 2 * kDim], QueryAt(0, 39, 0, 0));
  EXPECT_EQ(head->queries[0], QueryAt(0, 8 + 7, 0, 0));
}

struct Fault {
  const char* name;
  std::string file;  // bytes; empty: no file
  std::string says;  // in the one line
  std::vector<int> layers;
  int64_t sink = 4, local = 32;
};

std::vector<Fault> Faults() {
  const std::string whole = Safetensors({Keys(1), Queries(1)});
  TestTensor nan = Keys(1);
  nan.values[70 * kKvHeads * kDim + 5] = NAN;
  TestTensor flat = Keys(1);
  flat.shape = {kTokens, kKvHeads * kDim};
  return {
      {"missing", "", "No such file", {}},
      {"torn", whole.substr(0, whole.size() - 1), "cut short", {}},
      {"torn in its header", whole.substr(0, 60), "cut short", {}},
      {"foreign", std::string(5000, 'x'), "--trace", {}},
      {"no keys", Safetensors({Queries(1)}), "is no trace: it has no tensor layers.<number>.k", {}},
      {"no queries", Safetensors({Keys(1)}), "has no tensor layers.1.q", {}},
      {"layer", whole, "--layers: 2 is not in the trace, which holds 1", {2}},
      {"two dimensions", Safetensors({flat, Queries(1)}), "layers.1.k has shape [300, 128]", {}},
      {"head_dim", Safetensors({Keys(1), Queries(1, kQueries, kHeads, 32)}), "do not fit keys", {}},
      {"heads", Safetensors({Keys(1), Queries(1, kQueries, 3)}), "do not fit keys", {}},
      {"ragged layers", Safetensors({Keys(1), Queries(1), Keys(2, 200), Queries(2)}), "layer 2 has another shape", {}},
      {"NaN", Safetensors({nan, Queries(1)}), "layers.1.k holds a NaN", {}},
      {"zone", whole, "--sink 4 and --local 290 leave 6 keys of the trace's 300 tokens", {}, 4, 290},
      {"no local", whole, "--local: at least 1", {}, 4, 0},
      {"negative sink", whole, "--sink: at least 0", {}, -1}};
}

TEST(DatasetTest, EveryFaultIsOneClearLine) {
  for (const Fault& fault : Faults()) {
    SCOPED_TRACE(fault.name);
    const TestFolder folder;
    const std::string path = folder.File("trace");
    if (!fault.file.empty()) WriteFile(path, fault.file);
    DatasetOptions o = Options(path);
    o.layers = fault.layers;
    o.sink = fault.sink;
    o.local = fault.local;
    auto dataset = Dataset::Open(o);
    absl::Status status = dataset.status();
    if (status.ok()) status = (*dataset)->Load(0).status();
    ASSERT_FALSE(status.ok());
    const std::string message(status.message());
    EXPECT_NE(message.find(fault.says), std::string::npos) << message;
    EXPECT_NE(message.find("--"), std::string::npos) << "names no flag: " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(DatasetTest, HalvesRoundToNearestEven) {
  for (uint32_t h = 0; h < 0x7c00; ++h) {  // every finite half, and the points halfway to the next
    const float low = HalfToFloat(static_cast<uint16_t>(h)), high = HalfToFloat(static_cast<uint16_t>(h + 1));
    std::vector<float> values = {low, -low};
    if (h + 1 < 0x7c00) values.push_back((low + high) / 2);
    const std::vector<uint8_t> bytes = ToDType(DType::kFloat16, &values);
    uint16_t got[3] = {};
    std::memcpy(got, bytes.data(), bytes.size());
    ASSERT_EQ(got[0], h);
    ASSERT_EQ(got[1], h | 0x8000u);
    if (h + 1 < 0x7c00) {
      ASSERT_EQ(got[2], h % 2 == 0 ? h : h + 1);
    }
    ASSERT_EQ(values[0], low);
  }
  std::vector<float> large = {65519.f, 65520.f};
  const std::vector<uint8_t> bytes = ToDType(DType::kFloat16, &large);
  EXPECT_EQ(bytes, (std::vector<uint8_t>{0xff, 0x7b, 0x00, 0x7c}));
}

}  // namespace
}  // namespace seine::bench
