#include "tests/soak/drills/front_steps.h"

#include <chrono>

#include "client/settings.h"
#include "tests/soak/server/made_requests.h"

namespace seine::soak {
namespace {

constexpr int64_t kFrontPrompt = 4096;

client::ConstTensor View(const v1::Tensor& tensor, const client::Shape& shape) {
  return {tensor.raw().data(), client::DType::kFloat16, shape};
}

}  // namespace

FrontSteps::FrontSteps(const std::string& endpoint, const client::Security& security)
    : status_(Prepare(endpoint, security)) {}

absl::Status FrontSteps::Prepare(const std::string& endpoint, const client::Security& security) {
  client::Options options;
  options.security = security;
  options.wait_for_server = true;
  options.connect_timeout = absl::Seconds(20);
  auto client = client::Client::Connect(endpoint, options);
  if (!client.ok()) return client.status();
  client_ = *std::move(client);
  v1::IndexSpec spec;
  spec.set_name("front");
  *spec.mutable_geometry() = client::MakeGeometry(1, kQHeads, kKvHeads, kDim, client::DType::kFloat16);
  spec.set_kv_store(v1::KV_STORE_KEYS_VALUES);
  if (auto made = client_->CreateIndex(spec); !made.ok()) return made.status();
  auto sequence = client_->CreateSequence(spec.name(), "steps");
  if (!sequence.ok()) return sequence.status();
  sequence_ = *std::move(sequence);
  const client::Shape shape = {kFrontPrompt, kKvHeads, kDim};
  const v1::Tensor keys = Halves(kFrontPrompt, kKvHeads, 1, 1), values = Halves(kFrontPrompt, kKvHeads, 2, 1);
  return client_->Append({sequence_, 0, 0, View(keys, shape), View(values, shape)}).status();
}

void FrontSteps::Start() {
  thread_ = std::thread([this] { Work(); });
}

void FrontSteps::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

absl::Status FrontSteps::Step(client::DecodeStream& stream) {
  const v1::Tensor queries = Halves(0, kQHeads, 1, 1);
  client::DecodeStep step;
  step.items.push_back({sequence_, 0, View(queries, {kQHeads, kDim})});
  client::DecodeAnswer answer;
  const auto begin = std::chrono::steady_clock::now();
  if (auto status = stream.Write(step); !status.ok()) return status;
  if (auto status = stream.Read(&answer); !status.ok()) return status;
  steps_.all.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  ++answered_;
  if (!answer.status.ok()) return answer.status;
  return answer.answers.size() == 1 ? answer.answers[0].status : absl::InternalError("a step without its answer");
}

void FrontSteps::Work() {
  const auto stream = client_->OpenDecodeStream(client::Transport::kBlocking);
  failure_ = stream.status();
  while (failure_.ok() && !stop_) {
    failure_ = Step(**stream);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (failure_.ok()) failure_ = (*stream)->Finish();
}

}  // namespace seine::soak
