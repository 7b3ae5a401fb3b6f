// A request to the HTTP listener, as far as anything looks at it, and its answer.
#ifndef SEINE_SERVICE_METRICS_HTTP_MESSAGE_H_
#define SEINE_SERVICE_METRICS_HTTP_MESSAGE_H_

#include <string>
#include <utility>
#include <vector>

namespace seine {

struct HttpRequest {
  std::string path;
  std::string message;  // the argument "request" of the query, decoded
  std::string host;     // headers; empty: not given
  std::string authorization;
  std::string fetch_site;  // Sec-Fetch-Site: where a browser's request comes from
  std::string if_none_match;
};

struct HttpReply {
  unsigned code = 200;
  std::string type;
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};  // besides those of every answer
};

}  // namespace seine

#endif  // SEINE_SERVICE_METRICS_HTTP_MESSAGE_H_
