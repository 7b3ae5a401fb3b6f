#include "service/page/page.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "seine/v1/sequence_service.pb.h"
#include "service/access/credentials.h"
#include "service/page/assets.h"
#include "service/transport/rpc_methods.h"

namespace seine {
namespace {

namespace pb = google::protobuf;

constexpr char kFirstFile[] = "page.html";  // what /page/ itself is
constexpr char kJson[] = "application/json";
constexpr char kPlain[] = "text/plain; charset=utf-8";
constexpr auto kLongest = std::chrono::seconds(10);  // of a call
constexpr int kUsualPage = 100;                      // sequences, where the request names no number
constexpr size_t kMostBytes = 8 << 20;               // of a message that is answered

// Nothing from elsewhere is loaded or run, and nothing written into the document is.
constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'";

using Headers = std::vector<std::pair<std::string, std::string>>;

Headers Guards() {
  return {{"X-Content-Type-Options", "nosniff"},
          {"X-Frame-Options", "DENY"},
          {"Referrer-Policy", "no-referrer"},
          {"Cross-Origin-Resource-Policy", "same-origin"},
          {"Content-Security-Policy", kPolicy}};
}

// HOST or HOST:PORT of a loopback name; the port may be that of a tunnel.
bool IsLoopback(absl::string_view host) {
  const size_t colon = host.rfind(':');
  if (colon != absl::string_view::npos && !absl::EndsWith(host, "]")) {
    const absl::string_view port = host.substr(colon + 1);
    if (port.empty() || !std::all_of(port.begin(), port.end(), absl::ascii_isdigit)) return false;
    host = host.substr(0, colon);
  }
  if (absl::EqualsIgnoreCase(host, "localhost") || host == "[::1]") return true;
  return absl::StartsWith(host, "127.") &&
         std::all_of(host.begin(), host.end(), [](char c) { return absl::ascii_isdigit(c) || c == '.'; });
}

unsigned CodeOf(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::OUT_OF_RANGE:
      return 400;
    case grpc::StatusCode::UNAUTHENTICATED:
      return 401;
    case grpc::StatusCode::PERMISSION_DENIED:
      return 403;
    case grpc::StatusCode::NOT_FOUND:
      return 404;
    case grpc::StatusCode::FAILED_PRECONDITION:
      return 409;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return 429;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:
      return 503;
    default:
      return 500;
  }
}

HttpReply Failed(const absl::Status& status) {
  pb::Struct error;
  (*error.mutable_fields())["code"].set_string_value(absl::StatusCodeToString(status.code()));
  (*error.mutable_fields())["message"].set_string_value(std::string(status.message()));
  HttpReply reply{CodeOf(static_cast<grpc::StatusCode>(status.code())), kJson, "", Guards()};
  if (!pb::util::MessageToJsonString(error, &reply.body).ok()) reply.body = "{}";
  return reply;
}

std::unique_ptr<pb::Message> NewMessage(const std::string& name) {
  const pb::Descriptor* const type = pb::DescriptorPool::generated_pool()->FindMessageTypeByName("seine.v1." + name);
  if (type == nullptr) return nullptr;
  return std::unique_ptr<pb::Message>(pb::MessageFactory::generated_factory()->GetPrototype(type)->New());
}

}  // namespace

const std::vector<absl::string_view>& PageMethods() {
  static const std::vector<absl::string_view> methods = {
      "GetServerInfo", "GetMetrics",   "ListIndexes",  "GetIndex",         "ListSequences",
      "GetSequence",   "DescribeHead", "DescribeStep", "ListFamilyStates", "ListServers"};
  return methods;
}

Page::Page(OwnCalls* calls) : calls_(calls) {
  for (const PageFile& file : PageFiles()) {
    const Digest digest = Sha256(file.body);
    const absl::string_view bytes(reinterpret_cast<const char*>(digest.data()), 12);
    const char* const kind = absl::EndsWith(file.name, ".css")  ? "css"
                             : absl::EndsWith(file.name, ".js") ? "javascript"
                                                                : "html";
    assets_.push_back({absl::StrCat("/page/", file.name == kFirstFile ? "" : file.name),
                       absl::StrCat("text/", kind, "; charset=utf-8"), file.body,
                       absl::StrCat("\"", absl::BytesToHexString(bytes), "\"")});
  }
}

