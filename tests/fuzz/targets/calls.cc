// Calls of a service, and of all services one after another, as they are served: from bytes, in process.
#include <cctype>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/mutate/message.h"
#include "tests/fuzz/mutate/steps.h"
#include "tests/fuzz/targets/targets.h"
#include "tests/fuzz/targets/world.h"

namespace seine::fuzz {
namespace {

using google::protobuf::Message;

constexpr size_t kMostCalls = 6;

class CallsTarget : public Target {
 public:
  // Empty: all services.
  explicit CallsTarget(const std::string& service) {
    const auto& methods = TheWorld().methods();
    for (size_t i = 0; i < methods.size(); ++i) {
      if (service.empty() || methods[i].service == service) methods_.push_back(i);
    }
  }

  std::vector<std::string> Seeds() override {
    std::vector<std::string> seeds;
    std::vector<Step> history;
    for (size_t i = 0; i < methods_.size(); ++i) {
      for (const auto& right : MethodOf(i).rights) {
        const Step step = {static_cast<uint8_t>(i), right->SerializeAsString()};
        seeds.push_back(Pack({step}));
        history.push_back(step);
        if (history.size() == kMostCalls) seeds.push_back(Pack(std::exchange(history, {})));
      }
    }
    return seeds;
  }

  void Run(absl::string_view input) override {
    for (const Step& step : Unpack(input, kMostCalls)) {
      const test::AttackedMethod& method = MethodOf(step.kind);
      const std::unique_ptr<Message> answer = method.NewResponse();
      const absl::Status status = TheWorld().CallBytes(method, step.bytes, answer.get());
      TheWorld().Judge(method, status, *answer);
    }
    TheWorld().Settle();
  }

  std::string Mutate(std::string input, Random& random, const ByteMutator& bytes) override {
    if (random.OneIn(32)) return bytes(input);
    if (seeds_.empty()) seeds_ = Seeds();
    return MutateSteps(input, kMostCalls, seeds_, random, [&](Step* step) {
      const std::unique_ptr<Message> request = MethodOf(step->kind).NewRequest();
      if (!request->ParseFromString(step->bytes)) {
        step->bytes = bytes(step->bytes);
        return;
      }
      for (size_t changes = 1 + random.Below(3); changes > 0; --changes) MutateMessage(request.get(), random, bytes);
      step->bytes = request->SerializePartialAsString();
    });
  }

 private:
  const test::AttackedMethod& MethodOf(size_t kind) const {
    return TheWorld().methods()[methods_[kind % methods_.size()]];
  }

  std::vector<size_t> methods_;  // of the world's
  std::vector<std::string> seeds_;
};

// "EvictionService" -> "eviction".
std::string ShortName(std::string service) {
  service = service.substr(service.rfind('.') + 1);
  service.resize(service.size() - strlen("Service"));
  std::string name;
  for (const char c : service) {
    if (c >= 'A' && c <= 'Z' && !name.empty()) name += '_';
    name += static_cast<char>(tolower(c));
  }
  return name;
}

}  // namespace

void AddCallTargets(std::vector<TargetEntry>* out) {
  for (const char* service : ServiceNames()) {
    out->push_back({ShortName(service), absl::StrCat("calls of ", service), 1000,
                    [service] { return std::make_unique<CallsTarget>(service); }});
  }
  out->push_back(
      {"history", "calls of all services, one after another", 1000, [] { return std::make_unique<CallsTarget>(""); }});
}

}  // namespace seine::fuzz
