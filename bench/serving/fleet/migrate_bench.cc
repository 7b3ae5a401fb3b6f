// See migrate_bench.h.
#include "bench/serving/fleet/migrate_bench.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/report/progress.h"
#include "bench/serving/made_tokens.h"
#include "bench/serving/server_process.h"
#include "client/fleet/fleet_client.h"
#include "client/fleet/migration.h"
#include "client/settings.h"

namespace seine::bench {
namespace {

constexpr char kIndex[] = "bench-migrate", kFamily[] = "chat";
constexpr int64_t kPieceOfFamily = 4096;  // tokens of an append

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(std::ceil(q * static_cast<double>(values.size()))) - 1];
}

// A folder that goes with this.
class Folder {
 public:
  static absl::StatusOr<std::unique_ptr<Folder>> Make(const std::string& parent) {
    std::error_code error;
    const auto above = parent.empty() ? std::filesystem::temp_directory_path(error) : std::filesystem::path(parent);
    std::string path = (above / "seine-migrate-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) return absl::NotFoundError(absl::StrCat("--folder: cannot write to ", path));
    return std::unique_ptr<Folder>(new Folder(std::move(path)));
  }
  ~Folder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }
  // A server's folder of its own tenant: moves leave their files there.
  void Empty() const {
    std::error_code error;
    for (const auto& file : std::filesystem::directory_iterator(path_ + "/own", error)) remove(file.path().c_str());
  }

