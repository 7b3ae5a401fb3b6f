// Messages that are wrong, or more than they should be.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/soak/attacks/helpers.h"
#include "tests/soak/attacks/made_attacks.h"

namespace seine::soak {
namespace {

std::string Mutated(std::string bytes, Random& random) {
  const int changes = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < changes && !bytes.empty(); ++i) {
    const size_t at = random() % std::min<size_t>(bytes.size(), 256);  // where the fields are, not the keys
    switch (random() % 4) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
        break;
      case 2:
        bytes.erase(at, 1 + random() % 3);
        break;
      default:
        bytes.insert(at, 1 + random() % 3, static_cast<char>(random()));
    }
  }
  return bytes;
}

}  // namespace

void Mutation(const Target& target, Tally& tally) {
  InParallel(4, [&](int thread) {
    thread_local Random random(target.seed + static_cast<uint32_t>(thread));
    Client client(target.endpoint);
    const auto handle = Prompt(client, kAttacked, absl::StrCat("mutated-", thread, "-", random()), 600, 1);
    const auto requests = Requests(handle);
    for (int i = 0; i < 2000; ++i) {
      const auto& [path, bytes] = requests[random() % requests.size()];
      const std::string sent = random() % 50 == 0 ? std::string(random() % 100, '\xff') : Mutated(bytes, random);
      tally.Fault();
      Expect(Raw(client, path, sent), Answers(), path, tally);
    }
  });
}

// Whole table: every field of every request at its extremes is the unit tests'; here whole messages at theirs.
void Extremes(const Target& target, Tally& tally) {
  Client client(target.endpoint);
  const auto handle = Prompt(client, kAttacked, "extremes", 600, 1);
  const auto requests = Requests(handle);
  const std::string nested = absl::StrCat("{\"rope\":", std::string(1'000'000, '['), std::string(1'000'000, ']'), "}");
  for (;;) {
    for (const auto& [path, bytes] : requests) {
      for (const std::string& sent :
           {std::string(), std::string("\x0a"), bytes + bytes, bytes + std::string(1 << 20, '\0'),
            std::string(100'000, '\x0b'), bytes.substr(0, bytes.size() / 2)}) {
        tally.Fault();
        Expect(Raw(client, path, sent), Answers(), path, tally);
      }
    }
    v1::CreateIndexRequest deep;
    *deep.mutable_spec() = Spec("deep");
    deep.mutable_spec()->mutable_geometry()->mutable_rope()->set_config_json(nested);
    Expect(Raw(client, "/seine.v1.IndexService/CreateIndex", deep.SerializeAsString()), {grpc::INVALID_ARGUMENT},
           "a million brackets", tally);
    v1::GetIndexRequest long_name;
    long_name.set_name(std::string(500'000, 'n'));
    Expect(Raw(client, "/seine.v1.IndexService/GetIndex", long_name.SerializeAsString()),
           {grpc::INVALID_ARGUMENT, grpc::NOT_FOUND}, "a long name", tally);
  }
}

void Bomb(const Target& target, Tally& tally) {
  InParallel(6, [&](int) {
    Client client(target.endpoint);
    grpc::ClientContext context;
    context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
    v1::GetIndexRequest request;
    v1::GetIndexResponse response;
    request.set_name(std::string(60 << 20, '\0'));
    tally.Fault();
    Expect(client.index->GetIndex(&context, request, &response),
           {grpc::UNIMPLEMENTED, grpc::INVALID_ARGUMENT, grpc::RESOURCE_EXHAUSTED}, "gzip", tally);
  });
}

void Queue(const Target& target, Tally& tally) {
  Client first(target.endpoint);
  const auto handle = Prompt(first, kAttacked, "queue", 64, 3);
  v1::AppendRequest request;
  *request.mutable_item() = Item(handle, 0, 1 << 20, 32'768, 3);  // 16 MiB, beyond a gap: never taken
  InParallel(60, [&](int) {
    Client client(target.endpoint);
    grpc::ClientContext context;
    v1::AppendResponse response;
    tally.Fault();
    const grpc::Status status = client.retrieval->Append(&context, request, &response);
    Expect(status, {grpc::OUT_OF_RANGE, grpc::RESOURCE_EXHAUSTED}, "Append of 16 MiB", tally);
    if (!status.ok()) Pause(20);
  });
}

}  // namespace seine::soak
