// TLS: who is let in, what files are taken, and new files while calls go on.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "service/access/guards.h"
#include "service/access/tls_files.h"
#include "tests/service/access/access_fixture.h"

namespace seine::test {
namespace {

using grpc::StatusCode;

class TlsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    certificates_.MakeAuthority("ca");
    certificates_.MakeAuthority("other");
    certificates_.Make("server", "ca", "IP:127.0.0.1");
    certificates_.Make("client", "ca", "DNS:engine.acme");
    options_.tls.cert = certificates_.pem("server");
    options_.tls.key = certificates_.key("server");
    options_.listen = "127.0.0.1:0";
    options_.core.threads = 1;
    options_.core.workers = 2;
  }
  void Start() {
    auto server = Server::Start(options_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  // `own`: the client's certificate; empty: it has none.
  std::shared_ptr<grpc::ChannelCredentials> Trusting(const std::string& authority, const std::string& own = "") const {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = TextOfFile(certificates_.pem(authority));
    if (!own.empty()) {
      options.pem_cert_chain = TextOfFile(certificates_.pem(own));
      options.pem_private_key = TextOfFile(certificates_.key(own));
    }
    return grpc::SslCredentials(options);
  }
  grpc::Status Call(const std::shared_ptr<grpc::ChannelCredentials>& credentials, const std::string& token = "") const {
    return CallerStubs(server_->address(), credentials, token).Info();
  }
  // A new server certificate in the place of the old one: the key first, so that for a moment they do not fit.
  void Rotate(const std::string& name) const {
    ReplaceFile(options_.tls.key, TextOfFile(certificates_.key(name)));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ReplaceFile(options_.tls.cert, TextOfFile(certificates_.pem(name)));
  }

  TempDir dir_;
  const Certificates certificates_{dir_.path};
  ServerOptions options_;
  std::unique_ptr<Server> server_;
};

TEST_F(TlsTest, AClientThatTrustsTheAuthorityIsServedAndNoOther) {
  Start();
  EXPECT_TRUE(Call(Trusting("ca")).ok());
  EXPECT_EQ(Call(Trusting("other")).error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(grpc::InsecureChannelCredentials()).error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, WhereAnAuthorityOfClientsIsGivenEachShowsACertificateOfIt) {
  certificates_.Make("stranger", "other", "DNS:engine.acme");
  certificates_.Make("expired", "ca", "DNS:engine.acme", 0);
  options_.tls.client_ca = certificates_.pem("ca");
  Start();
  EXPECT_TRUE(Call(Trusting("ca", "client")).ok());
  EXPECT_EQ(Call(Trusting("ca")).error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(Trusting("ca", "stranger")).error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(Trusting("ca", "expired")).error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, ACertificatesNameIsACredential) {
  certificates_.Make("unknown", "ca", "DNS:nobody.example");
  options_.tls.client_ca = certificates_.pem("ca");
  options_.access.tokens_file = dir_.path + "/tokens.yaml";
  ReplaceFile(options_.access.tokens_file,
              "- {san: engine.acme, tenant: acme, role: reader}\n" + TokenEntry("root", "acme", "admin"));
  Start();
  EXPECT_TRUE(Call(Trusting("ca", "client")).ok());
  EXPECT_EQ(Call(Trusting("ca", "unknown")).error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(Call(Trusting("ca", "unknown"), "root").ok());
  EXPECT_EQ(Call(Trusting("ca", "client"), "wrong").error_code(), StatusCode::UNAUTHENTICATED)
      << "a token counts first";
  const CallerStubs reader(server_->address(), Trusting("ca", "client"), "");
  EXPECT_EQ(reader.CreateIndex("x").error_code(), StatusCode::PERMISSION_DENIED);
  const CallerStubs admin(server_->address(), Trusting("ca", "client"), "root");
  EXPECT_TRUE(admin.CreateIndex("x").ok());
}

// Clients that connect anew for each call, and one that stays, while the certificate changes.
TEST_F(TlsTest, NoCallFailsWhileCertificatesChange) {
  constexpr int kRotations = 6;
  for (int i = 0; i < kRotations; ++i) certificates_.Make("next" + std::to_string(i), "ca", "IP:127.0.0.1");
  Start();
  const auto trusting = Trusting("ca");
  const CallerStubs stays(server_->address(), trusting, "");
  ASSERT_TRUE(stays.Info().ok());
  std::atomic<bool> done{false};
  std::atomic<int> calls{0}, failed{0};
  const auto load = [&](bool anew) {
    while (!done.load()) {
      const grpc::Status status = anew ? Call(trusting) : stays.Info();
      calls.fetch_add(1);
      if (!status.ok() && failed.fetch_add(1) == 0) ADD_FAILURE() << status.error_message();
    }
  };
  std::vector<std::thread> threads;
  for (const bool anew : {true, true, false}) threads.emplace_back(load, anew);
  for (int i = 0; i < kRotations; ++i) {
    const int before = calls.load();
    Rotate("next" + std::to_string(i));
    while (calls.load() < before + 20) std::this_thread::yield();
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed.load(), 0);
  EXPECT_GE(calls.load(), 20 * kRotations);
  EXPECT_EQ(server_->core().tls->Current()->cert, TextOfFile(certificates_.pem("next5")));
}

TEST_F(TlsTest, NewConnectionsSeeTheNewAuthority) {
  certificates_.Make("moved", "other", "IP:127.0.0.1");
  Start();
  EXPECT_EQ(Call(Trusting("other")).error_code(), StatusCode::UNAVAILABLE);
  Rotate("moved");
  EXPECT_TRUE(Call(Trusting("other")).ok());
  EXPECT_EQ(Call(Trusting("ca")).error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, BadNewFilesAreNotTaken) {
  certificates_.Make("expired", "ca", "IP:127.0.0.1", 0);
  Start();
  const std::string good = TextOfFile(options_.tls.cert), key = TextOfFile(options_.tls.key);
  for (const std::string& bad : {std::string("no PEM"), std::string(), TextOfFile(certificates_.pem("client")),
                                 good.substr(0, good.size() / 2), TextOfFile(certificates_.pem("expired"))}) {
    ReplaceFile(options_.tls.cert, bad);
    EXPECT_FALSE(server_->core().tls->Reload().ok());
    EXPECT_TRUE(Call(Trusting("ca")).ok());
  }
  std::filesystem::remove(options_.tls.cert);
  EXPECT_TRUE(Call(Trusting("ca")).ok());
  ReplaceFile(options_.tls.cert, good);
  EXPECT_TRUE(server_->core().tls->Reload().ok());
  EXPECT_TRUE(Call(Trusting("ca")).ok());
}

TEST_F(TlsTest, AStartSaysWhichFileIsWrong) {
  certificates_.Make("expired", "ca", "IP:127.0.0.1", 0);
  const auto why = [this] { return std::string(Server::Start(options_).status().message()); };
  const TlsOptions right = options_.tls;
  options_.tls.key = "";
  EXPECT_EQ(why(), "tls.key: is missing beside tls.cert");
  options_.tls = {.cert = "", .key = right.key, .client_ca = ""};
  EXPECT_EQ(why(), "tls.cert: is missing beside the other settings of TLS");
  options_.tls = right;
  options_.tls.key = certificates_.key("client");
  EXPECT_EQ(why(), "tls.key: " + options_.tls.key + ": is not the key of tls.cert");
  options_.tls.key = right.cert;
  EXPECT_EQ(why(), "tls.key: " + options_.tls.key + ": holds no private key in PEM without a passphrase");
  options_.tls = {.cert = certificates_.pem("expired"), .key = certificates_.key("expired"), .client_ca = ""};
  EXPECT_EQ(why(), "tls.cert: " + options_.tls.cert + ": has expired");
  options_.tls = right;
  options_.tls.client_ca = right.key;
  EXPECT_EQ(why(), "tls.client_ca: " + right.key + ": holds no certificate in PEM");
  options_.tls = right;
  options_.listen = "unix:" + dir_.path + "/seine.sock";
  EXPECT_EQ(why(), "tls.cert: a Unix socket takes no TLS; listen on HOST:PORT, or leave it out");
}

TEST_F(TlsTest, BeyondLoopbackNothingStartsWithoutTlsAndACredential) {
  const auto why = [this] { return std::string(Server::Start(options_).status().message()); };
  const std::string begin = "listen: 0.0.0.0:0 is beyond this machine's loopback, which takes TLS and a credential: ";
  const TlsOptions tls = options_.tls;
  options_.listen = "0.0.0.0:0";
  EXPECT_EQ(why(), begin + "a credential is missing (auth.tokens_file)");
  options_.tls = {};
  EXPECT_EQ(why(), begin + "both are missing (tls.cert, tls.key and auth.tokens_file)");
  options_.access.tokens_file = dir_.path + "/tokens.yaml";
  EXPECT_EQ(why(), begin + "TLS is missing (tls.cert and tls.key)");
  options_.tls = tls;
  ReplaceFile(options_.access.tokens_file, "[]\n");
  EXPECT_EQ(why(), begin + "auth.tokens_file holds no credential");
  ReplaceFile(options_.access.tokens_file, "- {san: engine.acme, role: admin}\n");
  EXPECT_EQ(why(), "auth.tokens_file: a 'san' needs tls.client_ca, without which no client shows a certificate");
  ReplaceFile(options_.access.tokens_file, TokenEntry("root", "acme", "admin"));
  Start();
}

}  // namespace
}  // namespace seine::test
