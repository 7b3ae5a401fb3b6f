// ListServers: servers of a fleet that run, drain, hang and end, how each is known, and who is told.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "service/fleet/fleet_watch.h"
#include "tests/service/access/access_fixture.h"
#include "tests/service/fixture.h"

namespace seine::test {
namespace {

using Clock = std::chrono::steady_clock;

std::string NodeJson(const std::string& name, const std::string& address, const std::string& more = "") {
  return absl::StrCat(R"({"name": ")", name, R"(", "address": ")", address, "\"", more, "}");
}

// A socket that takes connections and never reads one.
class Silent {
 public:
  explicit Silent(const std::string& path) : fd_(socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(fd_, 16), 0);
  }
  ~Silent() { close(fd_); }
  Silent(const Silent&) = delete;
  Silent& operator=(const Silent&) = delete;
  // Whether somebody has connected.
  bool Called() const {
    pollfd waiting = {fd_, POLLIN, 0};
    return poll(&waiting, 1, 0) == 1;
  }

 private:
  const int fd_;
};

class FleetServersTest : public ::testing::Test {
 protected:
  std::string Socket(const std::string& name) const { return "unix:" + dir_.path + "/" + name + ".sock"; }
  std::string File() const { return dir_.path + "/fleet.json"; }
  void WriteFleet(const std::vector<std::string>& nodes) const {
    ReplaceFile(File(), absl::StrCat(R"({"fleet": "f", "version": 1, "nodes": [)", absl::StrJoin(nodes, ", "), "]}"));
  }
  std::unique_ptr<Server> Start(const std::string& name, const std::function<void(ServerOptions*)>& change = {}) const {
    ServerOptions options;
    options.listen = Socket(name);
    options.core.backend = "cpu";
    options.core.threads = 1;
    if (change) change(&options);
    auto server = Server::Start(options);
    EXPECT_TRUE(server.ok()) << server.status();
    return *std::move(server);
  }
  std::unique_ptr<Server> StartKnowing(const std::string& name) const {
    return Start(name, [this](ServerOptions* options) { options->fleet.file = File(); });
  }
  static v1::ListServersResponse List(const Server& server, const v1::ListServersRequest& request = {}) {
    const Stubs stubs(server.address());
    v1::ListServersResponse response;
    const grpc::Status status = Call(*stubs.admin, &v1::AdminService::Stub::ListServers, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  static std::map<std::string, v1::FleetServer> ByName(const v1::ListServersResponse& list) {
    std::map<std::string, v1::FleetServer> servers;
    for (const v1::FleetServer& server : list.servers()) servers[server.name()] = server;
    return servers;
  }
  // Looks until a server is as it is to be; each look is short, whatever the other servers do.
  static v1::FleetServer Await(const Server& server, const std::string& name, v1::ServerHealth health) {
    const auto until = Clock::now() + std::chrono::seconds(15);
    for (;;) {
      const auto began = Clock::now();
      v1::FleetServer found = ByName(List(server))[name];
      EXPECT_LT(Clock::now() - began, std::chrono::milliseconds(900)) << "it waits for another machine";
      if (found.health() == health || Clock::now() > until) {
        EXPECT_EQ(v1::ServerHealth_Name(found.health()), v1::ServerHealth_Name(health)) << name << found.error();
        return found;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  static void Move(const Server& server, const std::string& family, const std::string& node,
                   const std::string& address) {
    const Stubs stubs(server.address());
    v1::CreateSequenceRequest create;
    create.set_index("x");
    create.set_id(family);
    v1::CreateSequenceResponse created;
    ASSERT_TRUE(Call(*stubs.sequence, &v1::SequenceService::Stub::CreateSequence, create, &created).ok());
    v1::SetFamilyStateRequest state;
    v1::SetFamilyStateResponse answer;
    state.set_index("x");
    state.set_family(family);
    state.set_state(v1::FAMILY_STATE_FROZEN);
    ASSERT_TRUE(Call(*stubs.admin, &v1::AdminService::Stub::SetFamilyState, state, &answer).ok());
    state.set_state(v1::FAMILY_STATE_MOVED);
    state.set_freeze(answer.freeze());
    state.set_node(node);
    state.set_address(address);
    const grpc::Status moved = Call(*stubs.admin, &v1::AdminService::Stub::SetFamilyState, state, &answer);
    ASSERT_TRUE(moved.ok()) << moved.error_message();
  }
  static void MakeIndex(const Server& server, const std::string& name) {
    const Stubs stubs(server.address());
    v1::CreateIndexRequest request;
    *request.mutable_spec() = Spec(name);
    v1::CreateIndexResponse response;
    ASSERT_TRUE(Call(*stubs.index, &v1::IndexService::Stub::CreateIndex, request, &response).ok());
  }
  TempDir dir_;
};

TEST_F(FleetServersTest, WithoutAFileItKnowsItself) {
  const auto server = Start("n0");
  const v1::ListServersResponse list = List(*server);
  ASSERT_EQ(list.servers_size(), 1);
  EXPECT_EQ(list.num_servers(), 1);
  EXPECT_EQ(list.fleet() + list.file_error() + list.next_page_token(), "");
  const v1::FleetServer& one = list.servers(0);
  EXPECT_EQ(one.known_by(), v1::KNOWN_BY_ITSELF);
  EXPECT_TRUE(one.itself());
  EXPECT_EQ(one.address(), server->address());
  EXPECT_EQ(one.health(), v1::SERVER_HEALTH_SERVING);
  EXPECT_EQ(one.info().instance(), server->core().instance);
  EXPECT_EQ(one.info().page(), "") << "it serves none";
}

TEST_F(FleetServersTest, ServersOfTheFileAreAskedHowTheyAre) {
  const Silent hung(dir_.path + "/hung.sock");
  WriteFleet({NodeJson("n0", Socket("n0")), NodeJson("n1", Socket("n1"), R"(, "generation": 3, "state": "draining")"),
              NodeJson("n2", Socket("n2").substr(5)), NodeJson("gone", Socket("gone")),
              NodeJson("hung", Socket("hung"))});
  const auto server = StartKnowing("n0");
  auto n1 = Start("n1", [](ServerOptions* options) {
    options->metrics_listen = "127.0.0.1:0";
    options->metrics_page = true;
  });
  const auto n2 = Start("n2", [](ServerOptions* options) { options->draining = true; });
  MakeIndex(*n1, "x");
  Move(*n1, "a", "elsewhere", "host:1");
  const Stubs stubs(n1->address());
  v1::CreateSequenceRequest create;
  create.set_index("x");
  v1::CreateSequenceResponse created;
  ASSERT_TRUE(Call(*stubs.sequence, &v1::SequenceService::Stub::CreateSequence, create, &created).ok());

  const v1::FleetServer serving = Await(*server, "n1", v1::SERVER_HEALTH_SERVING);
  EXPECT_EQ(serving.info().instance(), n1->core().instance);
  EXPECT_EQ(serving.info().num_sequences(), 1);
  EXPECT_EQ(serving.info().page(), absl::StrCat("http://", n1->core().metrics_address, "/page/"));
  EXPECT_EQ(serving.generation(), 3);
  EXPECT_EQ(serving.state(), "draining");
  EXPECT_EQ(serving.known_by(), v1::KNOWN_BY_FILE);
  EXPECT_LT(serving.age_seconds(), 10);
  EXPECT_EQ(Await(*server, "n2", v1::SERVER_HEALTH_DRAINING).info().instance(), n2->core().instance);
  EXPECT_NE(Await(*server, "gone", v1::SERVER_HEALTH_UNREACHABLE).error(), "");
  EXPECT_EQ(Await(*server, "hung", v1::SERVER_HEALTH_UNREACHABLE).error(), "no answer within 2 s");
  EXPECT_TRUE(hung.Called());
  const auto all = ByName(List(*server));
  ASSERT_EQ(all.size(), 5u) << "the server itself is one of the file";
  for (const auto& [name, one] : all) EXPECT_EQ(one.itself(), name == "n0") << name;
  EXPECT_EQ(all.at("n0").health(), v1::SERVER_HEALTH_SERVING);

  n1 = nullptr;
  const v1::FleetServer ended = Await(*server, "n1", v1::SERVER_HEALTH_UNREACHABLE);
  EXPECT_FALSE(ended.has_info()) << "what it held is gone";
  n1 = Start("n1");
  EXPECT_EQ(Await(*server, "n1", v1::SERVER_HEALTH_SERVING).info().instance(), n1->core().instance);
}

// Addresses of moved families come from callers: who could set one could have the server call anybody.
TEST_F(FleetServersTest, ServersThatFamiliesNameAreNotAsked) {
  const Silent named(dir_.path + "/named.sock");
  WriteFleet({NodeJson("n0", Socket("n0")), NodeJson("n1", Socket("n1"))});
  const auto server = StartKnowing("n0"), n1 = Start("n1");
  MakeIndex(*server, "x");
  Move(*server, "a", "stranger", Socket("named"));
  Move(*server, "b", "n1", Socket("named"));
  Move(*server, "c", "n1", Socket("named"));
  EXPECT_EQ(Await(*server, "n1", v1::SERVER_HEALTH_SERVING).address(), Socket("n1")) << "the file's counts";
  const auto all = ByName(List(*server));
  EXPECT_EQ(all.at("n1").families(), 2);
  EXPECT_EQ(all.at("n0").families(), 0);
  const v1::FleetServer& stranger = all.at("stranger");
  EXPECT_EQ(stranger.known_by(), v1::KNOWN_BY_FAMILY);
  EXPECT_EQ(stranger.health(), v1::SERVER_HEALTH_UNSPECIFIED);
  EXPECT_EQ(stranger.families(), 1);
  EXPECT_EQ(stranger.address(), Socket("named"));
  EXPECT_FALSE(named.Called());
}

TEST_F(FleetServersTest, ManyServersComeInPages) {
  std::vector<std::string> nodes;
  for (int i = 0; i < 1000; ++i) nodes.push_back(NodeJson(absl::StrCat("n", 1000 + i), Socket("nobody")));
  WriteFleet(nodes);
  const auto server = StartKnowing("n0");
  v1::ListServersRequest request;
  std::set<std::string> names;
  int pages = 0;
  do {
    const v1::ListServersResponse page = List(*server, request);
    EXPECT_EQ(page.num_servers(), 1001);
    EXPECT_LE(page.servers_size(), 100);
    for (const v1::FleetServer& one : page.servers()) EXPECT_TRUE(names.insert(one.name()).second) << one.name();
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty() && ++pages < 20);
  EXPECT_EQ(names.size(), 1001u);
  request.set_page_size(1);
  const v1::ListServersResponse first = List(*server, request);
  ASSERT_EQ(first.servers_size(), 1);
  EXPECT_TRUE(first.servers(0).itself());
  request.set_page_token(first.next_page_token());
  EXPECT_EQ(List(*server, request).servers(0).name(), "n1000") << "behind the server without a name";

  const Stubs stubs(server->address());
  v1::ListServersResponse response;
  for (const auto& [size, token] : {std::pair{-1, ""}, {0, "n1000"}}) {
    request.set_page_size(size);
    request.set_page_token(token);
    EXPECT_EQ(Call(*stubs.admin, &v1::AdminService::Stub::ListServers, request, &response).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
}

TEST_F(FleetServersTest, TheFileIsReadAgainAndMayBeWrong) {
  const auto server = StartKnowing("n0");
  const auto error = [&] { return List(*server).file_error(); };
  EXPECT_TRUE(absl::StrContains(error(), "fleet.json")) << error();
  EXPECT_EQ(List(*server).servers_size(), 1) << "itself";
  for (const auto& [text, said] : std::map<std::string, std::string>{
           {"{", "no JSON object"},
           {R"({"fleet": "f", "version": 1, "nodes": [{"name": "a b", "address": "h:1"}]})", "nodes[0].name"},
           {R"({"fleet": "f", "version": 1, "nodes": [{"name": "a", "address": "nowhere"}]})", "nodes[0].address"},
           {absl::StrCat(R"({"fleet": "f", "version": 1, "nodes": [{"name": ")", std::string(200, 'n'),
                         R"(", "address": "h:1"}]})"),
            "nodes[0].name"}}) {
    ReplaceFile(File(), text);
    EXPECT_TRUE(absl::StrContains(error(), said)) << error();
  }
  WriteFleet({NodeJson("<b>n1</b>", Socket("n1"))});
  EXPECT_EQ(error(), "");
  EXPECT_EQ(ByName(List(*server)).count("<b>n1</b>"), 1u);
}

TEST_F(FleetServersTest, SettingsAreChecked) {
  const std::string token = dir_.path + "/token", file = File();
  WriteFleet({NodeJson("n0", Socket("n0"))});
  const auto said = [](const FleetOptions& options) { return std::string(Validate(options).message()); };
  EXPECT_EQ(said({}), "");
  EXPECT_EQ(said({.file = file, .token_file = "", .tls_ca = ""}), "");
  EXPECT_EQ(said({.file = file + ".later", .token_file = "", .tls_ca = ""}), "") << "it may come";
  EXPECT_TRUE(absl::StartsWith(said({.file = "", .token_file = token, .tls_ca = ""}), "fleet.token_file: "));
  EXPECT_TRUE(absl::StartsWith(said({.file = "", .token_file = "", .tls_ca = token}), "fleet.tls_ca: "));
  EXPECT_TRUE(absl::StartsWith(said({.file = file, .token_file = token, .tls_ca = ""}), "fleet.token_file: "));
  ReplaceFile(token, "secret\n");
  EXPECT_EQ(said({.file = file, .token_file = token, .tls_ca = ""}), "");
  EXPECT_TRUE(absl::StrContains(said({.file = file, .token_file = token, .tls_ca = token}), "is no PEM"));
  ReplaceFile(file, "[]");
  EXPECT_TRUE(absl::StartsWith(said({.file = file, .token_file = "", .tls_ca = ""}), "fleet.file: "));
}

// The others want a credential: health is anybody's, and what they hold is told to their token alone.
TEST_F(FleetServersTest, CredentialsAreThoseOfTheFleet) {
  const std::string tokens = dir_.path + "/tokens.yaml", token = dir_.path + "/token";
  const std::string own = absl::StrReplaceAll(TokenEntry("fleet-reader", "own", "reader"), {{", tenant: own", ""}});
  ReplaceFile(tokens, own + TokenEntry("acme", "acme", "admin"));
  WriteFleet({NodeJson("n0", Socket("n0")), NodeJson("n1", Socket("n1"))});
  const auto guard = [&](ServerOptions* options) {
    options->access.tokens_file = tokens;
    options->access.unix_calls = "token";
  };
  const auto n1 = Start("n1", guard);
  const auto list = [](const Server& server, const std::string& shown, v1::ListServersResponse* response) {
    const CallerStubs caller(server.address(), grpc::InsecureChannelCredentials(), shown);
    return caller.Call(*caller.admin, &v1::AdminService::Stub::ListServers, v1::ListServersRequest(), response);
  };
  for (const bool given : {false, true}) {
    const auto server = Start("n0", [&](ServerOptions* options) {
      guard(options);
      options->fleet.file = File();
      if (given) options->fleet.token_file = token;
      ReplaceFile(token, "fleet-reader\n");
    });
    v1::ListServersResponse response;
    EXPECT_EQ(list(*server, "", &response).error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(list(*server, "acme", &response).error_code(), grpc::StatusCode::PERMISSION_DENIED);
    const auto until = Clock::now() + std::chrono::seconds(15);
    v1::FleetServer other;
    while (other.health() == v1::SERVER_HEALTH_UNSPECIFIED && Clock::now() < until) {
      ASSERT_TRUE(list(*server, "fleet-reader", &response).ok());
      other = ByName(response)["n1"];
    }
    EXPECT_EQ(other.health(), v1::SERVER_HEALTH_SERVING) << other.error();
    EXPECT_EQ(other.has_info(), given);
    EXPECT_EQ(absl::StrContains(other.error(), "fleet.token_file"), !given) << other.error();
    EXPECT_TRUE(ByName(response)["n0"].has_info());
  }
}

// A token that would cross a network for all to read stays here: 0.0.0.0 leads to this machine, but is no loopback.
TEST_F(FleetServersTest, ATokenTravelsByTlsOrWithinTheMachine) {
  const std::string token = dir_.path + "/token";
  ReplaceFile(token, "secret");
  const auto n1 = Start("n1", [](ServerOptions* options) { options->listen = "127.0.0.1:0"; });
  const std::string port = n1->address().substr(n1->address().rfind(':'));
  WriteFleet({NodeJson("far", "0.0.0.0" + port), NodeJson("near", "127.0.0.1" + port)});
  const auto server = Start("n0", [&](ServerOptions* options) {
    options->fleet.file = File();
    options->fleet.token_file = token;
  });
  EXPECT_TRUE(Await(*server, "near", v1::SERVER_HEALTH_SERVING).has_info());
  const v1::FleetServer far = Await(*server, "far", v1::SERVER_HEALTH_SERVING);
  EXPECT_FALSE(far.has_info());
  EXPECT_TRUE(absl::StrContains(far.error(), "fleet.tls_ca")) << far.error();
}

TEST_F(FleetServersTest, ItEndsAtOnceWhileAServerHangs) {
  const Silent hung(dir_.path + "/hung.sock");
  WriteFleet({NodeJson("hung", Socket("hung"))});
  auto watch = std::make_unique<FleetWatch>(FleetOptions{.file = File(), .token_file = "", .tls_ca = ""}, nullptr);
  watch->Look(watch->Describe()->nodes);
  const auto until = Clock::now() + std::chrono::seconds(10);
  while (!hung.Called() && Clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(hung.Called());
  const auto began = Clock::now();
  watch = nullptr;
  EXPECT_LT(Clock::now() - began, std::chrono::milliseconds(600));
}

TEST_F(FleetServersTest, ItIsAskedByTlsWhereAuthoritiesAreGiven) {
  const Certificates certificates(dir_.path);
  certificates.MakeAuthority("ca");
  certificates.Make("node", "ca", "IP:127.0.0.1");
  const auto n1 = Start("n1", [&](ServerOptions* options) {
    options->listen = "127.0.0.1:0";
    options->tls.cert = certificates.pem("node");
    options->tls.key = certificates.key("node");
  });
  WriteFleet({NodeJson("n0", Socket("n0")), NodeJson("n1", n1->address())});
  for (const bool tls : {true, false}) {
    const auto server = Start("n0", [&](ServerOptions* options) {
      options->fleet.file = File();
      if (tls) options->fleet.tls_ca = certificates.pem("ca");
    });
    Await(*server, "n1", tls ? v1::SERVER_HEALTH_SERVING : v1::SERVER_HEALTH_UNREACHABLE);
  }
}

}  // namespace
}  // namespace seine::test
