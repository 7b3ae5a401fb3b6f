// TLS and tokens, from the client library and the command line to a real seined.
#include "client/security.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/settings.h"
#include "tests/certificates.h"
#include "tests/client/process.h"

namespace seine {
namespace {

using client::Client;
using client::Options;
using client::Transport;

constexpr char kTokens[] =
    "- {sha256: 1ec1c26b50d5d3c58d9583181af8076655fe00756bf7285940ba3670f99fcba0, tenant: acme, role: admin}\n";
constexpr char kToken[] = "s3cret";  // of that digest

std::string FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  close(fd);
  return "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

class SecurityTest : public ::testing::Test {
 protected:
  SecurityTest() {
    test::ReplaceFile(folder_.Path("tokens.yaml"), kTokens);
    test::ReplaceFile(folder_.Path("token"), std::string(kToken) + "\n");
  }
  // One append and one question by a stream of that kind.
  static void ExpectSteps(Client& client, const std::string& index, Transport transport) {
    v1::IndexSpec spec;
    spec.set_name(index);
    *spec.mutable_geometry() = client::MakeGeometry(1, 2, 1, 64, client::DType::kFloat32);
    ASSERT_TRUE(client.CreateIndex(spec).status().ok());
    const auto sequence = client.CreateSequence(index, "s");
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    const std::vector<float> keys(64, .5f), queries(128, .25f);
    const auto stream = client.OpenDecodeStream(transport);
    ASSERT_TRUE(stream.ok()) << stream.status();
    client::DecodeStep step;
    step.appends.push_back({*sequence, 0, 0, {keys.data(), client::DType::kFloat32, {1, 1, 64}}, {}});
    step.items.push_back({*sequence, 0, {queries.data(), client::DType::kFloat32, {2, 64}}});
    client::DecodeAnswer answer;
    ASSERT_TRUE((*stream)->Write(step).ok());
    ASSERT_TRUE((*stream)->Read(&answer).ok());
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    ASSERT_EQ(answer.append_status.size(), 1u);
    EXPECT_TRUE(answer.append_status[0].ok()) << answer.append_status[0];
    EXPECT_TRUE((*stream)->Finish().ok());
    EXPECT_TRUE(client.DeleteIndex(index).ok());
  }
  std::string Path(const std::string& name) const { return folder_.Path(name); }

