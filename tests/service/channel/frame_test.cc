// Rings and frames without a server: what is written is read, at every offset and in pieces; nonsense is called so.
#include "proto/channel/frame.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "proto/channel/wait.h"

namespace seine::channel {
namespace {

constexpr uint32_t kRing = 4096;  // smaller than a server's, so that everything wraps often

struct Pipe {
  std::unique_ptr<Cursors> cursors = std::make_unique<Cursors>();
  std::vector<uint8_t> ring = std::vector<uint8_t>(kRing);
  FrameWriter writer{RingWriter(cursors.get(), ring.data(), kRing)};
  FrameReader reader{RingReader(cursors.get(), ring.data(), kRing), 1 << 20};
};

std::string Text(size_t bytes, size_t seed) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 31 + seed);
  return text;
}

TEST(Frame, EveryLengthAtEveryOffset) {
  Pipe pipe;
  for (size_t bytes = 0; bytes < kRing - sizeof(FrameHead); bytes += 7) {
    const std::string sent = Text(bytes, bytes);
    ASSERT_EQ(pipe.writer.Write(FrameKind::kMessage, sent), Progress::kDone) << bytes;
    ASSERT_EQ(pipe.reader.Read(), Progress::kDone) << bytes;
    ASSERT_EQ(pipe.reader.message(), sent);
    ASSERT_EQ(pipe.reader.Read(), Progress::kWait);
    EXPECT_FALSE(pipe.reader.midway());
  }
}

