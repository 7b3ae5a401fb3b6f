// Requests in JSON, as `seine call` takes them, and answers in JSON, as it prints them.
#include "absl/strings/str_cat.h"
#include "client/methods.h"
#include "tests/fuzz/targets/targets.h"
#include "tests/fuzz/targets/world.h"

namespace seine::fuzz {
namespace {

// A byte that chooses the message, then the text.
class JsonTarget : public Target {
 public:
  std::vector<std::string> Seeds() override {
    std::vector<std::string> seeds;
    for (size_t i = 0; i < TheWorld().methods().size(); ++i) {
      for (const auto& right : TheWorld().methods()[i].rights) {
        std::string bytes = right->SerializeAsString();
        if (bytes.size() > 8192) continue;  // the text is longer yet
        const auto json = client::JsonOfBytes(right->GetTypeName(), bytes, i % 2 == 0);
        if (!json.ok()) Fail(json.status().ToString());
        seeds.push_back(absl::StrCat(std::string(1, static_cast<char>(i)), *json));
      }
    }
    return seeds;
  }

  // What was read is written, and read back as what it was.
  void Run(absl::string_view input) override {
    if (input.empty()) return;
    const auto& methods = TheWorld().methods();
    const std::string type = methods[static_cast<uint8_t>(input[0]) % methods.size()].request->GetTypeName();
    const auto bytes = client::BytesOfJson(type, input.substr(1));
    if (!bytes.ok()) {
      if (bytes.status().code() != absl::StatusCode::kInvalidArgument) Fail(bytes.status().ToString());
      return;
    }
    const auto json = client::JsonOfBytes(type, *bytes, false);
    if (!json.ok()) Fail(absl::StrCat(type, ": taken, but cannot be shown: ", json.status().ToString()));
    const auto again = client::BytesOfJson(type, *json);
    if (!again.ok()) Fail(absl::StrCat(type, ": shown, but not taken: ", again.status().ToString()));
    const auto shown = client::JsonOfBytes(type, *again, false);
    if (!shown.ok() || *shown != *json) Fail(absl::StrCat(type, ": ", *json, " is read as another"));
  }
};

}  // namespace

void AddJsonTarget(std::vector<TargetEntry>* out) {
  out->push_back(
      {"json_call", "requests and answers in JSON (seine call)", 5000, [] { return std::make_unique<JsonTarget>(); }});
}

}  // namespace seine::fuzz
