// The plainest client of HTTP: one request, the whole answer.
#ifndef SEINE_TESTS_SERVICE_METRICS_HTTP_CLIENT_H_
#define SEINE_TESTS_SERVICE_METRICS_HTTP_CLIENT_H_

#include <string>

namespace seine::test {

struct HttpAnswer {
  int code = 0;  // 0: there was none
  std::string headers, body;
};

// A connection to 127.0.0.1:PORT, or -1. The caller closes it.
int HttpConnect(const std::string& address);
// `method` as in "GET"; `path` and `headers`, each with its end of line, as they are to stand in the request.
HttpAnswer Http(const std::string& address, const std::string& method, const std::string& path,
                const std::string& headers = "Host: localhost\r\n");

}  // namespace seine::test

#endif  // SEINE_TESTS_SERVICE_METRICS_HTTP_CLIENT_H_
