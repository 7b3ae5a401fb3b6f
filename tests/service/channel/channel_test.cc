// Same-host channels of a server, in both ways of serving: answers equal gRPC's, tokens, limits, the server's end.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "service/channel_offers.h"
#include "service/under_way/in_flight.h"
#include "tests/service/channel/raw_channel.h"

namespace seine::test {
namespace {

using grpc::StatusCode;

// The bytes of an answer without its time; an error's details in one order, for absl hands them out in any.
std::string Comparable(v1::DecodeResponse answer) {
  answer.clear_server_us();
  const auto sort = [](v1::Status* status) {
    auto& details = *status->mutable_details();
    std::sort(details.begin(), details.end(), [](const auto& a, const auto& b) { return a.type_url() < b.type_url(); });
  };
  if (answer.has_status()) sort(answer.mutable_status());
  for (auto& status : *answer.mutable_append_status()) sort(&status);
  for (auto& item : *answer.mutable_answers()) {
    if (item.has_status()) sort(item.mutable_status());
  }
  for (auto& item : *answer.mutable_attended()) {
    if (item.has_status()) sort(item.mutable_status());
  }
  return answer.SerializeAsString();
}

class ChannelTest : public ServerTest {
 protected:
  static constexpr int kMost = 4;
  ServerOptions Options() const override {
    ServerOptions options = ServerTest::Options();
    options.core.channels = kMost;
    options.core.unread_for = std::chrono::milliseconds(300);
    return options;
  }
  ChannelOffers& channels() { return server_->core().channels; }
  // Whether as many channels are open within a second.
  bool BecomesOpen(int count) {
    for (int i = 0; i < 200 && channels().open() != count; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return channels().open() == count;
  }
};

TEST_P(ChannelTest, AnswersAreThoseOfTheGrpcStream) {
  const auto ours = NewSequence("both"), theirs = NewSequence("both");
  const auto channel = RawChannel::Open(*stubs_);
  ASSERT_NE(channel, nullptr);
  grpc::ClientContext context;
  const auto stream = stubs_->retrieval->Decode(&context);
  v1::DecodeResponse ours_answered, theirs_answered;
  int held = 0;
  for (int i = 0; i < 40; ++i) {
    v1::DecodeRequest step;
    step.set_step(i);
    const auto fill = [&](const v1::SequenceHandle& handle) {
      step.clear_appends();
      step.clear_items();
      *step.add_appends() = Item(handle, 0, i == 30 ? held + 1 : held, 10, i + 1);  // 30: a gap
      *step.mutable_appends(0)->mutable_values() = Halves({10, kKvHeads, kDim}, i + 2);
      *step.add_items() = Query(handle, i % 5 == 4 ? 7 : 0, i + 3);  // 7: no such layer
    };
    if (i % 2 == 1) step.mutable_attention()->set_with_positions(true);
    if (i % 3 == 1) step.mutable_selector()->set_with_scores(true);
    if (i == 20) step.mutable_selector()->set_top_k(-1);  // the whole step is refused
    fill(theirs);
    ASSERT_TRUE(stream->Write(step) && stream->Read(&theirs_answered));
    fill(ours);
    ASSERT_TRUE((i % 4 < 2 ? channel->Send(step) : channel->SendApart(step)) && channel->Read(&ours_answered)) << i;
    EXPECT_EQ(channel->reader().tensors().empty(), i == 20 || i % 5 == 4);  // the answer, unless it is an error
    EXPECT_EQ(ours_answered.has_status(), i == 20);
    if (i != 20 && i != 30) held += 10;
    ASSERT_TRUE(Comparable(ours_answered) == Comparable(theirs_answered))
        << i << ours_answered.ShortDebugString().substr(0, 500) << theirs_answered.ShortDebugString().substr(0, 500);
  }
  ASSERT_TRUE(channel->SendFrame(channel::FrameKind::kEnd, ""));
  EXPECT_TRUE(channel->End().ok());
  EXPECT_TRUE(channel->HangsUp());
  EXPECT_TRUE(BecomesOpen(0));
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_P(ChannelTest, StepsAndAnswersLargerThanTheRing) {
  const auto handle = NewSequence("keys");
  const auto channel = RawChannel::Open(*stubs_, channel::kLeastRing);
  ASSERT_NE(channel, nullptr);
  v1::DecodeRequest step;
  v1::DecodeResponse answer;
  *step.add_appends() = Item(handle, 0, 0, 4096);
  ASSERT_GT(step.ByteSizeLong(), 10u * channel::kLeastRing);
  ASSERT_TRUE(channel->Send(step) && channel->Read(&answer));
  EXPECT_EQ(answer.append_status(0).code(), 0) << answer.append_status(0).message();
  step.Clear();
  for (int i = 0; i < 200; ++i) *step.add_items() = Query(handle, 0, i);
  step.mutable_selector()->set_top_k(500);
  ASSERT_TRUE(channel->Send(step) && channel->Read(&answer));
  EXPECT_GT(answer.ByteSizeLong(), 5u * channel::kLeastRing);
  ASSERT_EQ(answer.answers_size(), 200);
  EXPECT_EQ(answer.answers(199).num_tokens(), 4096);
}

TEST_P(ChannelTest, StepAboveTheMessageLimitEndsItsChannelAlone) {
  const auto other = RawChannel::Open(*stubs_), channel = RawChannel::Open(*stubs_);
  ASSERT_TRUE(other != nullptr && channel != nullptr);
  const channel::FrameHead head = {(64u << 20) + 1, channel::FrameKind::kMessage};
  channel->writer().ring().Put(&head, sizeof(head));
  channel->writer().ring().Publish();
  const absl::Status end = channel->End();
  EXPECT_EQ(end.code(), absl::StatusCode::kResourceExhausted) << end;
  EXPECT_NE(end.message().find("67108864"), absl::string_view::npos) << end;
  v1::DecodeResponse answer;
  EXPECT_TRUE(other->Send({}) && other->Read(&answer));
  EXPECT_TRUE(BecomesOpen(1));
}

TEST_P(ChannelTest, TokensAreGoodForOneConnection) {
  v1::OpenChannelResponse offer;
  ASSERT_TRUE(AskForChannel(*stubs_, 0, &offer).ok());
  EXPECT_EQ(offer.ring_bytes(), channel::kUsualRing);
  struct stat info;
  ASSERT_EQ(stat(offer.path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const int wrong = ConnectTo(offer.path()), right = ConnectTo(offer.path()), again = ConnectTo(offer.path()),
            silent = ConnectTo(offer.path());
  ASSERT_TRUE(wrong >= 0 && right >= 0 && again >= 0 && silent >= 0);
  std::string token = offer.token();
  token[15] = static_cast<char>(token[15] + 1);
  EXPECT_LT(ShowToken(wrong, token), 0);
  EXPECT_EQ(channels().open(), 0);
  const int memory = ShowToken(right, offer.token());
  ASSERT_GE(memory, 0);
  EXPECT_EQ(fcntl(memory, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_NE(ftruncate(memory, 0), 0);
  EXPECT_LT(ShowToken(again, offer.token()), 0);
  char byte;
  EXPECT_EQ(read(silent, &byte, 1), 0);  // closed, some seconds later
  EXPECT_EQ(channels().refused(), 3);
  EXPECT_EQ(channels().opened(), 1);
  EXPECT_EQ(server_->core().in_flight.used_bytes(), static_cast<int64_t>(channel::MemoryBytes(offer.ring_bytes())));
  for (const int fd : {wrong, right, again, silent, memory}) close(fd);
  EXPECT_TRUE(BecomesOpen(0));
  EXPECT_EQ(server_->core().in_flight.used_bytes(), 0);
}

// Needs root, to become another user and to open the socket to it: else only one's own user can be tried, which every
// other test here does.
TEST_P(ChannelTest, AnotherUsersProcessIsTurnedAway) {
  v1::OpenChannelResponse offer;
  ASSERT_TRUE(AskForChannel(*stubs_, 0, &offer).ok());
  if (geteuid() != 0) {
    std::cout << "not root: another user's process was not tried\n";
    return;
  }
  ASSERT_EQ(chmod(dir_.path.c_str(), 0777), 0);
  ASSERT_EQ(chmod(offer.path().c_str(), 0777), 0);
  const std::string token = offer.token(), path = offer.path();
  const pid_t child = fork();
  if (child == 0) {
    if (setuid(65534) != 0) _exit(2);
    const int socket = ConnectTo(path);
    if (socket < 0) _exit(3);
    _exit(ShowToken(socket, token) < 0 ? 0 : 4);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(channels().refused(), 1);
  const int memory = ShowToken(ConnectTo(path), token);  // which nobody has used
  EXPECT_GE(memory, 0);
  close(memory);
}

TEST_P(ChannelTest, NoMoreThanAsManyAsMayBe) {
  std::vector<std::unique_ptr<RawChannel>> open;
  for (int i = 0; i < kMost - 1; ++i) open.push_back(RawChannel::Open(*stubs_));
  v1::OpenChannelResponse offer, refused;
  ASSERT_TRUE(AskForChannel(*stubs_, 0, &offer).ok());  // promised, not yet open
  const grpc::Status status = AskForChannel(*stubs_, 0, &refused);
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_EQ(DetailsOf(status).reason, "TOO_MANY_CHANNELS");
  open.pop_back();
  ASSERT_TRUE(BecomesOpen(kMost - 2));
  EXPECT_NE(RawChannel::Open(*stubs_), nullptr);
}

TEST_P(ChannelTest, RingSizesAreChecked) {
  v1::OpenChannelResponse offer;
  for (const int64_t bytes :
       {int64_t{-1}, int64_t{1}, int64_t{65535}, int64_t{65537}, int64_t{1} << 25, int64_t{1} << 62}) {
    const grpc::Status status = AskForChannel(*stubs_, bytes, &offer);
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << bytes;
    EXPECT_EQ(DetailsOf(status).field, "ring_bytes");
  }
  EXPECT_TRUE(AskForChannel(*stubs_, channel::kMostRing, &offer).ok());
}

TEST_P(ChannelTest, AClientThatDoesNotReadIsCutOff) {
  const auto handle = NewSequence("keys");
  ASSERT_TRUE(Append(Item(handle, 0, 0, 2000)).ok());
  const auto channel = RawChannel::Open(*stubs_, channel::kLeastRing);
  ASSERT_NE(channel, nullptr);
  v1::DecodeRequest step;
  for (int i = 0; i < 200; ++i) *step.add_items() = Query(handle, 0, i);
  step.mutable_selector()->set_top_k(500);
  ASSERT_TRUE(channel->Send(step));
  EXPECT_TRUE(channel->HangsUp(std::chrono::seconds(20)));
  EXPECT_TRUE(BecomesOpen(0));
}

TEST_P(ChannelTest, SilentPeersKeepNobodyOut) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  const std::string path = dir_.path + "/seine.sock.channel";
  path.copy(name.sun_path, sizeof(name.sun_path) - 1);
  std::vector<int> silent;
  for (int i = 0; i < 200; ++i) {
    silent.push_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(silent.back(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0) << i;
    if (i % 50 != 49) continue;
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_NE(RawChannel::Open(*stubs_), nullptr);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1)) << i;
  }
  for (const int peer : silent) close(peer);
}

TEST_P(ChannelTest, ShutdownEndsOpenChannels) {
  const auto handle = NewSequence("keys");
  const auto idle = RawChannel::Open(*stubs_), busy = RawChannel::Open(*stubs_),
             full = RawChannel::Open(*stubs_, channel::kLeastRing);
  ASSERT_TRUE(idle != nullptr && busy != nullptr && full != nullptr);
  ASSERT_TRUE(Append(Item(handle, 0, 0, 2000)).ok());
  v1::DecodeRequest step;
  v1::DecodeResponse answer;
  for (int i = 0; i < 100; ++i) *step.add_items() = Query(handle, 0, i);
  step.mutable_selector()->set_top_k(500);
  ASSERT_TRUE(busy->Send(step));
  ASSERT_TRUE(full->Send(step));  // its answer finds no room
  const int64_t calls = server_->core().calls.load();
  while (server_->core().calls.load() < calls + 2) std::this_thread::yield();
  const auto begin = std::chrono::steady_clock::now();
  std::thread shutdown([&] { server_->Shutdown(absl::Seconds(3)); });
  const absl::Status end = idle->End();
  EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable) << end;
  EXPECT_TRUE(busy->Read(&answer));
  EXPECT_EQ(answer.answers_size(), 100);
  EXPECT_EQ(busy->End().code(), absl::StatusCode::kUnavailable);
  shutdown.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  for (const auto* channel : {&idle, &busy, &full}) EXPECT_TRUE((*channel)->HangsUp());
  EXPECT_EQ(server_->core().in_flight.used_bytes(), 0);
  EXPECT_FALSE(std::filesystem::exists(dir_.path + "/seine.sock.channel"));
}

// A step takes as long as it takes, but not for a client that is gone.
TEST_P(ChannelTest, AStepEndsWithItsClient) {
  const auto handle = NewSequence("keys");
  ASSERT_TRUE(Append(Item(handle, 0, 0, 4000)).ok());
  auto channel = RawChannel::Open(*stubs_);
  ASSERT_NE(channel, nullptr);
  v1::DecodeRequest step;
#ifdef __SANITIZE_ADDRESS__
  constexpr int kItems = 256;  // the same second or two
#else
  constexpr int kItems = 2048;
#endif
  for (int i = 0; i < kItems; ++i) *step.add_items() = Query(handle, 0, i);
  step.mutable_selector()->set_exact(true);
  v1::DecodeResponse answer;
  auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(channel->Send(step) && channel->Read(&answer));
  const auto whole = std::chrono::steady_clock::now() - begin;
  const int64_t errors = server_->core().errors.load();
  ASSERT_TRUE(channel->Send(step));
  begin = std::chrono::steady_clock::now();
  channel = nullptr;
  EXPECT_TRUE(BecomesOpen(0));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, whole / 2);
  EXPECT_GT(server_->core().errors.load(), errors);  // the stream's end counts
}

INSTANTIATE_TEST_SUITE_P(Serving, ChannelTest, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "Polling" : "Default"; });

class SmallServerChannelTest : public ServerTest {
  ServerOptions Options() const override {
    ServerOptions options = ServerTest::Options();
    options.core.max_message_bytes = 64 << 10;  // four of them may be under way
    return options;
  }
};

TEST_P(SmallServerChannelTest, RingsFitWhatMayBeUnderWay) {
  v1::OpenChannelResponse offer;
  const grpc::Status status = AskForChannel(*stubs_, channel::kUsualRing, &offer);
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << status.error_message();
  EXPECT_EQ(DetailsOf(status).field, "ring_bytes");
  const auto channel = RawChannel::Open(*stubs_);
  ASSERT_NE(channel, nullptr);
  EXPECT_EQ(channel->bytes(), channel::MemoryBytes(channel::kLeastRing));
  v1::DecodeResponse answer;
  EXPECT_TRUE(channel->Send({}) && channel->Read(&answer));
}

INSTANTIATE_TEST_SUITE_P(Serving, SmallServerChannelTest, ::testing::Bool());

class NoChannelTest : public ServerTest {
 protected:
  void ExpectNone(const std::string& why) {
    v1::OpenChannelResponse offer;
    const grpc::Status status = AskForChannel(*stubs_, 0, &offer);
    EXPECT_EQ(status.error_code(), StatusCode::FAILED_PRECONDITION);
    EXPECT_NE(status.error_message().find(why), std::string::npos) << status.error_message();
  }
};
class TcpChannelTest : public NoChannelTest {
  ServerOptions Options() const override {
    ServerOptions options = ServerTest::Options();
    options.listen = "127.0.0.1:0";
    return options;
  }
};
class SwitchedOffChannelTest : public NoChannelTest {
  ServerOptions Options() const override {
    ServerOptions options = ServerTest::Options();
    options.core.channels = 0;
    return options;
  }
};
class LongPathChannelTest : public NoChannelTest {
  ServerOptions Options() const override {
    ServerOptions options = ServerTest::Options();
    options.listen += std::string(107 - (options.listen.size() - 5), 'x');  // as long as a path may be
    return options;
  }
};

TEST_P(TcpChannelTest, Refuses) { ExpectNone("TCP"); }
TEST_P(SwitchedOffChannelTest, Refuses) {
  ExpectNone("--channels 0");
  EXPECT_FALSE(std::filesystem::exists(dir_.path + "/seine.sock.channel"));
}
TEST_P(LongPathChannelTest, Refuses) { ExpectNone("at most 107"); }

INSTANTIATE_TEST_SUITE_P(Serving, TcpChannelTest, ::testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Serving, SwitchedOffChannelTest, ::testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Serving, LongPathChannelTest, ::testing::Values(false));

}  // namespace
}  // namespace seine::test
