#include "tests/soak/attacks/canceller.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/soak/attacks/helpers.h"

namespace seine::soak {
namespace {

constexpr int kPieces = 4;
constexpr int64_t kMostTokens = 4000;  // then a new sequence

// Every value is 1 + mark / 1024. So is every mean of values, whatever they are weighed with.
uint16_t ValueOf(uint8_t mark) { return static_cast<uint16_t>(0x3C00u | mark); }
float MeanOf(uint8_t mark) { return 1 + static_cast<float>(mark) / 1024; }

// The low byte of every half is the mark.
v1::AppendItem Marked(const v1::SequenceHandle& handle, int64_t position, int64_t tokens, uint8_t mark) {
  v1::AppendItem item = Item(handle, 0, position, tokens, mark);
  std::string& keys = *item.mutable_keys()->mutable_raw();
  std::string& values = *item.mutable_values()->mutable_raw();
  const uint16_t value = ValueOf(mark);
  for (size_t at = 0; at < keys.size(); at += 2) {
    keys[at] = static_cast<char>(mark);
    memcpy(&values[at], &value, 2);
  }
  return item;
}

// A call's context that ends by itself at a random moment: by its deadline, by a cancel, or by whichever comes first.
class DoomedContext {
 public:
  explicit DoomedContext(Random& random) {
    using std::chrono::microseconds;
    context_.set_deadline(std::chrono::system_clock::now() + microseconds(random() % 3000));
    if (random() % 2 == 0) return;
    canceller_ = std::thread([this, wait = random() % 2000] {
      std::this_thread::sleep_for(microseconds(wait));
      context_.TryCancel();
    });
  }
  ~DoomedContext() {
    if (canceller_.joinable()) canceller_.join();
  }
  grpc::ClientContext* get() { return &context_; }

