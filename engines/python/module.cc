// seine_kv._native: the classes that _native.pyi describes. The GIL is released while Seine works.
#include <google/protobuf/message.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "client/channel/deadline.h"
#include "engines/python/connections/connection.h"
#include "engines/python/connections/of_this_process.h"
#include "engines/python/paged/paged.h"
#include "engines/python/profile.h"
#include "engines/python/prompt.h"
#include "engines/python/step.h"
#include "engines/python/tensor_file.h"
#include "engines/python/values/arrays.h"
#include "engines/python/values/errors.h"
#include "engines/python/values/message_dict.h"

namespace seine::python {
namespace {

absl::Duration DurationOf(std::optional<double> seconds, absl::Duration otherwise) {
  if (!seconds) return otherwise;
  if (!(*seconds > 0)) throw nb::value_error(absl::StrCat("timeout: must be above 0 s, not ", *seconds).c_str());
  return client::WithoutEndIfHuge(absl::Seconds(*seconds));
}

std::unique_ptr<google::protobuf::Message> NewMessage(const google::protobuf::Descriptor& type) {
  const auto* prototype = google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type);
  return std::unique_ptr<google::protobuf::Message>(prototype->New());
}

ArrayView::Where WhereOf(bool takes_device) { return takes_device ? ArrayView::Where::kAny : ArrayView::Where::kHost; }

// One thread's at a time: another that comes meanwhile is told, rather than let in.
class Stream {
 public:
  Stream(absl::StatusOr<Connection::Opened> opened) : wrong_(opened.status()) {  // NOLINT
    if (opened.ok()) opened_ = *std::move(opened);
  }
  ~Stream() {
    const nb::gil_scoped_release release;  // ending a stream may wait for its server
    opened_.stream = nullptr;
  }

  const std::string& transport() const { return opened_.transport; }
  std::string fallback() const { return opened_.stream == nullptr ? "" : opened_.stream->fallback(); }

  nb::tuple Step(nb::handle appends, nb::handle items, nb::handle selector, nb::handle attention) {
    const Use use(*this);
    const absl::Cleanup let_go = [this] { prepared_.arrays.clear(); };
    PrepareStep(appends, items, WhereOf(opened_.takes_device), &prepared_);
    settings_.Set(selector, attention, &prepared_.step);
    RaiseIfWrong(wrong_);
    ++prepared_.step.step;
    {
      const nb::gil_scoped_release release;
      wrong_ = opened_.stream->Write(prepared_.step);
      if (wrong_.ok()) wrong_ = opened_.stream->Read(&answer_);
    }
    RaiseIfWrong(wrong_);
    const std::optional<v1::Attention>& asked = prepared_.step.attention;
    return StepResult(&answer_, asked.has_value() && asked->with_positions());
  }

  void Close(bool cancel) {
    const Use use(*this);
    if (opened_.stream == nullptr) return;
    absl::Status ended;
    {
      const nb::gil_scoped_release release;
      if (!cancel) ended = opened_.stream->Finish();
      opened_.stream = nullptr;
    }
    const bool broken = !wrong_.ok();  // which has been raised already
    wrong_ = absl::UnavailableError("the stream is closed");
    if (!broken) RaiseIfWrong(ended);
  }

 private:
  class Use {
   public:
    explicit Use(Stream& stream) : stream_(stream) {
      if (stream_.in_use_.test_and_set()) throw std::runtime_error("the stream is in use by another thread");
    }
    Use(const Use&) = delete;
    ~Use() { stream_.in_use_.clear(); }

   private:
    Stream& stream_;
  };

  Connection::Opened opened_;
  absl::Status wrong_;  // why no step can be taken any more
  // Used again by every step; its arrays are let go when a step ends.
  PreparedStep prepared_;
  StepSettings settings_;
  client::DecodeAnswer answer_;
  std::atomic_flag in_use_;
};

// A connection, ended without the GIL: its threads are waited for.
class Holder {
 public:
  explicit Holder(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}
  ~Holder() {
    const nb::gil_scoped_release release;
    connection_ = nullptr;
  }
  Connection& operator*() const { return *connection_; }
  Connection* operator->() const { return connection_.get(); }

