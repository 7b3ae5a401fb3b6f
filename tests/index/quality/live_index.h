// An index whose retrievals are all sampled, and tokens to fill it with.
#ifndef SEINE_TESTS_INDEX_QUALITY_LIVE_INDEX_H_
#define SEINE_TESTS_INDEX_QUALITY_LIVE_INDEX_H_

#include <memory>
#include <utility>
#include <vector>

#include "index/counts/counts.h"
#include "index/quality/monitor.h"
#include "tests/index/test_util.h"

namespace seine::testing {

inline constexpr int64_t kFilled = 900;  // tokens that most tests fill a sequence with

struct LiveIndex {
  explicit LiveIndex(const IndexConfig& config, QualityOptions options = {1, 1},
                     QualityMonitor::SteppedBack stepped_back = {})
      : monitor(std::make_shared<QualityMonitor>(options, std::move(stepped_back))) {
    auto made = Index::Create(config, &backend, nullptr, counts, monitor);
    EXPECT_TRUE(made.ok()) << made.status();
    index = *std::move(made);
  }

  // A sequence of `tokens` tokens in every layer.
  SequenceHandle Filled(int64_t tokens, const std::string& id = "") {
    const SequenceHandle seq = *index->CreateSequence(id);
    for (int layer = 0; layer < index->config().geometry.num_layers; ++layer) {
      EXPECT_TRUE(AppendNames(index.get(), seq, layer, 0, Names(1, tokens)).ok());
    }
    return seq;
  }
  // What was compared so far, once nothing waits.
  QualityReading Compared() const {
    monitor->WaitUntilIdle();
    return index->counts()->quality();
  }
  int64_t dropped(QualityDrop cause) const { return counts->quality_dropped(cause); }
  int64_t dropped() const {
    int64_t all = 0;
    for (int c = 0; c < kQualityDrops; ++c) all += dropped(static_cast<QualityDrop>(c));
    return all;
  }

  TestBackend backend{2};
  std::shared_ptr<Counts> counts = std::make_shared<Counts>();
  std::shared_ptr<QualityMonitor> monitor;
  std::unique_ptr<Index> index;
};

}  // namespace seine::testing

#endif  // SEINE_TESTS_INDEX_QUALITY_LIVE_INDEX_H_
