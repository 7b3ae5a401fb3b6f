// See tenants_bench.h.
#include "bench/serving/tenants_bench.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/report/progress.h"
#include "bench/serving/server_process.h"
#include "kernels/machine/limits.h"

namespace seine::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kSteady[] = "seine-bench-steady", kLoud[] = "seine-bench-loud", kPrefill[] = "seine-bench-prefill";
// Their SHA-256 digests, as the server's file of credentials has them.
constexpr char kTokens[] =
    "- {sha256: 7a25b08cee722b8a98cb7ed604ffa3cdcefaa4d8278d8f9822423b9753f110de, tenant: steady, role: admin}\n"
    "- {sha256: 07fb9010924bec34e7cf49e67e0b52185b7a943ce5d944a147179c6a2f7f0ace, tenant: loud, role: admin}\n"
    "- {sha256: 2f018b29e5d6709218533c391a95e7e1b4aa46a38e8e0b92aad8c0ff3e703ee1, tenant: prefill, role: admin}\n";
constexpr int64_t kQuerySteps = 512;  // then the same again
constexpr double kWarmUpSeconds = .3, kDrainSeconds = .05, kMostDrainSeconds = 30;
// What is under way is small beside what is stored, so that the limit on the latter shows.
constexpr char kMessage[] = "8MiB";
constexpr double kUnpaced = 1e9;    // steps a second
constexpr int kNeighbourNice = 10;  // neighbours are on other machines: their clients take no processor from the steady

// Files of a server with credentials, gone at the end.
class TenantFiles {
 public:
  static absl::StatusOr<std::unique_ptr<TenantFiles>> Make(int64_t allowed) {
    std::error_code error;
    std::string folder = (std::filesystem::temp_directory_path(error) / "seine-bench-XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) return absl::UnavailableError("cannot make a temporary folder");
    std::unique_ptr<TenantFiles> files(new TenantFiles(folder));
    std::ofstream(files->tokens()) << kTokens;
    std::ofstream(files->quotas()) << "loud: {steps_per_second: " << allowed << "}\n";
    return files;
  }
  ~TenantFiles() {
    std::error_code error;
    std::filesystem::remove_all(folder_, error);
  }
  std::string tokens() const { return folder_ + "/tokens.yaml"; }
  std::string quotas() const { return folder_ + "/quotas.yaml"; }

 private:
  explicit TenantFiles(std::string folder) : folder_(std::move(folder)) {}
  const std::string folder_;
};

// A line of /proc/PID/status, in bytes.
int64_t ReadStatus(pid_t pid, const std::string& name) {
  std::ifstream in(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, name.size() + 1, name + ":") == 0) return std::atoll(line.c_str() + name.size() + 1) * 1024;
  }
  return 0;
}

class TenantsBench {
 public:
  explicit TenantsBench(const TenantsOptions& o)
      : o_(o),
        tokens_(MakeTokens(o.geometry.num_kv_heads, o.geometry.group, o.geometry.head_dim,
                           std::max(o.geometry.num_keys, o.prefill_tokens) + kQuerySteps, kQuerySteps, o.seed)) {}

  absl::Status Start(TenantsResult* result) {
    auto files = TenantFiles::Make(o_.allowed_steps_per_s);
    if (!files.ok()) return files.status();
    files_ = *std::move(files);
    auto server = ServerProcess::Start(
        o_.program, {"--threads", absl::StrCat(o_.threads), "--log-level", "error", "--auth-tokens-file",
                     files_->tokens(), "--auth-quotas-file", files_->quotas(), "--auth-unix", "token", "--memory-limit",
                     absl::StrCat(o_.memory_limit_bytes), "--max-message", kMessage, "--in-flight-limit",
                     absl::StrCat(TenantsOptions::kInFlightBytes)});
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    if (auto up = ConnectAs(server_->endpoint(), kSteady); !up.ok()) return up.status();
    result->resident_at_start_bytes = ReadStatus(server_->pid(), "VmRSS");
    for (int i = 0; i <= o_.loud_streams; ++i) {
      auto stream = StepStream::Open(server_->endpoint(), i == 0 ? kSteady : kLoud, i == 0 ? "steady" : "loud",
                                     o_.geometry, tokens_, o_.seed + static_cast<uint64_t>(i));
      if (!stream.ok()) return stream.status();
      if (i == 0) {
        steady_ = *std::move(stream);
      } else {
        loud_.push_back(*std::move(stream));
      }
    }
    steady_->Run(o_.steady_steps_per_s, EndOf(kWarmUpSeconds));
    return absl::OkStatus();
  }