 private:
  explicit Folder(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

// Appends a token after another until it is destroyed, wherever the family is.
class Decoder {
 public:
  Decoder(client::FleetClient* fleet, const MigrateOptions& options, const Tokens& tokens, int64_t begin)
      : fleet_(fleet), o_(options), tokens_(tokens), begin_(begin), end_(begin), thread_([this] { Work(); }) {}
  ~Decoder() { Stop(); }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  int64_t end() const { return end_; }
  int64_t failed() const { return failed_; }
  std::vector<double> times() const { return times_; }  // ms; once stopped
  // The longest append since the last call, once one more has ended.
  double TakeLongest() {
    for (const int64_t now = end_ + failed_; end_ + failed_ == now;) absl::SleepFor(absl::Microseconds(100));
    return longest_.exchange(0);
  }

 private:
  void Work() {
    while (!stop_) {
      const absl::Time begin = absl::Now();
      const absl::Status status = AppendOne(end_);
      const double ms = absl::ToDoubleMilliseconds(absl::Now() - begin);
      times_.push_back(ms);
      longest_ = std::max(longest_.load(), ms);
      ++(status.ok() ? end_ : failed_);
    }
  }
  absl::Status AppendOne(int64_t position) {
    const client::ConstTensor row = {&tokens_.keys[position % begin_ * tokens_.key_bytes],
                                     client::DType::kFloat16,
                                     {1, o_.num_kv_heads, o_.head_dim}};
    return fleet_->Run(kIndex, kFamily, [&](client::Client* client) {
      return client->Append({{kIndex, kFamily, 0}, 0, position, row, row}).status();
    });
  }

  client::FleetClient* const fleet_;
  const MigrateOptions& o_;
  const Tokens& tokens_;
  const int64_t begin_;
  std::atomic<int64_t> end_, failed_{0};
  std::atomic<double> longest_{0};
  std::atomic<bool> stop_{false};
  std::vector<double> times_;
  std::thread thread_;
};

class MigrateBench {
 public:
  explicit MigrateBench(const MigrateOptions& options) : o_(options) {}

  absl::Status Start() {
    auto folder = Folder::Make(o_.folder);
    if (!folder.ok()) return folder.status();
    folder_ = *std::move(folder);
    for (const char* name : {"n0", "n1"}) {
      auto server = ServerProcess::Start(
          o_.spawn, {"--threads", "1", "--log-level", "error", "--snapshots-dir", folder_->path()});
      if (!server.ok()) return server.status();
      auto client = client::Client::Connect((*server)->endpoint(),
                                            {.connect_timeout = absl::Seconds(20), .wait_for_server = true});
      if (!client.ok()) return client.status();
      fleet_.nodes.push_back({.name = name, .address = (*server)->endpoint()});
      servers_.push_back(*std::move(server));
      clients_.push_back(*std::move(client));
    }
    const int64_t most = *std::max_element(o_.num_keys.begin(), o_.num_keys.end());
    tokens_ = MakeTokens(o_.num_kv_heads, /*group=*/1, o_.head_dim, most, /*steps=*/1, o_.seed);
    return absl::OkStatus();
  }

  absl::StatusOr<MigratePoint> Measure(int64_t num_keys, Progress* progress) {
    if (absl::Status s = Fill(num_keys); !s.ok()) return s;
    const auto fleet = client::FleetClient::Create(fleet_);
    Decoder decoder(fleet.get(), o_, tokens_, num_keys);
    MigratePoint point;
    point.num_keys = num_keys;
    std::vector<double> pauses, stalls;
    for (int64_t i = 0; i < o_.moves; ++i) {
      decoder.TakeLongest();
      const auto moved = Move(i);
      if (!moved.ok()) return moved.status();
      stalls.push_back(decoder.TakeLongest());
      pauses.push_back(absl::ToDoubleMilliseconds(moved->pause));
      point.snapshot_bytes += static_cast<double>(moved->bytes) / static_cast<double>(o_.moves);
      point.last_bytes += static_cast<double>(moved->last_bytes) / static_cast<double>(o_.moves);
      point.whole += moved->why_whole.empty() ? 0 : 1;
      progress->Step(absl::StrCat(num_keys, " keys"));
    }
    decoder.Stop();
    point.pause_p50_ms = Quantile(pauses, .5);
    point.pause_p99_ms = Quantile(pauses, .99);
    point.stall_p50_ms = Quantile(stalls, .5);
    point.stall_p99_ms = Quantile(stalls, .99);
    point.append_p50_ms = Quantile(decoder.times(), .5);
    point.appends = decoder.end() - num_keys;
    point.failed = decoder.failed();
    if (absl::Status s = CheckEnd(decoder.end()); !s.ok()) return s;
    return point;
  }

 private:
  absl::Status Fill(int64_t num_keys) {
    v1::IndexSpec spec;
    spec.set_name(kIndex);
    *spec.mutable_geometry() =
        client::MakeGeometry(1, o_.num_kv_heads, o_.num_kv_heads, o_.head_dim, client::DType::kFloat16);
    spec.set_kv_store(v1::KV_STORE_KEYS_VALUES);
    for (const auto& client : clients_) {
      if (auto made = client->CreateIndex(spec); !made.ok()) return made.status();
    }
    if (auto made = clients_[0]->CreateSequence(kIndex, kFamily); !made.ok()) return made.status();
    for (int64_t p = 0; p < num_keys; p += kPieceOfFamily) {
      const client::ConstTensor rows = {&tokens_.keys[p * tokens_.key_bytes],
                                        client::DType::kFloat16,
                                        {std::min(kPieceOfFamily, num_keys - p), o_.num_kv_heads, o_.head_dim}};
      const auto end = clients_[0]->Append({{kIndex, kFamily, 0}, 0, p, rows, rows});
      if (!end.ok()) return end.status();
    }
    return absl::OkStatus();
  }

  absl::StatusOr<client::Migration> Move(int64_t i) {
    const FleetNode& to = fleet_.nodes[(i + 1) % 2];
    auto moved = client::MigrateFamily(clients_[i % 2].get(), clients_[(i + 1) % 2].get(), kIndex, kFamily,
                                       {to.name, to.address});
    folder_->Empty();
    return moved;
  }

  // Whether the family holds all that was acknowledged, at its last node; then the index goes.
  absl::Status CheckEnd(int64_t end) {
    const auto held = clients_[o_.moves % 2]->GetSequence({kIndex, kFamily, 0});
    if (!held.ok()) return held.status();
    if (held->layer_tokens[0] != end) {
      return absl::InternalError(
          absl::StrCat(end, " tokens were acknowledged, and ", held->layer_tokens[0], " are there"));
    }
    for (const auto& client : clients_) {
      if (absl::Status s = client->DeleteIndex(kIndex); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  const MigrateOptions& o_;
  Tokens tokens_;
  std::unique_ptr<Folder> folder_;
  FleetDescription fleet_ = {"bench", {}};
  std::vector<std::unique_ptr<ServerProcess>> servers_;
  std::vector<std::unique_ptr<client::Client>> clients_;
};

}  // namespace

absl::StatusOr<std::vector<MigratePoint>> MeasureMigration(const MigrateOptions& options) {
  MigrateBench bench(options);
  if (absl::Status s = bench.Start(); !s.ok()) return s;
  Progress progress(options.moves * static_cast<int64_t>(options.num_keys.size()));
  std::vector<MigratePoint> points;
  for (const int64_t num_keys : options.num_keys) {
    absl::StatusOr<MigratePoint> point = bench.Measure(num_keys, &progress);
    if (!point.ok()) return point.status();
    points.push_back(*point);
  }
  return points;
}

}  // namespace seine::bench
