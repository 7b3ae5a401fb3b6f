#include "tests/soak/drills/mover.h"

#include <grpcpp/support/client_interceptor.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <iostream>
#include <memory>
#include <mutex>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/fleet/migration.h"
#include "tests/soak/drills/killed_sequence.h"

namespace seine::soak {
namespace {

namespace interception = grpc::experimental;
using Clock = std::chrono::steady_clock;
using Hook = interception::InterceptionHookPoints;

constexpr char kCallLine[] = "call";

// Kills the victim after a while; the process may end before.
void KillLater(const MoverOrder& order) {
  std::thread([victim = order.victim == 0 ? getpid() : order.victim, after = order.after_us] {
    std::this_thread::sleep_for(std::chrono::microseconds(after));
    kill(victim, SIGKILL);
  }).detach();
}

// Sees one call begin and end.
class WatchedCall : public interception::Interceptor {
 public:
  WatchedCall(const char* method, bool kills, const MoverOrder& order)
      : method_(method), kills_(kills), order_(order) {}

  void Intercept(interception::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(Hook::PRE_SEND_INITIAL_METADATA)) {
      begin_ = Clock::now();
      if (kills_) KillLater(order_);
    }
    if (methods->QueryInterceptionHookPoint(Hook::POST_RECV_STATUS)) {
      const auto us = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin_).count();
      const std::string line = absl::StrCat(kCallLine, " ", method_.substr(method_.rfind('/') + 1), " ", us, "\n");
      std::cout << line << std::flush;
    }
    methods->Proceed();
  }

 private:
  const std::string method_;
  const bool kills_;
  const MoverOrder& order_;
  Clock::time_point begin_;
};

// Counts the calls of the process.
class CallWatch : public interception::ClientInterceptorFactoryInterface {
 public:
  explicit CallWatch(const MoverOrder& order) : order_(order) {}
  interception::Interceptor* CreateClientInterceptor(interception::ClientRpcInfo* info) override {
    return new WatchedCall(info->method(), calls_++ == order_.call, order_);  // gRPC deletes it
  }

 private:
  const MoverOrder& order_;
  std::atomic<int> calls_{0};
};

}  // namespace

std::string MoverOrder::ToString() const {
  return absl::StrCat(source, " ", target, " ", family, " ", call, " ", after_us, " ", victim);
}

MoverOrder MoverOrder::Parse(const std::string& text) {
  MoverOrder order;
  std::istringstream(text) >> order.source >> order.target >> order.family >> order.call >> order.after_us >>
      order.victim;
  return order;
}

int RunMover(const MoverOrder& order) {
  interception::RegisterGlobalClientInterceptorFactory(new CallWatch(order));
  auto source = client::Client::Connect(order.source), target = client::Client::Connect(order.target);
  absl::Status status = source.ok() ? target.status() : source.status();
  if (status.ok()) {
    status =
        client::MigrateFamily(source->get(), target->get(), kKillIndex, order.family, {"there", order.target}).status();
  }
  std::cout << status << std::endl;
  return status.ok() ? 0 : 1;
}

std::vector<MoverCall> CallsIn(const std::string& output) {
  std::vector<MoverCall> calls;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string what;
    MoverCall call;
    if (words >> what >> call.method >> call.us && what == kCallLine) calls.push_back(call);
  }
  return calls;
}

}  // namespace seine::soak
