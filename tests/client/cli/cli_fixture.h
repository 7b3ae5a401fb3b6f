// `seine` as a person or a script uses it, against a server with an index of a random model and files to read from.
#ifndef SEINE_TESTS_CLIENT_CLI_CLI_FIXTURE_H_
#define SEINE_TESTS_CLIENT_CLI_CLI_FIXTURE_H_

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/client/process.h"
#include "tests/client/random_model.h"

namespace seine {

// One server for all tests: index "m" with sequence "s" of 600 tokens. A test leaves it as it found it.
class CliTest : public testing::Test {
 protected:
  using Json = nlohmann::json;

  static void SetUpTestSuite();
  static void TearDownTestSuite();

  // `line`: arguments with spaces between; % stands for the folder of the test's files.
  static Outcome Seine(const std::string& line, bool with_server = true);
  // What a command that succeeds prints with `-o json`.
  static Json SeineJson(const std::string& line);
  // Nothing on stdout, and one line on stderr that has `part`.
  static void ExpectError(const Outcome& outcome, const std::string& line, int exit_code, const std::string& part);

  static Server* server_;
  static TempFolder* folder_;
  static RandomModel* model_;
};

}  // namespace seine

#endif  // SEINE_TESTS_CLIENT_CLI_CLI_FIXTURE_H_
