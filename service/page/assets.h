// The files of the page, as they lie in service/page/assets/. CMake writes them into the program.
#ifndef SEINE_SERVICE_PAGE_ASSETS_H_
#define SEINE_SERVICE_PAGE_ASSETS_H_

#include <string>
#include <vector>

namespace seine {

struct PageFile {
  std::string name, body;  // "page.css"
};
const std::vector<PageFile>& PageFiles();

}  // namespace seine

#endif  // SEINE_SERVICE_PAGE_ASSETS_H_
