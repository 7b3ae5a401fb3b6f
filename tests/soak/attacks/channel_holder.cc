#include "tests/soak/attacks/channel_holder.h"

#include <iostream>

#include "client/client.h"
#include "tests/soak/server/made_requests.h"

namespace seine::soak {
namespace {

int Gone(const absl::Status& status) {
  std::cout << "no channel: " << status << std::endl;
  return 1;
}

}  // namespace

int HoldChannel(const std::string& address) {
  const auto client = client::Client::Connect(address);
  if (!client.ok()) return Gone(client.status());
  const auto stream = (*client)->OpenDecodeStream(client::Transport::kSharedMemory);
  if (!stream.ok()) return Gone(stream.status());
  const v1::Tensor queries = Halves(0, kQHeads, 1, 1);
  client::DecodeStep step;
  for (int i = 0; i < 64; ++i) {
    step.items.push_back({{kHeldIndex, kHeldId}, 0, {queries.raw().data(), client::DType::kFloat16, {kQHeads, kDim}}});
  }
  step.selector.set_exact(true);
  client::DecodeAnswer answer;
  for (bool first = true;; first = false) {
    if (const absl::Status status = (*stream)->Write(step); !status.ok()) return Gone(status);
    if (first) std::cout << "open" << std::endl;
    if (const absl::Status status = (*stream)->Read(&answer); !status.ok()) return Gone(status);
    if (!answer.status.ok()) return Gone(answer.status);
  }
}

}  // namespace seine::soak
