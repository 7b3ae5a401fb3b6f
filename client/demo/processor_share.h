// How much of the processors is left by what else the machine does: beside other load a long step is interrupted and a
// short one is not, so that times mislead.
#ifndef SEINE_CLIENT_DEMO_PROCESSOR_SHARE_H_
#define SEINE_CLIENT_DEMO_PROCESSOR_SHARE_H_

namespace seine::demo {

// Lets `threads` threads compute for some 40 ms each, and returns the share of the time that they ran, in (0, 1]. About
// 1: nothing else wants the processors of this machine, and no quota holds them back.
double MeasureProcessorShare(int threads);

}  // namespace seine::demo

#endif  // SEINE_CLIENT_DEMO_PROCESSOR_SHARE_H_
