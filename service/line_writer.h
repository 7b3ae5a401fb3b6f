// Whole lines into a file that may take part of one only, as on a full disk: after a line that was cut the next one
// begins on a line of its own.
#ifndef SEINE_SERVICE_LINE_WRITER_H_
#define SEINE_SERVICE_LINE_WRITER_H_

#include "absl/strings/string_view.h"

namespace seine {

// Not thread-safe. The descriptor stays its owner's.
class LineWriter {
 public:
  // `cut`: what is in the file ends within a line.
  explicit LineWriter(int fd, bool cut = false) : fd_(fd), cut_(cut) {}

  // `line` ends with '\n'. Waits where the file does, also where it is not to be waited for (O_NONBLOCK). False: some
  // of the line or all of it is lost, and errno says why.
  bool Write(absl::string_view line);

 private:
  bool WriteAll(absl::string_view bytes);

  int fd_;
  bool cut_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_LINE_WRITER_H_
