// How long work makes way for short: it is asked between its pieces, where it looks at its StopToken (stop.h) as well.
//
//   const YieldScope scope(&yielder);
//   index->Evict(...);   // waits now and then, while the yielder says so
//
// The scope makes a yielder current on its thread. Threads of the pool that help leave the work alone while it is held.
#ifndef SEINE_KERNELS_YIELD_H_
#define SEINE_KERNELS_YIELD_H_

namespace seine {

class Yielder {
 public:
  // Whether the work is to make way now. Any thread may ask.
  virtual bool held() const = 0;
  // Waits while it is to, for a bounded time. On the work's own thread. True: it waited.
  virtual bool Yield() = 0;

 protected:
  ~Yielder() = default;
};

// The current yielder of this thread; nullptr: what it does makes way for nothing.
inline thread_local constinit Yielder* current_yielder = nullptr;

class YieldScope {
 public:
  explicit YieldScope(Yielder* yielder) : outer_(current_yielder) { current_yielder = yielder; }
  YieldScope(const YieldScope&) = delete;
  YieldScope& operator=(const YieldScope&) = delete;
  ~YieldScope() { current_yielder = outer_; }

 private:
  Yielder* const outer_;
};

}  // namespace seine

#endif  // SEINE_KERNELS_YIELD_H_