  absl::Status Round(TenantsResult* r, Progress* progress) {
    r->alone.Add(Beside(nullptr, nullptr));
    progress->Step("phases");
    const double share = static_cast<double>(o_.allowed_steps_per_s) / o_.loud_streams;
    r->peak_seconds +=
        Neighbours([&](int i, auto end) { return loud_[i]->Run(share, end); }, o_.loud_streams, &r->peak, [](auto) {});
    progress->Step("phases");
    if (auto s = DrainQuota(); !s.ok()) return s;
    r->beside_loud.Add(Beside([&](int i, auto end) { return loud_[i]->Run(o_.overload * share, end); }, &r->loud,
                              o_.loud_streams, &r->loud_seconds));
    progress->Step("phases");
    const auto prefill = [&](int, auto end) {
      return RunPrefills(server_->endpoint(), kPrefill, "prefill", o_.geometry, tokens_, o_.prefill_tokens, end);
    };
    r->prefill_alone_seconds += Neighbours(prefill, o_.prefill_streams, &r->prefill_alone, [](auto) {});
    progress->Step("phases");
    r->beside_prefill.Add(Beside(prefill, &r->prefill, o_.prefill_streams, &r->prefill_seconds));
    progress->Step("phases");
    return absl::OkStatus();
  }

  int64_t resident_peak() const { return ReadStatus(server_->pid(), "VmHWM"); }

 private:
  // A second's worth of steps may come at once; it is used up before the overload is measured.
  absl::Status DrainQuota() {
    const Clock::time_point most = EndOf(kMostDrainSeconds);
    while (loud_[0]->Run(kUnpaced, EndOf(kDrainSeconds)).refused == 0) {
      if (Clock::now() > most) return absl::AbortedError("--allowed: more steps a second than this machine makes");
    }
    return absl::OkStatus();
  }

  using Load = std::function<LoadResult(int stream, Clock::time_point end)>;

  static Clock::time_point EndOf(double seconds) {
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  // Runs a phase of so many streams of a neighbour, and `steady` on this thread; returns how long it took.
  double Neighbours(const Load& load, int streams, LoadResult* sum,
                    const std::function<void(Clock::time_point)>& steady) {
    const Clock::time_point begin = Clock::now(), end = EndOf(o_.phase_seconds);
    std::mutex mutex;
    std::vector<std::thread> threads;
    for (int i = 0; i < streams; ++i) {
      threads.emplace_back([&, i] {
        setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNeighbourNice);
        const LoadResult one = load(i, end);
        const std::lock_guard<std::mutex> lock(mutex);
        sum->Add(one);
      });
    }
    steady(end);
    for (std::thread& thread : threads) thread.join();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }
  LoadResult Beside(const Load& load, LoadResult* sum, int streams = 0, double* seconds = nullptr) {
    LoadResult steady;
    const double took =
        Neighbours(load, streams, sum, [&](auto end) { steady = steady_->Run(o_.steady_steps_per_s, end); });
    if (seconds != nullptr) *seconds += took;
    return steady;
  }

  const TenantsOptions o_;
  const Tokens tokens_;
  std::unique_ptr<TenantFiles> files_;
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<StepStream> steady_;
  std::vector<std::unique_ptr<StepStream>> loud_;
};

}  // namespace

absl::StatusOr<TenantsResult> MeasureTenants(const TenantsOptions& o) {
  TenantsResult result;
  result.processors = DefaultThreads();
  TenantsBench bench(o);
  if (auto s = bench.Start(&result); !s.ok()) return s;
  Progress progress(5 * int64_t{o.rounds});
  for (int round = 0; round < o.rounds; ++round) {
    if (auto s = bench.Round(&result, &progress); !s.ok()) return s;
  }
  result.resident_peak_bytes = bench.resident_peak();
  for (const LoadResult* load : {&result.alone, &result.beside_loud, &result.beside_prefill, &result.peak, &result.loud,
                                 &result.prefill_alone, &result.prefill}) {
    if (!load->first_error.empty()) return absl::AbortedError(load->first_error);
  }
  return result;
}

}  // namespace seine::bench
