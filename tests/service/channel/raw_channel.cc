#include "tests/service/channel/raw_channel.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "proto/channel/tensors.h"
#include "proto/channel/wait.h"

namespace seine::test {
namespace {

using Clock = std::chrono::steady_clock;
using channel::FrameKind;
using channel::Progress;

constexpr auto kPatience = std::chrono::seconds(20);

}  // namespace

grpc::Status AskForChannel(const Stubs& stubs, int64_t ring_bytes, v1::OpenChannelResponse* offer) {
  const auto stub = v1::SharedMemoryService::NewStub(stubs.channel);
  v1::OpenChannelRequest request;
  request.set_ring_bytes(ring_bytes);
  return Call(*stub, &v1::SharedMemoryService::Stub::OpenChannel, request, offer);
}

int ConnectTo(const std::string& path) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  memcpy(name.sun_path, path.data(), std::min(path.size(), sizeof(name.sun_path) - 1));
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0) return fd;
  close(fd);
  return -1;
}

int ShowToken(int socket, const std::string& token) {
  send(socket, token.data(), token.size(), MSG_NOSIGNAL);
  char welcome = 0;
  iovec bytes = {&welcome, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1 || CMSG_FIRSTHDR(&message) == nullptr) return -1;
  EXPECT_EQ(welcome, channel::kWelcome);
  int memory = -1;
  memcpy(&memory, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(memory));
  return memory;
}

std::unique_ptr<RawChannel> RawChannel::Open(const Stubs& stubs, int64_t ring_bytes) {
  v1::OpenChannelResponse offer;
  const grpc::Status status = AskForChannel(stubs, ring_bytes, &offer);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return status.ok() ? Open(offer) : nullptr;
}

std::unique_ptr<RawChannel> RawChannel::Open(const v1::OpenChannelResponse& offer) {
  const int socket = ConnectTo(offer.path()), memory = ShowToken(socket, offer.token());
  EXPECT_GE(memory, 0);
  if (memory < 0) return nullptr;
  void* const start =
      mmap(nullptr, channel::MemoryBytes(offer.ring_bytes()), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  close(memory);
  EXPECT_NE(start, MAP_FAILED);
  return std::unique_ptr<RawChannel>(
      new RawChannel(socket, static_cast<uint8_t*>(start), static_cast<uint32_t>(offer.ring_bytes())));
}

RawChannel::RawChannel(int socket, uint8_t* memory, uint32_t ring_bytes)
    : socket_(socket), memory_(memory), ring_bytes_(ring_bytes) {
  uint8_t* const requests = memory_ + channel::kHeaderBytes;
  writer_ = std::make_unique<channel::FrameWriter>(channel::RingWriter(&header().requests, requests, ring_bytes));
  reader_ = std::make_unique<channel::FrameReader>(
      channel::RingReader(&header().answers, requests + ring_bytes, ring_bytes), 64 << 20);
}

RawChannel::~RawChannel() {
  munmap(memory_, bytes());
  close(socket_);
}

bool RawChannel::Send(const v1::DecodeRequest& request) {
  return SendFrame(FrameKind::kMessage, request.SerializeAsString());
}

bool RawChannel::SendApart(v1::DecodeRequest request) {
  std::vector<std::string> held;
  std::vector<std::string_view> views;
  channel::TakeTensors(&request, &held, &views);
  return SendFrame(FrameKind::kMessage, request.SerializeAsString(), views);
}

bool RawChannel::SendFrame(FrameKind kind, const std::string& message, std::span<const std::string_view> tensors) {
  const auto until = Clock::now() + kPatience;
  Progress progress = writer_->Write(kind, message, tensors);
  for (; progress == Progress::kWait && Clock::now() < until; progress = writer_->Continue()) {
    channel::SpinWhileEqual(writer_->ring().word(), writer_->ring().seen(),
                            Clock::now() + std::chrono::milliseconds(1));
    if (HangsUp(std::chrono::milliseconds(0))) return false;
  }
  return progress == Progress::kDone;
}

bool RawChannel::ReadFrame() {
  const auto until = Clock::now() + kPatience;
  for (bool last = false; Clock::now() < until;) {
    const Progress progress = reader_->Read();
    if (progress != Progress::kWait) return progress == Progress::kDone;
    if (last) return false;
    auto& ring = reader_->ring();
    channel::SleepWhileEqual(ring.word(), ring.seen(), ring.sleeps(), std::chrono::milliseconds(2));
    last = HangsUp(std::chrono::milliseconds(0));
  }
  return false;
}

bool RawChannel::Read(v1::DecodeResponse* response) {
  return ReadFrame() && reader_->kind() == FrameKind::kMessage && response->ParseFromString(reader_->message()) &&
         channel::PutTensors(reader_->tensors(), response);
}

absl::Status RawChannel::End() {
  v1::Status status;
  do {
    if (!ReadFrame()) return absl::UnavailableError("no last frame");
  } while (reader_->kind() != FrameKind::kEnd);
  EXPECT_TRUE(status.ParseFromString(reader_->message()));
  return {static_cast<absl::StatusCode>(status.code()), status.message()};
}

bool RawChannel::HangsUp(std::chrono::milliseconds time) const {
  pollfd wait = {socket_, POLLIN | POLLRDHUP, 0};
  return poll(&wait, 1, static_cast<int>(time.count())) > 0;
}

}  // namespace seine::test
