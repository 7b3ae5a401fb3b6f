// The page's files and calls over HTTP: what they answer, to whom, and what they refuse.
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "service/page/assets.h"
#include "service/page/page.h"
#include "service/transport/rpc_methods.h"
#include "tests/service/access/access_fixture.h"
#include "tests/service/fixture.h"
#include "tests/service/metrics/http_client.h"

namespace seine::test {
namespace {

// As a browser writes it in an address.
std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte)) {
      out += c;
    } else {
      constexpr char kDigits[] = "0123456789ABCDEF";
      out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return out;
}

std::string CallPath(const std::string& method, const std::string& request) {
  return "/page/api/" + method + "?request=" + Escaped(request);
}

class PageTest : public ServerTest {
 protected:
  ServerOptions Options() const override {
    ServerOptions options = ServerTest::Options();
    options.metrics_listen = "127.0.0.1:0";
    options.metrics_page = true;
    return options;
  }
  HttpAnswer Get(const std::string& path, const std::string& headers = "Host: localhost\r\n") {
    return Http(server_->core().metrics_address, "GET", path, headers);
  }
  HttpAnswer Ask(const std::string& method, const std::string& request = "") { return Get(CallPath(method, request)); }

  // The same answer by gRPC, which the page's must be in JSON.
  template <typename Request, typename Response, typename Stub>
  void ExpectSame(const std::string& name, Stub& stub,
                  grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                  const std::string& json) {
    Request request;
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(json, &request).ok()) << json;
    Response expected, got;
    ASSERT_TRUE(Call(stub, method, request, &expected).ok()) << name;
    const HttpAnswer answer = Ask(name, json);
    ASSERT_EQ(answer.code, 200) << name << answer.body;
    EXPECT_NE(answer.headers.find("Content-Type: application/json"), std::string::npos);
    EXPECT_NE(answer.headers.find("Cache-Control: no-store"), std::string::npos);
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(answer.body, &got).ok()) << answer.body;
    EXPECT_EQ(got.SerializeAsString(), expected.SerializeAsString()) << name;
  }
};

TEST_P(PageTest, FilesAreGuardedAndKept) {
  for (const auto& [path, type, part] : {std::tuple{"/page/", "text/html", "<main"},
                                         {"/page/page.css", "text/css", "prefers-color-scheme"},
                                         {"/page/page.js", "text/javascript", "import"},
                                         {"/page/layer.js", "text/javascript", "DescribeStep"}}) {
    const HttpAnswer answer = Get(path);
    ASSERT_EQ(answer.code, 200) << path;
    EXPECT_NE(answer.body.find(part), std::string::npos) << path;
    for (const std::string& header :
         {absl::StrCat("Content-Type: ", type), std::string("default-src 'none'"),
          std::string("frame-ancestors 'none'"), std::string("X-Content-Type-Options: nosniff"),
          std::string("X-Frame-Options: DENY"), std::string("Cache-Control: no-cache"),
          std::string("Referrer-Policy: no-referrer")}) {
      EXPECT_NE(answer.headers.find(header), std::string::npos) << path << header;
    }
    const size_t tag = answer.headers.find("ETag: ");
    ASSERT_NE(tag, std::string::npos) << path;
    const std::string value = answer.headers.substr(tag + 6, answer.headers.find('\r', tag) - tag - 6);
    const HttpAnswer again = Get(path, "Host: localhost\r\nIf-None-Match: " + value + "\r\n");
    EXPECT_EQ(again.code, 304) << path;
    EXPECT_EQ(again.body, "");
  }
  size_t bytes = 0;
  for (const PageFile& file : PageFiles())
    bytes += Get("/page/" + (file.name == "page.html" ? "" : file.name)).body.size();
  EXPECT_LT(bytes, 100'000u);
  for (const char* path : {"/", "/page"}) {
    EXPECT_EQ(Get(path).code, 302);
    EXPECT_NE(Get(path).headers.find("Location: /page/\r\n"), std::string::npos);
  }
  EXPECT_EQ(Get("/metrics").code, 200);
}

TEST_P(PageTest, WhatIsNotServedIsNotThere) {
  for (const char* path :
       {"/page/../../etc/passwd", "/page/%2e%2e/%2e%2e/etc/passwd", "/page/..%2fpage.html", "/page//etc/passwd",
        "/page/page.html", "/page/api/", "/page/api/../page.js", "/page/api/Nothing", "/pagex"}) {
    EXPECT_EQ(Get(path).code, 404) << path;
  }
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS"}) {
    EXPECT_GE(Http(server_->core().metrics_address, method, "/page/api/ListIndexes").code, 400) << method;
  }
}

