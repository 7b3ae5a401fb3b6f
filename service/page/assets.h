// The files of the page, as they lie in service/page/assets/. CMake writes them into the program.
#ifndef SEINE_SERVICE_PAGE_ASSETS_H_
#define SEINE_SERVICE_PAGE_ASSETS_H_

namespace seine {

extern const char kPageHtml[], kPageCss[], kPageJs[];

}  // namespace seine

#endif  // SEINE_SERVICE_PAGE_ASSETS_H_
