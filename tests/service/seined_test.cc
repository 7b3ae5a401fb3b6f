// The program seined: configuration and its errors, addresses in use, signals, what it logs, SIGTERM under load.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "profile/profile.h"
#include "seine/v1/eviction_service.grpc.pb.h"
#include "service/event_log.h"
#include "tests/index/made_up_model.h"
#include "tests/service/fixture.h"

namespace seine::test {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

int64_t Lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

// A seined of its own, its output in files.
class Process {
 public:
  // With `terminal`, the path of a pseudo-terminal, that is the process's own; else it has none.
  Process(const std::string& folder, const std::vector<std::string>& flags,
          const std::vector<std::string>& environment = {}, const std::string& terminal = "", bool nohup = false)
      : out_(folder + "/out"), err_(folder + "/err") {
    std::vector<std::string> words = {SEINED_PATH};
    words.insert(words.end(), flags.begin(), flags.end());
    unlink(out_.c_str());  // of a process before
    unlink(err_.c_str());
    pid_ = fork();
    if (pid_ == 0) {
      setsid();
      if (!terminal.empty()) ioctl(open(terminal.c_str(), O_RDWR), TIOCSCTTY, 0);
      if (nohup) signal(SIGHUP, SIG_IGN);
      Become(words, environment);
    }
  }
  ~Process() {
    if (pid_ > 0) kill(pid_, SIGKILL), Wait();
  }

