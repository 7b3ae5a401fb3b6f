// Answers of a server that is not believed: the client's readers of every message that comes back.
#include <array>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "client/convert/convert.h"
#include "client/convert/eviction.h"
#include "client/convert/subspace.h"
#include "client/retained_sets.h"
#include "profile/moments.h"
#include "profile/profile.h"
#include "tests/fuzz/mutate/message.h"
#include "tests/fuzz/mutate/steps.h"
#include "tests/fuzz/targets/targets.h"
#include "tests/fuzz/targets/world.h"

namespace seine::fuzz {
namespace {

using google::protobuf::Message;

constexpr size_t kMostAnswers = 4;
constexpr int kHeads = 2;
constexpr int64_t kMostTokens = 1 << 20;

void CheckRead(const absl::Status& status) {
  if (status.ok() || status.code() == absl::StatusCode::kInternal) return;
  if (status.code() == absl::StatusCode::kInvalidArgument) return;  // numbers that are not those of the shape
  Fail(absl::StrCat("an answer is read as ", status.ToString()));
}

// An engine keeps these sets over several answers, and follows what is retained.
using Sets = client::RetainedSets;

void Follow(const client::Retained& retained, Sets* sets) {
  sets->Update(retained);
  if (sets->heads().size() != kHeads) Fail("a head is lost");
}

void ReadRetained(const v1::Retained& message, Sets* sets) {
  client::Retained retained;
  const absl::Status status = client::FromProto(message, &retained);
  CheckRead(status);
  // An engine lists what was dropped. A long list is legal, but takes memory.
  const bool is_long = retained.num_tokens > kMostTokens && retained.num_tokens <= INT32_MAX;
  if (status.ok() && !is_long) Follow(retained, sets);
}

void Read(const v1::AppendResponse& m, Sets* sets) { ReadRetained(m.retained(), sets); }
void Read(const v1::AppendStreamResponse& m, Sets*) {
  client::AppendTotals totals;
  CheckRead(client::FromProto(m, &totals));
}
void Read(const v1::RetrieveResponse& m, Sets*) {
  client::Answer answer;
  for (const auto& one : m.answers()) {
    const absl::Status status = client::FromProto(one, &answer);
    if (one.status().code() == 0) CheckRead(status);
    client::FieldOf(status);
    client::ReasonOf(status);
  }
}
void Read(const v1::AttendResponse& m, Sets*) {
  client::Attended attended;
  for (const auto& one : m.answers()) {
    const absl::Status status = client::FromProto(one, &attended);
    if (one.status().code() == 0) CheckRead(status);
  }
}
void Read(const v1::DecodeResponse& m, Sets* sets) {
  client::DecodeAnswer answer;
  client::FromProto(m, &answer).IgnoreError();
  for (const auto& retained : m.retained()) ReadRetained(retained, sets);
}
void Read(const v1::GatherResponse& m, Sets*) {
  client::Gathered rows;
  for (const int64_t count : {0, 2, 200}) CheckRead(client::FromProto(m, count, &rows));
}
void Read(const v1::ScoreResponse& m, Sets*) {
  std::vector<client::HeadScores> heads;
  CheckRead(client::FromProto(m, &heads));
}
void Read(const v1::EvictResponse& m, Sets* sets) {
  client::Evicted evicted;
  CheckRead(client::FromProto(m, &evicted));
  ReadRetained(m.retained(), sets);
}
void Read(const v1::DiagnoseResponse& m, Sets*) {
  std::vector<client::HeadDiagnosis> heads;
  CheckRead(client::FromProto(m, &heads));
}
void Read(const v1::GetBasisResponse& m, Sets*) {
  client::LayerBases bases;
  CheckRead(client::FromProto(m.bases(), m.frame(), &bases));
  for (const auto& head : m.heads()) client::FromProto(head);
}
void Read(const v1::CalibrateBasisResponse& m, Sets*) {
  client::LayerBases bases;
  CheckRead(client::FromProto(m.bases(), m.frame(), &bases));
}
void Read(const v1::ReconstructResponse& m, Sets*) {
  std::vector<int32_t> positions;
  CheckRead(client::ReadVector(m.positions(), &positions));
}
void Read(const v1::ListSequencesResponse& m, Sets*) {
  for (const auto& sequence : m.sequences()) client::FromProto(sequence);
}
void Read(const v1::DescribeHeadResponse& m, Sets*) { CheckRead(client::FromProto(m).status()); }
void Read(const v1::MeasureProfileResponse& m, Sets*) { CheckRead(client::FromProto(m).status()); }

struct Reader {
  const char* method;
  void (*read)(const Message& message, Sets* sets);
};

template <typename Response>
constexpr Reader Of(const char* method) {
  return {method, [](const Message& message, Sets* sets) { Read(static_cast<const Response&>(message), sets); }};
}

constexpr std::array kAnswerReaders = {Of<v1::AppendResponse>("Append"),
                                       Of<v1::AppendStreamResponse>("AppendStream"),
                                       Of<v1::RetrieveResponse>("Retrieve"),
                                       Of<v1::AttendResponse>("Attend"),
                                       Of<v1::DecodeResponse>("Decode"),
                                       Of<v1::GatherResponse>("Gather"),
                                       Of<v1::ScoreResponse>("Score"),
                                       Of<v1::EvictResponse>("Evict"),
                                       Of<v1::DiagnoseResponse>("Diagnose"),
                                       Of<v1::GetBasisResponse>("GetBasis"),
                                       Of<v1::CalibrateBasisResponse>("CalibrateBasis"),
                                       Of<v1::ReconstructResponse>("Reconstruct"),
                                       Of<v1::ListSequencesResponse>("ListSequences"),
                                       Of<v1::DescribeHeadResponse>("DescribeHead"),
                                       Of<v1::MeasureProfileResponse>("MeasureProfile")};

class AnswersTarget : public Target {
 public:
  // The server's own answers.
  std::vector<std::string> Seeds() override {
    std::vector<std::string> seeds;
    for (size_t i = 0; i < kAnswerReaders.size(); ++i) {
      const test::AttackedMethod& method = TheWorld().method(kAnswerReaders[i].method);
      const std::unique_ptr<Message> answer = method.NewResponse();
      for (const auto& right : method.rights) {
        if (!TheWorld().Call(method, *right, answer.get()).ok()) Fail(absl::StrCat(method.name, ": has no answer"));
        seeds.push_back(Pack({{static_cast<uint8_t>(i), answer->SerializeAsString()}}));
        if (method.changes) TheWorld().Restore();
      }
    }
    return seeds;
  }

