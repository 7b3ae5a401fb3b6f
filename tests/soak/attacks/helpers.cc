#include "tests/soak/attacks/helpers.h"

#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/support/byte_buffer.h>
#include <sys/resource.h>

#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"

namespace seine::soak {

void Pause(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }
void RaiseDescriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void Forever() {
  for (;;) Pause(1000);
}

void InParallel(int threads, const std::function<void(int)>& work) {
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([=] {
      for (;;) work(i);
    });
  }
  for (;;) Pause(1000);
}

void Expect(const grpc::Status& status, const std::set<int>& codes, const std::string& what, Tally& tally) {
  tally.Case();
  if (!codes.contains(status.error_code())) {
    tally.Break(absl::StrCat(what, ": code ", status.error_code(), ": ", status.error_message()));
  } else if (!status.ok() && status.error_message().empty()) {
    tally.Break(absl::StrCat(what, ": code ", status.error_code(), " without a text"));
  }
}

const std::set<int>& Answers() {
  static const auto* const answers = new std::set<int>{
      grpc::OK,           grpc::INVALID_ARGUMENT,  grpc::NOT_FOUND, grpc::ALREADY_EXISTS, grpc::FAILED_PRECONDITION,
      grpc::OUT_OF_RANGE, grpc::RESOURCE_EXHAUSTED};
  return *answers;
}

std::set<int> With(std::set<int> codes, std::initializer_list<int> more) {
  codes.insert(more);
  return codes;
}

grpc::Status Raw(Client& client, const std::string& path, const std::string& bytes) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  const grpc::internal::RpcMethod rpc(path.c_str(), grpc::internal::RpcMethod::NORMAL_RPC, client.channel);
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer sent(&slice, 1);
  grpc::ByteBuffer received;
  return grpc::internal::BlockingUnaryCall(client.channel.get(), rpc, &context, sent, &received);
}

}  // namespace seine::soak
