// The settings of section quality: a part of the table in config.h.
#ifndef SEINE_SERVICE_CONFIG_QUALITY_SETTINGS_H_
#define SEINE_SERVICE_CONFIG_QUALITY_SETTINGS_H_

#include <vector>

#include "service/config/config.h"

namespace seine {

std::vector<Setting> QualitySettings();

}  // namespace seine

#endif  // SEINE_SERVICE_CONFIG_QUALITY_SETTINGS_H_
