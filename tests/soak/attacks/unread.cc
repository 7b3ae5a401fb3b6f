// Answers that nobody reads.
#include <deque>

#include "absl/strings/str_cat.h"
#include "tests/soak/attacks/helpers.h"
#include "tests/soak/attacks/made_attacks.h"
#include "tests/soak/server/raw_connection.h"

namespace seine::soak {

// Steps with large answers, announced; the parent stops this process, so that nobody reads.
void Unread(const Target& target, Tally& tally) {
  Client client(target.endpoint);
  const auto handle = Prompt(client, kAttacked, "unread", 16'384, 2);
  v1::DecodeRequest step;
  for (uint32_t i = 0; i < 128; ++i) *step.add_items() = Query(handle, 0, i);
  step.mutable_selector()->set_top_k(2000);
  step.mutable_selector()->set_with_scores(true);
  step.set_notify_early(true);
  InParallel(24, [&](int) {
    grpc::ClientContext context;
    auto stream = client.retrieval->Decode(&context);
    v1::DecodeResponse response;
    while (stream->Write(step)) {
      tally.CaseAndFault();
      if (!stream->Read(&response)) break;
    }
    stream->Finish();
    Pause(10);
  });
}

void UnreadAnswers(const Target& target, Tally& tally) {
  Client client(target.endpoint);
  const auto handle = Prompt(client, kAttacked, "unread-answers", 16'384, 2);
  v1::GatherRequest gather;
  *gather.mutable_handle() = handle;
  gather.set_keys(true);
  gather.set_values(true);
  std::vector<int32_t> positions(200'000);  // 51 MB
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i % 16'384);
  gather.mutable_positions()->set_dtype(v1::D_TYPE_INT32);
  gather.mutable_positions()->add_shape(static_cast<int64_t>(positions.size()));
  gather.mutable_positions()->set_raw(positions.data(), positions.size() * 4);
  InParallel(40, [&](int) {
    grpc::ClientContext context;
    v1::GatherResponse response;
    tally.Fault();
    const grpc::Status status = client.retrieval->Gather(&context, gather, &response);
    Expect(status, {grpc::OK, grpc::RESOURCE_EXHAUSTED, grpc::CANCELLED, grpc::UNAVAILABLE}, "Gather", tally);
    if (!status.ok()) Pause(50);
  });
}

// Some 200 Decode streams of answers of 128 KB, whose clients take a kilobyte now and then.
void SlowReaders(const Target& target, Tally& tally) {
  constexpr int kConnections = 20;
  Client client(target.endpoint);
  const auto handle = Prompt(client, kAttacked, "slow-readers", 4096, 8);
  v1::DecodeRequest step;
  *step.add_items() = Query(handle, 0, 1);
  step.mutable_selector()->set_top_k(2000);
  step.mutable_selector()->set_with_scores(true);
  const std::string message = RawConnection::Message(step.SerializeAsString());
  std::deque<RawConnection> open;
  for (int i = 0; i < kConnections; ++i) {
    open.emplace_back(target.endpoint);
    if (!open.back().Open() || !open.back().Handshake(5000)) tally.Break("a connection was refused");
    for (uint32_t stream = 1; stream < 20; stream += 2) {
      open.back().Send(RawConnection::Headers(stream, "/seine.v1.RetrievalService/Decode") +
                       RawConnection::Frame(RawConnection::kData, 0, stream, message));
      tally.CaseAndFault();
    }
  }
  for (;;) {
    for (auto& connection : open) connection.Take(1024);
    Pause(100);
  }
}

}  // namespace seine::soak
