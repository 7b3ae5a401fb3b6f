#include "service/access/tls_files.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "profile/io/file.h"
#include "service/access/wrong_setting.h"

namespace seine {
namespace {

constexpr uint64_t kMaxPemBytes = 1 << 20;

absl::Status WrongTls(absl::string_view setting, absl::string_view what) {
  return WrongSetting(absl::StrCat("tls.", setting), what);
}

struct FreeOpenSsl {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
template <typename T>
using Owned = std::unique_ptr<T, FreeOpenSsl>;

int NoPassphrase(char*, int, int, void*) { return 0; }  // nobody is asked on a terminal

absl::StatusOr<std::string> ReadPem(absl::string_view setting, const std::string& path) {
  const absl::StatusOr<File> file = File::Open(path);
  absl::StatusOr<std::string> text = file.ok() ? file->ReadAll(kMaxPemBytes) : file.status();
  if (!text.ok()) return WrongTls(setting, text.status().message());
  return text;
}

std::vector<Owned<X509>> Certificates(const std::string& pem) {
  std::vector<Owned<X509>> all;
  const Owned<BIO> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  while (X509* one = PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr)) all.emplace_back(one);
  ERR_clear_error();  // the end of the text is an error to OpenSSL
  return all;
}

absl::Status CheckTime(absl::string_view setting, const std::string& path, const X509& certificate) {
  if (X509_cmp_current_time(X509_get0_notAfter(&certificate)) < 0) return WrongTls(setting, path + ": has expired");
  if (X509_cmp_current_time(X509_get0_notBefore(&certificate)) > 0)
    return WrongTls(setting, path + ": is not valid yet");
  return absl::OkStatus();
}

absl::Status CheckMaterial(const TlsOptions& options, const TlsFiles::Material& material) {
  const std::vector<Owned<X509>> chain = Certificates(material.cert);
  if (chain.empty()) return WrongTls("cert", options.cert + ": holds no certificate in PEM");
  if (auto s = CheckTime("cert", options.cert, *chain[0]); !s.ok()) return s;
  const Owned<BIO> bio(BIO_new_mem_buf(material.key.data(), static_cast<int>(material.key.size())));
  const Owned<EVP_PKEY> key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (key == nullptr) return WrongTls("key", options.key + ": holds no private key in PEM without a passphrase");
  const bool fits = X509_check_private_key(chain[0].get(), key.get()) == 1;
  ERR_clear_error();
  if (!fits) return WrongTls("key", options.key + ": is not the key of tls.cert");
  if (options.client_ca.empty() || !Certificates(material.client_ca).empty()) return absl::OkStatus();
  return WrongTls("client_ca", options.client_ca + ": holds no certificate in PEM");
}

}  // namespace

absl::Status CheckComplete(const TlsOptions& options) {
  if (!options.enabled()) return absl::OkStatus();
  if (options.cert.empty()) return WrongTls("cert", "is missing beside the other settings of TLS");
  if (options.key.empty()) return WrongTls("key", "is missing beside tls.cert");
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<TlsFiles>> TlsFiles::Open(const TlsOptions& options,
                                                         std::function<void(const absl::Status&)> failed) {
  if (auto s = CheckComplete(options); !s.ok()) return s;
  std::shared_ptr<TlsFiles> files(new TlsFiles(options, std::move(failed)));
  if (auto s = files->Reload(); !s.ok()) return s;
  return files;
}

std::string TlsFiles::Signature() const {
  std::string signature;
  for (const std::string* path : {&options_.cert, &options_.key, &options_.client_ca}) {
    struct stat info = {};
    if (path->empty() || stat(path->c_str(), &info) != 0) {
      signature += "-;";
      continue;
    }
    absl::StrAppend(&signature, info.st_dev, ":", info.st_ino, ":", info.st_size, ":", info.st_mtim.tv_sec, ".",
                    info.st_mtim.tv_nsec, ";");
  }
  return signature;
}

absl::Status TlsFiles::ReadLocked() {
  read_ = Signature();  // before the reading: what changes during it is read again
  auto material = std::make_shared<Material>();
  for (const auto& [setting, path, text] :
       {std::tuple{"cert", &options_.cert, &material->cert}, std::tuple{"key", &options_.key, &material->key},
        std::tuple{"client_ca", &options_.client_ca, &material->client_ca}}) {
    if (path->empty()) continue;
    auto read = ReadPem(setting, *path);
    if (!read.ok()) return read.status();
    *text = *std::move(read);
  }
  if (auto s = CheckMaterial(options_, *material); !s.ok()) return s;
  material_ = std::move(material);
  return absl::OkStatus();
}

absl::Status TlsFiles::Reload() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ReadLocked();
}

std::shared_ptr<const TlsFiles::Material> TlsFiles::Current() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (Signature() == read_) return material_;
  const absl::Status status = ReadLocked();
  if (!status.ok()) failed_(status);
  return material_;
}

}  // namespace seine
