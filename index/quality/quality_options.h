// Settings of live quality (monitor.h).
#ifndef SEINE_INDEX_QUALITY_QUALITY_OPTIONS_H_
#define SEINE_INDEX_QUALITY_QUALITY_OPTIONS_H_

namespace seine {

struct QualityOptions {
  double sample = 0;   // share of the retrieved items, in [0, 1]; 0: none
  double share = .02;  // of one core that comparisons, gates' too, may take, in (0, 1]
};

}  // namespace seine

#endif  // SEINE_INDEX_QUALITY_QUALITY_OPTIONS_H_
