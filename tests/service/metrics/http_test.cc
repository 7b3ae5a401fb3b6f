// The second listener: what it answers, what it refuses, and that its clients hold nobody up.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>

#include "service/metrics/http_address.h"
#include "tests/service/fixture.h"
#include "tests/service/metrics/http_client.h"

namespace seine::test {
namespace {

class HttpTest : public ServerTest {
 protected:
  ServerOptions Options() const override {
    ServerOptions options = ServerTest::Options();
    options.metrics_listen = "127.0.0.1:0";
    return options;
  }
  HttpAnswer Get(const std::string& path) { return Http(server_->core().metrics_address, "GET", path); }
};

TEST_P(HttpTest, ProbesSayWhetherCallsAreServed) {
  for (const char* path : {"/livez", "/readyz", "/healthz"}) {
    EXPECT_EQ(Get(path).code, 200) << path;
    EXPECT_EQ(Get(path).body, "ok\n") << path;
  }
  server_->Unready();
  EXPECT_EQ(Get("/livez").code, 200);
  for (const char* path : {"/readyz", "/healthz"}) {
    EXPECT_EQ(Get(path).code, 503) << path;
    EXPECT_EQ(Get(path).body, "the server is draining, or its workers are stuck\n") << path;
  }
}

TEST_P(HttpTest, OtherPathsAndMethodsAreRefused) {
  const std::string& address = server_->core().metrics_address;
  for (const char* path : {"/", "/metrics/", "/metricsx", "/../../etc/passwd", "/%2e%2e/etc/passwd", "/livez.cgi"}) {
    EXPECT_EQ(Get(path).code, 404) << path;
  }
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "PROPFIND"}) {
    EXPECT_GE(Http(address, method, "/metrics").code, 400) << method;
  }
  EXPECT_EQ(Http(address, "HEAD", "/livez").body, "");
  EXPECT_EQ(Http(address, "HEAD", "/livez").code, 200);
  EXPECT_EQ(Get("/livez?a=b").code, 200);
  EXPECT_NE(Get("/" + std::string(100'000, 'x')).code, 200);
  EXPECT_EQ(Get("/livez").code, 200);
}

TEST_P(HttpTest, ClientsThatSendNothingOrSlowlyHoldNobodyUp) {
  const std::string address = server_->core().metrics_address;
  std::vector<int> idle;
  for (int i = 0; i < 600; ++i) {
    idle.push_back(HttpConnect(address));
    ASSERT_GE(idle.back(), 0);
    if (i % 3 == 0) {
      ASSERT_GE(send(idle.back(), "GET /met", 8, MSG_NOSIGNAL), 0);
    }
    if (i % 3 == 1) {  // reads nothing
      ASSERT_GE(send(idle.back(), "GET /metrics HTTP/1.1\r\n\r\n", 25, MSG_NOSIGNAL), 0);
    }
    if (i % 50 != 0) continue;
    const auto began = std::chrono::steady_clock::now();
    EXPECT_EQ(Get("/livez").code, 200) << i;
    EXPECT_EQ(Get("/metrics").code, 200) << i;
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(500)) << i;
  }
  const auto began = std::chrono::steady_clock::now();
  server_->Shutdown(absl::ZeroDuration());
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(1800));
  EXPECT_EQ(Http(address, "GET", "/livez").code, 0);
  for (const int fd : idle) close(fd);
}

TEST_P(HttpTest, APortInUseIsNamed) {
  ServerOptions options = Options();
  options.listen += "2";
  options.metrics_listen = server_->core().metrics_address;
  const auto second = Server::Start(options);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(second.status().message().find("metrics.listen: "), std::string::npos) << second.status();
  EXPECT_NE(second.status().message().find("in use"), std::string::npos) << second.status();
}

INSTANTIATE_TEST_SUITE_P(Ways, HttpTest, ::testing::Bool(),
                         [](const auto& polls) { return polls.param ? "Polling" : "Default"; });

TEST(HttpAddress, LoopbackAlone) {
  EXPECT_EQ(ParseHttpAddress("127.0.0.1:9464").value(), "127.0.0.1:9464");
  EXPECT_EQ(ParseHttpAddress("[::1]:9464").value(), "[::1]:9464");
  EXPECT_EQ(ParseHttpAddress("localhost:0").value(), "127.0.0.1:0");
  const std::pair<const char*, const char*> refused[] = {{"0.0.0.0:9464", "beyond this machine's loopback"},
                                                         {"10.0.0.1:80", "without credentials"},
                                                         {"example.org:80", "beyond this machine's loopback"},
                                                         {"[::]:9464", "beyond this machine's loopback"},
                                                         {"unix:/run/seine/http.sock", "Unix socket"},
                                                         {"/run/seine/http.sock", "Unix socket"},
                                                         {"run/http.sock", "Unix socket"},
                                                         {"9464", "neither"},
                                                         {"127.0.0.1:70000", "neither"},
                                                         {"127.0.0.1:-1", "neither"}};
  for (const auto& [text, why] : refused) {
    const auto address = ParseHttpAddress(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_NE(address.status().message().find(why), std::string::npos) << address.status();
  }
}

}  // namespace
}  // namespace seine::test
