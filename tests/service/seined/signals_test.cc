// The program seined: signals, its service manager and its terminal.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "profile/profile.h"
#include "tests/index/synthetic_model.h"
#include "tests/service/seined/seined_process.h"

namespace seine::test {
namespace {

// Returns the geometry of the indexes that Spec describes.
Geometry SpecGeometry() {
  return {.num_layers = kLayers,
          .num_q_heads = kQHeads,
          .num_kv_heads = kKvHeads,
          .head_dim = kDim,
          .dtype = DType::kFloat16};
}

// A pseudo-terminal: `path` is the end that a process gets, Close hangs it up.
class Terminal {
 public:
  Terminal() : fd_(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    if (fd_ < 0 || grantpt(fd_) != 0 || unlockpt(fd_) != 0) std::abort();
    path = ptsname(fd_);
  }
  ~Terminal() { Close(); }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  std::string path;

 private:
  int fd_;
};

TEST_F(SeinedTest, SighupReadsTheSettingsAgainAndLosesNothing) {
  const std::string file = dir_.path + "/seined.yaml", profiles = dir_.path + "/profiles";
  std::filesystem::create_directory(profiles);
  std::ofstream(file) << "{log: {level: warning}, server: {threads: 1, profiles: " << profiles << "}}\n";
  Process seined(dir_.path, {"--listen", socket(), "--config", file});
  const Stubs stubs(socket());
  for (int i = 0; i < 1000 && !Creates(stubs, Spec("kept")); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_TRUE(Holds(stubs, "kept"));
  EXPECT_EQ(seined.err().find("index kept"), std::string::npos);  // info, below the level

  const seine::testing::MadeUpModel model(SpecGeometry());
  ASSERT_TRUE(WriteProfile(*model.Measure(512), ProfilePrecision::kFloat32, profiles + "/new.safetensors").ok());
  std::ofstream(file) << "{log: {level: debug}, server: {threads: 2, profiles: " << profiles << "}}\n";
  seined.Signal(SIGHUP);
  ASSERT_TRUE(seined.WaitForLine("SIGHUP: reloaded: log.level warning -> debug; profiles new")) << seined.err();
  EXPECT_TRUE(seined.WaitForLine("SIGHUP: takes a new start: server.threads 1 -> 2")) << seined.err();
  EXPECT_TRUE(Holds(stubs, "kept"));
  v1::IndexSpec spec = Spec("balanced");
  spec.mutable_codec()->set_profile("new");
  EXPECT_TRUE(Creates(stubs, spec));
  EXPECT_TRUE(seined.WaitForLine("index balanced: created")) << seined.err();

  std::ofstream(file) << "log: {level: loud}\n";
  seined.Signal(SIGHUP);
  EXPECT_TRUE(seined.WaitForLine("SIGHUP: nothing is reloaded: " + file + ": log.level: 'loud'")) << seined.err();
  EXPECT_TRUE(Holds(stubs, "kept"));
  seined.Signal(SIGTERM);
  EXPECT_EQ(seined.Wait(), 0);
}

// A profile that was read is read again after a SIGHUP.
// As systemd starts it with Type=notify and WatchdogSec=.
TEST_F(SeinedTest, AServiceManagerIsToldOfItsLife) {
  const std::string path = dir_.path + "/notify";
  const int manager = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_un at = {};
  at.sun_family = AF_UNIX;
  std::strncpy(at.sun_path, path.c_str(), sizeof(at.sun_path) - 1);
  ASSERT_EQ(bind(manager, reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
  const timeval patience = {20, 0};
  setsockopt(manager, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  // The next message that is not the watchdog's.
  const auto next = [&](bool watchdog) {
    for (;;) {
      char text[512];
      const ssize_t size = recv(manager, text, sizeof(text), 0);
      if (size <= 0) return std::string("nothing came");
      const std::string told(text, size);
      if (watchdog == (told == "WATCHDOG=1")) return told;
    }
  };
  Process seined(dir_.path, {"--listen", socket()}, {"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=4000000"});
  EXPECT_EQ(next(false), "READY=1\nSTATUS=listens on " + socket());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(next(true), "WATCHDOG=1");
  seined.Signal(SIGHUP);
  EXPECT_EQ(next(false).rfind("RELOADING=1\n", 0), 0u);
  EXPECT_EQ(next(false), "READY=1");
  seined.Signal(SIGTERM);
  EXPECT_EQ(next(false), "STOPPING=1");
  EXPECT_EQ(seined.Wait(), 0);
  close(manager);
}

TEST_F(SeinedTest, SighupForgetsTheProfilesThatWereRead) {
  const std::string profiles = dir_.path + "/profiles", file = profiles + "/p.safetensors";
  std::filesystem::create_directory(profiles);
  ASSERT_TRUE(
      WriteProfile(*seine::testing::MadeUpModel(SpecGeometry()).Measure(512), ProfilePrecision::kFloat32, file).ok());
  Process seined(dir_.path, {"--listen", socket(), "--profiles", profiles});
  ASSERT_TRUE(seined.WaitForLine("listens on")) << seined.err();
  const Stubs stubs(socket());
  v1::IndexSpec spec = Spec("first");
  spec.mutable_codec()->set_profile("p");
  EXPECT_TRUE(Creates(stubs, spec));
  std::ofstream(file) << "no profile any more";
  spec.set_name("second");
  EXPECT_TRUE(Creates(stubs, spec));  // as it was read
  seined.Signal(SIGHUP);
  ASSERT_TRUE(seined.WaitForLine("SIGHUP: reloaded: no profiles")) << seined.err();
  EXPECT_TRUE(seined.WaitForLine("passed over p.safetensors: ")) << seined.err();
  spec.set_name("third");
  EXPECT_FALSE(Creates(stubs, spec));
  seined.Signal(SIGTERM);
  EXPECT_EQ(seined.Wait(), 0);
}

// What lies in the folder without being a whole file neither hangs a start nor the calls that come to it.
// Who may call is read again, and a bad file changes nothing.
TEST_F(SeinedTest, HangUpReadsCredentialsAndOpensTheAuditFileAnew) {
  const std::string tokens = dir_.path + "/tokens.yaml", audit = dir_.path + "/audit.log";
  const auto write = [&](const std::string& text) { std::ofstream(tokens) << text; };
  const auto entry = [](char digit) { return "- {sha256: " + std::string(64, digit) + ", role: reader}\n"; };
  write(entry('a'));
  Process seined(dir_.path, {"--listen", socket(), "--auth-tokens-file", tokens, "--audit-file", audit});
  ASSERT_TRUE(seined.WaitForLine("listens on")) << seined.err();
  std::filesystem::rename(audit, audit + ".1");
  write(entry('a') + entry('b'));
  seined.Signal(SIGHUP);
  ASSERT_TRUE(seined.WaitForLine("SIGHUP: reloaded: credentials and quotas; the audit file is opened anew"))
      << seined.err();
  EXPECT_TRUE(std::filesystem::exists(audit));
  write(entry('a') + entry('a'));
  seined.Signal(SIGHUP);
  EXPECT_TRUE(seined.WaitForLine("SIGHUP: auth.tokens_file: " + tokens + ": [1]: a second entry")) << seined.err();
  EXPECT_TRUE(seined.WaitForLine("what was read before counts")) << seined.err();
}

TEST_F(SeinedTest, AFifoAmongTheProfilesHangsNothing) {
  const std::string profiles = dir_.path + "/profiles";
  std::filesystem::create_directory(profiles);
  ASSERT_EQ(mkfifo((profiles + "/pipe.profile.safetensors").c_str(), 0600), 0);
  const auto measured = seine::testing::MadeUpModel(SpecGeometry()).Measure(512);
  ASSERT_TRUE(WriteProfile(*measured, ProfilePrecision::kFloat32, profiles + "/new.safetensors").ok());
  std::string bytes = ReadFile(profiles + "/new.safetensors");
  bytes.replace(bytes.find("seine_checksum"), 14, "seine_chexksum");
  std::ofstream(profiles + "/old.safetensors") << bytes;
  Process seined(dir_.path, {"--listen", socket(), "--profiles", profiles});
  ASSERT_TRUE(seined.WaitForLine("listens on")) << seined.err();
  EXPECT_TRUE(seined.WaitForLine("passed over pipe.profile.safetensors: not a regular file")) << seined.err();
  EXPECT_TRUE(seined.WaitForLine("server.profiles: old.safetensors has no checksum")) << seined.err();
  EXPECT_EQ(seined.err().find("new.safetensors has no"), std::string::npos) << seined.err();
  const Stubs stubs(socket());
  for (const auto& [name, created] : {std::pair("pipe", false), {"absent", false}, {"new", true}, {"old", true}}) {
    v1::IndexSpec spec = Spec(name);
    spec.mutable_codec()->set_profile(name);
    EXPECT_EQ(Creates(stubs, spec), created) << name;
  }
}

TEST_F(SeinedTest, SignalsThatAskForNothingEndNothing) {
  Process seined(dir_.path, {"--listen", socket()});
  ASSERT_TRUE(seined.WaitForLine("listens on")) << seined.err();
  const Stubs stubs(socket());
  for (const int signal : {SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGPWR, SIGSTKFLT, SIGXFSZ, SIGPIPE,
                           SIGRTMIN, SIGRTMIN + 5, SIGRTMAX}) {
    seined.Signal(signal);
    ASSERT_TRUE(Creates(stubs, Spec("after-" + std::to_string(signal)))) << strsignal(signal);
  }
  seined.Signal(SIGTERM);
  EXPECT_EQ(seined.Wait(), 0);
}

TEST_F(SeinedTest, AClosedTerminalIsASigterm) {
  Terminal terminal;
  Process seined(dir_.path, {"--listen", socket()}, {}, terminal.path);
  ASSERT_TRUE(seined.WaitForLine("listens on")) << seined.err();
  seined.Signal(SIGHUP);  // somebody at that terminal asks for a reload
  ASSERT_TRUE(seined.WaitForLine("SIGHUP: reloaded")) << seined.err();
  terminal.Close();
  EXPECT_EQ(seined.Wait(), 0);
  EXPECT_NE(seined.err().find("SIGHUP, the terminal is closed: ending"), std::string::npos) << seined.err();
  EXPECT_NE(access((dir_.path + "/seine.sock").c_str(), F_OK), 0);
}

TEST_F(SeinedTest, UnderNohupAClosedTerminalEndsNothing) {
  Terminal terminal;
  Process seined(dir_.path, {"--listen", socket()}, {}, terminal.path, /*nohup=*/true);
  ASSERT_TRUE(seined.WaitForLine("listens on")) << seined.err();
  terminal.Close();
  ASSERT_TRUE(seined.WaitForLine("SIGHUP: reloaded")) << seined.err();  // what came of it, and all that did
  EXPECT_TRUE(Creates(Stubs(socket()), Spec("alive"))) << seined.err();
  seined.Signal(SIGTERM);
  EXPECT_EQ(seined.Wait(), 0);
}

#ifndef __SANITIZE_ADDRESS__
TEST_F(SeinedTest, AFaultLeavesALine) {
  for (const int fault : {SIGSEGV, SIGABRT}) {
    Process seined(dir_.path, {"--listen", socket()});
    ASSERT_TRUE(seined.WaitForLine("listens on"));
    seined.Signal(fault);
    EXPECT_EQ(seined.Wait(), -fault);
    EXPECT_NE(seined.err().find("ended by a fault that it cannot survive"), std::string::npos) << seined.err();
  }
}

// What gRPC allocates must not fail: a server that might need more than it is allowed says so at its start.
TEST_F(SeinedTest, StartsWithinALimitOfAddressSpaceOrNotAtAll) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = 600 << 20;  // of the children alone: this process asks for nothing meanwhile
  const auto start = [&](const std::vector<std::string>& flags) {
    EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    auto seined = std::make_unique<Process>(dir_.path, flags);
    EXPECT_EQ(setrlimit(RLIMIT_AS, &before), 0);
    return seined;
  };
  const auto refused = start({"--listen", socket()});
  EXPECT_EQ(refused->Wait(), 2);
  EXPECT_NE(refused->err().find("(ulimit -v): raise that, or lower server.max_message"), std::string::npos)
      << refused->err();
  const auto serves = start({"--listen", socket(), "--max-message", "8MiB"});
  EXPECT_TRUE(serves->WaitForLine("ulimit -v")) << serves->err();
  serves->Signal(SIGTERM);
  EXPECT_EQ(serves->Wait(), 0);
}
#endif

}  // namespace
}  // namespace seine::test
