#include "bench/report/plot_file.h"

#include <librsvg/rsvg.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#ifdef __SANITIZE_ADDRESS__
// fontconfig, which librsvg finds its font by, keeps its caches to the end of the process.
extern "C" const char* __lsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier): the sanitizer's name
extern "C" const char* __lsan_default_suppressions() { return "leak:libfontconfig\n"; }
#endif

namespace seine::bench {
namespace {

constexpr double kPixels = 2;  // of a PNG, for one of the SVG

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

// What went wrong in rendering; empty: nothing.
std::string WritePng(const std::string& svg, const std::string& path) {
  GError* error = nullptr;
  const auto* bytes = reinterpret_cast<const guint8*>(svg.data());
  const std::unique_ptr<RsvgHandle, void (*)(gpointer)> handle(rsvg_handle_new_from_data(bytes, svg.size(), &error),
                                                               g_object_unref);
  const auto failed = [&error] {
    const std::string what = error != nullptr ? error->message : "out of memory";
    g_clear_error(&error);
    return what;
  };
  if (handle == nullptr) return failed();
  double width = 0, height = 0;
  if (!rsvg_handle_get_intrinsic_size_in_pixels(handle.get(), &width, &height)) return "the drawing has no size";
  const std::unique_ptr<cairo_surface_t, void (*)(cairo_surface_t*)> surface(
      cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(std::lround(width * kPixels)),
                                 static_cast<int>(std::lround(height * kPixels))),
      cairo_surface_destroy);
  const std::unique_ptr<cairo_t, void (*)(cairo_t*)> canvas(cairo_create(surface.get()), cairo_destroy);
  const RsvgRectangle viewport = {0, 0, width * kPixels, height * kPixels};
  if (!rsvg_handle_render_document(handle.get(), canvas.get(), &viewport, &error)) return failed();
  const cairo_status_t written = cairo_surface_write_to_png(surface.get(), path.c_str());
  return written == CAIRO_STATUS_SUCCESS ? "" : cairo_status_to_string(written);
}

}  // namespace

absl::Status CheckPlotPath(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  if (!IsPng(path) && !absl::EndsWithIgnoreCase(path, ".svg")) {
    return absl::InvalidArgumentError(absl::StrCat("--plot: ", path, " ends neither in .svg nor in .png"));
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
