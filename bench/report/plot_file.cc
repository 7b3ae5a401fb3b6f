#include "bench/report/plot_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "bench/report/png.h"

namespace seine::bench {
namespace {

std::string PartialOf(const std::string& path) { return path + ".partial"; }

bool IsPng(const std::string& path) { return absl::EndsWithIgnoreCase(path, ".png"); }

absl::Status CannotWrite(const std::string& path, const char* why) {
  return absl::InvalidArgumentError(absl::StrCat("--plot: cannot write ", path, ": ", why));
}

bool WriteText(const std::string& text, const std::string& path) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  return static_cast<bool>(out);
}

}  // namespace

absl::Status CheckPlotPath(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  if (!IsPng(path) && !absl::EndsWithIgnoreCase(path, ".svg")) {
    return absl::InvalidArgumentError(absl::StrCat("--plot: ", path, " ends neither in .svg nor in .png"));
  }
  if (IsPng(path) && !CanWritePng()) {
    return absl::InvalidArgumentError(absl::StrCat("--plot: ", path, ": this build draws .svg alone"));
  }
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return CannotWrite(path, std::strerror(EISDIR));
  std::FILE* tried = std::fopen(PartialOf(path).c_str(), "wb");
  if (tried == nullptr) return CannotWrite(path, std::strerror(errno));
  std::fclose(tried);
  std::remove(PartialOf(path).c_str());
  return absl::OkStatus();
}

absl::Status WritePlot(const Plot& plot, const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  if (absl::Status s = CheckPlotPath(path); !s.ok()) return s;
  const std::string partial = PartialOf(path), svg = RenderSvg(plot);
  std::string wrong;
  if (IsPng(path)) {
    wrong = WritePng(svg, partial);
  } else if (!WriteText(svg, partial)) {
    wrong = std::strerror(errno);
  }
  if (wrong.empty() && std::rename(partial.c_str(), path.c_str()) != 0) wrong = std::strerror(errno);
  if (wrong.empty()) return absl::OkStatus();
  std::remove(partial.c_str());
  return absl::UnavailableError(absl::StrCat("--plot: cannot write ", path, ": ", wrong));
}

}  // namespace seine::bench