  TempFolder folder_;
};

TEST_F(SecurityTest, TlsAndATokenOverTcp) {
  const test::Certificates certificates(folder_.Path(""));
  certificates.MakeAuthority("ca");
  certificates.MakeAuthority("other");
  certificates.Make("server", "ca", "IP:127.0.0.1");
  certificates.Make("client", "ca", "DNS:engine");
  const Server server({"--tls-cert", certificates.pem("server"), "--tls-key", certificates.key("server"),
                       "--tls-client-ca", certificates.pem("ca"), "--auth-tokens-file", Path("tokens.yaml")},
                      FreePort());
  Options options;
  options.security = {.tls_ca = certificates.pem("ca"),
                      .tls_cert = certificates.pem("client"),
                      .tls_key = certificates.key("client"),
                      .token = kToken};
  const auto client = server.Connect(options);
  ASSERT_NE(client, nullptr);
  EXPECT_TRUE(client->GetServerInfo().ok());
  ExpectSteps(*client, "blocking", Transport::kBlocking);
  ExpectSteps(*client, "polling", Transport::kPolling);
  const auto why = [&](auto change) {
    Options wrong = options;
    change(&wrong.security);
    const auto connected = Client::Connect(server.endpoint(), wrong);
    const absl::Status status = connected.ok() ? (*connected)->GetServerInfo().status() : connected.status();
    return absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
  };
  EXPECT_EQ(why([&](auto* s) { s->tls_ca = certificates.pem("other"); }),
            "UNAVAILABLE: no server at " + server.endpoint() + " (TLS failed: certificate verify failed)");
  EXPECT_NE(why([&](auto* s) { s->tls_cert = s->tls_key = ""; }).find("client's certificate"), std::string::npos);
  EXPECT_NE(why([&](auto* s) { s->tls_ca = s->tls_cert = s->tls_key = ""; }).find("it may take TLS alone"),
            std::string::npos);
  EXPECT_EQ(why([&](auto* s) { s->tls_key = ""; }), "INVALID_ARGUMENT: tls_key: is missing beside tls_cert");
  EXPECT_EQ(why([&](auto* s) { s->tls_ca = Path("token"); }),
            "INVALID_ARGUMENT: tls_ca: " + Path("token") + ": is no PEM");
  EXPECT_NE(why([&](auto* s) { s->token = "wrong"; }).find("UNAUTHENTICATED: a valid credential is needed"),
            std::string::npos);
  EXPECT_NE(why([&](auto* s) { s->token = ""; }).find("UNAUTHENTICATED: a valid credential is needed"),
            std::string::npos);

  const std::vector<std::string> flags = {SEINE_PROGRAM,
                                          "--server",
                                          server.endpoint(),
                                          "--tls-ca",
                                          certificates.pem("ca"),
                                          "--tls-cert",
                                          certificates.pem("client"),
                                          "--tls-key",
                                          certificates.key("client")};
  const auto run = [&](std::vector<std::string> more, const std::vector<std::string>& environment = {}) {
    more.insert(more.begin(), flags.begin(), flags.end());
    return RunProgram(more, environment);
  };
  EXPECT_EQ(run({"--token", kToken, "version"}).exit_code, 0);
  EXPECT_EQ(run({"--token-file", Path("token"), "version"}).exit_code, 0);
  EXPECT_EQ(run({"version"}, {std::string("SEINE_TOKEN=") + kToken}).exit_code, 0);
  EXPECT_EQ(run({"version"}, {"SEINE_TOKEN_FILE=" + Path("token")}).exit_code, 0);
  const Outcome without = run({"version"});
  EXPECT_NE(without.exit_code, 0);
  EXPECT_NE(without.err.find("a valid credential is needed"), std::string::npos) << without.err;
  const Outcome both = run({"--token", kToken, "--token-file", Path("token"), "version"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_NE(both.err.find("--token: given beside token_file"), std::string::npos) << both.err;
  const Outcome missing = run({"--token-file", Path("no_such_file"), "version"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_NE(missing.err.find("--token-file: " + Path("no_such_file")), std::string::npos) << missing.err;
}

// Each kind of stream brings its token, the same-host channel by the call that opens it.
TEST_F(SecurityTest, ATokenOverAUnixSocket) {
  const Server server({"--auth-tokens-file", Path("tokens.yaml"), "--auth-unix", "token"});
  Options options;
  options.security.token_file = Path("token");
  const auto client = server.Connect(options);
  ASSERT_NE(client, nullptr);
  ExpectSteps(*client, "blocking", Transport::kBlocking);
  ExpectSteps(*client, "polling", Transport::kPolling);
  ExpectSteps(*client, "shared", Transport::kSharedMemory);
  const auto nobody = server.Connect();
  EXPECT_EQ(nobody->GetServerInfo().status().code(), absl::StatusCode::kUnauthenticated);
  for (const Transport transport : {Transport::kBlocking, Transport::kSharedMemory}) {
    const auto stream = nobody->OpenDecodeStream(transport);
    client::DecodeAnswer answer;
    const absl::Status status = !stream.ok()                 ? stream.status()
                                : !(*stream)->Write({}).ok() ? (*stream)->Finish()
                                                             : (*stream)->Read(&answer);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
  }
}

TEST(Security, ATokenDoesNotTravelUnprotectedToAnotherMachine) {
  const auto code = [](const std::string& endpoint) {
    return Client::Connect(endpoint, {.connect_timeout = absl::Milliseconds(50), .security = {.token = kToken}})
        .status()
        .code();
  };
  EXPECT_EQ(code("192.0.2.1:50051"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("localhost.example.org:50051"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("127.0.0.1.example.org:50051"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("127.0.0.1:1"), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace seine
