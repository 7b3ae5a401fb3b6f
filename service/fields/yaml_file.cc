#include "service/fields/yaml_file.h"

#include <yaml-cpp/eventhandler.h>

#include <set>
#include <sstream>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "profile/io/file.h"
#include "profile/io/json.h"
#include "service/fields/error.h"

namespace seine {
namespace {

constexpr uint64_t kMaxYamlBytes = 16 << 20;

// Sees the file's events before a node is made of any. yaml-cpp reports by exceptions, and so does this.
class Checker : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) throw YAML::Exception(mark, "a second document begins, and settings are one");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override { Value(); }
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override { Value(); }
  // yaml-cpp takes a zero byte for the sign of an escape, and makes one byte of "\N" that is no UTF-8.
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t, const std::string& text) override {
    if (!IsUtf8(text)) {
      throw YAML::Exception(mark, absl::StrCat("'", absl::CHexEscape(text), "' must be UTF-8"));
    }
    if (text.find('\0') != std::string::npos) throw YAML::Exception(mark, "has a zero byte");
    if (AwaitsKey() && !open_.back().keys.insert(text).second) {
      throw YAML::Exception(mark, absl::StrCat("'", absl::Utf8SafeCEscape(text), "' stands twice in one map"));
    }
    Value();
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    Begin(mark, /*map=*/false);
  }
  void OnSequenceEnd() override { End(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    Begin(mark, /*map=*/true);
  }
  void OnMapEnd() override { End(); }

 private:
  struct Collection {
    bool map = false, after_key = false;
    std::set<std::string> keys;
  };

  bool AwaitsKey() const { return !open_.empty() && open_.back().map && !open_.back().after_key; }
  // A key or a value has ended.
  void Value() {
    if (!open_.empty()) open_.back().after_key = !open_.back().after_key;
  }
  void Begin(const YAML::Mark& mark, bool map) {
    if (open_.size() >= kMaxNesting) {
      throw YAML::Exception(mark, absl::StrCat("is nested more than ", kMaxNesting, " levels deep"));
    }
    open_.push_back({map, false, {}});
  }
  void End() {
    open_.pop_back();
    Value();
  }

  int documents_ = 0;
  std::vector<Collection> open_;
};

}  // namespace

absl::StatusOr<YAML::Node> LoadYaml(const std::string& path) {
  const absl::StatusOr<File> file = File::Open(path);
  const absl::StatusOr<std::string> text = file.ok() ? file->ReadAll(kMaxYamlBytes) : file.status();
  if (!text.ok()) return absl::InvalidArgumentError(text.status().message());
  if (!IsUtf8(*text)) return absl::InvalidArgumentError(absl::StrCat(path, ": must be UTF-8"));
  if (text->find('\0') != std::string::npos) return absl::InvalidArgumentError(absl::StrCat(path, ": has a zero byte"));
  try {
    std::istringstream stream(*text);
    YAML::Parser parser(stream);
    Checker checker;
    while (parser.HandleNextDocument(checker)) {
    }
    return YAML::Load(*text);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(OneLine(absl::StrCat(path, ":", error.mark.line + 1, ": ", error.msg)));
  }
}

}  // namespace seine
