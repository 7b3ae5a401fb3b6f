// Moments measured of what sequences hold and were asked: those of a recorded run, and what cannot be measured.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "index/transforms/query_window.h"
#include "profile/moments.h"
#include "profile/profile.h"
#include "tests/index/synthetic_model.h"

namespace seine {
namespace {

using testing::MadeUpModel;
using testing::MakeIndex;
using testing::SmallConfig;
using testing::View;

class MeasureTest : public ::testing::Test {
 protected:
  IndexConfig Config(KvStore store = KvStore::kKeys) const {
    IndexConfig config = SmallConfig(store);  // rsq
    config.geometry = model_.geometry();
    return config;
  }

  // Tokens [first, first + count) of both layers, values being keys of elsewhere.
  void Append(Index* index, const SequenceHandle& seq, int64_t first, int64_t count) const {
    const std::string keys = model_.KeyRows(first, count), values = model_.KeyRows(first + 100000, count);
    const bool with_values = index->config().kv_store == KvStore::kKeysValues;
    for (int layer = 0; layer < 2; ++layer) {
      const TensorView none, given = View(model_.geometry(), values);
      const auto length = index->Append(seq, layer, first, View(model_.geometry(), keys), with_values ? given : none);
      ASSERT_TRUE(length.ok()) << length.status();
    }
  }

  void Ask(const Index& index, const SequenceHandle& seq, int layer, int64_t position, int seed) const {
    const std::vector<float> queries = model_.Query(position, seed);
    ASSERT_TRUE(index.Retrieve({{seq, layer, queries.data()}}, index.config().search)->at(0).status.ok());
  }

  static double Distance(const Eigen::MatrixXd& a, const Eigen::MatrixXd& b) { return (a - b).norm() / b.norm(); }