TEST(Frame, LargerThanTheRingTravelsInPieces) {
  Pipe pipe;
  for (const size_t bytes : {kRing - 7ul, kRing * 1ul, kRing * 3ul + 1, 700'000ul}) {
    const std::string sent = Text(bytes, bytes);
    Progress written = pipe.writer.Write(FrameKind::kMessage, sent), read = Progress::kWait;
    for (int rounds = 0; read == Progress::kWait && rounds < 1000; ++rounds) {
      EXPECT_FALSE(pipe.writer.TryWrite(FrameKind::kEnd, "") && written == Progress::kWait);  // none gets in between
      read = pipe.reader.Read();
      if (written == Progress::kWait) written = pipe.writer.Continue();
    }
    ASSERT_EQ(written, Progress::kDone);
    if (read == Progress::kWait) read = pipe.reader.Read();
    ASSERT_EQ(read, Progress::kDone);
    EXPECT_EQ(pipe.reader.message(), sent);
    while (pipe.reader.Read() == Progress::kDone) {  // the frame that was tried
    }
  }
}

TEST(Frame, TensorsComeBeforeTheirMessage) {
  Pipe pipe;
  for (size_t round = 0; round < 300; ++round) {
    std::vector<std::string> sent;
    for (size_t i = 0; i < round % 5; ++i) sent.push_back(Text((round * 131 + i * 1777) % 3000, i));
    const std::vector<std::string_view> views(sent.begin(), sent.end());
    const std::string text = Text(round, round);
    Progress written = pipe.writer.Write(FrameKind::kMessage, text, views), read = pipe.reader.Read();
    for (int i = 0; read == Progress::kWait && i < 100; ++i) {
      EXPECT_TRUE(pipe.reader.midway());
      EXPECT_FALSE(pipe.writer.TryWrite(FrameKind::kMessage, ""));  // none gets in between
      if (written == Progress::kWait) written = pipe.writer.Continue();
      read = pipe.reader.Read();
    }
    ASSERT_EQ(written, Progress::kDone) << round;
    ASSERT_EQ(read, Progress::kDone) << round;
    EXPECT_EQ(pipe.reader.message(), text);
    ASSERT_EQ(pipe.reader.tensors().size(), sent.size());
    size_t bytes = text.size();
    for (size_t i = 0; i < sent.size(); ++i) {
      EXPECT_EQ(pipe.reader.tensors()[i], sent[i]) << round << " " << i;
      bytes += sent[i].size();
    }
    EXPECT_EQ(pipe.reader.bytes(), bytes);
    if (round % 50 == 49) pipe.reader.GiveBack();
  }
}

TEST(Frame, TensorsCountTowardsTheirMessage) {
  Pipe pipe;
  const std::string half = Text(600 << 10, 1), other = Text(600 << 10, 2);
  const std::string_view tensors[] = {half};
  Progress written = pipe.writer.Write(FrameKind::kMessage, other, tensors), read = pipe.reader.Read();
  for (int i = 0; read == Progress::kWait && i < 1000; ++i) {
    if (written == Progress::kWait) written = pipe.writer.Continue();
    read = pipe.reader.Read();
  }
  EXPECT_EQ(read, Progress::kTooLarge);
  EXPECT_EQ(pipe.reader.announced_bytes(), half.size() + other.size());
  EXPECT_EQ(Pipe().writer.Write(FrameKind::kMessage, "", std::vector<std::string_view>(kMostTensors + 1)),
            Progress::kTooLarge);
}

TEST(Frame, CountersMayPassTheirEnd) {
  Cursors cursors = {};
  std::vector<uint8_t> bytes(kRing);
  RingWriter writer(&cursors, bytes.data(), kRing);
  RingReader reader(&cursors, bytes.data(), kRing);
  std::vector<uint8_t> chunk(kRing), got(kRing);
  for (uint64_t total = 0; total < (uint64_t{1} << 32) + 3 * kRing; total += kRing) {
    chunk[5] = static_cast<uint8_t>(total >> 12);
    ASSERT_EQ(writer.Put(chunk.data(), kRing), kRing);
    writer.Publish();
    ASSERT_EQ(writer.Put(chunk.data(), 1), 0);  // full
    ASSERT_EQ(reader.Take(got.data(), kRing), kRing);
    reader.Release();
    ASSERT_EQ(got[5], chunk[5]);
  }
}

TEST(Frame, NonsenseIsCalledSo) {
  {
    Pipe pipe;
    pipe.writer.Write(FrameKind::kMessage, "x");  // which alone would be read
    pipe.cursors->written.fetch_add(kRing);
    EXPECT_EQ(pipe.reader.Read(), Progress::kBroken);
  }
  {
    Pipe pipe;
    pipe.cursors->read = 1;  // more than was written
    EXPECT_EQ(pipe.writer.Write(FrameKind::kMessage, "x"), Progress::kBroken);
    EXPECT_FALSE(pipe.writer.TryWrite(FrameKind::kEnd, ""));
  }
  {
    Pipe pipe;
    pipe.writer.Write(static_cast<FrameKind>(4), "x");
    EXPECT_EQ(pipe.reader.Read(), Progress::kBroken);
  }
  {
    Pipe pipe;
    const FrameHead head = {(1 << 20) + 1, FrameKind::kMessage};
    pipe.writer.ring().Put(&head, sizeof(head));
    pipe.writer.ring().Publish();
    EXPECT_EQ(pipe.reader.Read(), Progress::kTooLarge);
    EXPECT_EQ(pipe.reader.announced_bytes(), head.bytes);
  }
}

// Two threads that sleep whenever they must wait: a wake-up that was lost would end this by its time limit.
TEST(Frame, SleepersAreWoken) {
  Pipe pipe;
  constexpr int kFrames = 20'000;
  constexpr auto kLost = std::chrono::seconds(30);
  std::thread writer([&] {
    const std::string sent = Text(1500, 1);
    for (int i = 0; i < kFrames; ++i) {
      auto& ring = pipe.writer.ring();
      for (Progress p = pipe.writer.Write(FrameKind::kMessage, sent); p == Progress::kWait;
           p = pipe.writer.Continue()) {
        SleepWhileEqual(ring.word(), ring.seen(), ring.sleeps(), kLost);
      }
    }
  });
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kFrames; ++i) {
    auto& ring = pipe.reader.ring();
    while (pipe.reader.Read() == Progress::kWait) SleepWhileEqual(ring.word(), ring.seen(), ring.sleeps(), kLost);
    ASSERT_EQ(pipe.reader.message().size(), 1500u);
  }
  writer.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kLost);
}

}  // namespace
}  // namespace seine::channel