// What changes anything, takes anything in, or computes for as long as is asked, no page may call.
TEST_P(PageTest, CallsOnlyRead) {
  for (const RpcMethod& method : RpcMethods()) {
    const bool served = std::count(PageMethods().begin(), PageMethods().end(), method.name) > 0;
    if (served) {
      EXPECT_FALSE(method.changes || method.pieces) << method.name;
    } else {
      EXPECT_EQ(Ask(method.name, "{}").code, 404) << method.name;
    }
  }
  EXPECT_EQ(PageMethods().size(), 10u);
}

TEST_P(PageTest, AnswersAreTheCallsOwn) {
  const v1::SequenceHandle handle = NewSequence("both", "chat");
  v1::AppendItem item = Item(handle, 0, 0, 300);
  *item.mutable_values() = item.keys();
  ASSERT_TRUE(Append(item).ok());
  v1::RetrieveRequest retrieve;
  v1::RetrieveResponse retrieved;
  *retrieve.add_items() = Query(handle, 0);
  ASSERT_TRUE(Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Retrieve, retrieve, &retrieved).ok());
  const std::string chat = R"("handle":{"index":"both","id":"chat"})";
  ExpectSame("ListIndexes", *stubs_->index, &v1::IndexService::Stub::ListIndexes, "{}");
  ExpectSame("GetIndex", *stubs_->index, &v1::IndexService::Stub::GetIndex, R"({"name":"both"})");
  ExpectSame("ListSequences", *stubs_->sequence, &v1::SequenceService::Stub::ListSequences, R"({"index":"both"})");
  ExpectSame("GetSequence", *stubs_->sequence, &v1::SequenceService::Stub::GetSequence, "{" + chat + "}");
  for (int h = 0; h < kKvHeads; ++h) {
    ExpectSame("DescribeHead", *stubs_->admin, &v1::AdminService::Stub::DescribeHead,
               absl::StrCat("{", chat, R"(,"layer":0,"kv_head":)", h, "}"));
  }
  ExpectSame("DescribeStep", *stubs_->admin, &v1::AdminService::Stub::DescribeStep, "{" + chat + R"(,"layer":0})");
  ExpectSame("ListFamilyStates", *stubs_->admin, &v1::AdminService::Stub::ListFamilyStates, R"({"index":"both"})");
  EXPECT_NE(Ask("GetServerInfo").body.find("\"num_sequences\":\"1\""), std::string::npos) << Ask("GetServerInfo").body;
  EXPECT_NE(Ask("GetMetrics").body.find("\"name\":\"both\""), std::string::npos);
}

TEST_P(PageTest, ErrorsAreJson) {
  const auto expect = [&](const HttpAnswer& answer, int code, const std::string& part) {
    EXPECT_EQ(answer.code, code) << answer.body;
    EXPECT_NE(answer.body.find(part), std::string::npos) << answer.body;
    EXPECT_NE(answer.headers.find("application/json"), std::string::npos);
  };
  expect(Ask("GetIndex", R"({"name":"<script>"})"), 404, "NOT_FOUND");
  expect(Ask("GetIndex", "{"), 400, "INVALID_ARGUMENT");
  expect(Ask("GetIndex", R"({"nam":"x"})"), 400, "nam");
  expect(Ask("GetIndex", std::string(1000, '[')), 400, "INVALID_ARGUMENT");
  expect(Ask("ListSequences", R"({"index":"both","page_size":-1})"), 400, "page_size");
  const v1::SequenceHandle handle = NewSequence("both", "chat");
  expect(Ask("DescribeStep", R"({"handle":{"index":"both","id":"chat"},"layer":0})"), 409, "FAILED_PRECONDITION");
  expect(Ask("DescribeStep", R"({"handle":{"index":"both","id":"chat"},"layer":99})"), 400, "layer");
  expect(Get("/page/api/ListIndexes", "Host: localhost\r\nAuthorization: Bearer \x01\xff\r\n"), 401, "UNAUTHENTICATED");
}

