// Certificates that openssl makes for one test, and files that are put in others' places.
#ifndef SEINE_TESTS_CERTIFICATES_H_
#define SEINE_TESTS_CERTIFICATES_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

namespace seine::test {

inline std::string TextOfFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// In place of the file that was there, at once.
inline void ReplaceFile(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new") << text;
  std::filesystem::rename(path + ".new", path);
}

// Certificates and keys NAME.pem and NAME.key in a folder.
class Certificates {
 public:
  explicit Certificates(std::string folder) : folder_(std::move(folder)) {}

  void MakeAuthority(const std::string& name) const {
    Run("openssl req -x509 " + NewKey(name) + " -out " + name + ".pem -days 2");
  }
  // Signed by an authority; `san` as openssl takes it ("DNS:engine.acme"). 0 days: it has expired when this returns.
  void Make(const std::string& name, const std::string& authority, const std::string& san, int days = 1) const {
    std::ofstream(folder_ + "/" + name + ".ext") << "subjectAltName=" << san << "\n";
    Run("openssl req " + NewKey(name) + " -out " + name + ".csr");
    Run("openssl x509 -req -in " + name + ".csr -CA " + authority + ".pem -CAkey " + authority +
        ".key -CAcreateserial -days " + std::to_string(days) + " -extfile " + name + ".ext -out " + name + ".pem");
    if (days == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1200));  // its last second
  }
  std::string pem(const std::string& name) const { return folder_ + "/" + name + ".pem"; }
  std::string key(const std::string& name) const { return folder_ + "/" + name + ".key"; }

 private:
  static std::string NewKey(const std::string& name) {
    return "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout " + name + ".key -subj /CN=" + name;
  }
  void Run(const std::string& command) const {
    const std::string whole = "cd " + folder_ + " && " + command + " >openssl.log 2>&1";
    ASSERT_EQ(std::system(whole.c_str()), 0) << command << "\n" << TextOfFile(folder_ + "/openssl.log");
  }

  const std::string folder_;
};

}  // namespace seine::test

#endif  // SEINE_TESTS_CERTIFICATES_H_
