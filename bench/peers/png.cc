#include "bench/report/png.h"

#include <librsvg/rsvg.h>

#include <cmath>
#include <memory>

#ifdef __SANITIZE_ADDRESS__
// fontconfig, which librsvg finds its font by, keeps its caches to the end of the process.
extern "C" const char* __lsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier): the sanitizer's name
extern "C" const char* __lsan_default_suppressions() { return "leak:libfontconfig\n"; }
#endif

namespace seine::bench {
namespace {

constexpr double kPixels = 2;  // for one of the SVG

}  // namespace

bool CanWritePng() { return true; }

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

}  // namespace seine::bench
