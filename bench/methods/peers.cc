// See peers.h.
#include "bench/methods/peers.h"

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/machine/bandwidth.h"
#include "profile/io/json.h"

namespace seine::bench {
namespace {

constexpr int64_t kQueriesPerHead = 128;  // Python answers one at a time too, and slowly

// A folder that is gone when this is.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code error;
    std::string pattern = (std::filesystem::temp_directory_path(error) / "seine-bench-XXXXXX").string();
    if (mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code error;
    if (!path_.empty()) std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, version 1: 64-byte aligned header, then the
// bytes.
void WriteNpyHeader(std::ostream& out, int64_t a, int64_t b, int64_t c) {
  std::string header = absl::StrFormat("{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d, %d), }", a, b, c);
  constexpr size_t kPrefix = 10;
  header.append((64 - (kPrefix + header.size() + 1) % 64) % 64, ' ');
  header += '\n';
  out << "\x93NUMPY" << '\x01' << '\x00' << static_cast<char>(header.size() & 255)
      << static_cast<char>(header.size() >> 8) << header;
}

void WriteFloats(std::ostream& out, const float* values, int64_t count) {
  out.write(reinterpret_cast<const char*>(values), static_cast<std::streamsize>(count * sizeof(float)));
}

absl::Status WriteData(const Dataset& dataset, const std::string& keys_path, const std::string& queries_path) {
  const DatasetInfo& info = dataset.info();
  const int64_t used = std::min(info.num_positions, std::max<int64_t>(1, kQueriesPerHead / info.group));
  const int64_t position_floats = int64_t{info.group} * info.head_dim;
  std::ofstream keys(keys_path, std::ios::binary), queries(queries_path, std::ios::binary);
  WriteNpyHeader(keys, info.num_heads(), info.num_keys(), info.head_dim);
  WriteNpyHeader(queries, info.num_heads(), used * info.group, info.head_dim);
  for (int h = 0; h < info.num_heads(); ++h) {
    auto head = dataset.Load(h);
    if (!head.ok()) return head.status();
    WriteFloats(keys, &head->keys[head->zone_begin * info.head_dim], info.num_keys() * info.head_dim);
    for (int64_t i = 0; i < used; ++i) {
      WriteFloats(queries, &head->queries[i * info.num_positions / used * position_floats], position_floats);
    }
  }
  keys.close();
  queries.close();
  if (!keys || !queries) return absl::UnavailableError(absl::StrCat("--peers: cannot write to ", keys_path));
  return absl::OkStatus();
}

absl::StatusOr<std::string> OutputOf(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return absl::UnavailableError("--peers: cannot start a shell");
  std::string output;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, n);
  const int status = pclose(pipe);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return absl::UnavailableError(absl::StrCat("--peers: the command ended with ",
                                               WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)));
  }
  return output;
}

absl::StatusOr<PeerResult> Parse(const std::string& text) {
  const absl::StatusOr<nlohmann::json> json = ParseJson(text);
  if (!json.ok())
    return absl::DataLossError(absl::StrCat(
        "--peers: the command printed something else than its JSON: what stands there ", json.status().message()));
  PeerResult result;
  try {
    result.versions = json->at("versions");
    for (const nlohmann::json& r : json->at("rows")) {
      Row row;
      row.peer = true;
      row.name = r.at("name");
      row.exact = r.at("exact");
      if (!row.exact) row.beta = r.at("beta");
      row.num_queries = r.at("answers");
      row.recall_at_k = r.at("recall_at_k");
      row.recall_at_k_worst_head = r.at("recall_at_k_worst_head");
      row.bytes_per_key = row.scan_bytes_per_key = r.at("bytes_per_key");
      row.us_per_query = r.at("us_per_query");
      result.rows.push_back(row);
    }
  } catch (const nlohmann::json::exception& e) {
    return absl::DataLossError(absl::StrCat("--peers: the command printed something else than its JSON: ", e.what()));
  }
  return result;
}

}  // namespace

absl::StatusOr<PeerResult> RunPeers(const Dataset& dataset, const PeerOptions& options) {
  const TemporaryFolder folder;
  if (folder.path().empty()) return absl::UnavailableError("--peers: cannot make a temporary folder");
  const std::string keys = folder.path() + "/keys.npy", queries = folder.path() + "/queries.npy";
  if (absl::Status s = WriteData(dataset, keys, queries); !s.ok()) return s;
  const size_t evict = options.cold ? 5 * LastLevelCacheBytes() / 2 : 0;
  auto output = OutputOf(absl::StrCat(options.command, " --keys '", keys, "' --queries '", queries, "' --top-k ",
                                      options.top_k, " --beta ", absl::StrJoin(options.betas, ","), " --group ",
                                      dataset.info().group, " --evict-bytes ", evict));
  if (!output.ok()) return output.status();
  return Parse(*output);
}

}  // namespace seine::bench
