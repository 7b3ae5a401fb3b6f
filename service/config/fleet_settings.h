// Settings of fleet.*; a part of config.h's table.
#ifndef SEINE_SERVICE_CONFIG_FLEET_SETTINGS_H_
#define SEINE_SERVICE_CONFIG_FLEET_SETTINGS_H_

#include <vector>

#include "service/config/config.h"

namespace seine {

std::vector<Setting> FleetSettings();

}  // namespace seine

#endif  // SEINE_SERVICE_CONFIG_FLEET_SETTINGS_H_