  void Signal(int signal) const { kill(pid_, signal); }
  // Exit code, or minus the signal that ended it.
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string out() const { return ReadFile(out_); }
  std::string err() const { return ReadFile(err_); }
  bool WaitForLine(const std::string& text) const {
    for (int i = 0; i < 1000; ++i) {
      if (err().find(text) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

 private:
  [[noreturn]] void Become(std::vector<std::string>& words, const std::vector<std::string>& environment) {
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    for (const std::string& entry : environment) putenv(const_cast<char*>(entry.c_str()));
    const int out = open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600),
              err = open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(out, 1);
    dup2(err, 2);
    execv(arguments[0], arguments.data());
    _exit(127);
  }

  const std::string out_, err_;
  pid_t pid_ = -1;
};

class SeinedTest : public ::testing::Test {
 protected:
  std::string socket() const { return "unix:" + dir_.path + "/seine.sock"; }
  TempDir dir_;
};

// Each is one line on stderr that holds `says`, exit code 2, and nothing on stdout.
TEST_F(SeinedTest, BadConfigurationIsOneClearLine) {
  struct Case {
    std::vector<std::string> flags;
    std::vector<std::string> environment;
    std::string file;  // written to a file and given by --config, unless empty
    std::string says;
  };
  const std::string index =
      "indexes: [{name: a, geometry: {num_layers: 1, num_q_heads: 1, num_kv_heads: 1, head_dim: 64, dtype: float16}";
  const Case cases[] = {
      {{"--bogus"}, {}, "", "--bogus"},
      {{"--threads", "many"}, {}, "", "--threads: 'many'"},
      {{"--threads", "-1"}, {}, "", "--threads"},
      {{"--threads"}, {}, "", "--threads"},
      {{"--workers", "0"}, {}, "", "--workers"},
      {{"--queue-capacity", "0"}, {}, "", "--queue-capacity"},
      {{"--memory-limit", "8GiBs"}, {}, "", "--memory-limit: '8GiBs'"},
      {{"--max-message", "1KiB"}, {}, "", "--max-message: '1KiB'"},
      {{"--max-message", "3GiB"}, {}, "", "--max-message"},
      {{"--grace", "-1"}, {}, "", "--grace"},
      {{"--profiles", "/no/such/folder"}, {}, "", "server.profiles: '/no/such/folder': "},
      {{}, {"SEINE__SERVER__PROFILES=/no/such"}, "", "server.profiles: '/no/such': "},
      {{}, {}, index + ", codec: {profile: absent}}]", "indexes[0].codec.profile: the server has no folder"},
      {{"--backend", "tpu"}, {}, "", "--backend: 'tpu'"},
      {{"--tls-key", "key.pem"}, {}, "", "tls.cert: is missing beside the other settings of TLS"},
      {{"--auth-tokens-file", "/no/such"}, {}, "", "auth.tokens_file: /no/such: "},
      {{"--auth-unix", "uid"}, {}, "", "--auth-unix: 'uid' is none of owner|token"},
      {{}, {"SEINE__AUTH__QUOTAS_FILE=q.yaml"}, "", "auth.quotas_file: needs auth.tokens_file"},
      {{"--audit-file", "/no/such/audit.log"}, {}, "", "audit.file: /no/such/audit.log: No such file"},
      {{"--log-level", "loud"}, {}, "", "--log-level: 'loud'"},
      {{"--log-format", "xml"}, {}, "", "--log-format"},
      {{"--listen", "somewhere"}, {}, "", "--listen: 'somewhere'"},
      {{"--listen", "0.0.0.0:50051"}, {}, "", "is beyond this machine's loopback, which takes TLS and a credential"},
      {{"--listen", "192.168.1.2:50051"},
       {},
       "",
       "is beyond this machine's loopback, which takes TLS and a credential"},
      {{"--config", "/no/such/file"}, {}, "", "/no/such/file: No such file or directory"},
      {{}, {"SEINE__SERVER__TREADS=2"}, "", "SEINE__SERVER__TREADS: unknown key; did you mean SEINE__SERVER__THREADS?"},
      {{"--treads", "2"}, {}, "", "did you mean --threads?"},
      {{}, {"SEINE__SERVER__THREADS=two"}, "", "SEINE__SERVER__THREADS: 'two'"},
      {{}, {"SEINE__NOWHERE=1"}, "", "SEINE__NOWHERE: unknown key"},
      {{}, {}, "server: {treads: 2}", "server.treads: unknown key; did you mean server.threads?"},
      {{}, {}, "sever: {threads: 2}", "sever.threads: unknown key"},
      {{}, {}, "server: 5", "server: expected keys and values"},
      {{}, {}, "nothing: 5", "nothing: unknown key"},
      {{}, {}, "server: {threads: [1]}", "server.threads"},
      {{}, {}, "server: {polling: perhaps}", "server.polling: 'perhaps'"},
      {{}, {}, "just words", "expected sections"},
      {{}, {}, "server: {threads: 2", "seined.yaml:2: "},
      {{}, {}, "indexes: {name: a}", "indexes: expected a list"},
      {{}, {}, index + ", snik: 4}]", "indexes[0].snik: unknown key"},
      {{}, {}, index + ", zones: {snik: 4}}]", "indexes[0].zones.snik: unknown key"},
      {{}, {}, index + ", zones: {sink: four}}]", "indexes[0].zones.sink: expected a number"},
      {{}, {}, index + ", zones: {update_buffer: 65}}]", "indexes[0].zones.update_buffer: 65"},
      {{},
       {},
       index + ", codec: {centre: middle}}]",
       "indexes[0].codec.centre: no such Centre: 'middle'; there are none, global, window"},
      {{}, {}, index + ", retrieval: {top_k: 0}}]", "indexes[0].retrieval.top_k: 0"},
      {{}, {}, "indexes: [{name: a}]", "indexes[0].geometry"},
      {{},
       {},
       index +
           "}, {name: a, geometry: {num_layers: 1, num_q_heads: 1, num_kv_heads: 1, head_dim: 64, dtype: float16}}]",
       "indexes[1].name: a second index"},
  };
  for (const Case& c : cases) {
    std::vector<std::string> flags = c.flags;
    if (!c.file.empty()) {
      std::ofstream(dir_.path + "/seined.yaml") << c.file << "\n";
      flags.insert(flags.end(), {"--config", dir_.path + "/seined.yaml"});
    }
    Process seined(dir_.path, flags, c.environment);
    EXPECT_EQ(seined.Wait(), 2) << c.says;
    const std::string err = seined.err();
    EXPECT_NE(err.find(c.says), std::string::npos) << c.says << "\n got: " << err;
    EXPECT_EQ(Lines(err), 1) << err;
    EXPECT_EQ(seined.out(), "") << c.says;
  }
}

TEST_F(SeinedTest, TooFewOpenFilesAreRefusedWithBothNumbers) {
  const std::string file = dir_.path + "/err";
  const std::string command = std::string("ulimit -n 64; exec " SEINED_PATH " --listen ") + socket() + " 2>" + file;
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_EQ(ReadFile(file), "seined: the system allows 64 open files (ulimit -n), and at least 192 are needed\n");
}

TEST_F(SeinedTest, LaterLayersWinAndCheckConfigPrintsThem) {
  std::ofstream(dir_.path + "/seined.yaml") << "server: {threads: 1, workers: 2, queue_capacity: 3}\n";
  Process seined(dir_.path, {"--config", dir_.path + "/seined.yaml", "--queue-capacity", "30", "--check-config"},
                 {"SEINE__SERVER__WORKERS=20", "SEINE__SERVER__QUEUE_CAPACITY=25"});
  ASSERT_EQ(seined.Wait(), 0) << seined.err();
  const std::string out = seined.out();
  for (const char* line : {"  threads: 1\n", "  workers: 20\n", "  queue_capacity: 30\n", "  max_message: 64MiB\n"}) {
    EXPECT_NE(out.find(line), std::string::npos) << line << out;
  }
}

TEST_F(SeinedTest, HelpTeachesEverySetting) {
  Process seined(dir_.path, {"--help"});
  ASSERT_EQ(seined.Wait(), 0);
  for (const char* text : {"--listen", "--polling", "--memory-limit", "--device-memory-limit", "--check-config",
                           "SEINE__SERVER__MEMORY_LIMIT", "indexes:"}) {
    EXPECT_NE(seined.out().find(text), std::string::npos) << text;
  }
}

TEST_F(SeinedTest, ABackendThatIsNotThereIsOneClearLine) {
  std::string why;
  const bool there = MakeBackend("cuda", 1, &why) != nullptr;
  Process seined(dir_.path, {"--listen", socket(), "--backend", "cuda"});
  if (there) {
    EXPECT_TRUE(seined.WaitForLine("(cuda, "));
  } else {
    EXPECT_EQ(seined.Wait(), 1);
    EXPECT_EQ(seined.err(), "seined: backend: " + why + "\n");
  }
}

TEST_F(SeinedTest, AddressInUseIsOneClearLine) {
  Process first(dir_.path, {"--listen", socket()});
  ASSERT_TRUE(first.WaitForLine("listens on"));
  const TempDir other;
  Process second(other.path, {"--listen", socket()});
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_NE(second.err().find("in use"), std::string::npos) << second.err();
  EXPECT_EQ(Lines(second.err()), 1) << second.err();
  v1::ListIndexesResponse list;
  EXPECT_TRUE(Call(*Stubs(socket()).index, &v1::IndexService::Stub::ListIndexes, v1::ListIndexesRequest(), &list).ok());

  const TempDir third_dir, fourth_dir;
  Process third(third_dir.path, {"--listen", "127.0.0.1:0"});
  ASSERT_TRUE(third.WaitForLine("listens on 127.0.0.1:"));
  const std::string line = third.err();
  const size_t at = line.find("127.0.0.1:");
  const std::string address = line.substr(at, line.find(' ', at) - at);
  Process fourth(fourth_dir.path, {"--listen", address});
  EXPECT_EQ(fourth.Wait(), 1);
  EXPECT_NE(fourth.err().find(address + " is in use"), std::string::npos) << fourth.err();
}

TEST_F(SeinedTest, SocketOfAKilledServerIsReplaced) {
  {
    Process killed(dir_.path, {"--listen", socket()});
    ASSERT_TRUE(killed.WaitForLine("listens on"));
    killed.Signal(SIGKILL);
    EXPECT_EQ(killed.Wait(), -SIGKILL);
  }
  ASSERT_EQ(access((dir_.path + "/seine.sock").c_str(), F_OK), 0);
  Process next(dir_.path, {"--listen", socket()});
  ASSERT_TRUE(next.WaitForLine("listens on")) << next.err();
  v1::ListIndexesResponse list;
  EXPECT_TRUE(Call(*Stubs(socket()).index, &v1::IndexService::Stub::ListIndexes, v1::ListIndexesRequest(), &list).ok());
  next.Signal(SIGINT);
  EXPECT_EQ(next.Wait(), 0);
  EXPECT_NE(access((dir_.path + "/seine.sock").c_str(), F_OK), 0);
}

TEST_F(SeinedTest, LogsAreJsonOnRequestAndIndexesAreThereFromTheStart) {
  std::ofstream(dir_.path + "/seined.yaml") << "indexes: [{name: early, geometry: {num_layers: 1, num_q_heads: 1, "
                                               "num_kv_heads: 1, head_dim: 64, dtype: float16}}]\n";
  Process seined(dir_.path, {"--listen", socket(), "--log-format", "json", "--config", dir_.path + "/seined.yaml"});
  ASSERT_TRUE(seined.WaitForLine("listens on")) << seined.err();
  v1::GetIndexRequest get;
  v1::GetIndexResponse got;
  get.set_name("early");
  EXPECT_TRUE(Call(*Stubs(socket()).index, &v1::IndexService::Stub::GetIndex, get, &got).ok());
  seined.Signal(SIGTERM);
  EXPECT_EQ(seined.Wait(), 0);
  std::istringstream lines(seined.err());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const auto parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(parsed.is_object()) << line;
    EXPECT_EQ(parsed.at("level"), "info");
    EXPECT_FALSE(parsed.at("message").get<std::string>().empty());
  }
  EXPECT_GE(count, 3);
}

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

bool Creates(const Stubs& stubs, const v1::IndexSpec& spec) {
  v1::CreateIndexRequest create;
  v1::CreateIndexResponse created;
  *create.mutable_spec() = spec;
  return Call(*stubs.index, &v1::IndexService::Stub::CreateIndex, create, &created).ok();
}

bool Holds(const Stubs& stubs, const std::string& name) {
  v1::GetIndexRequest get;
  v1::GetIndexResponse got;
  get.set_name(name);
  return Call(*stubs.index, &v1::IndexService::Stub::GetIndex, get, &got).ok();
}

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

TEST_F(SeinedTest, LogsIndexesFailuresRefusalsAndEvictions) {
  for (const bool polling : {false, true}) {
    SCOPED_TRACE(polling);
    std::vector<std::string> flags = {"--listen", socket(), "--threads", "1", "--log-level", "debug"};
    if (polling) flags.push_back("--polling");
    Process seined(dir_.path, flags);
    ASSERT_TRUE(seined.WaitForLine("listens on")) << seined.err();
    const Stubs stubs(socket());
    v1::IndexSpec spec = Spec("own");
    spec.mutable_eviction()->mutable_budget()->set_tokens(100);
    spec.mutable_eviction()->set_interval(50);
    EXPECT_TRUE(Creates(stubs, spec));
    EXPECT_TRUE(seined.WaitForLine("info index own: created; ")) << seined.err();

    v1::CreateSequenceRequest request;
    v1::CreateSequenceResponse response;
    request.set_index("own");
    ASSERT_TRUE(Call(*stubs.sequence, &v1::SequenceService::Stub::CreateSequence, request, &response).ok());
    v1::AppendRequest append;
    v1::AppendResponse appended;
    *append.mutable_item() = Item(response.handle(), 0, 0, 200);
    ASSERT_TRUE(Call(*stubs.retrieval, &v1::RetrievalService::Stub::Append, append, &appended).ok());
    EXPECT_TRUE(seined.WaitForLine("debug index own: evicted ")) << seined.err();
    EXPECT_NE(seined.err().find("tokens by itself, heads together, in "), std::string::npos) << seined.err();

    // By a call: not the index's own doing.
    const int64_t before = Lines(seined.err());
    const auto eviction = v1::EvictionService::NewStub(stubs.channel);
    v1::EvictRequest evict;
    v1::EvictResponse evicted;
    *evict.mutable_handle() = response.handle();
    evict.mutable_scorer()->set_name("keydiff");
    evict.mutable_budget()->set_tokens(20);
    ASSERT_TRUE(Call(*eviction, &v1::EvictionService::Stub::Evict, evict, &evicted).ok());
    EXPECT_GT(evicted.tokens_evicted(), 0);
    EXPECT_TRUE(Holds(stubs, "own"));
    EXPECT_EQ(Lines(seined.err()), before) << seined.err();

    EXPECT_FALSE(Holds(stubs, "nobody"));
    EXPECT_TRUE(seined.WaitForLine("info GetIndex: NOT_FOUND: name: no such index: 'nobody'")) << seined.err();

    v1::IndexSpec tight = Spec("tight");
    tight.set_memory_limit_bytes(16 << 10);
    EXPECT_TRUE(Creates(stubs, tight));
    request.set_index("tight");
    ASSERT_TRUE(Call(*stubs.sequence, &v1::SequenceService::Stub::CreateSequence, request, &response).ok());
    *append.mutable_item() = Item(response.handle(), 0, 0, 512);
    for (int i = 0; i < 100; ++i) {
      EXPECT_FALSE(Call(*stubs.retrieval, &v1::RetrievalService::Stub::Append, append, &appended).ok());
    }
    EXPECT_TRUE(seined.WaitForLine("warning refused Append: RESOURCE_EXHAUSTED: ")) << seined.err();
    int refused = 0;
    const std::string log = seined.err();
    for (size_t at = 0; (at = log.find("refused Append", at)) != std::string::npos; ++at) ++refused;
    EXPECT_LE(refused, 20) << log;  // of 100

    v1::DeleteIndexRequest remove;
    v1::DeleteIndexResponse removed;
    remove.set_name("own");
    ASSERT_TRUE(Call(*stubs.index, &v1::IndexService::Stub::DeleteIndex, remove, &removed).ok());
    EXPECT_TRUE(seined.WaitForLine("info index own: deleted")) << seined.err();
    seined.Signal(SIGTERM);
    EXPECT_EQ(seined.Wait(), 0);
  }
}

TEST(EventLog, LinesOfOneKindAreFewAndSayHowManyWereLeftOut) {
  LineLimit limit;
  const absl::Time start = absl::UnixEpoch();
  int written = 0;
  for (int i = 0; i < 1000; ++i) written += limit.Admit(start).has_value();
  EXPECT_EQ(written, 10);
  EXPECT_FALSE(limit.Admit(start + absl::Milliseconds(900)));
  EXPECT_EQ(limit.Admit(start + absl::Milliseconds(1100)), 991);
  EXPECT_EQ(limit.Admit(start + absl::Seconds(60)), 0);
}

TEST_F(SeinedTest, NamesThatLookLikeSettingsAreWarnedOf) {
  const std::pair<const char*, const char*> cases[] = {
      {"SEINE_SERVER__THREADS=2", "SEINE_SERVER__THREADS is not read; did you mean SEINE__SERVER__THREADS?"},
      {"SEINE_SERVER__TREADS=2", "SEINE_SERVER__TREADS is not read; did you mean SEINE__SERVER__THREADS?"},
      {"SEINE_MEMORY_LIMIT=8GiB", "SEINE_MEMORY_LIMIT is not read; did you mean SEINE__SERVER__MEMORY_LIMIT?"},
      {"SEINED__LOG__LEVEL=debug", "SEINED__LOG__LEVEL is not read; did you mean SEINE__LOG__LEVEL?"},
      {"seine__log__level=debug", "seine__log__level is not read; did you mean SEINE__LOG__LEVEL?"},
      {"SEINE_SERVER__X=1", "SEINE_SERVER__X is not read: names of settings are SEINE__SECTION__KEY"},
  };
  for (const auto& [entry, says] : cases) {
    Process checked(dir_.path, {"--check-config"}, {entry});
    EXPECT_EQ(checked.Wait(), 0);
    EXPECT_EQ(checked.err(), std::string("seined: warning: environment: ") + says + "\n");
  }
  Process quiet(dir_.path, {"--check-config"}, {"SEINE_SERVER=/run/seine.sock", "SEINE_TRACE=x", "SEINE_CUDA=AUTO"});
  EXPECT_EQ(quiet.Wait(), 0);
  EXPECT_EQ(quiet.err(), "");
  Process seined(dir_.path, {"--listen", socket()}, {"SEINE_SERVER__THREADS=2"});
  EXPECT_TRUE(seined.WaitForLine("warning environment: SEINE_SERVER__THREADS is not read")) << seined.err();
}

TEST_F(SeinedTest, AFileTakesEverySpellingOfAValue) {
  for (const char* dtype : {"bf16", "bfloat16", "BFLOAT16", "D_TYPE_BFLOAT16"}) {
    for (const char* scope : {"q_head", "per_q_head"}) {
      std::ofstream(dir_.path + "/seined.yaml")
          << "indexes: [{name: a, geometry: {num_layers: 1, num_q_heads: 1, num_kv_heads: 1, head_dim: 64, dtype: "
          << dtype << "}, retrieval: {scope: " << scope << "}}]\n";
      Process seined(dir_.path, {"--config", dir_.path + "/seined.yaml", "--check-config"});
      EXPECT_EQ(seined.Wait(), 0) << seined.err();
      EXPECT_NE(seined.out().find("dtype: bfloat16"), std::string::npos) << seined.out();
      EXPECT_NE(seined.out().find("scope: per_q_head"), std::string::npos) << seined.out();
    }
  }
}

// What a client saw of a server that was told to end while it was busy.
struct Load {
  std::atomic<int64_t> answered{0};
  std::atomic<int> wrong_ends{0};
  void Ended(const grpc::Status& status) {
    const auto code = status.error_code();
    if (code != grpc::UNAVAILABLE && code != grpc::CANCELLED && code != grpc::OK) ++wrong_ends;
  }
};

void DecodeUntilTheEnd(const Stubs& stubs, v1::SequenceHandle handle, Load* load) {
  grpc::ClientContext context;
  auto stream = stubs.retrieval->Decode(&context);
  v1::DecodeRequest step;
  v1::DecodeResponse response;
  for (int64_t position = 0;; ++position) {
    step.Clear();
    *step.add_appends() = Item(handle, 0, position, 1);
    *step.add_items() = Query(handle, 0);
    if (!stream->Write(step) || !stream->Read(&response)) break;
    if (response.append_status(0).code() != 0) ++load->wrong_ends;
    ++load->answered;
  }
  load->Ended(stream->Finish());
}

void AppendUntilTheEnd(const Stubs& stubs, v1::SequenceHandle handle, Load* load) {
  grpc::Status status;
  for (int64_t position = 0; status.ok(); position += 64) {
    v1::AppendRequest request;
    v1::AppendResponse response;
    *request.mutable_item() = Item(handle, 1, position, 64);
    status = Call(*stubs.retrieval, &v1::RetrievalService::Stub::Append, request, &response);
    if (status.ok()) ++load->answered;
  }
  load->Ended(status);
}

class SeinedLoadTest : public SeinedTest, public ::testing::WithParamInterface<bool> {};

TEST_P(SeinedLoadTest, SigtermUnderLoadEndsWithZero) {
  std::vector<std::string> flags = {"--listen", socket(), "--threads", "1"};
  if (GetParam()) flags.push_back("--polling");
  Process seined(dir_.path, flags);
  ASSERT_TRUE(seined.WaitForLine("listens on")) << seined.err();
  const Stubs stubs(socket());
  v1::CreateIndexRequest create;
  v1::CreateIndexResponse created;
  *create.mutable_spec() = Spec("load");
  ASSERT_TRUE(Call(*stubs.index, &v1::IndexService::Stub::CreateIndex, create, &created).ok());
  Load load;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    v1::CreateSequenceRequest request;
    v1::CreateSequenceResponse response;
    request.set_index("load");
    ASSERT_TRUE(Call(*stubs.sequence, &v1::SequenceService::Stub::CreateSequence, request, &response).ok());
    threads.emplace_back(i % 2 == 0 ? DecodeUntilTheEnd : AppendUntilTheEnd, std::cref(stubs), response.handle(),
                         &load);
  }
  grpc::ClientContext idle_context;
  auto idle = stubs.retrieval->Decode(&idle_context);  // open, and silent: must not hold the end up
  while (load.answered < 100) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const auto begin = std::chrono::steady_clock::now();
  seined.Signal(SIGTERM);
  EXPECT_EQ(seined.Wait(), 0) << seined.err();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8));
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(load.wrong_ends.load(), 0);
  EXPECT_NE(seined.err().find("ended after"), std::string::npos) << seined.err();
}

INSTANTIATE_TEST_SUITE_P(Serving, SeinedLoadTest, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "Polling" : "Default"; });

}  // namespace
}  // namespace seine::test
