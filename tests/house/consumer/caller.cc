// Appends keys to a server's index and asks for one of them: the answer must hold it. Argument: where the server
// listens.
#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

#include "client/client.h"
#include "client/settings.h"

namespace {

namespace client = seine::client;
constexpr int kTokens = 4096, kHeadDim = 64, kPlanted = 1234;

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "caller: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return Fail(absl::InvalidArgumentError("usage: caller ENDPOINT"));
  auto server = client::Client::Connect(argv[1], {.wait_for_server = true});
  if (!server.ok()) return Fail(server.status());
  seine::v1::IndexSpec spec;
  spec.set_name("consumer");
  *spec.mutable_geometry() = client::MakeGeometry(1, 1, 1, kHeadDim, client::DType::kFloat32);
  auto index = (*server)->CreateIndex(spec);
  if (!index.ok()) return Fail(index.status());
  auto sequence = (*server)->CreateSequence("consumer", "");
  if (!sequence.ok()) return Fail(sequence.status());

  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> keys(kTokens * kHeadDim);
  std::generate(keys.begin(), keys.end(), [&] { return normal(random); });
  auto sent = (*server)->AppendStream(
      {{*sequence, /*layer=*/0, /*position=*/0, {keys.data(), client::DType::kFloat32, {kTokens, 1, kHeadDim}}, {}}});
  if (!sent.ok()) return Fail(sent.status());

  const float* planted = keys.data() + kPlanted * kHeadDim;
  auto result = (*server)->Retrieve({{*sequence, /*layer=*/0, {planted, client::DType::kFloat32, {1, kHeadDim}}}},
                                    /*selector=*/{});
  if (!result.ok()) return Fail(result.status());
  const auto& answer = result->answers.front();
  if (!answer.status.ok()) return Fail(answer.status);
  const auto positions = answer.set(0);
  if (std::find(positions.begin(), positions.end(), kPlanted) == positions.end()) {
    return Fail(absl::InternalError("the answer lacks the key that was asked for"));
  }
  std::printf("caller: found position %d\n", kPlanted);
  return 0;
}