 private:
  grpc::ClientContext context_;
  std::thread canceller_;
};

}  // namespace

Canceller::Canceller(const std::string& address, int number, uint32_t seed, Tally& tally)
    : random_(seed * 64 + static_cast<uint32_t>(number)),
      number_(number),
      mark_(static_cast<uint8_t>(0x20 + number)),
      tally_(tally),
      client_(address) {}

void Canceller::Round() {
  if (handle_.id().empty() || at_ > kMostTokens) Renew();
  switch (random_() % 5) {
    case 0:
      Append();
      break;
    case 1:
      AppendStream();
      break;
    case 2:
      Attend();
      break;
    case 3:
      Decode();
      break;
    default:
      Gather();
  }
  ReadBack();
}

void Canceller::Renew() {
  if (!handle_.id().empty()) {
    grpc::ClientContext context;
    v1::DeleteSequenceRequest request;
    v1::DeleteSequenceResponse response;
    *request.mutable_handle() = handle_;
    Expect(client_.sequence->DeleteSequence(&context, request, &response), {grpc::OK}, "DeleteSequence", tally_);
  }
  handle_ = Prompt(client_, kAttacked, absl::StrCat("cancels-", number_, "-", random_()), 0, mark_);
  at_ = 0;
  grpc::ClientContext context;
  v1::AppendRequest request;
  v1::AppendResponse response;
  *request.mutable_item() = Marked(handle_, 0, 64, mark_);
  if (client_.retrieval->Append(&context, request, &response).ok()) at_ = 64;
}

void Canceller::Ended(const grpc::Status& status, const char* what) {
  static const auto* const ends = new std::set<int>(With(Answers(), {grpc::CANCELLED, grpc::DEADLINE_EXCEEDED}));
  Expect(status, *ends, what, tally_);
  const auto code = status.error_code();
  if (code == grpc::CANCELLED || code == grpc::DEADLINE_EXCEEDED) tally_.Fault();
}

void Canceller::Append() {
  DoomedContext context(random_);
  v1::AppendRequest request;
  v1::AppendResponse response;
  *request.mutable_item() = Marked(handle_, at_, SomeTokens(), mark_);
  Ended(client_.retrieval->Append(context.get(), request, &response), "Append");
}

void Canceller::AppendStream() {
  DoomedContext context(random_);
  v1::AppendStreamResponse response;
  const auto stream = client_.retrieval->AppendStream(context.get(), &response);
  int64_t position = at_;
  for (int i = 0; i < kPieces; ++i) {
    v1::AppendStreamRequest piece;
    const int64_t tokens = SomeTokens();
    *piece.mutable_item() = Marked(handle_, position, tokens, mark_);
    position += tokens;
    if (!stream->Write(piece)) break;
  }
  stream->WritesDone();
  Ended(stream->Finish(), "AppendStream");
}

void Canceller::Attend() {
  DoomedContext context(random_);
  v1::AttendRequest request;
  v1::AttendResponse response;
  *request.add_items() = Query(handle_, 0, random_());
  request.mutable_selector()->set_top_k(32);
  const grpc::Status status = client_.retrieval->Attend(context.get(), request, &response);
  Ended(status, "Attend");
  for (const v1::AttendAnswer& answer : response.answers()) CheckOutput(answer);
}

void Canceller::Decode() {
  DoomedContext context(random_);
  const auto stream = client_.retrieval->Decode(context.get());
  v1::DecodeResponse response;
  int64_t position = at_;
  for (uint64_t i = 1; i <= kPieces; ++i) {
    v1::DecodeRequest step;
    step.set_step(i);
    const int64_t tokens = SomeTokens();
    *step.add_appends() = Marked(handle_, position, tokens, mark_);
    position += tokens;
    *step.add_items() = Query(handle_, 0, random_());
    step.mutable_selector()->set_top_k(32);
    step.mutable_attention();
    if (!stream->Write(step) || !stream->Read(&response)) break;
    if (response.step() != i) tally_.Break("another step's answer");
    for (const v1::AttendAnswer& answer : response.attended()) CheckOutput(answer);
  }
  stream->WritesDone();
  Ended(stream->Finish(), "Decode");
}

void Canceller::Gather() {
  if (at_ == 0) return Append();
  DoomedContext context(random_);
  v1::GatherResponse rows;
  const grpc::Status status = client_.retrieval->Gather(context.get(), SomeRows(), &rows);
  Ended(status, "Gather");
  if (status.ok()) CheckRows(rows);
}

void Canceller::ReadBack() {
  grpc::ClientContext get_context, gather_context;
  v1::GetSequenceRequest get;
  v1::GetSequenceResponse got;
  v1::GatherResponse rows;
  *get.mutable_handle() = handle_;
  if (!client_.sequence->GetSequence(&get_context, get, &got).ok()) return;
  if (got.sequence().layer_tokens(0) < at_) tally_.Break("tokens that were there are gone");
  at_ = got.sequence().layer_tokens(0);
  if (at_ > 0 && client_.retrieval->Gather(&gather_context, SomeRows(), &rows).ok()) CheckRows(rows);
}

v1::GatherRequest Canceller::SomeRows() {
  v1::GatherRequest gather;
  *gather.mutable_handle() = handle_;
  gather.set_keys(true);
  gather.set_values(true);
  std::vector<int32_t> positions(64);
  for (int32_t& position : positions) position = static_cast<int32_t>(random_() % static_cast<uint64_t>(at_));
  positions[0] = static_cast<int32_t>(at_ - 1);
  gather.mutable_positions()->set_dtype(v1::D_TYPE_INT32);
  gather.mutable_positions()->add_shape(64);
  gather.mutable_positions()->set_raw(positions.data(), positions.size() * 4);
  return gather;
}

void Canceller::CheckRows(const v1::GatherResponse& rows) {
  const uint16_t value = ValueOf(mark_);
  int64_t foreign = rows.keys().raw().size() != 64 * kDim * 2 || rows.values().raw().size() != 64 * kDim * 2;
  for (size_t at = 0; at + 1 < rows.keys().raw().size(); at += 2) {
    foreign += static_cast<uint8_t>(rows.keys().raw()[at]) != mark_;
  }
  for (size_t at = 0; at + 1 < rows.values().raw().size(); at += 2) {
    foreign += memcmp(&rows.values().raw()[at], &value, 2) != 0;
  }
  if (foreign > 0) tally_.Break(absl::StrCat(foreign, " foreign bytes in rows"));
}

void Canceller::CheckOutput(const v1::AttendAnswer& answer) {
  if (answer.status().code() != 0) return;
  for (size_t at = 0; at + 3 < answer.output().raw().size(); at += 4) {
    float mean = 0;
    memcpy(&mean, &answer.output().raw()[at], 4);
    if (std::abs(mean - MeanOf(mark_)) < 2e-4f) continue;
    return tally_.Break(absl::StrCat("a foreign value in an output: ", mean, ", not ", MeanOf(mark_)));
  }
}

}  // namespace seine::soak
