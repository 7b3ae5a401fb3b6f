#include "kernels/device/bound_device.h"

#include <string>
#include <utility>

namespace seine::cuda {
namespace {

// The calling thread at `ordinal` and in relaxed capture mode, until it goes out of scope.
class AtOrdinal {
 public:
  AtOrdinal(CurrentDevice* current, int ordinal) : current_(current), ordinal_(ordinal), before_(ordinal) {
    error_ = current_->Get(&before_);
    if (error_ == Device::kNoError && before_ != ordinal_) error_ = current_->Set(ordinal_);
    if (error_ == Device::kNoError) error_ = current_->ExchangeCaptureMode(&mode_);
    relaxed_ = error_ == Device::kNoError;
  }
  AtOrdinal(const AtOrdinal&) = delete;
  ~AtOrdinal() {
    if (relaxed_) current_->ExchangeCaptureMode(&mode_);
    if (before_ != ordinal_) current_->Set(before_);  // it was there before: no error of ours
  }
  Device::Error error() const { return error_; }

 private:
  CurrentDevice* const current_;
  const int ordinal_;
  int before_;
  int mode_ = CurrentDevice::kRelaxed;
  bool relaxed_ = false;
  Device::Error error_;
};

class BoundDevice final : public Device {
 public:
  BoundDevice(std::unique_ptr<Device> device, int ordinal, std::unique_ptr<CurrentDevice> current)
      : device_(std::move(device)), ordinal_(ordinal), current_(std::move(current)) {}
  ~BoundDevice() override {
    const AtOrdinal at(current_.get(), ordinal_);
    device_.reset();
  }

  std::string name() const override { return device_->name(); }
  std::string Describe(Error error) const override { return device_->Describe(error); }
  Error Allocate(size_t bytes, void** out) override { return Call(&Device::Allocate, bytes, out); }
  Error Free(void* data) override { return Call(&Device::Free, data); }
  Error AllocateHost(size_t bytes, void** out) override { return Call(&Device::AllocateHost, bytes, out); }
  Error FreeHost(void* data) override { return Call(&Device::FreeHost, data); }
  Error MakeStream(Stream* out) override { return Call(&Device::MakeStream, out); }
  Error DropStream(Stream stream) override { return Call(&Device::DropStream, stream); }
  bool CanAwait(void* theirs) override {
    const AtOrdinal at(current_.get(), ordinal_);
    if (at.error() != kNoError || !device_->CanAwait(theirs)) return false;
    int ordinal = ordinal_;
    return current_->OfStream(theirs, &ordinal) == kNoError && ordinal == ordinal_;
  }
  bool Holds(const void* theirs) override {
    const AtOrdinal at(current_.get(), ordinal_);
    return at.error() == kNoError && device_->Holds(theirs);
  }
  Error Await(void* theirs, Stream stream) override { return Call(&Device::Await, theirs, stream); }
  Error Finish(Stream stream) override { return Call(&Device::Finish, stream); }
  Error Copy(void* to, const void* from, size_t bytes, Stream stream) override {
    return Call(&Device::Copy, to, from, bytes, stream);
  }
  Error Zero(void* data, size_t bytes, Stream stream) override { return Call(&Device::Zero, data, bytes, stream); }
  Error Launch(const Work& work, Stream stream) override { return Call(&Device::Launch, work, stream); }

 private:
  template <typename... Params, typename... Args>
  Error Call(Error (Device::*method)(Params...), Args&&... args) {
    const AtOrdinal at(current_.get(), ordinal_);
    return at.error() != kNoError ? at.error() : (device_.get()->*method)(std::forward<Args>(args)...);
  }

  std::unique_ptr<Device> device_;
  const int ordinal_;
  const std::unique_ptr<CurrentDevice> current_;
};

}  // namespace

std::unique_ptr<Device> BindDevice(std::unique_ptr<Device> device, int ordinal,
                                   std::unique_ptr<CurrentDevice> current) {
  return std::make_unique<BoundDevice>(std::move(device), ordinal, std::move(current));
}

}  // namespace seine::cuda