 private:
  std::shared_ptr<Connection> connection_;
};

std::unique_ptr<Holder> Held(absl::StatusOr<std::shared_ptr<Connection>> opened) {
  RaiseIfWrong(opened.status());
  return std::make_unique<Holder>(OfThisProcess(*std::move(opened)));
}

// A path, a list of them, or nothing.
std::vector<std::string> PathsOf(nb::handle profiles) {
  const nb::object fspath = nb::module_::import_("os").attr("fspath");
  std::vector<std::string> paths;
  if (profiles.is_none()) return paths;
  if (nb::isinstance<nb::list>(profiles) || nb::isinstance<nb::tuple>(profiles)) {
    for (nb::handle path : nb::iter(profiles)) paths.push_back(nb::cast<std::string>(fspath(path)));
    return paths;
  }
  std::string path = nb::cast<std::string>(fspath(profiles));
  if (!path.empty()) paths.push_back(std::move(path));
  return paths;
}

std::unique_ptr<Holder> OpenHere(int threads, const std::string& backend, int64_t memory_limit_bytes,
                                 nb::handle profiles) {
  if (threads < 0) throw nb::value_error(absl::StrCat("threads: must be 0 or more, not ", threads).c_str());
  if (memory_limit_bytes < 0) {
    throw nb::value_error(absl::StrCat("memory_limit_bytes: must be 0 or more, not ", memory_limit_bytes).c_str());
  }
  const InProcessOptions options{threads, backend, memory_limit_bytes, PathsOf(profiles)};
  return Held([&] {
    const nb::gil_scoped_release release;
    return OpenInProcess(options);
  }());
}

std::unique_ptr<Holder> OpenServer(const std::string& endpoint, std::optional<double> timeout,
                                   const std::string& tls_ca, const std::string& tls_cert, const std::string& tls_key,
                                   const std::string& token, const std::string& token_file) {
  const client::Security security{tls_ca, tls_cert, tls_key, token, token_file};
  auto opened = OpenRemote(endpoint, DurationOf(timeout, absl::InfiniteDuration()), security);
  if (absl::IsInvalidArgument(opened.status())) throw nb::value_error(std::string(opened.status().message()).c_str());
  return Held(std::move(opened));
}

nb::dict Call(const Holder& connection, const std::string& name, nb::handle request, std::optional<double> timeout) {
  const auto method = client::FindMethod(name);
  if (!method.ok()) throw nb::value_error(std::string(method.status().message()).c_str());
  if (method->streams_responses) {
    throw nb::value_error(absl::StrCat(name, ": is a stream of answers; open_stream opens one").c_str());
  }
  const auto& pool = *google::protobuf::DescriptorPool::generated_pool();
  const auto in = NewMessage(*pool.FindMessageTypeByName(method->request));
  const auto out = NewMessage(*pool.FindMessageTypeByName(method->response));
  FillMessage(request, "", "request", in.get());
  const absl::Duration time = DurationOf(timeout, connection->timeout());
  absl::Status status;
  {
    const nb::gil_scoped_release release;
    status = connection->Call(*method, *in, out.get(), time);
  }
  RaiseIfWrong(status);
  return DictOf(*out);
}

nb::tuple Append(const Holder& connection, const std::string& index, const std::string& id, uint64_t generation,
                 int layer, int64_t position, nb::handle keys, nb::handle values, nb::handle queries, nb::handle report,
                 std::optional<double> timeout) {
  std::vector<ArrayView> arrays;
  const client::AppendItem item = CheckedAppend({index, id, generation}, layer, position, keys, values, queries, report,
                                                WhereOf(connection->device_copies().has_value()), &arrays);
  const absl::Duration time = DurationOf(timeout, connection->timeout());
  absl::StatusOr<client::AppendTotals> totals;
  {
    const nb::gil_scoped_release release;
    totals = connection->Append(item, time);
  }
  RaiseIfWrong(totals.status());
  nb::object retained = nb::none();
  for (client::LayerRetained& one : totals->retained) retained = RetainedDict(std::move(one.retained));
  return nb::make_tuple(totals->tokens, retained);
}

// A server that is not there is said by the first step, as by the first call.
std::unique_ptr<Stream> OpenStream(const Holder& connection, std::optional<double> timeout,
                                   const std::string& transport) {
  const absl::Duration time = DurationOf(timeout, absl::InfiniteDuration());
  absl::StatusOr<Connection::Opened> opened;
  {
    const nb::gil_scoped_release release;
    opened = connection->OpenStream(time, transport);
  }
  if (absl::IsInvalidArgument(opened.status())) throw nb::value_error(std::string(opened.status().message()).c_str());
  return std::make_unique<Stream>(std::move(opened));
}

std::string AddProfile(const Holder& connection, nb::handle path) {
  const std::vector<std::string> paths = PathsOf(path);
  if (paths.size() != 1) throw nb::value_error("path: must be that of one file");
  const auto name = connection->AddProfile(paths[0]);
  RaiseIfWrong(name.status());
  return *name;
}

nb::object DeviceCopies(const Holder& connection) {
  const auto copies = connection->device_copies();
  return copies ? nb::object(nb::make_tuple(copies->to_device, copies->to_host)) : nb::none();
}

const google::protobuf::Descriptor& TypeNamed(const std::string& message) {
  const auto* type = google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName("seine.v1." + message);
  if (type == nullptr) throw nb::value_error(absl::StrCat("message: there is no ", message).c_str());
  return *type;
}

nb::dict Checked(const std::string& message, nb::handle settings) {
  const auto checked = NewMessage(TypeNamed(message));
  FillMessage(settings, "", message.c_str(), checked.get());
  return DictOf(*checked);
}

nb::list Methods() {
  nb::list out;
  for (const client::Method& method : client::Methods()) {
    nb::dict entry;
    entry["name"] = method.name;
    entry["request"] = method.request.substr(method.request.rfind('.') + 1);
    entry["response"] = method.response.substr(method.response.rfind('.') + 1);
    entry["streams_requests"] = method.streams_requests;
    entry["streams_responses"] = method.streams_responses;
    out.append(entry);
  }
  return out;
}

NB_MODULE(_native, module) {
  using nb::arg;
  nb::set_leak_warnings(false);  // what lives when the interpreter ends is the system's to free
  module.doc() = "Seine in this process, or a server's; _native.pyi says what everything takes and gives.";
  ImportNumpy();
  ImportMapping();
  MakeNames();
  AddNativeError(module);
  AddPagedClasses(module);
  AddProfileClasses(module);
  AddPromptClasses(module);
  AddTensorFile(module);
  nb::class_<Stream>(module, "Stream")
      .def("step", &Stream::Step, arg("appends"), arg("items"), arg("selector").none(), arg("attention").none())
      .def("close", &Stream::Close, arg("cancel") = false)
      .def_prop_ro("transport", &Stream::transport)
      .def_prop_ro("fallback", &Stream::fallback);
  nb::class_<Holder>(module, "Connection")
      .def_static("in_process", &OpenHere, arg("threads") = 0, arg("backend") = "auto", arg("memory_limit_bytes") = 0,
                  arg("profiles").none() = "")
      .def_static("connect", &OpenServer, arg("endpoint"), arg("timeout").none() = 60.0, arg("tls_ca") = "",
                  arg("tls_cert") = "", arg("tls_key") = "", arg("token") = "", arg("token_file") = "")
      .def_prop_ro("endpoint", [](const Holder& connection) { return connection->endpoint(); })
      .def("call", &Call, arg("method"), arg("request").none() = nb::none(), arg("timeout") = nb::none())
      .def("append", &Append, arg("index"), arg("id"), arg("generation"), arg("layer"), arg("position"), arg("keys"),
           arg("values") = nb::none(), arg("queries") = nb::none(), arg("report") = nb::none(),
           arg("timeout") = nb::none())
      .def("open_stream", &OpenStream, arg("timeout") = nb::none(), arg("transport") = "auto")
      .def("add_profile", &AddProfile, arg("path"))
      .def("device_copies", &DeviceCopies)
      .def("why_cpu", [](const Holder& connection) { return connection->why_cpu(); });
  module.def("version", [] { return SEINE_VERSION; });
  module.def("methods", &Methods);
  module.def(
      "schema", [](const std::string& message) { return SchemaOf(TypeNamed(message)); }, arg("message"));
  module.def("checked", &Checked, arg("message"), arg("settings").none());
}

}  // namespace
}  // namespace seine::python
