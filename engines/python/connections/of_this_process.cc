#include "engines/python/connections/of_this_process.h"

#include <utility>

#include "client/channel/fork.h"

namespace seine::python {
namespace {

class Guarded final : public Connection {
 public:
  explicit Guarded(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}
  ~Guarded() override {
    if (!made_.here()) client::KeepForEver(std::move(connection_));
  }

  const std::string& endpoint() const override { return connection_->endpoint(); }
  absl::Duration timeout() const override { return connection_->timeout(); }

  absl::Status Call(const client::Method& method, const google::protobuf::Message& request,
                    google::protobuf::Message* response, absl::Duration timeout) override {
    const absl::Status here = made_.Check();
    return here.ok() ? connection_->Call(method, request, response, timeout) : here;
  }
  absl::StatusOr<client::AppendTotals> Append(const client::AppendItem& item, absl::Duration timeout) override {
    if (absl::Status here = made_.Check(); !here.ok()) return here;
    return connection_->Append(item, timeout);
  }
  absl::StatusOr<Opened> OpenStream(absl::Duration step_timeout, const std::string& transport) override {
    if (absl::Status here = made_.Check(); !here.ok()) return here;
    return connection_->OpenStream(step_timeout, transport);
  }
  std::optional<DeviceCopies> device_copies() override {
    return made_.here() ? connection_->device_copies() : std::nullopt;
  }
  std::string why_cpu() override { return connection_->why_cpu(); }
  absl::StatusOr<std::string> AddProfile(const std::string& path) override {
    if (absl::Status here = made_.Check(); !here.ok()) return here;
    return connection_->AddProfile(path);
  }

 private:
  const client::MadeHere made_;
  std::shared_ptr<Connection> connection_;
};

}  // namespace

std::shared_ptr<Connection> OfThisProcess(std::shared_ptr<Connection> connection) {
  return std::make_shared<Guarded>(std::move(connection));
}

}  // namespace seine::python
