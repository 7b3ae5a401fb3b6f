#include "tests/soak/server/soaked_server.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/service/metrics/http_client.h"

namespace seine::soak {
namespace {

constexpr double kMemoryLimit = 256.0 * kMiB;
constexpr char kServes[] = "metrics: http://";  // the last line that a start logs

std::vector<std::string> Command(const Endpoint& endpoint, int grace, const std::vector<std::string>& flags) {
  std::vector<std::string> command = {SEINED_PATH,         "--memory-limit",   "256MiB",     "--grace",
                                      absl::StrCat(grace), "--metrics-listen", "127.0.0.1:0"};
  for (const auto& more : {endpoint.Flags(), flags}) command.insert(command.end(), more.begin(), more.end());
  return command;
}

std::string Tail(const std::string& text) { return text.substr(text.size() > 1500 ? text.size() - 1500 : 0); }

std::string LastLine(const std::string& text) {
  if (text.size() < 2) return text;
  const size_t at = text.rfind('\n', text.size() - 2);
  return at == std::string::npos ? text : text.substr(at + 1, text.size() - at - 2);
}

}  // namespace

void Sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

bool WaitForLine(ChildProcess& child, const std::string& text, double seconds) {
  for (double waited = 0; waited < seconds && child.Alive(); waited += .02) {
    if (child.Output().find(text) != std::string::npos) return true;
    Sleep(.02);
  }
  return child.Output().find(text) != std::string::npos;
}

SoakedServer::SoakedServer(const std::vector<std::string>& flags, int descriptors, int grace, Transport transport)
    : grace_(grace),
      endpoint_(Endpoint::Make(transport, folder_.path)),
      process_(Command(endpoint_, grace, flags), folder_.path, "seined", descriptors, 0) {
  if (!WaitForLine(process_, kServes, 30)) return;
  const std::string log = process_.Output();
  const size_t at = log.find(kServes) + sizeof(kServes) - 1;
  metrics_ = log.substr(at, log.find("/metrics", at) - at);
  serves_ = true;
}

std::optional<double> SoakedServer::Metric(const std::string& name) const {
  const std::string text = "\n" + test::Http(metrics_, "GET", "/metrics").body, line = "\n" + name + " ";
  const size_t at = text.find(line);
  double value = 0;
  if (at == std::string::npos) return std::nullopt;
  const std::string rest = text.substr(at + line.size());
  if (!absl::SimpleAtod(rest.substr(0, rest.find('\n')), &value)) return std::nullopt;
  return value;
}

double SoakedServer::SumOf(const std::string& name) const {
  std::istringstream lines(test::Http(metrics_, "GET", "/metrics").body);
  double sum = 0, value = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(name + "{", 0) == 0 && absl::SimpleAtod(line.substr(line.rfind(' ')), &value)) sum += value;
  }
  return sum;
}

bool SoakedServer::Settles(int connections, double seconds, std::string* what) const {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    const auto bytes = Metric("seine_in_flight_bytes"), open = Metric("seine_connections");
    if (bytes == 0 && open.value_or(1e9) <= connections) return true;
    if (std::chrono::steady_clock::now() > end) {
      *what = absl::StrCat(bytes.value_or(-1), " bytes under way and ", open.value_or(-1), " connections, ", seconds,
                           " s after the clients were gone");
      return false;
    }
    Sleep(.02);
  }
}

// "memory: at most 256MiB + 10 % + 672MiB (...": the limit, a tenth, and the constant.
double SoakedServer::PromisedBytes() const {
  const std::string log = process_.Output();
  const size_t at = log.find("memory: at most "), plus = at == std::string::npos ? at : log.find("% + ", at);
  int64_t mib = 0;
  if (plus == std::string::npos) return 0;
  const std::string rest = log.substr(plus + 4);
  return absl::SimpleAtoi(rest.substr(0, rest.find("MiB")), &mib) ? 1.1 * kMemoryLimit + static_cast<double>(mib * kMiB)
                                                                  : 0;
}

int SoakedServer::End(Result* result) {
  const bool crashed = !process_.Alive();
  process_.Signal(SIGTERM);
  const auto begin = std::chrono::steady_clock::now();
  const int code = process_.Wait(grace_ + 20);
  const double end = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (crashed || (code != 0 && code != 3)) {
    ++result->crashes;
    result->Note(absl::StrCat("CRASH, exit ", code, ":\n", Tail(process_.Output())));
  }
  if (end > grace_ + 1) ++result->hangs;
  if (code == 3 || end > grace_ + .5) result->Note("end: " + LastLine(process_.Output()));
  const auto peak = static_cast<double>(process_.PeakResidentBytes());
  result->over_mib = std::max({result->over_mib, 0.0, (peak - PromisedBytes()) / kMiB});
  result->figures["rss_mib"] = std::max(result->figures.value("rss_mib", 0.0), peak / kMiB);
  result->figures["end_s"] = std::max(result->figures.value("end_s", 0.0), end);
  return code;
}

}  // namespace seine::soak
