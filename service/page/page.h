// The page of a server in a browser: files that lie in the program, and calls of the wire contract as JSON.
//
//   /page/               page.html; page.css, page.js and what it imports beside it
//   /page/api/METHOD     ?request=JSON: the answer of a call that reads, in protobuf's JSON
//
// A call goes the way of every gRPC call, within the process: it needs the same credential, which it shows in the
// header Authorization, and counts against the same quotas. Names come from clients: nothing of them is ever part of a
// file, and the page writes them as text alone. The header Host must name this machine's loopback, or another site's
// name could be made to lead here; what another site's page sends is refused.
#ifndef SEINE_SERVICE_PAGE_PAGE_H_
#define SEINE_SERVICE_PAGE_PAGE_H_

#include <google/protobuf/message.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "service/metrics/http_message.h"
#include "service/transport/own_calls.h"

namespace seine {

// Methods of the contract that the page may call; none of them changes anything.
const std::vector<absl::string_view>& PageMethods();

// Thread-safe.
class Page {
 public:
  explicit Page(OwnCalls* calls);
  HttpReply Answer(const HttpRequest& request) const;

 private:
  struct Asset {
    std::string path, type, body, tag;  // tag: of its bytes, for If-None-Match
  };
  HttpReply Call(const std::string& method, const HttpRequest& request) const;
  absl::Status Invoke(const std::string& path, const std::string& authorization,
                      const google::protobuf::Message& request, google::protobuf::Message* response) const;

  OwnCalls* const calls_;
  std::vector<Asset> assets_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_PAGE_PAGE_H_
