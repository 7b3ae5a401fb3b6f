// The settings of the idle tier. A part of config.h's table.
#ifndef SEINE_SERVICE_CONFIG_IDLE_SETTINGS_H_
#define SEINE_SERVICE_CONFIG_IDLE_SETTINGS_H_

#include <vector>

#include "service/config/config.h"

namespace seine {

std::vector<Setting> IdleSettings();

}  // namespace seine

#endif  // SEINE_SERVICE_CONFIG_IDLE_SETTINGS_H_
