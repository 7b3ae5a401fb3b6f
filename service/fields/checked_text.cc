#include "service/fields/checked_text.h"

#include <cstdint>
#include <fstream>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "index/bytes/files.h"
#include "index/bytes/section_hash.h"

namespace seine {
namespace {

constexpr char kChecksumLine[] = "xxh3=";

}  // namespace

std::string ChecksumOf(absl::string_view text) {
  SectionHash hash(0);
  hash.Add(text.data(), static_cast<int64_t>(text.size()));
  const Hash128 digest = hash.Digest();
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

std::string WithChecksum(absl::string_view body) { return absl::StrCat(body, kChecksumLine, ChecksumOf(body), "\n"); }

bool TakeChecksum(absl::string_view* text) {
  const size_t at = text->rfind(kChecksumLine);
  if (at == absl::string_view::npos) return false;
  const absl::string_view whole = *text;
  *text = whole.substr(0, at);
  return whole == WithChecksum(*text);
}

std::optional<std::string> ReadTextFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

absl::Status WriteTextFile(const std::string& path, const std::string& text, FileOps* files) {
  const auto write = [&](ByteSink* sink) {
    return sink->Write(reinterpret_cast<const uint8_t*>(text.data()), static_cast<int64_t>(text.size()));
  };
  return WriteFile(path, write, files);
}

}  // namespace seine
