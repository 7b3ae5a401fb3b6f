// What a credential allows. Each role may do what those before it may.
#ifndef SEINE_SERVICE_ACCESS_ROLE_H_
#define SEINE_SERVICE_ACCESS_ROLE_H_

#include <cstdint>

namespace seine {

enum class Role : uint8_t {
  kNone,    // no call at all
  kReader,  // asks: retrieves, attends, gathers, describes, scores
  kWriter,  // changes sequences: makes, appends, forks, evicts, deletes
  kAdmin,   // makes and deletes indexes
};

inline const char* NameOf(Role role) {
  static constexpr const char* kNames[] = {"none", "reader", "writer", "admin"};
  return kNames[static_cast<int>(role)];
}

}  // namespace seine

#endif  // SEINE_SERVICE_ACCESS_ROLE_H_
