// The memory of a same-host channel: frames and counters that an honest client writes, and others; each step is
// answered as the server does, and the answer read as the client does.
#include <algorithm>
#include <cstring>
#include <memory>
#include <span>

#include "absl/strings/str_cat.h"
#include "kernels/stop.h"
#include "proto/channel/frame.h"
#include "proto/channel/tensors.h"
#include "service/transport/counted_step.h"
#include "tests/fuzz/mutate/message.h"
#include "tests/fuzz/mutate/steps.h"
#include "tests/fuzz/targets/targets.h"
#include "tests/fuzz/targets/world.h"

namespace seine::fuzz {
namespace {

using channel::FrameKind;
using channel::Progress;

constexpr size_t kMostSteps = 8;
constexpr uint32_t kRing = 1 << 16, kMostBytes = 1 << 18;
// What a step of the input is; other numbers are taken modulo the last.
enum Kind : uint8_t { kWhole, kApart, kFrame, kBytes, kWritten, kRead, kKinds };

struct Pipe {
  std::unique_ptr<channel::Cursors> cursors = std::make_unique<channel::Cursors>();
  std::vector<uint8_t> ring = std::vector<uint8_t>(kRing);
  channel::FrameWriter writer{channel::RingWriter(cursors.get(), ring.data(), kRing)};
  channel::FrameReader reader{channel::RingReader(cursors.get(), ring.data(), kRing), kMostBytes};
};

// Both ends for one input.
class Conversation {
 public:
  explicit Conversation(World& world) : world_(world), session_(world.core()) {}

  void Take(const Step& step) {
    switch (step.kind % kKinds) {
      case kWhole:
        return Write(FrameKind::kMessage, step.bytes, {});
      case kApart:
        return WriteApart(step.bytes);
      case kFrame:
        if (!step.bytes.empty()) Write(static_cast<FrameKind>(step.bytes[0]), step.bytes.substr(1), {});
        return;
      case kBytes:
        return WriteBytes(step.bytes);
      case kWritten:
        return SetCounter(step.bytes, &requests_.cursors->written);
      default:
        answers_honest_ = false;
        return SetCounter(step.bytes, &answers_.cursors->read);
    }
  }

 private:
  void Write(FrameKind kind, std::string_view message, std::span<const std::string_view> tensors) {
    Progress progress = requests_.writer.Write(kind, message, tensors);
    for (int rounds = 0; Serve() && progress == Progress::kWait && rounds < 64; ++rounds) {
      progress = requests_.writer.Continue();
    }
  }
  void WriteApart(const std::string& bytes) {
    v1::DecodeRequest request;
    if (!request.ParseFromString(bytes)) return;
    std::vector<std::string> held;
    std::vector<std::string_view> views;
    channel::TakeTensors(&request, &held, &views);
    Write(FrameKind::kMessage, request.SerializeAsString(), views);
  }
  // Into the ring as they are, behind what was written.
  void WriteBytes(const std::string& bytes) {
    const uint32_t at = requests_.cursors->written.load();
    const auto count = static_cast<uint32_t>(std::min<size_t>(bytes.size(), kRing));
    for (uint32_t i = 0; i < count; ++i) requests_.ring[(at + i) % kRing] = static_cast<uint8_t>(bytes[i]);
    requests_.cursors->written.store(at + count);
    Serve();
  }
  void SetCounter(const std::string& bytes, std::atomic<uint32_t>* counter) {
    uint32_t value = 0;
    memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof(value)));
    counter->store(value);
    Serve();
  }