  const MadeUpModel model_{
      {.num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64, .dtype = DType::kFloat16}};
  std::unique_ptr<Backend> backend_ = MakeCpuBackend(2);
};

TEST_F(MeasureTest, IsWhatARecordingWouldShow) {
  constexpr int64_t kTokens = 16 + 64 * 20 + 30;
  auto index = MakeIndex(Config(KvStore::kKeysValues), backend_.get());
  const SequenceHandle seq = *index->CreateSequence("");
  Append(index.get(), seq, 0, kTokens);
  ProfileBuilder builder(1, 4, 2, 64);
  const auto rounded = [](const std::vector<float>& values) {
    std::vector<float> out;
    for (const float x : values) out.push_back(static_cast<float>(static_cast<_Float16>(x)));
    return out;
  };
  const std::vector<float> keys = rounded(model_.Keys(16, 64 * 20)), values = rounded(model_.Keys(100016, 64 * 20));
  builder.AddKeys(0, keys.data(), 64 * 20, 16, model_.geometry().rope);
  builder.AddValues(0, values.data(), 64 * 20);
  for (int i = 0; i < 100; ++i) {
    Ask(*index, seq, 1, kTokens - 1, i);
    builder.AddQueries(0, model_.Query(kTokens - 1, i).data(), 1, kTokens - 1, model_.geometry().rope);
  }
  const absl::StatusOr<Profile> got = index->Measure({&seq, 1}, 1);
  ASSERT_TRUE(got.ok()) << got.status();
  const Profile wanted = *builder.Finish();
  ASSERT_EQ(got->layers.size(), 1u);
  EXPECT_EQ(got->key_tokens, 64 * 20);
  EXPECT_EQ(got->query_tokens, 100);
  EXPECT_TRUE(CheckGeometry(*got, 1, 4, 2, 64).ok());
  const LayerProfile &a = got->layers[0], &b = wanted.layers[0];
  for (int h = 0; h < 2; ++h) {
    EXPECT_LT(Distance(a.k_mean[h], b.k_mean[h]), 1e-9);
    EXPECT_LT(Distance(a.k_moment[h], b.k_moment[h]), 1e-9);
    EXPECT_LT(Distance(a.k_residual[h], b.k_residual[h]), 1e-9);
    EXPECT_LT(Distance(a.v_mean[h], b.v_mean[h]), 1e-9);
    EXPECT_LT(Distance(a.v_moment[h], b.v_moment[h]), 1e-9);
  }
  for (int h = 0; h < 4; ++h) {  // queries were kept in eight bits
    EXPECT_LT(Distance(a.q_mean[h], b.q_mean[h]), .002);
    EXPECT_LT(Distance(a.q_moment[h], b.q_moment[h]), .004);
  }
}

TEST_F(MeasureTest, SequencesAddUpAndLongOnesAreSpaced) {
  auto index = MakeIndex(Config(), backend_.get());
  const SequenceHandle a = *index->CreateSequence(""), b = *index->CreateSequence("");
  constexpr int64_t kLong = 16 + 64 * 300;
  Append(index.get(), a, 0, kLong);
  Append(index.get(), b, 0, 16 + 64 * 3);
  Ask(*index, a, 0, kLong - 1, 1);
  const SequenceHandle both[] = {a, b};
  const absl::StatusOr<Profile> got = index->Measure(both, 0);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->key_tokens, 64 * (256 + 3));
  EXPECT_EQ(got->query_tokens, 1);
  EXPECT_TRUE(got->layers[0].v_mean.empty());
  // Spaced ones show what all do.
  EXPECT_LT(Distance(got->layers[0].k_moment[1], model_.Measure(8192)->layers[0].k_moment[1]), .1);
}

TEST_F(MeasureTest, SaysWhatCannotBeMeasured) {
  auto index = MakeIndex(Config(), backend_.get()), none = MakeIndex(Config(KvStore::kNone), backend_.get());
  const SequenceHandle seq = *index->CreateSequence("s"), blind = *none->CreateSequence("s");
  Append(index.get(), seq, 0, 79);
  Append(none.get(), blind, 0, 400);
  const auto expect = [](const absl::Status& status, absl::StatusCode code, const std::string& starts) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(status.message().substr(0, starts.size()), starts);
  };
  expect(none->Measure({&blind, 1}, 0).status(), absl::StatusCode::kFailedPrecondition,
         "sequences: the index keeps no keys");
  expect(index->Measure({&seq, 1}, 0).status(), absl::StatusCode::kFailedPrecondition,
         "sequences: layer 0 holds no 64 tokens beyond the sink");
  Append(index.get(), seq, 79, 1);
  Ask(*index, seq, 0, 79, 1);  // everything is dense still
  expect(index->Measure({&seq, 1}, 0).status(), absl::StatusCode::kFailedPrecondition,
         "sequences: no query of layer 0 was seen");
  expect(index->Measure({}, 0).status(), absl::StatusCode::kInvalidArgument, "sequences: none");
  expect(index->Measure({&seq, 1}, 2).status(), absl::StatusCode::kInvalidArgument, "layer: ");
  const SequenceHandle missing{"t", 0}, stale{"s", 99};
  expect(index->Measure({&missing, 1}, 0).status(), absl::StatusCode::kNotFound, "sequences[0]: ");
  expect(index->Measure({&stale, 1}, 0).status(), absl::StatusCode::kFailedPrecondition, "sequences[0]: ");
}

TEST_F(MeasureTest, RunsBesideAppendsCutsAndQueries) {
  auto index = MakeIndex(Config(), backend_.get());
  const SequenceHandle seq = *index->CreateSequence("");
  Append(index.get(), seq, 0, 1500);
  Ask(*index, seq, 0, 1499, 1);
  const std::string rows = model_.KeyRows(1400, 100);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop) {
      ASSERT_TRUE(index->Truncate(seq, 1400).ok());
      ASSERT_TRUE(index->Append(seq, 0, 1400, View(model_.geometry(), rows), {}).ok());
    }
  });
  std::thread asker([&] {
    for (int i = 0; !stop; ++i) Ask(*index, seq, 0, 1400, i % 16);
  });
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(index->Measure({&seq, 1}, 0).ok());
  stop = true;
  writer.join();
  asker.join();
}

TEST_F(MeasureTest, ASequenceGivenTwiceIsRefused) {
  auto index = MakeIndex(Config(), backend_.get());
  const SequenceHandle seq = *index->CreateSequence("s"), other = *index->CreateSequence("t");
  Append(index.get(), seq, 0, 400);
  Ask(*index, seq, 1, 399, 1);
  ASSERT_TRUE(index->Measure({seq, other}, 1).ok());
  const absl::Status twice = index->Measure({seq, other, {"s", 0}}, 1).status();
  EXPECT_EQ(twice.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(twice.message(), "sequences[2]: given twice");
}

}  // namespace
}  // namespace seine
