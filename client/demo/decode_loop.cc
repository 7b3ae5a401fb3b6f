// A minimal decode loop in C++: an engine that keeps no KV cache of its own. Each layer of each step sends its new key,
// value and queries in one message and gets attention's output back. The model is made up of random numbers; a real
// one puts its own in their place. `seine-decode-loop [endpoint]` needs a running seined.
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/settings.h"

namespace seine::client {
namespace {

constexpr int kLayers = 2, kQHeads = 8, kKvHeads = 2, kHeadDim = 64;
constexpr int64_t kPrompt = 4096, kSteps = 32;

// What the model would compute: queries, keys after RoPE, values.
std::vector<float> FromTheModel(int64_t count) {
  static std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(count);
  for (float& x : numbers) x = normal(random);
  return numbers;
}

absl::Status Prefill(Client* client, const Sequence& sequence) {
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto keys = FromTheModel(kPrompt * kKvHeads * kHeadDim), values = FromTheModel(kPrompt * kKvHeads * kHeadDim);
    const auto sent = client->AppendStream({{sequence,
                                             layer,
                                             /*position=*/0,
                                             {keys.data(), DType::kFloat32, {kPrompt, kKvHeads, kHeadDim}},
                                             {values.data(), DType::kFloat32, {kPrompt, kKvHeads, kHeadDim}}}});
    if (!sent.ok()) return sent.status();
  }
  return absl::OkStatus();
}

// One layer of one step. `attended` has the output [kQHeads, kHeadDim] that the layer's output projection takes.
absl::Status DecodeLayer(DecodeStream* stream, const Sequence& sequence, int layer, int64_t position,
                         Attended* attended) {
  const auto key = FromTheModel(kKvHeads * kHeadDim), value = FromTheModel(kKvHeads * kHeadDim);
  const auto queries = FromTheModel(kQHeads * kHeadDim);
  DecodeStep step;
  step.appends = {{sequence,
                   layer,
                   position,
                   {key.data(), DType::kFloat32, {1, kKvHeads, kHeadDim}},
                   {value.data(), DType::kFloat32, {1, kKvHeads, kHeadDim}}}};
  step.items = {{sequence, layer, {queries.data(), DType::kFloat32, {kQHeads, kHeadDim}}}};
  step.selector.set_top_k(100);
  step.attention = v1::Attention{};  // attend, rather than retrieve
  DecodeAnswer answer;
  absl::Status status = stream->Write(step);
  if (status.ok()) status = stream->Read(&answer);
  if (status.ok()) status = answer.status;
  if (status.ok()) status = answer.append_status[0];
  if (status.ok()) status = answer.attended[0].status;
  if (status.ok()) *attended = answer.attended[0];
  return status;
}

absl::Status Run(const std::string& endpoint) {
  auto client = Client::Connect(endpoint, {.security = client::SecurityFromEnvironment()});
  if (!client.ok()) return client.status();
  v1::IndexSpec spec;
  spec.set_name("decode-loop");
  *spec.mutable_geometry() = MakeGeometry(kLayers, kQHeads, kKvHeads, kHeadDim, DType::kFloat32);
  spec.set_kv_store(v1::KV_STORE_KEYS_VALUES);  // attention reads both
  if (auto index = (*client)->CreateIndex(spec); !index.ok()) return index.status();
  auto sequence = (*client)->CreateSequence(spec.name(), "");
  if (!sequence.ok()) return sequence.status();
  if (auto s = Prefill(client->get(), *sequence); !s.ok()) return s;
  auto stream = (*client)->OpenDecodeStream(Transport::kAuto);
  if (!stream.ok()) return stream.status();
  if (const std::string& why = (*stream)->fallback(); !why.empty()) std::printf("over gRPC: %s\n", why.c_str());
  Attended attended;
  for (int64_t position = kPrompt; position < kPrompt + kSteps; ++position) {
    for (int layer = 0; layer < kLayers; ++layer) {
      if (auto s = DecodeLayer(stream->get(), *sequence, layer, position, &attended); !s.ok()) return s;
    }
  }
  std::printf("%lld tokens decoded; at the end a head read %lld of %lld tokens%s\n", static_cast<long long>(kSteps),
              static_cast<long long>(attended.attended_tokens / kQHeads), static_cast<long long>(attended.num_tokens),
              attended.tail ? " and counted the others in by windows" : "");
  return (*client)->DeleteIndex(spec.name());
}

}  // namespace
}  // namespace seine::client

int main(int argc, char** argv) {
  const absl::Status status = seine::client::Run(argc > 1 ? argv[1] : seine::client::DefaultEndpoint());
  if (!status.ok()) std::fprintf(stderr, "seine-decode-loop: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
