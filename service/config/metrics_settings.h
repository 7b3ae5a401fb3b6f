// The settings of section metrics: a part of the table in config.h.
#ifndef SEINE_SERVICE_CONFIG_METRICS_SETTINGS_H_
#define SEINE_SERVICE_CONFIG_METRICS_SETTINGS_H_

#include <vector>

#include "service/config/config.h"

namespace seine {

std::vector<Setting> MetricsSettings();

}  // namespace seine

#endif  // SEINE_SERVICE_CONFIG_METRICS_SETTINGS_H_