TEST_P(PageTest, ListsComeInPages) {
  for (int i = 0; i < 120; ++i) NewSequence("both", absl::StrCat("s", 100 + i));
  const auto list = [&](const std::string& request) {
    v1::ListSequencesResponse response;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(Ask("ListSequences", request).body, &response).ok());
    return response;
  };
  const v1::ListSequencesResponse first = list(R"({"index":"both"})");
  EXPECT_EQ(first.sequences_size(), 100);
  EXPECT_EQ(list(absl::StrCat(R"({"index":"both","page_token":")", first.next_page_token(), "\"}")).sequences_size(),
            20);
}

// A name of another site that leads to this machine: the browser takes what comes for that site's own.
TEST_P(PageTest, OtherNamesAndOtherSitesAreRefused) {
  for (const char* host :
       {"evil.example", "evil.example:9464", "localhost.evil.example", "127.0.0.1.evil.example", "127.evil",
        "localhost:80:80", "localhost:", "localhost:x", "[::2]", "10.0.0.1", "0.0.0.0"}) {
    for (const char* path : {"/page/", "/page/page.js", "/page/api/ListIndexes"}) {
      EXPECT_EQ(Get(path, absl::StrCat("Host: ", host, "\r\n")).code, 403) << host << path;
    }
  }
  EXPECT_NE(Get("/page/", "").code, 200) << "no Host";
  for (const char* host :
       {"localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:9464", "127.1.2.3", "[::1]", "[::1]:80"}) {
    EXPECT_EQ(Get("/page/api/ListIndexes", absl::StrCat("Host: ", host, "\r\n")).code, 200) << host;
  }
  for (const char* site : {"cross-site", "same-site", "other"}) {
    EXPECT_EQ(Get("/page/api/ListIndexes", absl::StrCat("Host: localhost\r\nSec-Fetch-Site: ", site, "\r\n")).code,
              403);
  }
  for (const char* site : {"same-origin", "none"}) {
    EXPECT_EQ(Get("/page/api/ListIndexes", absl::StrCat("Host: localhost\r\nSec-Fetch-Site: ", site, "\r\n")).code,
              200);
  }
  const HttpAnswer answer = Get("/page/api/ListIndexes");
  EXPECT_EQ(answer.headers.find("Access-Control-Allow"), std::string::npos);
  EXPECT_EQ(answer.headers.find("Set-Cookie"), std::string::npos);
}

// Many at once, some of whom leave: probes answer, and the server ends in time.
TEST_P(PageTest, ManyAskersHoldNobodyUp) {
  const std::string address = server_->core().metrics_address;
  std::vector<int> open;
  for (int i = 0; i < 100; ++i) {
    open.push_back(HttpConnect(address));
    ASSERT_GE(open.back(), 0);
    const std::string request = "GET /page/api/ListIndexes HTTP/1.1\r\nHost: localhost\r\n\r\n";
    ASSERT_GE(send(open.back(), request.data(), request.size(), MSG_NOSIGNAL), 0);
    if (i % 3 == 0) {
      close(open.back());
      open.pop_back();
    }
    if (i % 20 != 0) continue;
    const auto began = std::chrono::steady_clock::now();
    EXPECT_EQ(Get("/livez").code, 200);
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(500));
  }
  const auto began = std::chrono::steady_clock::now();
  server_->Shutdown(absl::ZeroDuration());
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(2500));
  for (const int fd : open) close(fd);
}

INSTANTIATE_TEST_SUITE_P(Ways, PageTest, ::testing::Bool(),
                         [](const auto& polls) { return polls.param ? "Polling" : "Default"; });

