#include "service/metrics/build_info.h"

namespace seine {

const char* BuildVersion() { return SEINE_VERSION; }
const char* BuildCommit() { return SEINE_COMMIT; }

}  // namespace seine
