// What comes out of a completion queue: the end of one operation of gRPC.
#ifndef SEINE_SERVICE_TRANSPORT_EVENT_H_
#define SEINE_SERVICE_TRANSPORT_EVENT_H_

#include <cstdint>

namespace seine {

// What the thread that takes an event may do with it.
enum class ThreadRole : uint8_t {
  kLane,   // work on it itself: others look after its queue if that takes long (decode_lanes.h)
  kFront,  // hand long work on: it looks after what many wait for
};

class Event {
 public:
  // Called once for each operation, on any thread. True: a Decode step has been worked on.
  virtual bool OnEvent(bool ok, ThreadRole role) = 0;
  void* tag() { return this; }  // for gRPC; a queue gives it back

 protected:
  ~Event() = default;
};

// Ends in a method of its owner.
template <typename Owner>
class EventOf final : public Event {
 public:
  using Method = bool (Owner::*)(bool ok, ThreadRole role);
  EventOf(Owner* owner, Method method) : owner_(owner), method_(method) {}
  bool OnEvent(bool ok, ThreadRole role) override { return (owner_->*method_)(ok, role); }

 private:
  Owner* const owner_;
  const Method method_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_EVENT_H_
