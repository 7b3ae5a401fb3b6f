// seined: configuration, one server, a reload on SIGHUP, and a clean end on SIGTERM. Exit codes: 0 ended as asked; 1
// could not serve (address in use, no memory for an index); 2 wrong configuration; 3 ended with calls cut off that did
// not end in time; 4 ended itself, for it no longer answered its own calls; 5 ended, but not all sequences were written
// (snapshots.at_exit).
#include <malloc.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "kernels/machine/limits.h"
#include "profile/io/standard_descriptors.h"
#include "profile/spelling.h"
#include "service/access/access.h"
#include "service/access/guards.h"
#include "service/channel_offers.h"
#include "service/config/config.h"
#include "service/config/reload.h"
#include "service/event_log.h"
#include "service/log.h"
#include "service/process/machine.h"
#include "service/process/notify.h"
#include "service/process/resident.h"
#include "service/process/signals.h"
#include "service/process/watchdog.h"
#include "service/server.h"
#include "service/snapshots/exit_snapshots.h"
#include "service/snapshots/files/far_folder.h"
#include "service/transport/sockets/address.h"
#include "service/transport/sockets/descriptors.h"
#include "service/under_way/in_flight.h"
#include "service/under_way/open_calls.h"

namespace seine {
namespace {

constexpr int kFailed = 1, kBadConfiguration = 2, kCutOff = 3, kSilent = 4, kNotWritten = 5;
constexpr int64_t kStartBytes = int64_t{64} << 20;  // that a start adds to what the process holds, at most as a rule
constexpr absl::Duration kHardEnd = absl::Milliseconds(900);      // after the grace
constexpr absl::Duration kHardEndLines = absl::Milliseconds(50);  // of the log, after that
constexpr absl::Duration kLastLines = absl::Seconds(1);           // of any other end

constexpr char kFooter[] = R"(
Settings, the last one counts: a YAML file (--config), the environment, flags. server.memory_limit in the file is
SEINE__SERVER__MEMORY_LIMIT in the environment and --memory-limit as a flag. An example of a file:

  server:
    listen: unix:/run/seine/seine.sock
    memory_limit: 16GiB
  log:
    format: json
  indexes:
    - name: llama
      geometry: {num_layers: 32, num_q_heads: 32, num_kv_heads: 8, head_dim: 128, dtype: bfloat16}
      retrieval: {top_k: 100}
      kv_store: keys

Try it:
  seined --check-config                  # what it would run with
  seined --memory-limit 8GiB &           # on the default socket, for this user only
  seine health                           # the command line finds that socket by itself
SIGTERM or SIGINT: health turns NOT_SERVING; after server.drain_delay seconds new calls are refused, and those under way
end within server.grace seconds; then, with snapshots.at_exit, all sequences are written, exit code 0. What does not end in time is cut off, exit code 3. A second one kills.
SIGHUP: settings are read again, log.level is taken over and profiles are looked for anew; so are the files of TLS,
credentials and quotas, and the audit file is opened anew. The log says what. Where the terminal that seined was started
from is closed, SIGHUP is a SIGTERM.
SIGQUIT ends it at once with a core dump. SIGUSR1, SIGUSR2, SIGALRM, SIGPROF and the like do nothing.)";

int Fail(int code, absl::string_view what) {
  const std::string line = absl::StrCat("seined: ", what, "\n");
  if (LogAsItIs(line)) {
    FlushLog(absl::Now() + kLastLines);
  } else {
    std::cerr << line << std::flush;
  }
  return code;
}

// For threads that end the process themselves. The log is told of it and waited for only so long.
[[noreturn]] void EndAtOnce(int code, absl::Duration lines) {
  FlushLog(absl::Now() + lines);
  _exit(code);
}

struct CommandLine {
  std::string config_path;
  bool check_config = false;
  std::vector<std::pair<std::string, std::string>> settings;
};

// Every setting of the table becomes a flag. Exits on --help, --version and what CLI11 finds wrong.
std::optional<int> Parse(int argc, char** argv, CommandLine* line) {
  CLI::App app("seined serves Seine's KV-cache retrieval index over gRPC.", "seined");
  app.footer(kFooter);
  app.set_version_flag("--version", "seined " SEINE_VERSION);
  app.add_option("--config", line->config_path, "YAML file with settings and indexes.")->option_text("FILE");
  app.add_flag("--check-config", line->check_config, "Print the resulting configuration as YAML and exit.");
  ServerConfig defaults;
  defaults.server.listen = DefaultAddress();
  std::vector<std::pair<CLI::Option*, std::function<void(const std::string&)>>> switches;
  for (const Setting& setting : Settings()) {
    auto keep = [line, key = setting.key](const std::string& value) { line->settings.emplace_back(key, value); };
    const std::string help = absl::StrCat(setting.help, " [", setting.get(defaults), "]");
    if (setting.hint.empty()) {
      // The setting reads the word: CLI11 would throw what is no ParseError for one that is neither true nor false.
      switches.emplace_back(app.add_flag(FlagOf(setting.key), help), keep);
    } else {
      app.add_option_function<std::string>(FlagOf(setting.key), keep, help)->option_text(setting.hint);
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    std::vector<std::string> flags;
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    }
    const std::vector<std::string> unknown = app.remaining();
    const std::string meant = unknown.empty() ? "" : NearestWord(unknown.front(), flags);
    return Fail(kBadConfiguration, absl::StrCat(error.what(), meant.empty() ? "" : "; did you mean " + meant + "?"));
  }
  for (const auto& [option, keep] : switches) {
    if (!option->empty()) keep(option->results().back());
  }
  return std::nullopt;
}

absl::StatusOr<ServerConfig> Configure(const CommandLine& line) {
  ServerConfig config;
  config.server.listen = DefaultAddress();
  if (!line.config_path.empty()) {
    if (auto s = ApplyYaml(line.config_path, &config); !s.ok()) return s;
  }
  if (auto s = ApplyEnvironment(environ, &config); !s.ok()) return s;
  if (auto s = ApplyFlags(line.settings, &config); !s.ok()) return s;
  return config;
}

std::string OpenCalls(const Core& core) {
  const std::optional<std::map<std::string, int>> counts = core.open_calls.CountUnlessStuck();
  if (!counts) return "calls that a stuck thread keeps locked";
  std::vector<std::string> open;
  for (const auto& [method, count] : *counts) open.push_back(absl::StrCat(method, " x", count));
  return open.empty() ? "nothing" : absl::StrJoin(open, ", ");
}

// Ends the process where its server does not end in time, and says what it cut off. It lives as long as the process.
void EndHardAfter(absl::Duration time, Core* core) {
  std::thread([time, core] {
    absl::SleepFor(time);
    spdlog::error("ended hard; cut off: {}", OpenCalls(*core));
    EndAtOnce(kCutOff, kHardEndLines);
  }).detach();
}

// Memory of a server that has just started: what it holds, and room for threads' stacks, connections and the allocator.
// A device's driver takes hundreds of megabytes; so does a sanitizer, bit by bit.
int64_t BaseBytes() {
  constexpr int64_t kMiB = 1 << 20;
#ifdef __SANITIZE_ADDRESS__
  constexpr int64_t kRoom = 2048 * kMiB;
#else
  constexpr int64_t kRoom = 120 * kMiB;
#endif
  return (ResidentBytes() + kRoom) / kMiB * kMiB;
}

// Makes the heap give freed memory back to the system, so that the process holds what it uses. By default glibc keeps
// freed blocks of up to 32 MiB, in eight arenas a processor.
void BoundHeap() {
  constexpr int kLargeBlock = 1 << 20;
  mallopt(M_MMAP_THRESHOLD, kLargeBlock);
  mallopt(M_TRIM_THRESHOLD, kLargeBlock);
  mallopt(M_ARENA_MAX, HeapArenas(DefaultThreads()));
}

void WarnUnless(const absl::Status& told) {
  if (!told.ok()) spdlog::warn("{}", std::string(told.message()));
}

// Ends the process where it no longer answers, and tells a service manager that it does. Null where nobody asks.
std::unique_ptr<Watchdog> MakeWatchdog(const ServerConfig& config, const Notifier& notifier, Server* server) {
  const absl::Duration asked = absl::Seconds(config.watchdog_seconds);
  const absl::Duration limit = asked > absl::ZeroDuration() ? asked : notifier.watchdog();
  if (limit <= absl::ZeroDuration()) return nullptr;
  return std::make_unique<Watchdog>(Watchdog::Watch{limit, [server, limit] { return server->Answers(limit / 4); },
                                                    [&notifier] { notifier.Notify("WATCHDOG=1").IgnoreError(); },
                                                    [server, limit] {
                                                      spdlog::error(
                                                          "no answer to its own calls for {}: ended; under way: {}",
                                                          absl::FormatDuration(limit), OpenCalls(server->core()));
                                                      EndAtOnce(kSilent, kLastLines);
                                                    }});
}

int Serve(const CommandLine& line, ServerConfig config, const Signals& signals) {
  config.server.core.guard_memory = true;
  rlimit address_space = {};
  getrlimit(RLIMIT_AS, &address_space);
  const bool bounded = address_space.rlim_cur != RLIM_INFINITY;
  const MachineLimits machine =
      WithinAddressSpace(LimitsOfThisProcess(), bounded ? static_cast<int64_t>(address_space.rlim_cur) : 0,
                         AddressBytes(), ResidentBytes());
  CoreOptions& options = config.server.core;
  const int64_t base = BaseBytes() + kStartBytes;
  if (options.memory_limit_bytes == 0) options.memory_limit_bytes = MemoryLimitWithin(machine, base, options);
  // What gRPC allocates must not fail: it ends the process.
  if (const std::string more = MoreThanAllowed(machine, options.memory_limit_bytes, ConstantBytes(base, options));
      !more.empty() && machine.memory_why == kAddressSpace) {
    return Fail(kBadConfiguration, more);
  }
  auto server = Server::Start(config.server);
  if (!server.ok()) {
    return Fail(absl::IsInvalidArgument(server.status()) ? kBadConfiguration : kFailed, server.status().message());
  }
  Core& core = (*server)->core();
  core.base_bytes = BaseBytes();
  core.log.SetSlow(std::chrono::milliseconds(config.slow_call_ms));
  spdlog::info("seined {} listens on {} ({}, {}, {} threads, {} indexes{})", SEINE_VERSION, (*server)->address(),
               core.backend->name(), core.backend->simd_target(), core.backend->num_threads(),
               config.server.indexes.size(), config.server.polling ? ", polling" : "");
  const std::string limit = core.options.memory_limit_bytes > 0
                                ? absl::StrCat(FormatBytes(core.options.memory_limit_bytes), " + 10 %")
                                : "what is stored";
  spdlog::info("memory: at most {} + {} (requests and answers under way take {} of it at most)", limit,
               FormatBytes(core.ConstantBytes()), FormatBytes(core.in_flight.limit_bytes()));
  spdlog::info("who may come in: {}", WhoMayComeIn(*ParseAddress((*server)->address()), config.server.tls,
                                                   core.access.get(), config.server.access.unix_calls));
  spdlog::info("{}", DescribeMachine(machine));
  if (const std::string more = MoreThanAllowed(machine, core.options.memory_limit_bytes, core.ConstantBytes());
      !more.empty()) {
    spdlog::warn("{}", more);
  }
  for (const auto& [key, folder] :
       {std::pair("snapshots.dir", config.server.snapshots.folder), std::pair("idle.dir", config.server.idle.folder)}) {
    if (const std::string far = FarFolder(key, folder); !far.empty()) spdlog::warn("{}", far);
  }
  if (!core.metrics_address.empty()) spdlog::info("metrics: http://{}/metrics", core.metrics_address);
  if (config.server.metrics_page) spdlog::info("page: http://{}/page/", core.metrics_address);
  if (core.channels.path().empty()) spdlog::info("{}", core.channels.why_not());
  if (!core.why_cpu.empty()) spdlog::info("backend cpu, not cuda: {}", core.why_cpu);
  WarnOfProfiles(*core.options.profiles);
  const Notifier notifier;
  WarnUnless(notifier.Notify(absl::StrCat("READY=1\nSTATUS=listens on ", (*server)->address())));
  std::unique_ptr<Watchdog> watchdog = MakeWatchdog(config, notifier, server->get());
  Signals::Event event = signals.Wait();
  for (; event.reload; event = signals.Wait()) {
    WarnUnless(notifier.TellReloading());
    Reload(Configure(line), &config, &core);
    WarnUnless(notifier.Notify("READY=1"));
  }
  signals.Release();  // a second one ends the process at once
  WarnUnless(notifier.Notify("STOPPING=1"));
  const absl::Duration delay = absl::Seconds(config.drain_delay_seconds), grace = absl::Seconds(config.grace_seconds);
  spdlog::info("{}: ending, at most {} s", event.name, absl::ToInt64Seconds(delay + grace));
  const bool writes = config.server.snapshots.at_exit;
  const absl::Duration writing = writes ? absl::Seconds(config.server.snapshots.exit_seconds) : absl::ZeroDuration();
  const absl::Duration most = delay + grace + kHardEnd + writing;
  const absl::Time last = absl::Now() + most - kHardEndLines;
  EndHardAfter(most, &core);
  watchdog = nullptr;
  (*server)->Unready();
  absl::SleepFor(delay);
  (*server)->Shutdown(grace);
  const bool written = !writes || WriteExitSnapshots(&core, writing);
  spdlog::info("ended after {} calls, {} of them with an error", core.calls.load(), core.errors.load());
  FlushLog(last);
  return written ? 0 : kNotWritten;
}

int Main(int argc, char** argv) {
  CommandLine line;
  if (auto code = Parse(argc, argv, &line)) return *code;
  auto config = Configure(line);
  absl::Status status = config.status();
  if (status.ok()) status = Resolve(&*config);
  if (!status.ok()) return Fail(kBadConfiguration, status.message());
  if (line.check_config) {
    if (auto s = CheckStart(*config); !s.ok()) return Fail(kBadConfiguration, s.message());
    for (const std::string& warning : config->warnings) std::cerr << "seined: warning: " << warning << std::endl;
    std::cout << ToYaml(*config);
    return 0;
  }
  // What nothing catches, such as an allocation that fails on a thread of its own: one line, then a core dump.
  std::set_terminate([] {
    FlushLog(absl::Now() + kLastLines);
    abort();
  });
  WriteLineOnFaults();
  BoundHeap();
  BoundStacks();
  const Signals signals;
  signal(SIGPIPE, SIG_IGN);
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);  // what matters of gRPC's own log comes back as a status
  // gRPC's epoll engine lets one thread wait for all queues of a process: each event of a Decode stream would wake that
  // one first, then the stream's own. With poll every thread waits for its own sockets (measured: 20-30 us a step).
  if (!config->server.polling) setenv("GRPC_POLL_STRATEGY", "poll", /*overwrite=*/0);
  if (auto s = StartLog(config->log_level, config->log_format); !s.ok()) return Fail(kFailed, s.message());
  for (const std::string& warning : config->warnings) spdlog::warn("{}", warning);
  if (auto s = RaiseDescriptorLimit(); !s.ok()) return Fail(kFailed, s.message());
  return Serve(line, *std::move(config), signals);
}

}  // namespace
}  // namespace seine

int main(int argc, char** argv) {
  seine::OpenStandardDescriptors();
  const int code = seine::Main(argc, argv);
  const absl::Status printed = seine::FinishStandardOutput();
  return code != 0 || printed.ok() ? code : seine::Fail(seine::kFailed, printed.message());
}
