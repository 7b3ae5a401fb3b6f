#include "tests/soak/drills/end_clients.h"

#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/support/byte_buffer.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/client.h"

namespace seine::soak {
namespace {

constexpr char kIndex[] = "ends";
constexpr int64_t kPiece = 16;  // tokens of an append

absl::Status ToAbsl(const grpc::Status& status) {
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

}  // namespace

void EndWitness::Refused(const std::string& what, const absl::Status& status) {
  ++refused_;
  if (status.code() != absl::StatusCode::kUnavailable || status.message().empty())
    Break(absl::StrCat(what, " ended with ", status.ToString()));
  const std::lock_guard<std::mutex> lock(mutex_);
  first_refusal_ = std::min(first_refusal_, Clock::now());
}

void EndWitness::NotServing() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (not_serving_.exchange(true)) return;
  notified_ = Clock::now();
}

bool EndWitness::HealthCameFirst() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return not_serving_ && notified_ <= first_refusal_;
}

void EndWitness::Break(const std::string& what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  breaks_.push_back(what);
}

std::vector<std::string> EndWitness::breaks() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return breaks_;
}

EndClients::EndClients(const std::string& address) : address_(address) {
  Client setup(address);
  for (int i = 0; i < kClients; ++i) {
    handles_.push_back(Prompt(setup, kIndex, absl::StrCat("end-", i), 0, 1));
    if (handles_.back().id().empty()) witness_.Break("a sequence could not be made");
  }
  for (int i = 0; i < kClients; ++i) {
    threads_.emplace_back([this, i] { i % 3 == 0 ? Unary(i) : i % 3 == 1 ? Stream(i) : Channel(i); });
  }
  threads_.emplace_back([this] { WatchHealth(); });
}

void EndClients::Join() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void EndClients::Unary(int client) {
  Client own(address_);
  for (int64_t at = 0;; at += kPiece) {
    grpc::ClientContext context;
    v1::AppendRequest request;
    v1::AppendResponse response;
    *request.mutable_item() = Item(handles_[static_cast<size_t>(client)], 0, at, kPiece, 1);
    const grpc::Status status = own.retrieval->Append(&context, request, &response);
    if (!status.ok()) return witness_.Refused("Append", ToAbsl(status));
    witness_.Acknowledged(client, at + kPiece);
  }
}

void EndClients::Stream(int client) {
  Client own(address_);
  grpc::ClientContext context;
  const auto stream = own.retrieval->Decode(&context);
  const v1::SequenceHandle& handle = handles_[static_cast<size_t>(client)];
  v1::DecodeResponse response;
  for (int64_t at = 0;; at += kPiece) {
    v1::DecodeRequest step;
    *step.add_appends() = Item(handle, 0, at, kPiece, 1);
    *step.add_items() = Query(handle, 0, 1);
    if (!stream->Write(step) || !stream->Read(&response)) break;
    if (response.append_status(0).code() != 0) witness_.Break("a step: " + response.append_status(0).message());
    witness_.Acknowledged(client, at + kPiece);
  }
  witness_.Refused("Decode", ToAbsl(stream->Finish()));
}

void EndClients::Channel(int client) {
  const auto own = client::Client::Connect(address_);
  if (!own.ok()) return witness_.Break(own.status().ToString());
  const auto stream = (*own)->OpenDecodeStream(client::Transport::kSharedMemory);
  if (!stream.ok()) return witness_.Break(stream.status().ToString());
  const client::Sequence sequence = {kIndex, handles_[static_cast<size_t>(client)].id()};
  const client::Shape shape = {kPiece, kKvHeads, kDim};
  client::DecodeAnswer answer;
  absl::Status status;
  for (int64_t at = 0; status.ok(); at += kPiece) {
    const v1::AppendItem item = Item(handles_[static_cast<size_t>(client)], 0, at, kPiece, 1);
    const v1::Tensor queries = Halves(0, kQHeads, 1, 1);
    client::DecodeStep step;
    step.appends.push_back({sequence,
                            0,
                            at,
                            {item.keys().raw().data(), client::DType::kFloat16, shape},
                            {item.values().raw().data(), client::DType::kFloat16, shape}});
    step.items.push_back({sequence, 0, {queries.raw().data(), client::DType::kFloat16, {kQHeads, kDim}}});
    status = (*stream)->Write(step);
    if (status.ok()) status = (*stream)->Read(&answer);
    if (!status.ok()) break;
    if (answer.append_status.empty() || !answer.append_status[0].ok()) witness_.Break("a channel's step");
    witness_.Acknowledged(client, at + kPiece);
  }
  witness_.Refused("a channel", status);
}

// grpc.health.v1's Check of the whole server.
grpc::Status EndClients::Check(Client& client, bool* serving) const {
  grpc::ClientContext context;
  const grpc::internal::RpcMethod check("/grpc.health.v1.Health/Check", grpc::internal::RpcMethod::NORMAL_RPC,
                                        client.channel);
  const grpc::ByteBuffer nothing(nullptr, 0);
  grpc::ByteBuffer received;
  grpc::Slice answer;
  const auto status = grpc::internal::BlockingUnaryCall(client.channel.get(), check, &context, nothing, &received);
  if (!status.ok() || !received.DumpToSingleSlice(&answer).ok()) return status;
  *serving = std::string(reinterpret_cast<const char*>(answer.begin()), answer.size()) == "\x08\x01";
  return status;
}

void EndClients::WatchHealth() {
  Client own(address_);
  int64_t checks = 0;
  double longest = 0;
  for (grpc::Status status; status.ok(); ++checks) {
    bool serving = true;
    const auto begin = EndWitness::Clock::now();
    status = Check(own, &serving);
    longest = std::max(longest, std::chrono::duration<double>(EndWitness::Clock::now() - begin).count());
    health_ = absl::StrCat(checks, " checks, the longest took ", longest, " s; the next: ", status.error_code(), " ",
                           status.error_message());
    if (status.ok() && !serving && !witness_.not_serving()) {
      witness_.NotServing();
      ReadBack(own);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// What was acknowledged before is there now. A server that no longer takes calls says nothing.
void EndClients::ReadBack(Client& client) {
  for (int i = 0; i < kClients; ++i) {
    const int64_t least = witness_.acknowledged(i);
    grpc::ClientContext context;
    v1::GetSequenceRequest request;
    v1::GetSequenceResponse response;
    *request.mutable_handle() = handles_[static_cast<size_t>(i)];
    if (!client.sequence->GetSequence(&context, request, &response).ok()) continue;
    const int64_t there = response.sequence().layer_tokens(0);
    if (there < least) witness_.Break(absl::StrCat(least, " tokens were acknowledged, and ", there, " are there"));
    ++read_back_;
  }
}

}  // namespace seine::soak
