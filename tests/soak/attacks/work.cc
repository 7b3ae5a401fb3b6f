// Calls that are right and take much.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "kernels/machine/limits.h"
#include "tests/soak/attacks/helpers.h"
#include "tests/soak/attacks/made_attacks.h"

namespace seine::soak {

void Geometry(const Target& target, Tally& tally) {
  Client client(target.endpoint);
  v1::CreateIndexRequest create;
  *create.mutable_spec() = Spec("huge");
  create.mutable_spec()->mutable_geometry()->set_num_layers(4096);
  create.mutable_spec()->mutable_geometry()->set_num_q_heads(1024);
  create.mutable_spec()->mutable_geometry()->set_num_kv_heads(1024);
  Random random(target.seed);
  Prompt(client, kAttacked, "geometry", 64, 4);
  for (int made = 0;; ++made) {
    create.mutable_spec()->set_name(absl::StrCat("huge-", made % 16));
    grpc::ClientContext context;
    v1::CreateIndexResponse created;
    Expect(client.index->CreateIndex(&context, create, &created), With(Answers(), {}), "CreateIndex", tally);
    for (int i = 0; i < 200; ++i) {
      grpc::ClientContext sequence_context;
      v1::CreateSequenceRequest request;
      v1::CreateSequenceResponse response;
      request.set_index(i % 4 == 0 ? create.spec().name() : kAttacked);
      Expect(client.sequence->CreateSequence(&sequence_context, request, &response), Answers(), "CreateSequence",
             tally);
    }
  }
}

// Twelve exact readers of one layer, and a writer of one token.
void Readers(const Target& target, Tally& tally) {
  Client setup(target.endpoint);
  const auto handle = Prompt(setup, kAttacked, "readers", 65'536, 5);
  v1::RetrieveRequest request;
  for (uint32_t i = 0; i < 16; ++i) *request.add_items() = Query(handle, 0, i);
  request.mutable_selector()->set_top_k(8);
  request.mutable_selector()->set_exact(true);
  std::atomic<int64_t> at{65'536};
  InParallel(13, [&](int thread) {
    Client client(target.endpoint);
    for (int i = 0; i < 100; ++i) {
      grpc::ClientContext context;
      const auto begin = std::chrono::steady_clock::now();
      if (thread < 12) {
        v1::RetrieveResponse response;
        Expect(client.retrieval->Retrieve(&context, request, &response), Answers(), "Retrieve", tally);
        continue;
      }
      v1::AppendRequest append;
      v1::AppendResponse response;
      *append.mutable_item() = Item(handle, 0, at++, 1, 5);
      Expect(client.retrieval->Append(&context, append, &response), Answers(), "Append", tally);
      if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(2))
        tally.Break("a writer waited for over 2 s");
    }
  });
}

// What takes long, for nobody.
void LongWork(const Target& target, Tally& tally) {
  Client setup(target.endpoint);
  const auto handle = Prompt(setup, kAttacked, "long", 65'536, 6);
  v1::DecodeRequest step;
  for (uint32_t i = 0; i < 256; ++i) *step.add_items() = Query(handle, 1, i);
  step.mutable_selector()->set_top_k(8);
  step.mutable_selector()->set_exact(true);
  InParallel(14, [&](int thread) {
    Client client(target.endpoint);
    grpc::ClientContext context;
    const auto deadline = std::chrono::system_clock::now() + std::chrono::milliseconds(100);
    const auto late = With(Answers(), {grpc::DEADLINE_EXCEEDED, grpc::CANCELLED});
    if (thread < 4) {
      context.set_deadline(deadline);
      v1::MeasureProfileRequest request;
      v1::MeasureProfileResponse response;
      *request.add_sequences() = handle;
      Expect(client.admin->MeasureProfile(&context, request, &response), late, "MeasureProfile", tally);
    } else if (thread < 12) {
      auto stream = client.retrieval->Decode(&context);
      stream->Write(step);
      Pause(30);
      context.TryCancel();
      Expect(stream->Finish(), late, "Decode", tally);
    } else {
      context.set_deadline(deadline);
      v1::ScoreRequest request;
      v1::ScoreResponse response;
      *request.mutable_handle() = handle;
      request.mutable_scorer()->set_name(thread == 12 ? "expected_attention" : "keydiff");
      if (thread == 12) {
        request.mutable_scorer()->set_future(1 << 24);
        *request.mutable_given()->mutable_queries() = Halves(64, kQHeads, 1, 1);
      } else {
        request.mutable_scorer()->set_anchor(v1::ANCHOR_PAIRWISE);
      }
      Expect(client.eviction->Score(&context, request, &response), late, "Score", tally);
    }
  });
}

// Computes and leaves the server alone: what a machine without an idle core costs a bystander by itself.
void BusyCores(const Target&, Tally& tally) {
  tally.Case();
  InParallel(DefaultThreads(), [](int) {
    for (volatile uint64_t i = 0; i < 100'000'000;) i = i + 1;
  });
}

}  // namespace seine::soak
