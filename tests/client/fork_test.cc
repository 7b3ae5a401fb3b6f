// A child of fork with what its parent made: it is told at once, ends nothing, and the parent goes on.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "client/client.h"
#include "tests/client/process.h"
#include "tests/client/random_model.h"

// A child lacks its parent's threads, and what only those hold looks lost there: LeakSanitizer asks here whether to
// look.
static bool is_child = false;
extern "C" int __lsan_is_turned_off() { return is_child; }  // NOLINT(bugprone-reserved-identifier): its name

namespace seine {
namespace {

using client::DecodeAnswer;
using client::DecodeStep;
using client::Transport;
using Clock = std::chrono::steady_clock;

// What `body` says in a child, which then ends by exit(); "" where it says nothing within `seconds`.
std::string InChild(int seconds, const std::function<std::string()>& body) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    is_child = true;
    close(ends[0]);
    const std::string said = body();
    [[maybe_unused]] const ssize_t written = write(ends[1], said.data(), said.size());
    exit(7);
  }
  close(ends[1]);
  int status = 0;
  pid_t ended = 0;
  for (const auto until = Clock::now() + std::chrono::seconds(seconds); ended == 0 && Clock::now() < until;) {
    ended = waitpid(child, &status, WNOHANG);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (ended == 0) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
  }
  char text[4096];
  const ssize_t count = ended == 0 ? 0 : read(ends[0], text, sizeof(text));
  close(ends[0]);
  EXPECT_TRUE(ended == 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 7)) << "status " << status;
  return std::string(text, std::max<ssize_t>(0, count));
}

class ForkTest : public testing::Test {
 protected:
  ForkTest() : client_(server_.Connect()) {
    EXPECT_TRUE(client_->CreateIndex(RandomModel::Spec("m", v1::KV_STORE_KEYS)).ok());
    sequence_ = *client_->CreateSequence("m", "s");
  }
  DecodeStep Step(int64_t position) const {
    DecodeStep step;
    step.appends = {{sequence_, 0, position, model_.Keys(0, position, position + 10), {}}};
    return step;
  }
  Server server_;
  std::unique_ptr<client::Client> client_;
  RandomModel model_{600};
  client::Sequence sequence_;
};

bool Refused(const std::string& said) { return absl::StartsWith(said, "FAILED_PRECONDITION: made before fork: "); }

TEST_F(ForkTest, AClientsCallsAreRefused) {
  const auto refuses = [&](const auto& call) {
    const std::string said = InChild(5, [&] {
      const std::string line = call();
      client_ = nullptr;
      return line;
    });
    EXPECT_TRUE(Refused(said)) << said;
  };
  refuses([&] { return client_->GetSequence(sequence_).status().ToString(); });
  refuses([&] { return client_->DeleteSequence(sequence_).ToString(); });
  refuses([&] { return client_->IsServing("").status().ToString(); });
  refuses([&] { return client_->AppendStream({}).status().ToString(); });
  refuses([&] { return client_->OpenDecodeStream(Transport::kAuto).status().ToString(); });
  refuses([&] { return client_->OpenCall(*client::FindMethod("GetServerInfo"))->Write("{}").ToString(); });
  EXPECT_TRUE(client_->GetSequence(sequence_).ok()) << "the parent's lives";
}

TEST_F(ForkTest, AStreamsStepsAreRefusedAndTheParentsGoOn) {
  int64_t position = 0;
  for (Transport transport : {Transport::kBlocking, Transport::kPolling, Transport::kSharedMemory}) {
    auto stream = *client_->OpenDecodeStream(transport);
    DecodeAnswer answer;
    const auto step = [&] {
      absl::Status status = stream->Write(Step(position));
      if (status.ok()) status = stream->Read(&answer);
      if (status.ok() && !answer.append_status.empty()) status = answer.append_status[0];
      position += 10;
      return status;
    };
    ASSERT_TRUE(step().ok());
    const std::string said = InChild(5, [&] {
      const std::string line = step().ToString() + " " + stream->Finish().ToString();
      stream = nullptr;
      return line;
    });
    EXPECT_TRUE(Refused(said)) << said;
    EXPECT_TRUE(step().ok()) << "transport " << static_cast<int>(transport);
    EXPECT_TRUE(stream->Finish().ok());
  }
}

// What the error advises against must not hang either: a client made in the child.
TEST_F(ForkTest, AClientOfTheChildsOwn) {
  const std::string said = InChild(5, [&] {
    const auto own = server_.Connect();
    return own == nullptr ? std::string("none") : own->GetSequence(sequence_).status().ToString();
  });
  EXPECT_EQ(said, "OK");
}

}  // namespace
}  // namespace seine
