// Names of threads: what `top -H` and a debugger show of a thread, by what it does.
#ifndef SEINE_KERNELS_THREAD_NAME_H_
#define SEINE_KERNELS_THREAD_NAME_H_

#include <pthread.h>

namespace seine {

// Names this thread, in at most 15 bytes: the system refuses more, and the thread keeps its name. A new thread has the
// name of the one that starts it.
inline void NameThread(const char* name) { pthread_setname_np(pthread_self(), name); }

}  // namespace seine

#endif  // SEINE_KERNELS_THREAD_NAME_H_