HttpReply Page::Answer(const HttpRequest& request) const {
  if (!IsLoopback(request.host)) {
    return {403, kPlain, "the header Host names another machine than this one's loopback\n", Guards()};
  }
  const auto asset =
      std::find_if(assets_.begin(), assets_.end(), [&](const Asset& a) { return a.path == request.path; });
  if (asset != assets_.end()) {
    Headers headers = Guards();
    headers.emplace_back("ETag", asset->tag);
    headers.emplace_back("Cache-Control", "no-cache");
    if (request.if_none_match == asset->tag) return {304, "", "", headers};
    return {200, asset->type, asset->body, headers};
  }
  const absl::string_view site = request.fetch_site;
  if (!site.empty() && site != "same-origin" && site != "none") {
    return {403, kPlain, "another site's page asks\n", Guards()};
  }
  absl::string_view method = request.path;
  if (absl::ConsumePrefix(&method, "/page/api/")) return Call(std::string(method), request);
  return {404, kPlain, "there is no such file\n", Guards()};
}

absl::Status Page::Invoke(const std::string& path, const std::string& authorization, const pb::Message& request,
                          pb::Message* response) const {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kLongest);
  if (!authorization.empty()) context.AddMetadata("authorization", authorization);
  const grpc::Slice bytes(request.SerializeAsString());
  grpc::ByteBuffer answer;
  const grpc::Status status = calls_->Unary(path, grpc::ByteBuffer(&bytes, 1), &context, &answer);
  if (!status.ok()) {
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }
  grpc::Slice whole;
  if (!answer.DumpToSingleSlice(&whole).ok() ||
      !response->ParseFromArray(whole.begin(), static_cast<int>(whole.size()))) {
    return absl::InternalError("the answer is no message");
  }
  return absl::OkStatus();
}

HttpReply Page::Call(const std::string& name, const HttpRequest& request) const {
  const std::vector<RpcMethod>& methods = RpcMethods();
  const auto method = std::find_if(methods.begin(), methods.end(), [&](const RpcMethod& m) { return m.name == name; });
  const std::vector<absl::string_view>& served = PageMethods();
  if (method == methods.end() || std::find(served.begin(), served.end(), name) == served.end()) {
    return Failed(absl::NotFoundError("the page has no such call"));
  }
  const std::string& shown = request.authorization;
  if (!std::all_of(shown.begin(), shown.end(), absl::ascii_isprint)) {
    return Failed(absl::UnauthenticatedError("the header Authorization has characters that no credential has"));
  }
  const std::unique_ptr<pb::Message> asked = NewMessage(name + "Request"), answer = NewMessage(name + "Response");
  if (!request.message.empty()) {
    const auto parsed = pb::util::JsonStringToMessage(request.message, asked.get());
    if (!parsed.ok()) {
      return Failed(absl::InvalidArgumentError(absl::StrCat("request: ", std::string(parsed.message()))));
    }
  }
  auto* const list = dynamic_cast<v1::ListSequencesRequest*>(asked.get());
  if (list != nullptr && list->page_size() == 0) list->set_page_size(kUsualPage);
  const std::string path = absl::StrCat("/", method->service, "/", name);
  if (auto s = Invoke(path, shown, *asked, answer.get()); !s.ok()) return Failed(s);
  if (answer->ByteSizeLong() > kMostBytes) {
    return Failed(absl::OutOfRangeError("the answer is larger than a page takes; the command seine has it"));
  }
  pb::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  HttpReply reply{200, kJson, "", Guards()};
  if (!pb::util::MessageToJsonString(*answer, &reply.body, options).ok()) {
    return Failed(absl::InternalError("the answer cannot be written as JSON"));
  }
  return reply;
}

}  // namespace seine
