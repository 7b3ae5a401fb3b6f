// What the demo says in its last lines, of figures that are made up.
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/demo/print.h"

namespace seine::demo {
namespace {

class DemoPrintTest : public testing::Test {
 protected:
  static AttentionTimes At(int64_t copies, double dense_ms, double seine_ms) {
    AttentionTimes times;
    times.num_tokens = 8192 * copies;
    times.copies = copies;
    times.dense_us = {dense_ms * 1000, dense_ms * 2000};
    times.seine_us = {seine_ms * 1000, seine_ms * 2000};
    times.dense_mean_us = dense_ms * 1000;
    times.seine_mean_us = seine_ms * 1000;
    return times;
  }
  static Measured With(std::vector<AttentionTimes> times) {
    Measured measured;
    measured.attention.times = std::move(times);
    measured.report.transport = client::Transport::kSharedMemory;
    measured.report.full_cache_bytes = 1;
    measured.report.recall = .978;
    measured.report.attention_covered = .968;
    measured.report.tokens_read = 660;
    measured.report.bytes_per_key = 19.4;
    return measured;
  }
  // All of it, and the lines after the last heading.
  std::string Text(const Measured& measured) const { return ToText(trace_, {}, measured); }
  std::string Last(const Measured& measured) const {
    const std::string text = Text(measured);
    return text.substr(std::min(text.size(), text.find("What you gain on this machine\n")));
  }
  const Trace trace_ = Trace::Open(SEINE_TRACE).value();
};

TEST_F(DemoPrintTest, SaysWhatIsGained) {
  EXPECT_EQ(Last(With({At(1, .64, .32), At(4, 3, .8), At(16, 16.25, 1.25)})),
            "What you gain on this machine\n"
            "  At 8,192 tokens a layer's attention takes 0.32 ms instead of 0.64 ms: 2.0 times as fast.\n"
            "  At 131,072 tokens a layer's attention takes 1.25 ms instead of 16.2 ms: 13 times as fast.\n"
            "  A head reads 660 of 8,192 tokens. They hold 96.8 % of its attention, and 97.8 % of its top 100.\n"
            "  Codes add 19.4 bytes to the 256 of a key and its value: 8 %.\n"
            "Next: your model with one line of Python (docs/python.md), llama.cpp or C++ (docs/engines.md); beside "
            "others: docs/benchmarks.md\n");
}

TEST_F(DemoPrintTest, SaysWhereNothingIsGained) {
  const std::string late = Last(With({At(1, .4, .42), At(4, 1.6, .8)}));
  EXPECT_TRUE(absl::StrContains(late, "0.42 ms instead of 0.40 ms: no gain.\n")) << late;
  EXPECT_TRUE(absl::StrContains(late, "It pays from some 32,768 tokens on. Leave shorter texts dense")) << late;
  const std::string never = Last(With({At(1, .4, .6), At(4, 1.6, 1.5)}));
  EXPECT_TRUE(absl::StrContains(never, "0.60 ms instead of 0.40 ms: slower.\n")) << never;
  EXPECT_TRUE(absl::StrContains(never, "Up to 32,768 tokens Seine gains no time here")) << never;
  // A gain that is lost again at a greater length is none to count on.
  const std::string lost = Last(With({At(1, 1, .5), At(4, 2, 3)}));
  EXPECT_TRUE(absl::StrContains(lost, "gains no time here")) << lost;
  const std::string alone = Last(With({At(1, 1, .5)}));
  EXPECT_EQ(std::vector<std::string>(absl::StrSplit(alone, "At 8,192 tokens")).size(), 2u) << alone;
}

// Load interrupts long steps, and a stall may meet either side: neither makes the gain larger than it is.
TEST_F(DemoPrintTest, LoadDoesNotFlatter) {
  AttentionTimes times = At(16, 12, 2);
  EXPECT_DOUBLE_EQ(times.speedup(), 6);
  times.dense_us.p50 *= 3;  // most of dense's steps were interrupted, Seine's now and then
  times.dense_mean_us *= 3;
  times.seine_mean_us *= 2.5;
  EXPECT_DOUBLE_EQ(times.speedup(), 7.2);
  times = At(16, 12, 2);
  times.dense_mean_us *= 10;  // one long stall
  EXPECT_DOUBLE_EQ(times.speedup(), 6);
  EXPECT_EQ(AttentionTimes().speedup(), 0);
}

TEST_F(DemoPrintTest, SaysHowItWasMeasured) {
  Measured measured = With({At(1, .64, .32), At(4, 3, .8)});
  std::string text = Text(measured);
  EXPECT_TRUE(absl::StrContains(text, "over the same-host channel")) << text;
  EXPECT_TRUE(absl::StrContains(text, "come again and again: for times alone, never for recall")) << text;
  EXPECT_FALSE(absl::StrContains(text, "Other programs ran")) << text;
  measured.report.transport = client::Transport::kBlocking;
  measured.report.fallback = "no socket";
  measured.attention.times[1].processor_share = .6;
  text = Text(measured);
  EXPECT_TRUE(absl::StrContains(text, "over gRPC (no socket)")) << text;
  EXPECT_TRUE(absl::StrContains(text, "a thread got 60 % of a processor")) << text;
  measured.attention.times.pop_back();
  measured.attention.stopped = "the server is full";
  EXPECT_TRUE(absl::StrContains(Text(measured), "longer texts found no memory: the server is full\n"));
  EXPECT_FALSE(absl::StrContains(Text(measured), "again and again"));
}

}  // namespace
}  // namespace seine::demo