  void Run(absl::string_view input) override {
    Sets sets(kHeads);
    for (const Step& step : Unpack(input, kMostAnswers)) {
      const Reader& reader = ReaderOf(step);
      const std::unique_ptr<Message> answer = TheWorld().method(reader.method).NewResponse();
      if (answer->ParseFromString(step.bytes)) reader.read(*answer, &sets);
    }
  }

  std::string Mutate(std::string input, Random& random, const ByteMutator& bytes) override {
    if (seeds_.empty()) seeds_ = Seeds();
    return MutateSteps(input, kMostAnswers, seeds_, random, [&](Step* step) {
      const std::unique_ptr<Message> answer = TheWorld().method(ReaderOf(*step).method).NewResponse();
      if (random.OneIn(16) || !answer->ParseFromString(step->bytes)) {
        step->bytes = bytes(step->bytes);
      } else {
        MutateMessage(answer.get(), random, bytes);
        step->bytes = answer->SerializePartialAsString();
      }
    });
  }

 private:
  static const Reader& ReaderOf(const Step& step) { return kAnswerReaders[step.kind % kAnswerReaders.size()]; }

  std::vector<std::string> seeds_;
};

}  // namespace

void AddAnswersTarget(std::vector<TargetEntry>* out) {
  out->push_back({"answers", "what a server answers, as the client reads it", 5000,
                  [] { return std::make_unique<AnswersTarget>(); }});
}

}  // namespace seine::fuzz