class PageAccessTest : public AccessTest {
 protected:
  void Change(ServerOptions* options) override {
    options->metrics_listen = "127.0.0.1:0";
    options->metrics_page = true;
  }
  HttpAnswer Ask(const std::string& method, const std::string& request, const std::string& token) {
    const std::string shown = token.empty() ? "" : "Authorization: Bearer " + token + "\r\n";
    return Http(server_->core().metrics_address, "GET", CallPath(method, request), "Host: localhost\r\n" + shown);
  }
};

TEST_F(PageAccessTest, NobodySeesAnothersNames) {
  const CallerStubs acme = As("acme"), beta = As("beta");
  v1::SequenceHandle secret;
  ASSERT_TRUE(acme.CreateIndex("secret-index").ok());
  ASSERT_TRUE(acme.CreateSequence("secret-index", "secret-chat", &secret).ok());
  ASSERT_TRUE(acme.Append(secret, 0, 300, 1).ok());
  ASSERT_TRUE(beta.CreateIndex("own").ok());
  EXPECT_EQ(Http(server_->core().metrics_address, "GET", "/page/").code, 200) << "the files need no credential";
  const std::string handle = R"({"handle":{"index":"secret-index","id":"secret-chat"}})";
  const std::pair<const char*, std::string> asked[] = {{"GetServerInfo", ""},
                                                       {"GetMetrics", ""},
                                                       {"ListIndexes", ""},
                                                       {"GetIndex", R"({"name":"secret-index"})"},
                                                       {"ListSequences", R"({"index":"secret-index"})"},
                                                       {"GetSequence", handle},
                                                       {"DescribeHead", handle},
                                                       {"DescribeStep", handle},
                                                       {"ListFamilyStates", R"({"index":"secret-index"})"}};
  ASSERT_EQ(std::size(asked) + 1, PageMethods().size());
  for (const auto& [method, request] : asked) {
    for (const std::string token : {"", "nobody", "acme\" \"x"}) {
      const HttpAnswer refused = Ask(method, request, token);
      EXPECT_EQ(refused.code, 401) << method << token;
      EXPECT_EQ(refused.body.find("secret"), std::string::npos) << refused.body;
    }
    const HttpAnswer others = Ask(method, request, "beta");
    EXPECT_EQ(others.code, request.empty() ? 200 : 404) << method << others.body;
    if (request.empty()) {
      EXPECT_EQ(others.body.find("secret"), std::string::npos) << others.body;
    }
    const HttpAnswer own = Ask(method, request, "acme");
    EXPECT_EQ(own.code, std::string(method) == "DescribeStep" ? 409 : 200) << method << own.body;
  }
  // A credential in the address would stand in histories and logs: it is none.
  for (const char* query : {"token=acme", "authorization=Bearer%20acme", "access_token=acme"}) {
    const std::string path = absl::StrCat(CallPath("ListIndexes", "{}"), "&", query);
    EXPECT_EQ(Http(server_->core().metrics_address, "GET", path).code, 401) << query;
  }
  EXPECT_EQ(Ask("ListServers", "", "").code, 401);
  EXPECT_EQ(Ask("ListServers", "", "acme").code, 403) << "a fleet is the server's own tenant's";
  // The page asks for no more than its credential's role has: GetMetrics is an admin's.
  EXPECT_EQ(Ask("GetMetrics", "", "acme-reader").code, 403);
  EXPECT_EQ(Ask("ListIndexes", "", "acme-reader").code, 200);
}

// Names come from clients: the script writes none of them as markup, keeps nothing, and asks nobody else.
TEST(PageScript, WritesTextAlone) {
  std::string script;
  for (const PageFile& file : PageFiles()) {
    if (absl::EndsWith(file.name, ".js")) absl::StrAppend(&script, file.body);
  }
  EXPECT_GT(script.size(), 10'000u);
  for (const char* never : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(",
                            "localStorage", "sessionStorage", "cookie", "https://", "//cdn"}) {
    EXPECT_EQ(script.find(never), std::string::npos) << never;
  }
}

}  // namespace
}  // namespace seine::test
