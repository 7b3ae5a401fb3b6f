// Files that an operator writes, all YAML: settings with their indexes, credentials, quotas.
#include "absl/strings/str_cat.h"
#include "service/access/credentials.h"
#include "service/access/quotas.h"
#include "service/config/config.h"
#include "service/snapshots/files/exit_files.h"
#include "tests/fuzz/targets/targets.h"

namespace seine::fuzz {
namespace {

// On one line, and of the file.
void CheckYaml(const absl::Status& status, const std::string& path) {
  if (status.ok()) return;
  if (status.code() != absl::StatusCode::kInvalidArgument) Fail(status.ToString());
  if (status.message().find('\n') != std::string::npos)
    Fail(absl::StrCat("an error of several lines: ", status.ToString()));
  if (status.message().find(path) == std::string::npos) Fail(absl::StrCat("no path: ", status.ToString()));
}

ServerConfig Defaults() {
  ServerConfig config;
  config.server.listen = "unix:/tmp/seine.sock";  // as seined sets it before all else
  return config;
}

class SettingsTarget : public Target {
 public:
  std::vector<std::string> Seeds() override {
    return {ToYaml(Defaults()), R"(server:
  listen: 127.0.0.1:7654
  memory_limit: 8GiB
  threads: 2
log: {level: warn, format: json}
indexes:
  - name: llama
    geometry: {num_layers: 2, num_q_heads: 4, num_kv_heads: 2, head_dim: 64, dtype: float16, rope: {style: half_split}}
    zones: {sink: 16, local: 64}
    codec: {name: rsq, coarse: sign_ip, centre: window, seed: 7}
    retrieval: {top_k: 64, scope: per_kv_head}
    eviction: {scorer: {name: snapkv, query_window: 8}, budget: {tokens: 300}, interval: 30}
    subspace: {key_rank: 24, value_rank: 24}
    kv_store: keys_values
)",
            "server: {listen: 'unix:/tmp/x'}\n", "a: &a [1, 2]\nb: *a\n"};
  }

  // What is taken is written, and read back as what it was.
  void Run(absl::string_view input) override {
    const std::string& path = WriteInput(input, "seined.yaml");
    ServerConfig config = Defaults();
    const absl::Status status = ApplyYaml(path, &config);
    CheckYaml(status, path);
    if (!status.ok()) return;
    const std::string written = ToYaml(config);
    ServerConfig again = Defaults();
    const std::string& other = WriteInput(written, "again.yaml");
    if (auto s = ApplyYaml(other, &again); !s.ok()) Fail(absl::StrCat("written, but not taken: ", s.ToString()));
    if (ToYaml(again) != written) Fail(absl::StrCat("written, but read as another:\n", written, "\n", ToYaml(again)));
    config.profiles.clear();  // of this machine
    Resolve(&config).IgnoreError();
  }
};

class AccessTarget : public Target {
 public:
  std::vector<std::string> Seeds() override {
    const std::string digest(64, 'a');
    return {
        absl::StrCat("- {sha256: ", digest, ", tenant: acme, role: writer}\n- {san: a.example, role: reader}\n"),
        absl::StrCat("- sha256: '", std::string(64, '0'), "'\n  role: admin\n"),
        "acme: {memory: 4GiB, sequences: 1000, indexes: 8, steps_per_second: 5000, calls: 64}\nbeta: {memory: 5MB}\n",
        "[]\n", "{}\n"};
  }

  void Run(absl::string_view input) override {
    const std::string& path = WriteInput(input, "tokens.yaml");
    const auto credentials = Credentials::Load(path, nullptr);
    CheckYaml(credentials.status(), path);
    if (credentials.ok()) {
      (*credentials)->OfToken("none");
      (*credentials)->OfCertificate("a.example");
      const auto again = Credentials::Load(path, credentials->get());
      if (!again.ok() || (*again)->size() != (*credentials)->size()) Fail("credentials are lost");
      (*credentials)->RevokeWhatIsNotIn(**again);
    }
    CheckYaml(LoadQuotas(path).status(), path);
  }
};

}  // namespace

void AddSettingsTargets(std::vector<TargetEntry>* out) {
  out->push_back({"settings", "a server's settings in YAML", 1000, [] { return std::make_unique<SettingsTarget>(); }});
  out->push_back({"access", "files of credentials and quotas", 3000, [] { return std::make_unique<AccessTarget>(); }});
}

}  // namespace seine::fuzz
