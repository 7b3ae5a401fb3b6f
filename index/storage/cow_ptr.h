// Shared ownership that knows when it is the only one: what sequences share until one of them writes.
#ifndef SEINE_INDEX_STORAGE_COW_PTR_H_
#define SEINE_INDEX_STORAGE_COW_PTR_H_

#include <atomic>
#include <utility>

namespace seine {

// A counted pointer. std::shared_ptr would do but for unique(): its use_count() orders nothing, so that a writer which
// sees 1 could still race with the last reads of an owner that has just let go. Here that load acquires. Copies and
// unique() of one CowPtr need outside locking against assignment to it, as with any pointer.
template <typename T>
class CowPtr {
 public:
  CowPtr() = default;
  explicit CowPtr(T value) : node_(new Node{std::move(value)}) {}
  CowPtr(const CowPtr& o) : node_(o.node_) {
    if (node_ != nullptr) node_->owners.fetch_add(1, std::memory_order_relaxed);
  }
  CowPtr(CowPtr&& o) noexcept : node_(std::exchange(o.node_, nullptr)) {}
  CowPtr& operator=(CowPtr o) noexcept {
    std::swap(node_, o.node_);
    return *this;
  }
  ~CowPtr() {
    if (node_ != nullptr && node_->owners.fetch_sub(1, std::memory_order_acq_rel) == 1) delete node_;
  }

  explicit operator bool() const { return node_ != nullptr; }
  const T* operator->() const { return &node_->value; }
  const T& operator*() const { return node_->value; }
  // True where nobody else holds the value, nor can come to: new owners copy from this pointer, under its owner's lock.
  bool unique() const { return node_->owners.load(std::memory_order_acquire) == 1; }
  // Returns how many there are at this moment: others may come and go.
  int owners() const { return node_->owners.load(std::memory_order_relaxed); }

 private:
  struct Node {
    T value;
    std::atomic<int> owners{1};
  };
  Node* node_ = nullptr;
};

}  // namespace seine

#endif  // SEINE_INDEX_STORAGE_COW_PTR_H_