  // Reads what is there. Whether the channel goes on.
  bool Serve() {
    while (!over_) {
      const Progress progress = requests_.reader.Read();
      if (progress == Progress::kWait) break;
      over_ = progress != Progress::kDone || requests_.reader.kind() == FrameKind::kEnd || !AnswerMessage();
    }
    return !over_;
  }
  bool AnswerMessage() {
    auto& reader = requests_.reader;
    if (reader.bytes() > kMostBytes) Fail("a message is larger than may be");
    v1::DecodeRequest request;
    v1::DecodeResponse response;
    if (!request.ParseFromString(reader.message()) || !channel::PutTensors(reader.tensors(), &request)) return false;
    CountedStep(world_.core(), session_, token_, absl::OkStatus(), /*parsed=*/true, request, &response, [] {});
    world_.Judge(world_.method("Decode"), absl::OkStatus(), response);
    channel::TakeTensorsBack(reader.tensors(), &request);
    return SendAnswer(&response);
  }
  bool SendAnswer(v1::DecodeResponse* response) {
    const std::string whole = response->SerializeAsString();
    std::vector<std::string> held;
    std::vector<std::string_view> views;
    channel::TakeTensors(response, &held, &views);
    const std::string message = response->SerializeAsString();
    Progress written = answers_.writer.Write(FrameKind::kMessage, message, views);
    for (;;) {
      if (written == Progress::kBroken) return false;  // the counter that the input has set
      const Progress read = answers_.reader.Read();
      if (read == Progress::kBroken || read == Progress::kTooLarge) return false;
      if (read == Progress::kDone) break;
      if (written == Progress::kDone) return false;
      written = answers_.writer.Continue();
    }
    v1::DecodeResponse again;
    const bool same = again.ParseFromString(answers_.reader.message()) &&
                      channel::PutTensors(answers_.reader.tensors(), &again) && again.SerializeAsString() == whole;
    if (!same && answers_honest_) Fail("an answer is not what was sent");
    return true;
  }

  World& world_;
  DecodeSession session_;
  StopToken token_;
  Pipe requests_, answers_;
  bool over_ = false, answers_honest_ = true;
};

class ChannelTarget : public Target {
 public:
  std::vector<std::string> Seeds() override {
    std::vector<std::string> seeds;
    std::vector<Step> all;
    for (const auto& right : TheWorld().method("Decode").rights) {
      for (const Kind kind : {kWhole, kApart}) all.push_back({kind, right->SerializeAsString()});
    }
    for (const Step& step : all) seeds.push_back(Pack({step}));
    seeds.push_back(Pack(all));
    const channel::FrameHead head = {4, FrameKind::kTensor};
    const std::string frame(reinterpret_cast<const char*>(&head), sizeof(head));
    seeds.push_back(Pack({{kFrame, "\x03tensor"}, all[0], {kBytes, frame + "1234"}, {kFrame, "\x02"}}));
    seeds.push_back(Pack({{kWritten, "\xff\xff\x01"}, all[0]}));
    seeds.push_back(Pack({{kRead, "\x01"}, all[0]}));
    return seeds;
  }

  void Run(absl::string_view input) override {
    Conversation conversation(TheWorld());
    for (const Step& step : Unpack(input, kMostSteps)) conversation.Take(step);
    TheWorld().Settle();
  }

  std::string Mutate(std::string input, Random& random, const ByteMutator& bytes) override {
    if (seeds_.empty()) seeds_ = Seeds();
    return MutateSteps(input, kMostSteps, seeds_, random, [&](Step* step) {
      if (random.OneIn(10)) step->kind = static_cast<uint8_t>(random.Below(kKinds));
      v1::DecodeRequest request;
      if (step->kind % kKinds > kApart || random.OneIn(16) || !request.ParseFromString(step->bytes)) {
        step->bytes = bytes(step->bytes);
      } else {
        MutateMessage(&request, random, bytes);
        step->bytes = request.SerializeAsString();
      }
    });
  }

 private:
  std::vector<std::string> seeds_;
};

}  // namespace

void AddChannelTarget(std::vector<TargetEntry>* out) {
  out->push_back({"channel", "the memory of a same-host channel, both ends", 2000,
                  [] { return std::make_unique<ChannelTarget>(); }});
}

}  // namespace seine::fuzz
